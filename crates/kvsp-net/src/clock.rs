//! The monotonic clock as a value, so that tests can turn it, and the boot-time clock that outlives a process.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvsp_core::time::Time;
use uuid::Uuid;

/// A monotonic clock. Expiry and leases are judged by it alone (profile section 6).
pub trait Clock: Send + Sync + 'static {
    /// The present.
    fn now(&self) -> Time;

    /// The present by the machine's boot-time clock; `None` where it has none.
    fn boot_time(&self) -> Option<BootTime> {
        None
    }
}

/// A point on the machine's boot-time clock, which goes on between two processes and while the machine
/// sleeps: what is written down is dated by it (profile section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootTime {
    /// Names the boot: points of different boots cannot be compared.
    pub boot: Uuid,
    /// The time since that boot.
    pub since: Time,
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

    fn boot_time(&self) -> Option<BootTime> {
        static BOOT: LazyLock<Option<Uuid>> = LazyLock::new(boot_id);
        Some(BootTime { boot: (*BOOT)?, since: since_boot()? })
    }
}

#[cfg(target_os = "linux")]
fn boot_id() -> Option<Uuid> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().parse().ok()
}

#[cfg(target_os = "linux")]
fn since_boot() -> Option<Time> {
    let since = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).ok()?;
    Some(Time::default() + Duration::from(since))
}

#[cfg(not(target_os = "linux"))]
fn boot_id() -> Option<Uuid> {
    None
}

#[cfg(not(target_os = "linux"))]
fn since_boot() -> Option<Time> {
    None
}

/// A clock that stands until it is advanced.
#[derive(Debug, Default)]
pub struct ManualClock {
    micros: AtomicU64,
    /// The boot, and how long after it the clock's 0 is.
    boot: Option<(Uuid, Duration)>,
}

impl ManualClock {
    /// A clock that stands at `start`.
    #[must_use]
    pub const fn new(start: Time) -> Self {
        Self { micros: AtomicU64::new(start.as_micros()), boot: None }
    }

    /// A clock that stands at 0, `since` after the boot `boot` of its machine.
    #[must_use]
    pub const fn booted(boot: Uuid, since: Duration) -> Self {
        Self { micros: AtomicU64::new(0), boot: Some((boot, since)) }
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

    fn boot_time(&self) -> Option<BootTime> {
        self.boot.map(|(boot, since)| BootTime { boot, since: self.now() + since })
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
    fn the_boot_time_goes_on_from_one_clock_to_the_next() {
        let (first, second) = (SystemClock::new().boot_time(), SystemClock::new().boot_time());
        if let (Some(first), Some(second)) = (first, second) {
            assert_eq!(first.boot, second.boot);
            assert!(Time::default() < first.since && first.since <= second.since);
        }
        let boot = Uuid::from_u128(7);
        let clock = ManualClock::booted(boot, Duration::from_secs(60));
        clock.advance(Duration::from_secs(2));
        assert_eq!(clock.now(), Time::from_millis(2_000));
        assert_eq!(clock.boot_time(), Some(BootTime { boot, since: Time::from_millis(62_000) }));
        assert_eq!(ManualClock::default().boot_time(), None);
    }

    #[test]
    fn the_system_clock_never_goes_back() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(clock.now() >= first);
    }
}
