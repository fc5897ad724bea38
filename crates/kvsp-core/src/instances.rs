//! Instance statuses, epochs, states and failure by expiry (draft section 6.3, profile section 6).
//!
//! The Placement Controller decides states by it; the Index Service keeps statuses in it for estimates.

mod entry;
mod growth;
mod rows;
mod start;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kvsp_proto::id::CompatId;
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::{InstanceState, InstanceStatus};
use kvsp_proto::uri::BaseUri;

use crate::time::Time;
use entry::Entry;
use rows::Unheard;

pub use growth::{Growth, Sleeper, Step};
pub use rows::{InstanceChange, InstanceRow};
pub use start::{Held, StartId, Starts, StartsConfig};

/// Bounds and policies of [`Instances`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InstancesConfig {
    /// Most instances known, failed ones among them; a new one displaces the longest failed.
    pub max_instances: usize,
    /// The longest TTL of a status, in ms.
    pub max_ttl_ms: u64,
    /// A longer silence between two looks at the clock is a stall of our own: statuses could not be
    /// received meanwhile, so every instance gets a full TTL from its end.
    pub stall: Duration,
    /// An instance may fall asleep at its own request while so many others are active that can take its place.
    pub min_active: usize,
    /// Nor may it while these have more requests than this share, on average, of those that they compute at once.
    pub sleep_max_load: f64,
}

impl Default for InstancesConfig {
    fn default() -> Self {
        Self {
            max_instances: 4096,
            max_ttl_ms: 3_600_000,
            stall: Duration::from_secs(1),
            min_active: 1,
            sleep_max_load: 0.5,
        }
    }
}

/// A status is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// An epoch lower than the highest seen (`kvsp-stale-epoch`).
    #[error("epoch {known} of this instance is known; the status is of an earlier start")]
    StaleEpoch {
        /// The highest epoch seen.
        known: u64,
    },
    /// A `seq` lower than the highest of this epoch (`kvsp-stale-record`).
    #[error("seq {known} of this instance's epoch is known; the status is older")]
    StaleSeq {
        /// The highest `seq` seen.
        known: u64,
    },
    /// [`InstancesConfig::max_instances`] live ones are known (`kvsp-overloaded`).
    #[error("{max} instances are known, which is the limit")]
    Full {
        /// The limit.
        max: usize,
    },
}

impl From<StatusError> for Problem {
    fn from(error: StatusError) -> Self {
        match error {
            StatusError::StaleEpoch { known } => {
                Self::new(ProblemType::StaleEpoch, error.to_string()).with("epoch", known)
            }
            StatusError::StaleSeq { known } => {
                Self::new(ProblemType::StaleRecord, error.to_string()).with("seq", known)
            }
            StatusError::Full { .. } => Self::new(ProblemType::Overloaded, error.to_string()).retry_after(60),
        }
    }
}

/// A state cannot be given to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// No such instance (`kvsp-instance-unknown`).
    #[error("no such instance")]
    Unknown,
    /// It has failed (`kvsp-instance-not-active`).
    #[error("the instance has failed; it takes states again after its next status")]
    Failed,
    /// `failed` is observed, not given (`kvsp-invalid-record`).
    #[error("member state: failed cannot be given")]
    NotAState,
}

impl From<StateError> for Problem {
    fn from(error: StateError) -> Self {
        let problem = match error {
            StateError::Unknown => ProblemType::InstanceUnknown,
            StateError::Failed => ProblemType::InstanceNotActive,
            StateError::NotAState => ProblemType::InvalidRecord,
        };
        Self::new(problem, error.to_string())
    }
}

/// A status was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// The state that the instance is to be in.
    pub state: InstanceState,
    /// Whether the epoch is higher than one seen before: the former incarnation has ended.
    pub restarted: bool,
    /// Whether it is the first status of this start of the instance.
    pub fresh: bool,
    /// Whether the instance takes requests from now on and did not before.
    pub activated: bool,
    /// Whether its sessions are to go on elsewhere.
    pub migrate: bool,
}

/// An instance, as the controller holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldInstance {
    /// Its last status, with the state that it is held to be in.
    pub status: InstanceStatus,
    /// The state that it is to be in.
    pub wanted: InstanceState,
}

/// An instance, as placement weighs it.
#[derive(Debug, Clone, PartialEq)]
pub struct ActiveInstance {
    /// Its last status.
    pub status: Arc<InstanceStatus>,
    /// Requests waiting: those it reported and those placed there since.
    pub queued: u64,
    /// Its mean service time in µs; until one is known the fleet's; else 0.
    pub mean_service_us: f64,
}

