//! When another instance may be started, and which starts are still to report (draft section 6.4).

use std::collections::BTreeMap;
use std::time::Duration;

use kvsp_proto::id::CompatId;

use crate::time::Time;

/// Bounds of starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartsConfig {
    /// Starts of which no instance has reported yet.
    pub max_starts: usize,
    /// The shortest time from one start, or its failure, to the next.
    pub min_interval: Duration,
    /// Instances that have not failed, and starts that have not reported, together.
    pub max_instances: usize,
    /// A start of which nothing was heard for so long is given up.
    pub report_within: Duration,
}

impl Default for StartsConfig {
    fn default() -> Self {
        Self {
            max_starts: 4,
            min_interval: Duration::from_secs(1),
            max_instances: 16,
            report_within: Duration::from_secs(60),
        }
    }
}

/// Names one start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StartId(u64);

/// Why nothing is started now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The last start, or its failure, was too short a time ago.
    Until(Time),
    /// So many are under way, or live, that one has to report or to end first.
    Full,
}

/// The starts of a controller.
#[derive(Debug, Clone)]
pub struct Starts {
    config: StartsConfig,
    under_way: BTreeMap<StartId, UnderWay>,
    next: u64,
    not_before: Time,
}

/// A start of which no instance has reported yet.
#[derive(Debug, Clone, Copy)]
struct UnderWay {
    compat: CompatId,
    give_up: Time,
}

impl Starts {
    /// None yet.
    #[must_use]
    pub fn new(config: StartsConfig) -> Self {
        Self { config, under_way: BTreeMap::new(), next: 1, not_before: Time::default() }
    }

    /// Whether one may be started now, while `live` instances have not failed.
    ///
    /// # Errors
    /// [`Held`].
    pub fn may_start(&mut self, live: usize, now: Time) -> Result<(), Held> {
        self.under_way.retain(|_, start| start.give_up > now);
        let coming = self.under_way.len();
        if coming >= self.config.max_starts || live.saturating_add(coming) >= self.config.max_instances {
            return Err(Held::Full);
        }
        if now < self.not_before {
            return Err(Held::Until(self.not_before));
        }
        Ok(())
    }

    /// One is started.
    pub fn started(&mut self, compat: CompatId, now: Time) -> StartId {
        let start = StartId(self.next);
        self.next += 1;
        self.not_before = now + self.config.min_interval;
        self.under_way.insert(start, UnderWay { compat, give_up: now + self.config.report_within });
        start
    }

    /// An instance reported for the first time: that ends the oldest start of what it computes.
    pub fn reported(&mut self, computes: impl Fn(CompatId) -> bool) -> Option<StartId> {
        let (&start, _) = self.under_way.iter().find(|(_, start)| computes(start.compat))?;
        self.under_way.remove(&start);
        Some(start)
    }

    /// No instance will come of a start. Whether it was still awaited.
    pub fn failed(&mut self, start: StartId, now: Time) -> bool {
        self.not_before = self.not_before.max(now + self.config.min_interval);
        self.under_way.remove(&start).is_some()
    }

    /// Starts under way for a compatibility.
    #[must_use]
    pub fn under_way(&self, compat: CompatId) -> usize {
        self.under_way.values().filter(|start| start.compat == compat).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: CompatId = CompatId([1; 32]);
    const TWO: CompatId = CompatId([2; 32]);

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    fn starts(max_starts: usize, max_instances: usize) -> Starts {
        let config = StartsConfig { max_starts, max_instances, ..StartsConfig::default() };
        Starts::new(config)
    }

    #[test]
    fn starts_are_apart_also_after_a_failure() {
        let mut starts = starts(9, 9);
        assert_eq!(starts.may_start(0, at(5)), Ok(()));
        let first = starts.started(ONE, at(5));
        assert_eq!(starts.may_start(0, at(6)), Err(Held::Until(at(1_005))));
        assert!(starts.failed(first, at(700)));
        assert_eq!(starts.may_start(0, at(1_005)), Err(Held::Until(at(1_700))), "a failure counts, too");
        assert_eq!(starts.may_start(0, at(1_700)), Ok(()));
        assert!(!starts.failed(first, at(1_700)), "once");
    }

    #[test]
    fn starts_are_few_until_they_report() {
        let mut starts = starts(2, 9);
        let first = starts.started(ONE, at(0));
        starts.started(TWO, at(1_000));
        assert_eq!(starts.may_start(0, at(9_000)), Err(Held::Full));
        assert_eq!(starts.reported(|compat| compat == ONE), Some(first));
        assert_eq!(starts.reported(|compat| compat == ONE), None);
        assert_eq!((starts.under_way(ONE), starts.under_way(TWO)), (0, 1));
        assert_eq!(starts.may_start(1, at(9_000)), Ok(()));
        starts.started(ONE, at(9_000));
        assert_eq!(starts.may_start(1, at(61_000)), Ok(()), "the second was never heard of");
    }

    #[test]
    fn the_fleet_is_bounded_with_what_is_coming() {
        let mut starts = starts(9, 3);
        assert_eq!(starts.may_start(3, at(0)), Err(Held::Full));
        assert_eq!(starts.may_start(2, at(0)), Ok(()));
        starts.started(ONE, at(0));
        assert_eq!(starts.may_start(2, at(2_000)), Err(Held::Full));
        assert_eq!(starts.may_start(1, at(2_000)), Ok(()));
    }
}
