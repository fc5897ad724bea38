//! Failover: choose, write the next epoch, send the resume; and again with another instance.

use kvsp_proto::message::{ResumeRequest, SessionState};
use uuid::Uuid;

use super::Sessions;
use super::api::{Choice, Effect, Place, ResumeOutcome};
use super::change::{Change, Head};
use super::entry::{Entry, Failover, Next, Phase, Reason};
use super::write::head_rows;
use crate::time::Time;

impl Sessions {
    /// The answer to [`Effect::Place`]: the instance chosen, or none.
    pub fn placed(&mut self, session: Uuid, attempt: u64, choice: Option<Choice>, now: Time) {
        let now = self.look(now);
        let phase = self.sessions.get(&session).and_then(Entry::phase);
        if !matches!(phase, Some(Phase::Placing { attempt: asked, .. }) if *asked == attempt) {
            return;
        }
        match choice {
            Some(choice) => self.set_phase(session, Phase::Chosen(choice)),
            None => self.no_candidate(session, now),
        }
        self.catch_up(session, now);
        self.settle(now);
    }

    /// The answer to [`Effect::Resume`]. That of a former attempt changes nothing.
    pub fn resumed(&mut self, session: Uuid, epoch: u64, outcome: ResumeOutcome, now: Time) {
        let now = self.look(now);
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        if entry.head.epoch != epoch || !matches!(entry.phase(), Some(Phase::Sent { .. })) {
            return;
        }
        match outcome {
            ResumeOutcome::Taken { needs } => {
                entry.needs = needs;
                self.set_phase(session, Phase::Settling);
            }
            ResumeOutcome::Refused | ResumeOutcome::Unreachable => self.attempt_failed(session),
        }
        self.changed.insert(session);
        self.catch_up(session, now);
        self.settle(now);
    }

