//! How fast the index is told things: back-off while it is away, and the rate at which much is told again.

use kvsp_core::time::Time;

/// Records a second with which telling it all again begins.
const FIRST_RATE: u64 = 100;

/// Records a second at most, and at least: what an index is slow with still gets through.
const MAX_RATE: u64 = 5_000;
const MIN_RATE: u64 = 10;

/// ms of records in one batch at the present rate, and the fewest records: a batch costs something too.
const BATCH_MS: u64 = 100;
const MIN_BATCH: u64 = 50;

/// An answer that takes this much longer than four of the quickest ones is slow, in ms.
const SLOW_MS: u64 = 50;

/// ms within which telling it all again begins by chance, so that holders that lost the same index do not
/// begin together.
const START_WINDOW_MS: u64 = 2_000;

/// How publishing is paced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Shortest wait after a failure, in ms.
    pub(crate) min_backoff_ms: u64,
    /// Longest wait after a failure of the index, in ms.
    pub(crate) max_backoff_ms: u64,
    /// Longest wait after the refusal of one record, in ms.
    pub(crate) max_refusal_ms: u64,
    /// Withdrawals that may wait for the index before all is withdrawn at once instead.
    pub(crate) max_withdrawals: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { min_backoff_ms: 100, max_backoff_ms: 5_000, max_refusal_ms: 60_000, max_withdrawals: 65_536 }
    }
}

impl Pace {
    /// Twice as long after each failure, and up to half less by chance.
    pub(super) fn backoff(&self, failures: u32, jitter: u64) -> u64 {
        shortened(self.doubled(failures).min(self.max_backoff_ms), jitter)
    }

    /// The same for a record that is refused while the index answers.
    pub(super) fn refusal(&self, refusals: u32, jitter: u64) -> u64 {
        shortened(self.doubled(refusals).min(self.max_refusal_ms), jitter)
    }

    fn doubled(&self, failures: u32) -> u64 {
        self.min_backoff_ms.saturating_mul(1 << failures.saturating_sub(1).min(20))
    }
}

/// `wait` or up to half less.
fn shortened(wait: u64, jitter: u64) -> u64 {
    wait - jitter % (wait / 2).max(1)
}

/// The rate at which records are told again after a loss or an outage.
///
/// It begins low, rises by a quarter while the index answers quickly, and halves where it is slow or sheds load. A
/// holder that is alone is done in seconds; a thousand of them share what the index can take.
#[derive(Debug)]
pub(super) struct Pacer {
    /// Records a second.
    rate: u64,
    /// The least rate, by which everything is told again well before it would expire.
    floor: u64,
    /// When the next records may go.
    next: Time,
    /// The quickest answer so far, in ms.
    quickest_ms: u64,
}

impl Pacer {
    pub(super) fn new() -> Self {
        Self { rate: FIRST_RATE, floor: MIN_RATE, next: Time::default(), quickest_ms: u64::MAX }
    }

    /// `records` with a time to live of `ttl_ms` are to be told again, from now on or, where `after_loss`,
    /// from a moment by chance.
    pub(super) fn begin(&mut self, records: usize, ttl_ms: u64, after_loss: bool, now: Time, jitter: u64) {
        let within = (ttl_ms / 6).max(1);
        let least = (records as u64).saturating_mul(1000) / within;
        self.floor = least.clamp(MIN_RATE, MAX_RATE);
        self.rate = FIRST_RATE.max(self.floor);
        self.next = if after_loss { now.after_millis(jitter % START_WINDOW_MS) } else { now };
    }

    pub(super) const fn next(&self) -> Time {
        self.next
    }

    /// Records that may go now.
    pub(super) fn allowance(&self, now: Time) -> usize {
        if now < self.next {
            return 0;
        }
        usize::try_from((self.rate * BATCH_MS / 1000).max(MIN_BATCH)).unwrap_or(usize::MAX)
    }

    /// `records` went.
    pub(super) fn sent(&mut self, records: usize, now: Time) {
        self.next = now.after_millis((records as u64).saturating_mul(1000) / self.rate.max(1));
    }

    /// The index answered after `took_ms`.
    pub(super) fn answered(&mut self, took_ms: u64) {
        let slow = took_ms > SLOW_MS.saturating_add(self.quickest_ms.saturating_mul(4));
        self.quickest_ms = self.quickest_ms.min(took_ms);
        if slow {
            self.slow_down();
        } else {
            self.rate = (self.rate + self.rate / 4).max(self.rate + 1).min(MAX_RATE);
        }
    }

    /// The index sheds load, or does not answer.
    pub(super) fn slow_down(&mut self) {
        self.rate = (self.rate / 2).max(self.floor);
    }
}
