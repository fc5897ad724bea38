//! Services in processes of their own: started, awaited, killed where that is the point, and stopped whatever
//! happens.

mod cast;
mod change;
mod scrape;

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

pub(crate) use cast::{Cast, CastModel, Member};
#[cfg(test)]
pub(crate) use change::token_octets;
pub(crate) use change::{Change, ChangeError, Moved, Watch, change, settled};
pub(crate) use scrape::Scrape;

/// Time for a process to be ready; loading a model from a slow disk takes a while.
const READY: Duration = Duration::from_secs(120);
/// Time for a process to end after SIGTERM.
const STOP: Duration = Duration::from_secs(15);
/// Octets of a log that are shown when a process does not start.
const LOG_TAIL: usize = 2000;

/// Why a service could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FleetError {
    #[error("{what}: {source}")]
    Io { what: &'static str, source: std::io::Error },
    #[error("{name} did not start: {why}\n{log}")]
    Start { name: &'static str, why: String, log: String },
    #[error("no process of the fleet serves {0}")]
    Unknown(BaseUri),
}

impl FleetError {
    fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// One running service.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    pub(crate) base: BaseUri,
    pub(crate) admin: BaseUri,
}

#[derive(Deserialize)]
struct ReadyLine {
    base: BaseUri,
    admin: BaseUri,
}

/// All of them, with their directory.
pub(crate) struct Fleet {
    dir: tempfile::TempDir,
    keep: bool,
    processes: Vec<Process>,
}

impl Fleet {
    /// Nobody yet. `prefix` begins the name of the directory for logs and state, which is kept where `keep` says so.
    pub(crate) fn new(prefix: &str, keep: bool) -> Result<Self, FleetError> {
        let dir = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir()
            .map_err(FleetError::io("a temporary directory"))?;
        Ok(Self { dir, keep, processes: Vec::new() })
    }

    /// A file with a fresh scope key that only this user can read.
    pub(crate) fn scope_key(&self) -> Result<PathBuf, FleetError> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let path = self.dir.path().join("scope.key");
        let key: Vec<u8> = (0..4).flat_map(|_| SystemRandom.u64().to_le_bytes()).collect();
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(&key)).map_err(FleetError::io("the scope key"))?;
        Ok(path)
    }

    /// Start `kvsp serve ARGS` and wait for its ready line.
    pub(crate) async fn start(&mut self, name: &'static str, args: &[&str]) -> Result<&Process, FleetError> {
        let program = std::env::current_exe().map_err(FleetError::io("the path of this program"))?;
        let log = self.dir.path().join(format!("{name}.log"));
        // One name can be started again: the log of a process that was killed is worth keeping.
        let stderr =
            File::options().append(true).create(true).open(&log).map_err(FleetError::io("a log file"))?;
        let failed = |why: String| FleetError::Start { name, why, log: tail(&log) };
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
        self.processes.last().ok_or_else(|| failed("it is not there".into()))
    }

    /// The directory for logs and state.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Sends a signal to the process that serves under this URI, at once.
    pub(crate) fn signal(&self, base: &BaseUri, signal: Signal) -> Result<(), FleetError> {
        let process = self.processes.iter().find(|process| process.base == *base);
        let id = process.and_then(|process| process.child.id()).and_then(|id| i32::try_from(id).ok());
        let id = id.ok_or_else(|| FleetError::Unknown(base.clone()))?;
        kill(Pid::from_raw(id), signal).map_err(|error| FleetError::io("a signal")(error.into()))
    }

    /// Waits for the end of the process that served under this URI, and forgets it.
    pub(crate) async fn bury(&mut self, base: &BaseUri) -> Result<(), FleetError> {
        let at = self.processes.iter().position(|process| process.base == *base);
        let mut process = self.processes.remove(at.ok_or_else(|| FleetError::Unknown(base.clone()))?);
        process.child.wait().await.map(|_| ()).map_err(FleetError::io("the end of a process"))
    }

    /// Stop all processes, the last one first; none survives this.
    pub(crate) async fn stop(mut self) {
        while let Some(mut process) = self.processes.pop() {
            let asked = process.child.id().and_then(|id| i32::try_from(id).ok());
            if let Some(id) = asked {
                // A process that has ended by itself cannot be asked any more, which is as good.
                let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
                // One that was stopped hears it only when it goes on.
                let _ = kill(Pid::from_raw(id), Signal::SIGCONT);
            }
            if tokio::time::timeout(STOP, process.child.wait()).await.is_err() {
                eprintln!("kvsp: {} did not stop and is killed", process.name);
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
