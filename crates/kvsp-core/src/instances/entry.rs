//! One instance: what it says of itself, and what it was told.

use std::sync::Arc;

use kvsp_proto::record::{InstanceState, InstanceStatus};

use super::{Accepted, StateError, StatusError};
use crate::time::Time;

/// An instance that has reported.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    status: Arc<InstanceStatus>,
    highest_seq: Option<u64>,
    deadline: Time,
    failed: bool,
    /// The state it is to be in, and whether that is an order: what an instance did on its own account
    /// it may undo on its own account, an order it may not.
    wanted: InstanceState,
    ordered: bool,
    /// Placements since the last status.
    placed: u64,
}

impl Entry {
    pub(super) fn first(status: InstanceStatus, may_sleep: bool, now: Time) -> (Self, Accepted) {
        let mut entry = Self {
            highest_seq: status.seq,
            deadline: now.after_millis(status.ttl_ms),
            failed: false,
            wanted: status.state,
            ordered: false,
            placed: 0,
            status: Arc::new(status),
        };
        entry.judge(may_sleep);
        let accepted = Accepted { state: entry.wanted, restarted: false };
        (entry, accepted)
    }

    pub(super) fn report(
        &mut self,
        status: InstanceStatus,
        may_sleep: bool,
        now: Time,
    ) -> Result<Accepted, StatusError> {
        let known = self.status.epoch;
        if status.epoch < known {
            return Err(StatusError::StaleEpoch { known });
        }
        if status.epoch > known {
            let (entry, accepted) = Self::first(status, may_sleep, now);
            *self = entry;
            return Ok(Accepted { restarted: true, ..accepted });
        }
        if let (Some(known), Some(seq)) = (self.highest_seq, status.seq)
            && seq < known
        {
            return Err(StatusError::StaleSeq { known });
        }
        self.highest_seq = self.highest_seq.max(status.seq);
        self.deadline = now.after_millis(status.ttl_ms);
        self.failed = false;
        self.placed = 0;
        self.status = Arc::new(status);
        self.judge(may_sleep);
        Ok(Accepted { state: self.wanted, restarted: false })
    }

    /// Settles the state to be in after a status.
    fn judge(&mut self, may_sleep: bool) {
        use InstanceState::{Active, Draining, Sleeping};
        match (self.wanted, self.status.state) {
            // It has done what it was told, or what it was told for: a drained instance sleeps.
            (Active, Active) | (Draining, Draining) | (Sleeping, Sleeping) => {}
            (Draining, Sleeping) => self.wanted = Sleeping,
            // On its way to sleep it drains first; told to be active, it sleeps until it has heard.
            (Sleeping, Draining) => {}
            (Active, Sleeping) if self.ordered => {}
            // On its own account it may drain, sleep, and change its mind while it drains.
            (Active, Draining | Sleeping) => self.want(self.status.state, false),
            (Draining, Active) if !self.ordered => self.want(Active, false),
            // An order stands; and a sleeping instance becomes active by an order only.
            _ => {}
        }
        let asks = self.status.requested_state == Some(Sleeping) && self.status.state == Active;
        if asks && self.wanted == Active && may_sleep {
            self.want(Draining, true);
        }
    }

    fn want(&mut self, state: InstanceState, ordered: bool) {
        self.wanted = state;
        self.ordered = ordered;
    }

    pub(super) fn order(&mut self, state: InstanceState) -> Result<InstanceState, StateError> {
        if self.failed {
            return Err(StateError::Failed);
        }
        self.want(state, true);
        Ok(state)
    }

    /// Whether it failed just now.
    pub(super) fn expire(&mut self, now: Time) -> bool {
        let fails = !self.failed && self.deadline <= now;
        self.failed |= fails;
        fails
    }

    /// A full TTL from now, unless it had failed before.
    pub(super) fn grant_grace(&mut self, now: Time) {
        if !self.failed {
            self.deadline = self.deadline.max(now.after_millis(self.status.ttl_ms));
        }
    }

    /// The state it is held to be in: active only where it says so and is to be so.
    pub(super) fn state(&self) -> InstanceState {
        use InstanceState::{Active, Draining, Failed};
        match (self.wanted, self.status.state) {
            _ if self.failed => Failed,
            (Active, state) => state,
            // Told to drain or to sleep, it has requests to finish until it says that it sleeps.
            (_, Active) => Draining,
            (_, state) => state,
        }
    }

    pub(super) fn view(&self) -> InstanceStatus {
        InstanceStatus { state: self.state(), ..InstanceStatus::clone(&self.status) }
    }

    pub(super) const fn status(&self) -> &Arc<InstanceStatus> {
        &self.status
    }

    pub(super) const fn deadline(&self) -> Time {
        self.deadline
    }

    pub(super) const fn placed(&mut self) {
        self.placed = self.placed.saturating_add(1);
    }

    pub(super) fn queued(&self) -> u64 {
        self.status.queued.saturating_add(self.placed)
    }

    pub(super) fn mean_service_us(&self) -> Option<f64> {
        self.status.mean_service_us.filter(|us| us.is_finite() && *us > 0.0)
    }
}
