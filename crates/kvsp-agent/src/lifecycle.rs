//! The state of the instance (draft section 6.3).

use std::sync::{Mutex, PoisonError};

use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::InstanceState;

/// The state, changed by the controller alone; only falling asleep is the instance's own step.
#[derive(Debug)]
pub(crate) struct Lifecycle(Mutex<InstanceState>);

impl Lifecycle {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(InstanceState::Active))
    }

    pub(crate) fn get(&self) -> InstanceState {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take up a state that the controller ordered; returns the one taken up. An instance that is asked to
    /// sleep while it works drains first, and one that sleeps does not go back to draining.
    pub(crate) fn order(&self, wanted: InstanceState, idle: bool) -> InstanceState {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = match (wanted, *state) {
            (InstanceState::Active, _) => InstanceState::Active,
            (_, InstanceState::Sleeping) => InstanceState::Sleeping,
            _ if idle => InstanceState::Sleeping,
            _ => InstanceState::Draining,
        };
        *state
    }

    /// Take up what the controller answered to a status. The answer is to the state that was reported: where
    /// that has changed since, by an order that came in between, the next report's answer counts.
    pub(crate) fn answer(&self, reported: InstanceState, wanted: InstanceState, idle: bool) {
        if self.get() == reported {
            self.order(wanted, idle);
        }
    }

    /// A draining instance without work falls asleep.
    pub(crate) fn settle(&self, idle: bool) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle && *state == InstanceState::Draining {
            *state = InstanceState::Sleeping;
        }
    }

    /// Refuse new work unless the instance is active.
    pub(crate) fn require_active(&self) -> Result<(), Problem> {
        match self.get() {
            InstanceState::Active => Ok(()),
            state => Err(Problem::new(
                ProblemType::InstanceNotActive,
                format!("the instance is {}; ask the controller for another", state.as_str()),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_order_wakes_and_work_is_finished_first() {
        let state = Lifecycle::new();
        assert_eq!(state.order(InstanceState::Sleeping, false), InstanceState::Draining);
        assert!(state.require_active().is_err());
        state.settle(false);
        assert_eq!(state.get(), InstanceState::Draining);
        state.settle(true);
        assert_eq!(state.get(), InstanceState::Sleeping);
        assert_eq!(state.order(InstanceState::Draining, false), InstanceState::Sleeping);
        assert_eq!(state.order(InstanceState::Active, true), InstanceState::Active);
        assert!(state.require_active().is_ok());
    }

    #[test]
    fn an_answer_to_an_older_state_undoes_no_order() {
        let state = Lifecycle::new();
        let reported = state.get();
        state.order(InstanceState::Draining, false);
        state.answer(reported, InstanceState::Active, false);
        assert_eq!(state.get(), InstanceState::Draining);
        state.answer(InstanceState::Draining, InstanceState::Active, false);
        assert_eq!(state.get(), InstanceState::Active);
    }
}
