//! The monotonic clock as a value, so that tests can turn it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvsp_core::time::Time;

/// A monotonic clock. Expiry and leases are judged by it alone (profile section 6).
pub trait Clock: Send + Sync + 'static {
    /// The present.
    fn now(&self) -> Time;
}

/// The machine's monotonic clock, starting at 0 with this value.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Time {
        Time::default() + self.start.elapsed()
    }
}

/// A clock that stands until it is advanced.
#[derive(Debug, Default)]
pub struct ManualClock {
    micros: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at `start`.
    #[must_use]
    pub const fn new(start: Time) -> Self {
        Self { micros: AtomicU64::new(start.as_micros()) }
    }

    /// Moves the clock forward; it never wraps.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        // The closure always answers `Some`, so the update cannot fail.
        let _ =
            self.micros.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| Some(now.saturating_add(by)));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        Time::from_micros(self.micros.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_stands_until_advanced() {
        let clock = ManualClock::new(Time::from_millis(5));
        assert_eq!(clock.now(), Time::from_millis(5));
        clock.advance(Duration::from_millis(7));
        assert_eq!(clock.now(), Time::from_millis(12));
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Time::from_micros(u64::MAX));
    }

    #[test]
    fn the_system_clock_never_goes_back() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(clock.now() >= first);
    }
}
