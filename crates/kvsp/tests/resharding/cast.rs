//! Index, holder, controller, instances each behind a relay, and a gateway, any of which can be killed and started
//! again in its place.

use std::path::Path;
use std::sync::Arc;

use kvsp_proto::uri::BaseUri;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::relay::{Plan, Relay};
use crate::stream::{Sampling, Stream, changed, question};
use crate::support::{Process, eventually, get};

/// TTL of an instance's status in ms, long enough for a busy machine.
pub(crate) const TTL_MS: u64 = 1500;
/// ms that a change of a map may take.
pub(crate) const DEADLINE_MS: u64 = 3000;
/// Prompts from so many tokens on are split.
pub(crate) const MIN_TOKENS: u64 = 500;
/// Output tokens of an answer.
pub(crate) const OUTPUT: u64 = 320;

/// A number from the environment.
pub(crate) fn count(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

/// An instance and everybody's way to it.
pub(crate) struct Instance {
    pub(crate) process: Process,
    pub(crate) relay: Relay,
}

impl Instance {
    /// The URI under which everybody knows it.
    pub(crate) fn base(&self) -> BaseUri {
        self.relay.base.parse().unwrap()
    }
}

/// What differs from suite to suite.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Instances from the start.
    pub(crate) instances: usize,
    /// Lines of the controller's table.
    pub(crate) controller: String,
    /// Lines of the instances' table.
    pub(crate) instance: String,
}

impl Settings {
    /// Three instances to be, over which a long prompt is split, and stays so.
    pub(crate) fn split(instances: usize) -> Self {
        Self::split_to(instances, 3)
    }

    /// The same, with fewer members once the prompt is computed.
    pub(crate) fn split_to(instances: usize, members: usize) -> Self {
        let controller = format!(
            "[controller.groups]\nmin_tokens = {MIN_TOKENS}\nmax_members = 3\ndecode_members = {members}\n\
             deadline_ms = {DEADLINE_MS}\n"
        );
        Self { instances, controller, instance: String::new() }
    }

    fn file(&self) -> String {
        let Self { instance, controller, .. } = self;
        format!("[instance]\nstatus_ttl_ms = {TTL_MS}\nequal_hardware = true\n{instance}\n{controller}")
    }
}

pub(crate) struct Cast {
    pub(crate) index: Process,
    pub(crate) holder: Process,
    pub(crate) controller: Process,
    pub(crate) instances: Vec<Instance>,
    pub(crate) gateway: Process,
    pub(crate) plan: Arc<Plan>,
    key: String,
    config: String,
    /// After what it holds the files of.
    dir: TempDir,
}

impl Cast {
    pub(crate) async fn start(settings: &Settings) -> Self {
        let dir = TempDir::new().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let key = file("scope.key", &[7; 32]);
        let config = file("kvsp.toml", settings.file().as_bytes());
        let any = "127.0.0.1:0";
        let index = Process::serve(dir.path(), &["index", "--listen", any]);
        let holder =
            Process::serve(dir.path(), &["holder", "--listen", any, "--index", index.base().as_str()]);
        let controller = serve_controller(dir.path(), any, &index, &config);
        let to_controller = controller.base();
        let args = ["--model", "tiny", "--scope-key", &key, "--controller", to_controller.as_str()];
        let gateway = Process::serve(dir.path(), &[&["gateway", "--listen", any], &args[..]].concat());
        let plan = Arc::<Plan>::default();
        plan.controller_is(controller.id());
        let mut cast =
            Self { index, holder, controller, instances: Vec::new(), gateway, plan, key, config, dir };
        for _ in 0..settings.instances {
            cast.add_instance();
        }
        cast.all_active().await;
        cast
    }

    /// Starts one more instance.
    pub(crate) fn add_instance(&mut self) {
        let relay = Relay::start(&self.plan);
        let process = self.serve_instance(&relay);
        self.instances.push(Instance { process, relay });
    }

    fn serve_instance(&self, relay: &Relay) -> Process {
        let listen = relay.member.to_string();
        let args = self.instance_args();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let own = ["instance", "--listen", &listen, "--advertise", &relay.base];
        let process = Process::serve(self.dir.path(), &[&own, &args[..]].concat());
        relay.belongs_to(process.id());
        process
    }

    /// What every instance is started with, beside its own address.
    pub(crate) fn instance_args(&self) -> Vec<String> {
        let (index, holder, controller) = (self.index.base(), self.holder.base(), self.controller.base());
        let args = ["--config", &self.config, "--model", "tiny", "--scope-key", &self.key];
        let to =
            ["--index", index.as_str(), "--holder", holder.as_str(), "--controller", controller.as_str()];
        args.iter().chain(&to).map(|arg| (*arg).to_owned()).collect()
    }

    /// Whoever is started from now on reads these settings.
    #[allow(dead_code, reason = "each suite uses its part")]
    pub(crate) fn reconfigure(&self, settings: &Settings) {
        std::fs::write(&self.config, settings.file()).unwrap();
    }

    /// An instance that was killed, started again under the same URI.
    pub(crate) fn revive(&mut self, at: usize) {
        // It may have been killed by a relay, and not be known to be dead.
        self.instances[at].process.kill();
        let process = self.serve_instance(&self.instances[at].relay);
        self.instances[at].process = process;
    }

    /// The controller in the place of one that was killed, with what that one kept.
    pub(crate) fn revive_controller(&mut self) {
        self.controller.kill();
        let listen = self.controller.authority();
        self.controller = serve_controller(self.dir.path(), &listen, &self.index, &self.config);
        self.plan.controller_is(self.controller.id());
    }

    /// Waits until all instances take requests.
    pub(crate) async fn all_active(&self) {
        eventually("all instances active", async || {
            let list = get(&self.controller.base(), "instances").await.ok();
            let list = list["instances"].as_array().unwrap();
            let active = |base: &BaseUri| {
                list.iter().any(|view| view["instance"] == base.as_str() && view["state"] == "active")
            };
            self.instances.iter().all(|instance| active(&instance.base())).then_some(())
        })
        .await;
    }

    /// The controller's view of a session.
    pub(crate) async fn session(&self, session: &str) -> Value {
        get(&self.controller.base(), &format!("sessions/{session}")).await.ok()
    }

    /// Which of the instances serves a session.
    pub(crate) async fn serving(&self, session: &str) -> usize {
        let view = self.session(session).await;
        let serves = |instance: &Instance| view["instance"] == instance.base().as_str();
        self.instances.iter().position(serves).unwrap_or_else(|| panic!("nobody: {view}"))
    }

    pub(crate) async fn ask(&self, question: &Value) -> Stream {
        Stream::ask(&self.gateway.base(), question).await
    }
}

/// A question whose prompt is long enough to be split.
pub(crate) fn long_question(sampling: Sampling) -> Value {
    let prompt =
        "A map says who holds which positions of a context, and a change of it moves what must move. ";
    let prompt = prompt.repeat(MIN_TOKENS as usize / prompt.len() + 1);
    // Of the best few every token is a printable character, so a text tells its tokens.
    changed(question(sampling), &json!({"prompt": prompt, "max_tokens": OUTPUT, "top_k": 12}))
}

fn serve_controller(dir: &Path, listen: &str, index: &Process, config: &str) -> Process {
    let state = dir.join("state");
    let index = index.base();
    let args = [
        "controller",
        "--listen",
        listen,
        "--config",
        config,
        "--state",
        state.to_str().unwrap(),
        "--index",
        index.as_str(),
    ];
    Process::serve(dir, &args)
}
