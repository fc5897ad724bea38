//! The processes of the demo: started, awaited, and stopped whatever happens.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kvsp_net::random::{Random as _, SystemRandom};
use kvsp_proto::uri::BaseUri;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::DemoError;

/// Time for a process to be ready; loading a model from a slow disk takes a while.
const READY: Duration = Duration::from_secs(120);
/// Time for a process to end after SIGTERM.
const STOP: Duration = Duration::from_secs(15);
/// Octets of a log that are shown when a process does not start.
const LOG_TAIL: usize = 2000;

/// One running service.
pub(super) struct Process {
    name: &'static str,
    child: Child,
    pub(super) base: BaseUri,
    pub(super) admin: BaseUri,
}

#[derive(Deserialize)]
struct ReadyLine {
    base: BaseUri,
    admin: BaseUri,
}

/// All of them, with their directory.
pub(super) struct Fleet {
    dir: tempfile::TempDir,
    keep: bool,
    processes: Vec<Process>,
}

impl Fleet {
    pub(super) fn new(keep: bool) -> Result<Self, DemoError> {
        let dir = tempfile::Builder::new()
            .prefix("kvsp-demo-")
            .tempdir()
            .map_err(DemoError::io("a temporary directory"))?;
        Ok(Self { dir, keep, processes: Vec::new() })
    }

    /// A file with a fresh scope key that only this user can read.
    pub(super) fn scope_key(&self) -> Result<PathBuf, DemoError> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let path = self.dir.path().join("scope.key");
        let key: Vec<u8> = (0..4).flat_map(|_| SystemRandom.u64().to_le_bytes()).collect();
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(&key)).map_err(DemoError::io("the scope key"))?;
        Ok(path)
    }

    /// Start `kvsp serve ARGS` and wait for its ready line.
    pub(super) async fn start(&mut self, name: &'static str, args: &[&str]) -> Result<&Process, DemoError> {
        let program = std::env::current_exe().map_err(DemoError::io("the path of this program"))?;
        let log = self.dir.path().join(format!("{name}.log"));
        let stderr = File::create(&log).map_err(DemoError::io("a log file"))?;
        let failed = |why: String| DemoError::Start { name: name.to_owned(), why, log: tail(&log) };
        let mut child = Command::new(program)
            .arg("serve")
            .args(args)
            .args(["--json", "--exit-with-parent"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| failed(e.to_string()))?;
        let stdout = child.stdout.take().ok_or_else(|| failed("no standard output".into()))?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(READY, lines.next_line())
            .await
            .map_err(|_| failed("no ready line in time".into()))?
            .map_err(|e| failed(e.to_string()))?
            .ok_or_else(|| failed("it ended first".into()))?;
        let ready: ReadyLine = serde_json::from_str(&line).map_err(|e| failed(e.to_string()))?;
        self.processes.push(Process { name, child, base: ready.base, admin: ready.admin });
        self.processes.last().ok_or(DemoError::Late("the start"))
    }

    /// Stop all processes, the last one first; none survives this.
    pub(super) async fn stop(mut self) {
        while let Some(mut process) = self.processes.pop() {
            let asked = process.child.id().and_then(|id| i32::try_from(id).ok());
            if let Some(id) = asked {
                // A process that has ended by itself cannot be asked any more, which is as good.
                let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
            }
            if tokio::time::timeout(STOP, process.child.wait()).await.is_err() {
                eprintln!("kvsp demo: {} did not stop and is killed", process.name);
                let _ = process.child.kill().await;
            }
        }
        if self.keep {
            eprintln!("logs: {}", self.dir.keep().display());
        }
    }
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let start = text.len().saturating_sub(LOG_TAIL);
    text.char_indices().find(|(at, _)| *at >= start).map_or(String::new(), |(at, _)| text[at..].to_owned())
}
