//! More capacity for placements that found none: sleeping instances first, then starts (draft section 6.4).
//!
//! The rule: what is on its way is enough as long as it computes as many requests at once as placements wait. So one
//! placement, or a few, wake or start one instance and not all; a crowd gets as many as it fills.

use std::collections::BTreeMap;
use std::time::Duration;

use kvsp_proto::id::CompatId;
use kvsp_proto::uri::BaseUri;

use super::start::{Held, StartId, Starts};
use crate::time::Time;

/// How long an instance that did not wake is left alone.
const WAKE_AGAIN: Duration = Duration::from_secs(1);

/// A sleeping instance that could take a placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sleeper {
    /// The instance.
    pub instance: BaseUri,
    /// Requests that it computes at once; 0 where unknown, which counts as any number.
    pub batch_size: u64,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Wake this one, and tell [`Growth::woken`].
    Wake(BaseUri),
    /// Start one, and tell [`Starts::failed`] where none comes of it.
    Start(StartId),
    /// Enough is on its way, or nothing may be done before the time given.
    Wait(Option<Time>),
    /// Nobody can be woken or started.
    Nothing,
}

/// What is on its way to become active.
#[derive(Debug, Clone)]
pub struct Growth {
    /// Instances that are being woken.
    waking: BTreeMap<BaseUri, Time>,
    /// Instances that did not wake, until when they are left alone.
    spared: BTreeMap<BaseUri, Time>,
    /// None where nothing can be started.
    starts: Option<Starts>,
}

impl Growth {
    /// Nothing is on its way; without `starts` nothing is ever started.
    #[must_use]
    pub const fn new(starts: Option<Starts>) -> Self {
        Self { waking: BTreeMap::new(), spared: BTreeMap::new(), starts }
    }

    /// The next step for `waiting` placements of a compatibility. `sleepers` are the sleeping instances that could
    /// take them, the best first; `live` instances have not failed; one that is started is taken to compute
    /// `batch_size` requests at once, 0 where nobody knows.
    pub fn step(
        &mut self,
        compat: CompatId,
        waiting: u64,
        sleepers: &[Sleeper],
        (live, batch_size): (usize, u64),
        now: Time,
    ) -> Step {
        self.spared.retain(|_, until| *until > now);
        let room = |batch_size: u64| if batch_size == 0 { u64::MAX } else { batch_size };
        let waking = sleepers.iter().filter(|sleeper| self.waking.contains_key(&sleeper.instance));
        let woken = waking.map(|sleeper| room(sleeper.batch_size)).fold(0, u64::saturating_add);
        let starting = self.starts.as_ref().map_or(0, |starts| starts.under_way(compat)) as u64;
        let coming = woken.saturating_add(room(batch_size).saturating_mul(starting));
        if coming > 0 && coming >= waiting {
            return Step::Wait(None);
        }
        let asleep = sleepers.iter().map(|sleeper| &sleeper.instance);
        let next = asleep
            .clone()
            .find(|instance| !self.waking.contains_key(instance) && !self.spared.contains_key(instance));
        if let Some(instance) = next {
            self.waking.insert(instance.clone(), now);
            return Step::Wake(instance.clone());
        }
        let again = asleep.filter_map(|instance| self.spared.get(instance)).min().copied();
        let held = match &mut self.starts {
            None => None,
            Some(starts) => match starts.may_start(live, now) {
                Ok(()) => return Step::Start(starts.started(compat, now)),
                Err(Held::Until(time)) => Some(time),
                Err(Held::Full) => None,
            },
        };
        match [held, again.filter(|_| coming > 0 || held.is_some())].into_iter().flatten().min() {
            None if coming == 0 => Step::Nothing,
            until => Step::Wait(until),
        }
    }

    /// An instance was told to wake: whether it did.
    pub fn woken(&mut self, instance: &BaseUri, awake: bool, now: Time) {
        self.waking.remove(instance);
        if !awake {
            self.spared.insert(instance.clone(), now + WAKE_AGAIN);
        }
    }

