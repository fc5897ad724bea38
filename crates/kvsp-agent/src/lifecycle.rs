//! The state of the instance, and when it asks to sleep (draft section 6.3). Time comes in as an argument.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kvsp_core::time::Time;
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::InstanceState::{self, Active, Draining, Sleeping};

/// When an instance asks to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SleepWish {
    /// Load that keeps it from asking.
    pub(crate) below: u64,
    /// How long the load stays under that before it asks, and before it asks again; `None`: it never asks.
    pub(crate) after: Option<Duration>,
}

/// The state, changed by the controller alone; only falling asleep is the instance's own step.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    wish: SleepWish,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: InstanceState,
    /// Since when the load has been below the threshold, or the controller refused.
    quiet_since: Option<Time>,
    /// The process is about to end; nothing makes it active again.
    stopping: bool,
}

impl Lifecycle {
    pub(crate) const fn new(wish: SleepWish) -> Self {
        Self { wish, inner: Mutex::new(Inner { state: Active, quiet_since: None, stopping: false }) }
    }

    fn with<R>(&self, run: impl FnOnce(&mut Inner) -> R) -> R {
        run(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn get(&self) -> InstanceState {
        self.with(|inner| inner.state)
    }

    /// Take up a state that the controller ordered; returns the one taken up. An instance that is asked to
    /// sleep while it works drains first, and one that sleeps does not go back to draining.
    pub(crate) fn order(&self, wanted: InstanceState, idle: bool) -> InstanceState {
        self.with(|inner| inner.order(wanted, idle))
    }

    /// Take up what the controller answered to a status, in which the instance was in the state `reported` and
    /// asked for another one or did not. The answer is to that state: where it has changed since, by an order that
    /// came in between, the next report's answer counts. Who asked to sleep and stays active asks again later.
    pub(crate) fn answer(
        &self,
        (reported, asked): (InstanceState, bool),
        wanted: InstanceState,
        idle: bool,
        now: Time,
    ) {
        self.with(|inner| {
            if inner.state == reported && inner.order(wanted, idle) == Active && asked {
                inner.quiet_since = inner.quiet_since.map(|_| now);
            }
        });
    }

    /// The process is about to end: it drains, and nothing makes it active again.
    pub(crate) fn stop(&self) {
        self.with(|inner| {
            inner.stopping = true;
            inner.order(Draining, false);
        });
    }

    /// A draining instance without work falls asleep.
    pub(crate) fn settle(&self, idle: bool) {
        self.with(|inner| {
            if idle && inner.state == Draining {
                inner.state = Sleeping;
            }
        });
    }

    /// Note the load at this moment. To be told whenever it rises, and now and then: what was above the threshold
    /// between two looks is missed otherwise.
    pub(crate) fn observe(&self, load: u64, now: Time) {
        let below = self.wish.below;
        self.with(|inner| {
            if load >= below || inner.state != Active {
                inner.quiet_since = None;
            } else {
                inner.quiet_since.get_or_insert(now);
            }
        });
    }

    /// The state that the instance asks for.
    pub(crate) fn requested(&self, now: Time) -> Option<InstanceState> {
        let after = self.wish.after?;
        let quiet = self.with(|inner| (inner.state == Active).then_some(inner.quiet_since).flatten())?;
        (now.since(quiet) >= after).then_some(Sleeping)
    }

    /// Refuse new work unless the instance is active.
    pub(crate) fn require_active(&self) -> Result<(), Problem> {
        match self.get() {
            Active => Ok(()),
            state => Err(Problem::new(
                ProblemType::InstanceNotActive,
                format!("the instance is {}; ask the controller for another", state.as_str()),
            )),
        }
    }
}

impl Inner {
    fn order(&mut self, wanted: InstanceState, idle: bool) -> InstanceState {
        let state = match (wanted, self.state) {
            (Active, state) if self.stopping => state,
            (Active, _) => Active,
            (_, Sleeping) => Sleeping,
            _ if idle => Sleeping,
            _ => Draining,
        };
        if state != self.state {
            // Whoever wakes up has not been quiet yet.
            self.quiet_since = None;
        }
        self.state = state;
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: SleepWish = SleepWish { below: 1, after: None };

    fn at(seconds: u64) -> Time {
        Time::from_millis(1000 * seconds)
    }

    /// Asks once its load has been below 2 for 10 s.
    fn sleepy() -> Lifecycle {
        Lifecycle::new(SleepWish { below: 2, after: Some(Duration::from_secs(10)) })
    }

    #[test]
    fn only_an_order_wakes_and_work_is_finished_first() {
        let state = Lifecycle::new(NEVER);
        assert_eq!(state.order(Sleeping, false), Draining);
        assert!(state.require_active().is_err());
        state.settle(false);
        assert_eq!(state.get(), Draining);
        state.settle(true);
        assert_eq!(state.get(), Sleeping);
        assert_eq!(state.order(Draining, false), Sleeping);
        assert_eq!(state.order(Active, true), Active);
        assert!(state.require_active().is_ok());
    }

    #[test]
    fn an_answer_to_an_older_state_undoes_no_order() {
        let state = Lifecycle::new(NEVER);
        let reported = (state.get(), false);
        state.order(Draining, false);
        state.answer(reported, Active, false, at(0));
        assert_eq!(state.get(), Draining);
        state.answer((Draining, false), Active, false, at(0));
        assert_eq!(state.get(), Active);
    }

    #[test]
    fn who_is_quiet_for_long_enough_asks_to_sleep() {
        let state = sleepy();
        assert_eq!(state.requested(at(100)), None, "nobody has looked yet");
        state.observe(1, at(100));
        assert_eq!(state.requested(at(109)), None);
        assert_eq!(state.requested(at(110)), Some(Sleeping));
        state.observe(2, at(111));
        assert_eq!(state.requested(at(111)), None, "load that reaches the threshold starts the time anew");
        state.observe(0, at(112));
        state.observe(1, at(115));
        assert_eq!((state.requested(at(121)), state.requested(at(122))), (None, Some(Sleeping)));
    }

    #[test]
    fn who_is_configured_never_to_ask_does_not() {
        let state = Lifecycle::new(NEVER);
        state.observe(0, at(0));
        assert_eq!(state.requested(at(1_000_000)), None);
        let state = Lifecycle::new(SleepWish { below: 0, after: Some(Duration::ZERO) });
        state.observe(0, at(0));
        assert_eq!(state.requested(at(1_000_000)), None, "no load is below nothing");
    }

    #[test]
    fn the_answer_to_the_wish_is_obeyed() {
        let state = sleepy();
        state.observe(0, at(0));
        let asked = (Active, state.requested(at(10)).is_some());
        assert!(asked.1);
        state.answer(asked, Active, true, at(11));
        assert_eq!(state.requested(at(11)), None, "it was refused");
        assert_eq!(
            (state.requested(at(20)), state.requested(at(21))),
            (None, Some(Sleeping)),
            "it asks again"
        );

        state.answer(asked, Draining, false, at(22));
        assert_eq!(state.get(), Draining, "it finishes what it has");
        state.observe(1, at(22));
        assert_eq!(state.requested(at(60)), None, "there is nothing left to ask for");
        state.settle(true);
        assert_eq!(state.get(), Sleeping);
        state.observe(0, at(61));
        assert_eq!(state.requested(at(100)), None);

        state.order(Active, true);
        assert_eq!(state.requested(at(100)), None, "it has only just been woken");
        state.observe(0, at(100));
        assert_eq!(state.requested(at(110)), Some(Sleeping));
    }

    #[test]
    fn an_answer_to_a_report_that_asked_for_nothing_does_not_put_off_the_wish() {
        let state = sleepy();
        state.observe(0, at(0));
        state.answer((Active, false), Active, true, at(9));
        assert_eq!(state.requested(at(10)), Some(Sleeping));
    }

    #[test]
    fn nothing_makes_a_process_active_that_is_about_to_end() {
        let state = Lifecycle::new(NEVER);
        state.stop();
        assert_eq!(state.order(Active, false), Draining);
        state.answer((Draining, false), Active, true, at(0));
        state.settle(true);
        assert_eq!(state.order(Active, true), Sleeping);
    }
}
