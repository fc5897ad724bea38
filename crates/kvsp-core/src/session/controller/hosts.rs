//! Instances that have sessions: one start of each, and whether it still lives.

use std::collections::BTreeSet;

use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use super::Sessions;
use super::api::Choice;
use super::entry::Phase;
use crate::time::Time;

/// An instance that has a session, or is being given one.
#[derive(Debug, Clone)]
pub(super) struct Host {
    /// The highest epoch of its start that is known.
    epoch: u64,
    ttl_ms: u64,
    failed: bool,
    expected: Option<Time>,
    sessions: BTreeSet<Uuid>,
}

#[cfg(test)]
impl Host {
    pub(super) fn count(&self) -> usize {
        self.sessions.len()
    }
}

impl Sessions {
    /// An instance reported. A higher epoch than that of the start which a session was given to ends that start:
    /// such sessions fail over at once.
    pub fn instance_reported(&mut self, instance: &BaseUri, epoch: u64, ttl_ms: u64, now: Time) {
        let now = self.look(now);
        self.welcome(instance, epoch, now);
        let Some(host) = self.hosts.get_mut(instance) else { return };
        if epoch < host.epoch {
            return;
        }
        let restarted = epoch > host.epoch;
        host.failed = false;
        host.ttl_ms = ttl_ms;
        host.epoch = epoch;
        if let Some(at) = host.expected.take() {
            self.expected.remove(&(at, instance.clone()));
        }
        if restarted {
            self.lose_of(instance, now);
        }
        self.settle(now);
    }

    /// An instance failed: its status expired.
    pub fn instance_failed(&mut self, instance: &BaseUri, now: Time) {
        let now = self.look(now);
        self.fail(instance, now);
        self.settle(now);
    }

    fn fail(&mut self, instance: &BaseUri, now: Time) {
        let Some(host) = self.hosts.get_mut(instance) else { return };
        host.failed = true;
        if let Some(at) = host.expected.take() {
            self.expected.remove(&(at, instance.clone()));
        }
        self.lose_of(instance, now);
    }

    /// Fails over the sessions whose start of this instance is over.
    fn lose_of(&mut self, instance: &BaseUri, now: Time) {
        for session in self.sessions_of(instance) {
            self.lose_if_gone(session, now);
        }
    }

    /// Fails a session over where the start of its instance is over.
    pub(super) fn lose_if_gone(&mut self, session: Uuid, now: Time) {
        let Some(entry) = self.sessions.get(&session) else { return };
        let Some(host) = self.hosts.get(&entry.head.instance) else { return };
        if host.failed || host.epoch > entry.head.instance_epoch {
            self.lose(session, false, now);
        }
    }

    /// A start of an instance that nobody has tried yet may be tried.
    fn welcome(&mut self, instance: &BaseUri, epoch: u64, now: Time) {
        let mut hopeful = Vec::new();
        for session in &self.failing {
            let entry = self.sessions.get_mut(session);
            let Some(failover) = entry.and_then(|entry| entry.failover.as_mut()) else { continue };
            if failover.exclude.get(instance).is_some_and(|tried| *tried < epoch) {
                failover.exclude.remove(instance);
                if matches!(failover.phase, Phase::BackingOff { .. }) {
                    hopeful.push(*session);
                }
            }
        }
        for session in hopeful {
            self.set_phase(session, Phase::Queued);
            self.catch_up(session, now);
        }
    }

    /// Instances that have sessions, or are being given some, ordered by URI, and how many.
    pub fn hosts(&self) -> impl Iterator<Item = (&BaseUri, usize)> {
        self.hosts.iter().map(|(instance, host)| (instance, host.sessions.len()))
    }

    /// How many sessions an instance has, or is being given.
    #[must_use]
    pub fn hosted(&self, instance: &BaseUri) -> usize {
        self.hosts.get(instance).map_or(0, |host| host.sessions.len())
    }

    /// The sessions of an instance.
    pub(super) fn sessions_of(&self, instance: &BaseUri) -> BTreeSet<Uuid> {
        self.hosts.get(instance).map(|host| host.sessions.clone()).unwrap_or_default()
    }

    /// Counts a session as one of an instance.
    pub(super) fn attach(&mut self, choice: &Choice, session: Uuid) {
        let host = self.hosts.entry(choice.instance.clone()).or_insert_with(|| Host {
            epoch: choice.instance_epoch,
            ttl_ms: choice.ttl_ms,
            failed: false,
            expected: None,
            sessions: BTreeSet::new(),
        });
        host.sessions.insert(session);
    }

    /// A session has left an instance, or did not get there.
    pub(super) fn detach(&mut self, instance: &BaseUri, session: Uuid) {
        if self.sessions.get(&session).is_some_and(|e| !e.is_final() && e.head.instance == *instance) {
            return;
        }
        self.unlink(instance, session);
    }

    /// A session needs no instance any more.
    pub(super) fn detach_session(&mut self, session: Uuid) {
        if let Some(entry) = self.sessions.get(&session) {
            let instance = entry.head.instance.clone();
            self.unlink(&instance, session);
        }
    }

    fn unlink(&mut self, instance: &BaseUri, session: Uuid) {
        let Some(host) = self.hosts.get_mut(instance) else { return };
        host.sessions.remove(&session);
        if host.sessions.is_empty() {
            if let Some(at) = host.expected {
                self.expected.remove(&(at, instance.clone()));
            }
            self.hosts.remove(instance);
        }
    }

    /// After a start of the controller: an instance is to report within its TTL.
    pub(super) fn expect(&mut self, choice: &Choice, now: Time) {
        let Some(host) = self.hosts.get_mut(&choice.instance) else { return };
        host.epoch = host.epoch.max(choice.instance_epoch);
        host.ttl_ms = host.ttl_ms.max(choice.ttl_ms);
        let at = now.after_millis(host.ttl_ms);
        if let Some(former) = host.expected.replace(at) {
            self.expected.remove(&(former, choice.instance.clone()));
        }
        self.expected.insert((at, choice.instance.clone()));
    }

    /// After a stall of ours those that are expected have a full TTL again.
    pub(super) fn expect_anew(&mut self, now: Time) {
        for (_, instance) in std::mem::take(&mut self.expected) {
            if let Some(host) = self.hosts.get_mut(&instance) {
                let at = now.after_millis(host.ttl_ms);
                host.expected = Some(at);
                self.expected.insert((at, instance));
            }
        }
    }

    /// Fails those that were expected and have not reported.
    pub(super) fn fail_silent(&mut self, now: Time) {
        while let Some((at, instance)) = self.expected.first().cloned()
            && at <= now
        {
            self.expected.pop_first();
            self.fail(&instance, now);
        }
    }
}
