//! A fleet of real processes, and the command line beside it.

use std::path::{Path, PathBuf};

use kvsp_proto::uri::BaseUri;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Process, eventually, get, run};

const ANY: &str = "127.0.0.1:0";

/// Index, holder, controller, instances and gateway.
pub(crate) struct Cast {
    pub(crate) controller: Process,
    pub(crate) instances: Vec<Process>,
    pub(crate) gateway: Process,
    /// The file of the scope's key.
    pub(crate) key: String,
    _index: Process,
    _holder: Process,
    /// After those whose files it holds.
    _dir: TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: Option<i32>,
    /// What stdout says as JSON, where it is that.
    pub(crate) json: Value,
    pub(crate) text: String,
    pub(crate) stderr: String,
}

impl Cast {
    /// So many instances that answer alike, started with these flags; the controller with those.
    pub(crate) async fn start(count: usize, instance: &[&str], controller: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        let key = write(dir.path(), "scope.key", &[7; 32]);
        let config = "[instance]\nstatus_ttl_ms = 900\nequal_hardware = true\n";
        let config = write(dir.path(), "kvsp.toml", config.as_bytes());
        let path = |path: &PathBuf| path.to_str().unwrap().to_owned();
        let serve = |args: &[&str]| Process::serve(dir.path(), args);
        let index = serve(&["index", "--listen", ANY]);
        let index_uri = index.base();
        let holder = serve(&["holder", "--listen", ANY, "--index", index_uri.as_str()]);
        let holder_uri = holder.base();
        let controller =
            serve(&[&["controller", "--listen", ANY, "--index", index_uri.as_str()], controller].concat());
        let (at, key, config) = (controller.base(), path(&key), path(&config));
        let model = ["--model", "tiny", "--scope-key", &key, "--controller", at.as_str()];
        let peers = ["--index", index_uri.as_str(), "--holder", holder_uri.as_str(), "--config", &config];
        let one = [&["instance", "--listen", ANY], &model[..], &peers[..], instance].concat();
        let instances: Vec<Process> = (0..count).map(|_| serve(&one)).collect();
        let gateway = serve(&[&["gateway", "--listen", ANY], &model[..]].concat());
        let cast = Self { controller, instances, gateway, key, _index: index, _holder: holder, _dir: dir };
        for at in 0..count {
            cast.is(at, "active").await;
        }
        cast
    }

    pub(crate) fn uri(&self, at: usize) -> BaseUri {
        self.instances[at].base()
    }

    /// Runs `kvsp` with these arguments at this controller, with `--json`.
    pub(crate) fn kvsp(&self, args: &[&str]) -> Outcome {
        let controller = self.controller.base();
        outcome(&[args, &["--controller", controller.as_str(), "--json"]].concat())
    }

    /// The same beside the test.
    pub(crate) fn kvsp_beside(&self, args: &[&str]) -> tokio::task::JoinHandle<Outcome> {
        let controller = self.controller.base();
        let at = ["--controller", controller.as_str(), "--json"];
        let args: Vec<String> = args.iter().chain(&at).map(|&arg| arg.to_owned()).collect();
        tokio::task::spawn_blocking(move || outcome(&args.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    /// The controller's view of an instance.
    pub(crate) async fn view(&self, at: usize) -> Value {
        let list = get(&self.controller.base(), "instances").await.ok();
        let uri = self.uri(at);
        let views = list["instances"].as_array().unwrap();
        views.iter().find(|view| view["instance"] == uri.as_str()).cloned().unwrap_or(Value::Null)
    }

    /// Waits until the controller sees an instance in a state.
    pub(crate) async fn is(&self, at: usize, state: &str) {
        eventually(state, async || (self.view(at).await["state"] == state).then_some(())).await;
    }

    pub(crate) async fn session(&self, session: &str) -> Value {
        get(&self.controller.base(), &format!("sessions/{session}")).await.ok()
    }

    /// Which of the instances serves a session.
    pub(crate) async fn serving(&self, session: &str) -> usize {
        let view = self.session(session).await;
        let serves = |instance: &Process| view["instance"] == instance.base().as_str();
        self.instances.iter().position(serves).unwrap_or_else(|| panic!("nobody: {view}"))
    }
}

/// Runs `kvsp` to its end.
pub(crate) fn outcome(args: &[&str]) -> Outcome {
    let output = run(args);
    let text = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    let json = serde_json::from_str(&text).unwrap_or_default();
    Outcome { status: output.status.code(), json, text, stderr }
}

fn write(dir: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    path
}
