//! Monotonic time as a plain number.

use std::ops::Add;
use std::time::Duration;

/// A point on a monotonic clock: µs since a start that only its owner knows. Never a wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The point `micros` µs after the clock's start.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The point `millis` ms after the clock's start.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1000))
    }

    /// µs since the clock's start.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The point `millis` ms later; never wraps.
    #[must_use]
    pub const fn after_millis(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis.saturating_mul(1000)))
    }

    /// What remains until `later`, in whole ms rounded down; 0 once it has passed.
    #[must_use]
    pub const fn millis_until(self, later: Self) -> u64 {
        later.0.saturating_sub(self.0) / 1000
    }

    /// How long after `earlier` this is; zero where it is before.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_wraps() {
        let end = Time::from_micros(u64::MAX);
        assert_eq!(end.after_millis(5), end);
        assert_eq!(end + Duration::MAX, end);
        assert_eq!(Time::from_millis(2).millis_until(Time::from_micros(4999)), 2);
        assert_eq!(end.millis_until(Time::default()), 0);
    }
}
