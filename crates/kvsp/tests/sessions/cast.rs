//! Index, holder, controller, instances behind relays, and a gateway, any of which can be killed and started
//! again in its place.

use std::path::Path;
use std::sync::Arc;

use kvsp_proto::uri::BaseUri;
use serde_json::Value;
use tempfile::TempDir;

use crate::relay::{Plan, Relay};
use crate::stream::{Event, Sampling, Stream, question};
use crate::support::{Process, eventually, get};

/// TTL of an instance's status in ms, long enough for a busy machine.
pub(crate) const TTL_MS: u64 = 1500;

/// A number from the environment.
pub(crate) fn count(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

/// An instance and its way to the controller.
pub(crate) struct Instance {
    pub(crate) process: Process,
    pub(crate) relay: Relay,
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
    /// Two instances whose status has the TTL [`TTL_MS`].
    pub(crate) async fn start() -> Self {
        Self::with_ttl(TTL_MS).await
    }

    pub(crate) async fn with_ttl(ttl_ms: u64) -> Self {
        let dir = TempDir::new().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let key = file("scope.key", &[7; 32]);
        let text = format!("[instance]\nstatus_ttl_ms = {ttl_ms}\nequal_hardware = true\n");
        let config = file("kvsp.toml", text.as_bytes());
        let any = "127.0.0.1:0";
        let index = Process::serve(dir.path(), &["index", "--listen", any]);
        let holder = serve_holder(dir.path(), any, &index);
        let controller = serve_controller(dir.path(), any, &index);
        let gateway = serve_gateway(dir.path(), any, &controller, &key);
        let plan = Arc::<Plan>::default();
        let mut cast =
            Self { index, holder, controller, instances: Vec::new(), gateway, plan, key, config, dir };
        for _ in 0..2 {
            let instance = cast.serve_instance(any);
            cast.instances.push(instance);
        }
        cast.two_active().await;
        cast
    }

    fn serve_instance(&self, listen: &str) -> Instance {
        let relay = Relay::start(&self.controller.authority(), &self.plan);
        let (index, holder) = (self.index.base(), self.holder.base());
        let args = [
            "instance",
            "--listen",
            listen,
            "--config",
            &self.config,
            "--model",
            "tiny",
            "--scope-key",
            &self.key,
            "--index",
            index.as_str(),
            "--holder",
            holder.as_str(),
            "--controller",
            &relay.base,
        ];
        let process = Process::serve(self.dir.path(), &args);
        relay.belongs_to(process.id());
        Instance { process, relay }
    }

    /// Starts an instance that was killed again, under the same URI.
    pub(crate) async fn revive(&mut self, at: usize) {
        // It may have been killed by its relay, and not be known to be dead.
        self.instances[at].process.kill();
        let listen = self.instances[at].process.authority();
        self.instances[at] = self.serve_instance(&listen);
        self.two_active().await;
    }

    /// The same at once, while an answer goes on.
    pub(crate) fn revive_quietly(&mut self, at: usize) {
        let listen = self.instances[at].process.authority();
        self.instances[at] = self.serve_instance(&listen);
    }

    /// The controller in the place of one that was killed, with what that one kept.
    pub(crate) fn revive_controller(&mut self) {
        let listen = self.controller.authority();
        self.controller = serve_controller(self.dir.path(), &listen, &self.index);
    }

    pub(crate) fn revive_gateway(&mut self) {
        let listen = self.gateway.authority();
        self.gateway = serve_gateway(self.dir.path(), &listen, &self.controller, &self.key);
    }

    /// Index and holder in their places, empty.
    pub(crate) fn empty(&mut self) {
        let (index, holder) = (self.index.authority(), self.holder.authority());
        self.holder.kill();
        self.index.kill();
        self.index = Process::serve(self.dir.path(), &["index", "--listen", &index]);
        self.holder = serve_holder(self.dir.path(), &holder, &self.index);
    }

    /// Waits until both instances take requests.
    pub(crate) async fn two_active(&self) {
        let controller = self.controller.base();
        let bases: Vec<BaseUri> = self.instances.iter().map(|instance| instance.process.base()).collect();
        eventually("two active instances", async || {
            let list = get(&controller, "instances").await.ok();
            let active =
                |base: &BaseUri| {
                    list["instances"].as_array().unwrap().iter().any(|instance| {
                        instance["instance"] == base.as_str() && instance["state"] == "active"
                    })
                };
            bases.iter().all(active).then_some(())
        })
        .await;
    }

    /// The controller's view of a session.
    pub(crate) async fn session(&self, session: &str) -> Value {
        get(&self.controller.base(), &format!("sessions/{session}")).await.ok()
    }

    /// How often another instance, or another incarnation, went on with a session.
    pub(crate) async fn moves(&self, session: &str) -> u64 {
        self.session(session).await["epoch"].as_u64().unwrap() - 1
    }

    /// Which of the instances serves a session.
    pub(crate) async fn serving(&self, session: &str) -> usize {
        let view = self.session(session).await;
        let serves = |instance: &Instance| view["instance"] == instance.process.base().as_str();
        self.instances.iter().position(serves).unwrap_or_else(|| panic!("nobody: {view}"))
    }

    pub(crate) async fn ask(&self, sampling: Sampling) -> Stream {
        self.ask_for(&question(sampling)).await
    }

    pub(crate) async fn ask_for(&self, question: &Value) -> Stream {
        Stream::ask(&self.gateway.base(), question).await
    }

    /// The answer that nothing interrupts, and the same one begun again and read as far as its 30th token, with the
    /// name of its session.
    pub(crate) async fn begin(&self, sampling: Sampling) -> (Vec<Event>, Stream, String) {
        let whole = self.whole(sampling).await;
        let mut stream = self.ask(sampling).await;
        let session = stream.session();
        stream.until(30).await;
        (whole, stream, session)
    }

    /// The answer that nothing interrupts.
    pub(crate) async fn whole(&self, sampling: Sampling) -> Vec<Event> {
        self.plan.arm(None);
        let whole = self.ask(sampling).await.whole().await;
        assert!(whole.len() > 20, "the answer is too short to be interrupted: {whole:?}");
        whole
    }
}

fn serve_holder(dir: &Path, listen: &str, index: &Process) -> Process {
    Process::serve(dir, &["holder", "--listen", listen, "--index", index.base().as_str()])
}

fn serve_controller(dir: &Path, listen: &str, index: &Process) -> Process {
    let state = dir.join("state");
    let index = index.base();
    let args =
        ["controller", "--listen", listen, "--state", state.to_str().unwrap(), "--index", index.as_str()];
    Process::serve(dir, &args)
}

fn serve_gateway(dir: &Path, listen: &str, controller: &Process, key: &str) -> Process {
    let controller = controller.base();
    let to = ["--model", "tiny", "--scope-key", key, "--controller", controller.as_str()];
    Process::serve(dir, &[&["gateway", "--listen", listen], &to[..]].concat())
}