/// The instances that have reported.
#[derive(Debug, Clone)]
pub struct Instances {
    config: InstancesConfig,
    entries: BTreeMap<BaseUri, Entry>,
    /// Remembered, and not heard of since the start; disjoint from `entries`.
    unheard: BTreeMap<BaseUri, Unheard>,
    /// What is on stable storage, where somebody writes it.
    recorded: BTreeMap<BaseUri, InstanceRow>,
    last_look: Time,
    /// Failed since the last [`Instances::tick`].
    failures: BTreeSet<BaseUri>,
}

impl Instances {
    /// No instance yet, at the start of the service.
    #[must_use]
    pub const fn new(config: InstancesConfig, now: Time) -> Self {
        Self {
            config,
            entries: BTreeMap::new(),
            unheard: BTreeMap::new(),
            recorded: BTreeMap::new(),
            last_look: now,
            failures: BTreeSet::new(),
        }
    }

    /// Looks at the clock and returns the instances that failed since the last call. To be called more often
    /// than [`InstancesConfig::stall`]; every other method looks at the clock, too.
    pub fn tick(&mut self, now: Time) -> BTreeSet<BaseUri> {
        self.look(now);
        std::mem::take(&mut self.failures)
    }

    fn look(&mut self, now: Time) {
        let silence = now.since(self.last_look);
        self.last_look = self.last_look.max(now);
        if silence > self.config.stall {
            self.entries.values_mut().for_each(|entry| entry.grant_grace(now));
            for unheard in self.unheard.values_mut() {
                unheard.deadline = unheard.deadline.max(now.after_millis(unheard.row.ttl_ms));
            }
        }
        let failed =
            self.entries.iter_mut().filter_map(|(uri, entry)| entry.expire(now).then(|| uri.clone()));
        self.failures.extend(failed);
    }

    /// Takes a status.
    ///
    /// # Errors
    /// [`StatusError`].
    pub fn report(&mut self, mut status: InstanceStatus, now: Time) -> Result<Accepted, StatusError> {
        self.look(now);
        status.ttl_ms = status.ttl_ms.min(self.config.max_ttl_ms);
        let is_known = |uri| self.entries.contains_key(uri) || self.unheard.contains_key(uri);
        if !is_known(&status.instance) {
            self.make_room(now)?;
        }
        let may_sleep = self.may_sleep(&status);
        let instance = status.instance.clone();
        if let Some(entry) = self.entries.get_mut(&instance) {
            return entry.report(status, may_sleep, now);
        }
        let known = self.unheard.get(&instance).map(|unheard| &unheard.row);
        let (entry, accepted) = Entry::first(status, known, may_sleep, now)?;
        self.unheard.remove(&instance);
        self.entries.insert(instance, entry);
        Ok(accepted)
    }

    /// Counts a placement at an instance until its next status.
    pub fn placed(&mut self, instance: &BaseUri) {
        if let Some(entry) = self.entries.get_mut(instance) {
            entry.placed();
        }
    }

