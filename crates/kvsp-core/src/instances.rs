//! Instance statuses, epochs, states and failure by expiry (draft section 6.3, profile section 6).
//!
//! The Placement Controller decides states by it; the Index Service keeps statuses in it for estimates.

mod entry;

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

/// Bounds and policies of [`Instances`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstancesConfig {
    /// Most instances known, failed ones among them; a new one displaces the longest failed.
    pub max_instances: usize,
    /// The longest TTL of a status, in ms.
    pub max_ttl_ms: u64,
    /// A longer silence between two looks at the clock is a stall of our own: statuses could not be
    /// received meanwhile, so every instance gets a full TTL from its end.
    pub stall: Duration,
    /// An instance may fall asleep at its own request while so many others are active.
    pub min_active: usize,
}

impl Default for InstancesConfig {
    fn default() -> Self {
        Self { max_instances: 4096, max_ttl_ms: 3_600_000, stall: Duration::from_secs(1), min_active: 1 }
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
}

/// An active instance, as placement weighs it.
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
    last_look: Time,
    /// Failed since the last [`Instances::tick`].
    failures: BTreeSet<BaseUri>,
}

impl Instances {
    /// No instance yet, at the start of the service.
    #[must_use]
    pub const fn new(config: InstancesConfig, now: Time) -> Self {
        Self { config, entries: BTreeMap::new(), last_look: now, failures: BTreeSet::new() }
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
        if !self.entries.contains_key(&status.instance) {
            self.make_room()?;
        }
        let may_sleep = self.may_sleep(&status);
        let instance = status.instance.clone();
        match self.entries.get_mut(&instance) {
            Some(entry) => entry.report(status, may_sleep, now),
            None => {
                let (entry, accepted) = Entry::first(status, may_sleep, now);
                self.entries.insert(instance, entry);
                Ok(accepted)
            }
        }
    }

    /// Counts a placement at an instance until its next status.
    pub fn placed(&mut self, instance: &BaseUri) {
        if let Some(entry) = self.entries.get_mut(instance) {
            entry.placed();
        }
    }

    /// Gives an instance a state.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn set_state(
        &mut self,
        instance: &BaseUri,
        state: InstanceState,
        now: Time,
    ) -> Result<InstanceState, StateError> {
        self.look(now);
        if state == InstanceState::Failed {
            return Err(StateError::NotAState);
        }
        self.entries.get_mut(instance).ok_or(StateError::Unknown)?.order(state)
    }

    /// The last status of an instance, with the state it is held to be in.
    #[must_use]
    pub fn view(&mut self, instance: &BaseUri, now: Time) -> Option<InstanceStatus> {
        self.look(now);
        self.entries.get(instance).map(Entry::view)
    }

    /// All instances known, ordered by URI, as [`Instances::view`].
    #[must_use]
    pub fn list(&mut self, now: Time) -> Vec<InstanceStatus> {
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
        self.look(now);
        let fleet = self.fleet_service_us();
        self.entries
            .values()
            .filter(|entry| entry.state() == InstanceState::Active && entry.status().computes(compat))
            .map(|entry| ActiveInstance {
                status: Arc::clone(entry.status()),
                queued: entry.queued(),
                mean_service_us: entry.mean_service_us().unwrap_or(fleet),
            })
            .collect()
    }

    fn fleet_service_us(&self) -> f64 {
        let live = self.entries.values().filter(|entry| entry.state() != InstanceState::Failed);
        let known: Vec<f64> = live.filter_map(Entry::mean_service_us).collect();
        if known.is_empty() { 0.0 } else { known.iter().sum::<f64>() / known.len() as f64 }
    }

    fn may_sleep(&self, status: &InstanceStatus) -> bool {
        let others = self
            .entries
            .iter()
            .filter(|(uri, entry)| **uri != status.instance && entry.state() == InstanceState::Active);
        status.queued == 0 && others.count() >= self.config.min_active
    }

    fn make_room(&mut self) -> Result<(), StatusError> {
        if self.entries.len() < self.config.max_instances {
            return Ok(());
        }
        let failed = self.entries.iter().filter(|(_, entry)| entry.state() == InstanceState::Failed);
        let longest = failed.min_by_key(|(_, entry)| entry.deadline()).map(|(uri, _)| uri.clone());
        match longest {
            Some(uri) => {
                self.entries.remove(&uri);
                Ok(())
            }
            None => Err(StatusError::Full { max: self.config.max_instances }),
        }
    }
}