    /// The starts, where there are any.
    pub const fn starts(&mut self) -> Option<&mut Starts> {
        self.starts.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::super::start::StartsConfig;
    use super::*;

    const COMPAT: CompatId = CompatId([1; 32]);

    fn uri(n: u64) -> BaseUri {
        format!("https://i{n}/").parse().unwrap()
    }

    fn sleepers(batches: &[u64]) -> Vec<Sleeper> {
        let each = (0..).zip(batches).map(|(n, batch)| Sleeper { instance: uri(n), batch_size: *batch });
        each.collect()
    }

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn one_is_woken_and_not_all_unless_more_wait_than_it_computes() {
        let mut growth = Growth::new(None);
        let asleep = sleepers(&[4, 4, 4]);
        let step = |growth: &mut Growth, waiting| growth.step(COMPAT, waiting, &asleep, (3, 4), at(0));
        assert_eq!(step(&mut growth, 1), Step::Wake(uri(0)));
        for waiting in 1..=4 {
            assert_eq!(step(&mut growth, waiting), Step::Wait(None));
        }
        assert_eq!(step(&mut growth, 5), Step::Wake(uri(1)));
        assert_eq!(step(&mut growth, 8), Step::Wait(None));
        assert_eq!(step(&mut growth, 9), Step::Wake(uri(2)));
        assert_eq!(step(&mut growth, 99), Step::Wait(None), "nobody is left");
    }

    #[test]
    fn an_unknown_batch_is_enough_for_all() {
        let mut growth = Growth::new(None);
        let asleep = sleepers(&[0, 0]);
        assert_eq!(growth.step(COMPAT, 1, &asleep, (2, 0), at(0)), Step::Wake(uri(0)));
        assert_eq!(growth.step(COMPAT, 1_000, &asleep, (2, 0), at(0)), Step::Wait(None));
    }

    #[test]
    fn one_that_does_not_wake_is_passed_over_and_tried_again_later() {
        let mut growth = Growth::new(None);
        let asleep = sleepers(&[8, 8]);
        for n in 0..2 {
            assert_eq!(growth.step(COMPAT, 1, &asleep, (2, 8), at(0)), Step::Wake(uri(n)));
            growth.woken(&uri(n), false, at(0));
        }
        assert_eq!(growth.step(COMPAT, 1, &asleep, (2, 8), at(999)), Step::Nothing);
        assert_eq!(growth.step(COMPAT, 1, &asleep, (2, 8), at(1_000)), Step::Wake(uri(0)));
    }

    #[test]
    fn nothing_is_started_before_all_are_awake() {
        let config = StartsConfig { max_instances: 4, ..StartsConfig::default() };
        let mut growth = Growth::new(Some(Starts::new(config)));
        let asleep = sleepers(&[2]);
        assert_eq!(growth.step(COMPAT, 1, &asleep, (1, 2), at(0)), Step::Wake(uri(0)));
        assert!(matches!(growth.step(COMPAT, 3, &asleep, (1, 2), at(0)), Step::Start(_)));
        assert_eq!(growth.step(COMPAT, 4, &asleep, (1, 2), at(0)), Step::Wait(None));
        assert_eq!(
            growth.step(COMPAT, 5, &asleep, (1, 2), at(0)),
            Step::Wait(Some(at(1_000))),
            "not so soon"
        );
        assert!(matches!(growth.step(COMPAT, 5, &asleep, (1, 2), at(1_000)), Step::Start(_)));
        growth.woken(&uri(0), true, at(1_000));
        assert!(matches!(growth.step(COMPAT, 9, &[], (1, 2), at(2_000)), Step::Start(_)));
        assert_eq!(growth.step(COMPAT, 99, &[], (1, 2), at(3_000)), Step::Wait(None), "the fleet is bounded");
        let starts = growth.starts().unwrap();
        while starts.reported(|compat| compat == COMPAT).is_some() {}
        assert_eq!(growth.step(COMPAT, 1, &[], (4, 2), at(9_000)), Step::Nothing);
    }

    #[test]
    fn a_start_that_failed_is_waited_for_no_longer() {
        let mut growth = Growth::new(Some(Starts::new(StartsConfig::default())));
        let Step::Start(start) = growth.step(COMPAT, 1, &[], (0, 0), at(0)) else { panic!("a start") };
        assert_eq!(growth.step(COMPAT, 50, &[], (0, 0), at(0)), Step::Wait(None));
        assert!(growth.starts().unwrap().failed(start, at(10)));
        assert_eq!(growth.step(COMPAT, 1, &[], (0, 0), at(20)), Step::Wait(Some(at(1_010))));
    }
}