    /// Gives an instance a state; with `migrate` its sessions are to go on elsewhere.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn set_state(
        &mut self,
        instance: &BaseUri,
        state: InstanceState,
        migrate: bool,
        now: Time,
    ) -> Result<InstanceState, StateError> {
        self.look(now);
        if state == InstanceState::Failed {
            return Err(StateError::NotAState);
        }
        match self.entries.get_mut(instance) {
            Some(entry) => entry.order(state, migrate),
            None => self.order_unheard(instance, state, migrate, now),
        }
    }

    /// An instance of that epoch was told its state and answered with the one that it took up, which counts as if it
    /// had reported it. Whether it takes requests from now on and did not before.
    pub fn answered(&mut self, instance: &BaseUri, epoch: u64, state: InstanceState, now: Time) -> bool {
        self.look(now);
        let Some(entry) = self.entries.get_mut(instance).filter(|entry| entry.status().epoch == epoch) else {
            return false;
        };
        let before = entry.state();
        entry.answered(state);
        before != InstanceState::Active && entry.state() == InstanceState::Active
    }

    /// The epoch of the last status of an instance.
    #[must_use]
    pub fn epoch(&self, instance: &BaseUri) -> Option<u64> {
        self.entries.get(instance).map(|entry| entry.status().epoch)
    }

    /// Whether an instance's sessions are to go on elsewhere.
    #[must_use]
    pub fn migrates(&self, instance: &BaseUri) -> bool {
        self.entries.get(instance).is_some_and(Entry::migrates)
    }

    /// An instance, as it is held to be.
    #[must_use]
    pub fn view(&mut self, instance: &BaseUri, now: Time) -> Option<HeldInstance> {
        self.look(now);
        self.entries.get(instance).map(Entry::view)
    }

    /// All instances that have reported, ordered by URI, as [`Instances::view`].
    #[must_use]
    pub fn list(&mut self, now: Time) -> Vec<HeldInstance> {
        self.look(now);
        self.entries.values().map(Entry::view).collect()
    }

    /// How many are in a state.
    #[must_use]
    pub fn count(&self, state: InstanceState) -> usize {
        self.entries.values().filter(|entry| entry.state() == state).count()
    }

    /// The last status of an instance that has not failed.
    #[must_use]
    pub fn live_status(&mut self, instance: &BaseUri, now: Time) -> Option<Arc<InstanceStatus>> {
        self.look(now);
        let entry = self.entries.get(instance)?;
        (entry.state() != InstanceState::Failed).then(|| Arc::clone(entry.status()))
    }

    /// The active instances that compute caches of a compatibility, ordered by URI.
    #[must_use]
    pub fn active(&mut self, compat: CompatId, now: Time) -> Vec<ActiveInstance> {
        self.weighed(compat, InstanceState::Active, now)
    }

    /// The sleeping instances that would compute caches of a compatibility and may be woken for it, ordered by URI.
    /// One that had to hand its sessions over is meant to be stopped, so only an order wakes it.
    #[must_use]
    pub fn wakeable(&mut self, compat: CompatId, now: Time) -> Vec<ActiveInstance> {
        let mut asleep = self.weighed(compat, InstanceState::Sleeping, now);
        asleep.retain(|instance| !self.migrates(&instance.status.instance));
        asleep
    }

    fn weighed(&mut self, compat: CompatId, state: InstanceState, now: Time) -> Vec<ActiveInstance> {
        self.look(now);
        let fleet = self.fleet_service_us();
        self.entries
            .values()
            .filter(|entry| entry.state() == state && entry.status().computes(compat))
            .map(|entry| ActiveInstance {
                status: Arc::clone(entry.status()),
                queued: entry.queued(),
                mean_service_us: entry.mean_service_us().unwrap_or(fleet),
            })
            .collect()
    }

    /// The largest batch of a live instance that computes caches of a compatibility; 0 where none is known.
    #[must_use]
    pub fn batch_size(&self, compat: CompatId) -> u64 {
        let live = self.entries.values().filter(|entry| entry.state() != InstanceState::Failed);
        live.filter(|e| e.status().computes(compat)).map(|e| e.status().batch_size).max().unwrap_or(0)
    }

    /// Instances that have not failed.
    #[must_use]
    pub fn live(&self) -> usize {
        self.entries.values().filter(|entry| entry.state() != InstanceState::Failed).count()
    }

    fn fleet_service_us(&self) -> f64 {
        let live = self.entries.values().filter(|entry| entry.state() != InstanceState::Failed);
        let known: Vec<f64> = live.filter_map(Entry::mean_service_us).collect();
        if known.is_empty() { 0.0 } else { known.iter().sum::<f64>() / known.len() as f64 }
    }

    fn may_sleep(&self, status: &InstanceStatus) -> bool {
        let others: Vec<f64> = self
            .entries
            .iter()
            .filter(|(uri, entry)| **uri != status.instance && entry.state() == InstanceState::Active)
            .filter(|(_, entry)| stands_in(entry.status(), status))
            .map(|(_, entry)| entry.load())
            .collect();
        let load = if others.is_empty() { 0.0 } else { others.iter().sum::<f64>() / others.len() as f64 };
        status.queued == 0 && others.len() >= self.config.min_active && load <= self.config.sleep_max_load
    }

    fn make_room(&mut self, now: Time) -> Result<(), StatusError> {
        if self.entries.len() + self.unheard.len() < self.config.max_instances {
            return Ok(());
        }
        let longest = self.longest_failed(now).ok_or(StatusError::Full { max: self.config.max_instances })?;
        self.entries.remove(&longest);
        self.unheard.remove(&longest);
        Ok(())
    }
}

/// Whether an instance computes something that the other one computes.
fn stands_in(instance: &InstanceStatus, other: &InstanceStatus) -> bool {
    match (&instance.compat_ids, &other.compat_ids) {
        (Some(ours), Some(theirs)) => theirs.iter().any(|compat| ours.contains(compat)),
        _ => true,
    }
}
