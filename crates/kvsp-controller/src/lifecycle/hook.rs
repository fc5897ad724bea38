//! The start hook: a program of the operator's that starts an instance.

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use kvsp_core::instances::StartId;
use kvsp_proto::id::CompatId;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::metrics::Start;
use crate::service::ControllerService;

/// Octets of what a hook writes that go to the log, of each of its two streams; the rest is read and dropped.
const LOGGED_OCTETS: usize = 16 << 10;

/// How long what a hook wrote last is read after its end: a child of its own may hold the stream open for ever.
const LAST_WORDS: Duration = Duration::from_millis(500);

impl ControllerService {
    /// Runs the hook for one start. It outlives the controller: an instance that it has become serves on.
    pub(super) fn start(self: &Arc<Self>, start: StartId, compat: CompatId) {
        let service = Arc::clone(self);
        self.sessions.spawn(async move {
            let Some(child) = service.spawn_hook(compat) else {
                service.start_failed(start);
                return;
            };
            service.metrics.started(Start::Begun);
            match service.wait_for(child).await {
                Some(status) if status.success() => tracing::info!(%compat, "the start hook has ended"),
                Some(status) => {
                    tracing::warn!(%compat, %status, "the start hook failed");
                    service.start_failed(start);
                }
                None => {}
            }
        });
    }

    fn spawn_hook(&self, compat: CompatId) -> Option<Child> {
        let (program, arguments) = self.config.start.command.split_first()?;
        let mut command = Command::new(program);
        // What configures this controller would configure an instance wrongly.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"KVSP_"))
        {
            command.env_remove(name);
        }
        command
            .args(arguments)
            .env("KVSP_COMPAT_ID", compat.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(base) = self.lifecycle.base.get() {
            command.env("KVSP_CONTROLLER", base.as_str());
        }
        match command.spawn() {
            Ok(child) => {
                tracing::info!(%compat, program, pid = child.id(), "starting an instance");
                Some(child)
            }
            Err(error) => {
                tracing::warn!(%compat, program, %error, "the start hook cannot be run");
                None
            }
        }
    }

    /// Waits for the hook's end; `None` where the controller's comes first.
    async fn wait_for(&self, mut child: Child) -> Option<ExitStatus> {
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut readers = JoinSet::new();
        readers.spawn(log("stdout", stdout));
        readers.spawn(log("stderr", stderr));
        match self.until_closing(child.wait()).await {
            Some(Ok(status)) => {
                // Dropped then, which ends them.
                drop(tokio::time::timeout(LAST_WORDS, readers.join_all()).await);
                Some(status)
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "the end of the start hook cannot be told");
                None
            }
            None => None,
        }
    }

    /// No instance will come of a start.
    fn start_failed(&self, start: StartId) {
        let now = self.now();
        let awaited = self.lifecycle.growth().starts().is_some_and(|starts| starts.failed(start, now));
        if awaited {
            self.metrics.started(Start::Failed);
            self.lifecycle.changed.notify_waiters();
        }
    }
}

/// Reads a stream to its end and logs its first lines.
async fn log(name: &'static str, stream: Option<impl AsyncRead + Unpin>) {
    let Some(mut stream) = stream else { return };
    let (mut left, mut line) = (LOGGED_OCTETS, Vec::new());
    let mut octets = vec![0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut octets).await {
        let taken = count.min(left);
        left -= taken;
        for octet in octets.get(..taken).unwrap_or_default() {
            match octet {
                b'\n' => say(name, &mut line),
                octet => line.push(*octet),
            }
        }
    }
    say(name, &mut line);
}

fn say(stream: &'static str, line: &mut Vec<u8>) {
    if !line.is_empty() {
        tracing::info!(stream, line = %String::from_utf8_lossy(line).escape_debug(), "the start hook says");
        line.clear();
    }
}
