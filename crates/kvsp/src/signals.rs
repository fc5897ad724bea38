//! When to stop.

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// Ask the kernel to stop this process with its parent, so that no service outlives the demo that began it.
pub(crate) fn die_with_parent(wanted: bool) -> std::io::Result<()> {
    if wanted {
        nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
    }
    Ok(())
}

/// SIGTERM and SIGINT. From the making of this on they no longer end the process at once, so it is made
/// before anybody is told that there is something to stop.
pub(crate) struct StopSignals {
    term: unix::Signal,
    int: unix::Signal,
}

impl StopSignals {
    /// Catch them, within a runtime.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// Wait for one.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}
