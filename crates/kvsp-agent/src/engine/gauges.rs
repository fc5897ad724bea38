//! What the engine thread measures, readable at any moment without asking it: a status report is due every
//! third of its TTL, also while the engine is in the middle of a long pass.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Weight of the newest sample in a moving average.
const WEIGHT: f64 = 0.2;

/// A moving average, 0 until the first sample.
#[derive(Debug, Default)]
pub(crate) struct Average(AtomicU64);

impl Average {
    pub(crate) fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    /// Add a sample. One writer only.
    pub(crate) fn add(&self, sample: f64) {
        let old = self.get();
        let new = if old == 0.0 { sample } else { old + WEIGHT * (sample - old) };
        self.0.store(new.to_bits(), Ordering::Relaxed);
    }

    /// Add `tokens` done in `spent` as a rate per second.
    pub(crate) fn add_rate(&self, tokens: usize, spent: Duration) {
        if tokens > 0 && spent > Duration::ZERO {
            self.add(tokens as f64 / spent.as_secs_f64());
        }
    }
}

/// The figures of a status record, and the counters of the metrics.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) running: AtomicU64,
    pub(crate) queued: AtomicU64,
    pub(crate) pages: AtomicU64,
    pub(crate) pages_in_use: AtomicU64,
    /// Pages kept for contexts that are split over instances.
    pub(crate) context_pages: AtomicU64,
    pub(crate) context_tokens_reserved: AtomicU64,
    pub(crate) context_tokens_held: AtomicU64,
    pub(crate) prefill_tokens_per_s: Average,
    pub(crate) decode_tokens_per_s: Average,
    pub(crate) mean_service_us: Average,
    pub(crate) prompt_tokens_computed: AtomicU64,
    pub(crate) prompt_tokens_reused: AtomicU64,
    /// Output tokens of resumed sessions that were computed once more.
    pub(crate) output_tokens_recomputed: AtomicU64,
    pub(crate) tokens_generated: AtomicU64,
    pub(crate) preemptions: AtomicU64,
    pub(crate) prefixes_broken: AtomicU64,
}

impl Gauges {
    pub(crate) fn count(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }

    pub(crate) fn read(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    /// Share of the pool that cannot be had now, 0…1.
    pub(crate) fn kv_utilization(&self) -> f64 {
        let pages = Self::read(&self.pages).max(1);
        (Self::read(&self.pages_in_use) as f64 / pages as f64).clamp(0.0, 1.0)
    }
}
