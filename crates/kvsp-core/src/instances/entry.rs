//! One instance: what it says of itself, and what it was told.

use std::sync::Arc;

use kvsp_proto::record::{InstanceState, InstanceStatus};

use super::rows::InstanceRow;
use super::{Accepted, HeldInstance, StateError, StatusError};
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
    /// Its sessions are to go on elsewhere.
    migrate: bool,
    /// Placements since the last status.
    placed: u64,
}

impl Entry {
    /// An instance that reports for the first time since the start, or for the first time at all.
    pub(super) fn first(
        status: InstanceStatus,
        known: Option<&InstanceRow>,
        may_sleep: bool,
        now: Time,
    ) -> Result<(Self, Accepted), StatusError> {
        if let Some(known) = known.map(|row| row.epoch).filter(|known| status.epoch < *known) {
            return Err(StatusError::StaleEpoch { known });
        }
        let same = known.filter(|row| row.epoch == status.epoch);
        let mut entry = Self::new(status, now);
        if let Some(row) = same {
            entry.take_up(row);
        }
        entry.judge(may_sleep);
        let accepted = Accepted {
            restarted: known.is_some() && same.is_none(),
            fresh: same.is_none(),
            activated: entry.state() == InstanceState::Active,
            ..entry.accepted()
        };
        Ok((entry, accepted))
    }

    fn new(status: InstanceStatus, now: Time) -> Self {
        Self {
            highest_seq: status.seq,
            deadline: now.after_millis(status.ttl_ms),
            failed: false,
            wanted: status.state,
            ordered: false,
            migrate: false,
            placed: 0,
            status: Arc::new(status),
        }
    }

    fn accepted(&self) -> Accepted {
        Accepted {
            state: self.wanted,
            restarted: false,
            fresh: false,
            activated: false,
            migrate: self.migrates(),
        }
    }

    pub(super) fn report(
        &mut self,
        status: InstanceStatus,
        may_sleep: bool,
        now: Time,
    ) -> Result<Accepted, StatusError> {
        let before = self.state();
        let known = self.status.epoch;
        if status.epoch < known {
            return Err(StatusError::StaleEpoch { known });
        }
        if status.epoch > known {
            *self = Self::new(status, now);
            self.judge(may_sleep);
            let activated = self.state() == InstanceState::Active;
            return Ok(Accepted { restarted: true, fresh: true, activated, ..self.accepted() });
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
        let activated = before != InstanceState::Active && self.state() == InstanceState::Active;
        Ok(Accepted { activated, ..self.accepted() })
    }

    /// The instance took up a state that it was told, and said so.
    pub(super) fn answered(&mut self, state: InstanceState) {
        if !self.failed && state != InstanceState::Failed {
            self.status = Arc::new(InstanceStatus { state, ..InstanceStatus::clone(&self.status) });
            self.judge(false);
        }
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
        self.migrate &= state != InstanceState::Active;
    }

    pub(super) fn order(&mut self, state: InstanceState, migrate: bool) -> Result<InstanceState, StateError> {
        if self.failed {
            return Err(StateError::Failed);
        }
        self.want(state, true);
        self.migrate = migrate && state != InstanceState::Active;
        Ok(state)
    }

    /// What is to be remembered of it.
    pub(super) fn row(&self) -> InstanceRow {
        InstanceRow {
            instance: self.status.instance.clone(),
            epoch: self.status.epoch,
            ttl_ms: self.status.ttl_ms,
            state: self.wanted,
            ordered: self.ordered,
            migrate: self.migrate,
        }
    }

    /// Goes on with what is remembered of this start of the instance.
    pub(super) fn take_up(&mut self, row: &InstanceRow) {
        if row.epoch == self.status.epoch {
            (self.wanted, self.ordered, self.migrate) = (row.state, row.ordered, row.migrate);
        }
    }

    /// Forgets an order: what is remembered of this start of the instance stands, or what it says itself.
    pub(super) fn take_back(&mut self, row: Option<&InstanceRow>) {
        self.want(self.status.state, false);
        self.migrate = false;
        if let Some(row) = row {
            self.take_up(row);
        }
    }

    /// Whether its sessions are to go on elsewhere.
    pub(super) fn migrates(&self) -> bool {
        self.migrate && !self.failed
    }

    /// Requests that it has, as a share of those that it computes at once.
    pub(super) fn load(&self) -> f64 {
        let requests = self.status.running.saturating_add(self.queued());
        requests as f64 / self.status.batch_size.max(1) as f64
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

    pub(super) fn view(&self) -> HeldInstance {
        let status = InstanceStatus { state: self.state(), ..InstanceStatus::clone(&self.status) };
        HeldInstance { status, wanted: self.wanted }
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
