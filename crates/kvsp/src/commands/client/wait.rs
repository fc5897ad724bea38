//! Commands that wait until what they ordered has happened.

use std::time::Duration;

use tokio::time::Instant;

/// How long is looked away between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Longest wait, in ms: a week.
const MAX_WAIT_MS: u64 = 7 * 24 * 3600 * 1000;

/// Whether a command waits.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct WaitArgs {
    /// Wait until it has happened.
    #[arg(long)]
    wait: bool,
    /// Wait so long at most, in ms.
    #[arg(long, value_name = "MS", default_value_t = 600_000)]
    wait_ms: u64,
}

impl WaitArgs {
    /// How long to wait from now on; `None`: not at all.
    pub(super) fn patience(self) -> Option<Patience> {
        let most = Duration::from_millis(self.wait_ms.min(MAX_WAIT_MS));
        self.wait.then(|| Patience { until: Instant::now() + most })
    }
}

/// A bounded wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    until: Instant,
}

impl Patience {
    /// Looks away for a moment; `false` once the time is over.
    pub(super) async fn pause(self) -> bool {
        let now = Instant::now();
        if now >= self.until {
            return false;
        }
        tokio::time::sleep_until(self.until.min(now + LOOK_EVERY)).await;
        true
    }
}
