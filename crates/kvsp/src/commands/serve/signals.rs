//! When to stop.

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

/// Ask the kernel to stop this process with its parent, so that no service outlives the demo that began it.
pub(super) fn die_with_parent(wanted: bool) -> std::io::Result<()> {
    if wanted {
        nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
    }
    Ok(())
}

/// Wait for SIGTERM or SIGINT.
pub(super) async fn stop_asked() -> std::io::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Ok(())
}