    /// The instance of a session's epoch is gone, and will release nothing more that counts. `exclude` says that
    /// it may still look alive to whoever chooses.
    pub(super) fn lose(&mut self, session: Uuid, exclude: bool, now: Time) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        if !entry.created || entry.is_final() {
            return;
        }
        match &mut entry.failover {
            Some(Failover { phase: Phase::Sent { .. } | Phase::Settling, .. }) => {
                self.attempt_failed(session);
            }
            // It was to be handed over: now it has to go.
            Some(failover) if failover.voluntary => {
                self.queue.remove(&failover.turn(session));
                failover.voluntary = false;
            }
            Some(_) => return,
            None => {
                let gone = exclude.then(|| (entry.head.instance.clone(), entry.head.instance_epoch));
                entry.failover = Some(Failover::new(false, gone, now));
                self.failing.insert(session);
            }
        }
        self.changed.insert(session);
        self.catch_up(session, now);
    }

    /// Takes the next step of a failover; no write is under way.
    pub(super) fn go_on(&mut self, session: Uuid, now: Time) {
        let Some(entry) = self.sessions.get(&session) else { return };
        let Some(failover) = &entry.failover else { return };
        match failover.phase.clone() {
            Phase::Queued if self.active < self.config.max_resumes.max(1) => self.place(session, now),
            Phase::Queued => {
                self.queue.insert(failover.turn(session));
            }
            Phase::Chosen(choice) => self.begin_move(session, &choice),
            Phase::Settling => {
                let head = Box::new(Head { state: SessionState::Running, ..entry.head.clone() });
                self.begin_own(session, Next::Settle(head.clone()), vec![Change::Head(head)]);
            }
            Phase::GivingUp(reason) => {
                // The epoch is raised for nobody, so that whoever still has the old one is refused.
                let (state, reason) = (SessionState::Failed, Some(reason.text()));
                let epoch = entry.head.epoch.saturating_add(1);
                let head = Box::new(Head { epoch, state, reason, ..entry.head.clone() });
                let changes = head_rows(entry, &head);
                self.begin_own(session, Next::Fail(head), changes);
            }
            Phase::Placing { .. } | Phase::Moving | Phase::Sent { .. } | Phase::BackingOff { .. } => {}
        }
    }

    /// Begins failovers while there is room for more at once.
    pub(super) fn settle(&mut self, now: Time) {
        while self.active < self.config.max_resumes.max(1)
            && let Some((.., session)) = self.queue.pop_first()
        {
            self.catch_up(session, now);
        }
    }

    fn place(&mut self, session: Uuid, now: Time) {
        let Some(entry) = self.sessions.get(&session) else { return };
        let attempt = self.next_attempt;
        self.next_attempt += 1;
        let head = &entry.head;
        let excluded = entry.failover.iter().flat_map(|failover| failover.exclude.keys());
        let place = Place {
            session,
            attempt,
            scope_id: head.scope_id,
            compat_id: head.compat_id,
            block_keys: head.checkpoint.as_ref().map_or(&head.block_keys, |c| &c.prompt_blocks).clone(),
            tokens: head.tokens.saturating_add(entry.tokens.len() as u64),
            exclude: excluded.cloned().collect(),
            hand_over: entry.failover.as_ref().is_some_and(|failover| failover.voluntary),
        };
        self.effects.push_back(Effect::Place(Box::new(place)));
        self.set_phase(session, Phase::Placing { attempt, deadline: now + self.config.attempt_timeout });
    }

    fn begin_move(&mut self, session: Uuid, choice: &Choice) {
        self.attach(choice, session);
        let Some(entry) = self.sessions.get(&session) else { return };
        let recorded = entry.recorded().is_some();
        let head = Box::new(Head {
            epoch: entry.head.epoch.saturating_add(1),
            instance: choice.instance.clone(),
            instance_epoch: choice.instance_epoch,
            instance_ttl_ms: choice.ttl_ms,
            // Where nothing is recorded nothing is resumed: the front end begins anew there.
            state: if recorded { SessionState::Resuming } else { SessionState::Running },
            ..entry.head.clone()
        });
        let changes = head_rows(entry, &head);
        self.set_phase(session, Phase::Moving);
        self.begin_own(session, Next::Move(head), changes);
    }

    /// Epoch and instance are durable.
    pub(super) fn moved(&mut self, session: Uuid, head: Head, now: Time) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let former = std::mem::replace(&mut entry.head, head);
        entry.needs = None;
        entry.probe = None;
        entry.stays_until = None;
        if let Some(failover) = &mut entry.failover {
            failover.voluntary = false;
        }
        entry.idle_at = now + self.config.idle;
        let instance = entry.head.instance.clone();
        match entry.checkpoint() {
            Some(checkpoint) => {
                let epoch = entry.head.epoch;
                let continuation = entry.head.continuation.clone();
                let request = Box::new(ResumeRequest { epoch, checkpoint, continuation, map: None });
                if let Some(failover) = &mut entry.failover {
                    failover.attempts = failover.attempts.saturating_add(1);
                }
                self.effects.push_back(Effect::Resume { session, instance: instance.clone(), request });
                self.set_phase(session, Phase::Sent { deadline: now + self.config.attempt_timeout });
            }
            None => self.end_failover(session),
        }
        if former.instance != instance {
            self.detach(&former.instance, session);
        }
    }

    /// The instance of the epoch that was resumed last did not take it, or is gone.
    pub(super) fn attempt_failed(&mut self, session: Uuid) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let Some(failover) = &mut entry.failover else { return };
        failover.exclude.insert(entry.head.instance.clone(), entry.head.instance_epoch);
        let attempts = failover.attempts;
        let phase = if attempts >= self.config.max_attempts {
            Phase::GivingUp(Reason::Attempts(attempts))
        } else {
            Phase::Queued
        };
        self.set_phase(session, phase);
    }

    /// No instance is left to try.
    pub(super) fn no_candidate(&mut self, session: Uuid, now: Time) {
        let config = self.config;
        let Some(failover) = self.sessions.get_mut(&session).and_then(|e| e.failover.as_mut()) else {
            return;
        };
        if failover.voluntary {
            self.stay(session, now);
            return;
        }
        let phase = if now.since(failover.since) >= config.give_up {
            Phase::GivingUp(Reason::NoInstance)
        } else {
            let doublings = failover.backoffs.min(20);
            failover.backoffs = doublings + 1;
            let wait = config.backoff.saturating_mul(1 << doublings).min(config.max_backoff);
            Phase::BackingOff { until: (now + wait).min(failover.since + config.give_up) }
        };
        self.set_phase(session, phase);
    }

    /// After a wait every instance may be tried again.
    pub(super) fn all_again(&mut self, session: Uuid) {
        if let Some(failover) = self.sessions.get_mut(&session).and_then(|e| e.failover.as_mut()) {
            failover.exclude.clear();
            self.set_phase(session, Phase::Queued);
        }
    }

    pub(super) fn set_phase(&mut self, session: Uuid, phase: Phase) {
        let Some(failover) = self.sessions.get_mut(&session).and_then(|e| e.failover.as_mut()) else {
            return;
        };
        self.active += usize::from(phase.holds_slot());
        let former = std::mem::replace(&mut failover.phase, phase);
        self.active -= usize::from(former.holds_slot());
    }

    pub(super) fn end_failover(&mut self, session: Uuid) {
        let Some(failover) = self.sessions.get_mut(&session).and_then(|e| e.failover.take()) else { return };
        self.active -= usize::from(failover.phase.holds_slot());
        self.failing.remove(&session);
        self.queue.remove(&failover.turn(session));
    }
}
