//! The lifecycle of instances (draft section 6.3): what outlives the controller of it, the orders that instances are
//! given, and who is woken or started for placements that find no capacity (draft section 6.4).

mod codec;
mod grow;
mod hook;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use kvsp_core::instances::{Accepted, Growth, InstanceRow, Starts};
use kvsp_net::Failure;
use kvsp_proto::message::InstanceView;
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::{InstanceState, InstanceStatus};
use kvsp_proto::uri::BaseUri;
use kvsp_store::state::GroupCommit;
use tokio::sync::Notify;

use crate::config::ControllerConfig;
use crate::service::ControllerService;
pub(crate) use codec::{RestoreError, restore};
use grow::Crowd;

/// Seconds after which a peer may come again whose change could not be recorded.
const RETRY_AFTER_S: u64 = 1;

/// What of an instance could not be brought to stable storage; nobody was told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what is remembered of the instance cannot be written at present")]
pub(crate) struct Unwritten;

impl From<Unwritten> for Problem {
    fn from(error: Unwritten) -> Self {
        Self::new(ProblemType::Overloaded, error.to_string()).retry_after(RETRY_AFTER_S)
    }
}

impl From<Unwritten> for Failure {
    fn from(error: Unwritten) -> Self {
        Self(error.into())
    }
}

/// What an order came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ordered {
    /// The state ordered.
    pub(crate) state: InstanceState,
    /// The state that the instance took up; `None` where it did not answer.
    pub(crate) taken: Option<InstanceState>,
}

/// What the lifecycle needs beside the instances themselves.
pub(crate) struct Lifecycle {
    commits: GroupCommit,
    /// Held by the one that writes: rows of one instance go to the disk in the order in which they came about.
    writing: tokio::sync::Mutex<()>,
    growth: Mutex<Growth>,
    crowd: Crowd,
    /// An instance became active, or was found not to become so.
    changed: Notify,
    /// The controller's own base URI, for instances that it starts.
    base: OnceLock<BaseUri>,
}

impl Lifecycle {
    pub(crate) fn new(config: &ControllerConfig, commits: GroupCommit) -> Self {
        Self {
            commits,
            writing: tokio::sync::Mutex::new(()),
            growth: Mutex::new(Growth::new(config.start.bounds().map(Starts::new))),
            crowd: Crowd::default(),
            changed: Notify::new(),
            base: OnceLock::new(),
        }
    }

    /// Says once where the controller is reached.
    pub(crate) fn is_reached_at(&self, base: BaseUri) {
        drop(self.base.set(base));
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        // A panic under the lock is answered with 500; the machine stays usable, so poison is passed over.
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ControllerService {
    /// Takes a status; resolves once what it changes is on stable storage. Answers the state that the instance is to
    /// be in.
    ///
    /// # Errors
    /// [`kvsp_core::instances::StatusError`] as a problem; `kvsp-overloaded` where it cannot be recorded.
    pub(crate) async fn take_status(
        self: &Arc<Self>,
        status: InstanceStatus,
    ) -> Result<InstanceState, Problem> {
        let (instance, epoch) = (status.instance.clone(), status.epoch);
        let ttl_ms = status.ttl_ms.min(self.config.max_ttl_ms);
        let compats = status.compat_ids.clone();
        let kv_utilization = status.kv_utilization;
        let accepted = {
            let mut instances = self.instances();
            let accepted = instances.report(status, self.now())?;
            self.metrics.count(&instances);
            accepted
        };
        let Accepted { state, restarted, fresh, activated, migrate } = accepted;
        if restarted {
            tracing::info!(%instance, epoch, "restarted");
        }
        self.with_every_session(|sessions, now| {
            sessions.instance_reported(&instance, epoch, ttl_ms, now);
            if migrate {
                sessions.hand_over(&instance, now);
            }
        });
        self.with_maps(|maps, now| maps.instance_reported(&instance, epoch, ttl_ms, now));
        self.member_reported(&instance, state, kv_utilization);
        if fresh {
            self.has_started(|compat| compats.as_ref().is_none_or(|ids| ids.contains(&compat)));
        }
        if activated {
            self.lifecycle.changed.notify_waiters();
        }
        self.record_instance(&instance).await?;
        Ok(state)
    }

    /// Gives an instance a state, durably, and tells it. With `migrate` its sessions go on elsewhere. Where the
    /// instance cannot be told it hears of the order with the answer to its next status.
    ///
    /// # Errors
    /// [`kvsp_core::instances::StateError`] as a problem; `kvsp-overloaded` where the order cannot be recorded, and
    /// then it does not stand.
    pub(crate) async fn order(
        self: &Arc<Self>,
        instance: &BaseUri,
        state: InstanceState,
        migrate: bool,
    ) -> Result<Ordered, Problem> {
        let state = self.instances().set_state(instance, state, migrate, self.now())?;
        if let Err(error) = self.record_instance(instance).await {
            self.instances().take_back(instance);
            return Err(error.into());
        }
        if self.instances().migrates(instance) {
            self.with_every_session(|sessions, now| sessions.hand_over(instance, now));
        }
        if state == InstanceState::Draining {
            self.maps_without(instance);
        }
        let taken = self.tell(instance, state).await;
        self.metrics.count(&self.instances());
        Ok(Ordered { state, taken })
    }

    /// Tells an instance its new state, and answers the one that it took up.
    async fn tell(self: &Arc<Self>, instance: &BaseUri, state: InstanceState) -> Option<InstanceState> {
        let epoch = self.instances().epoch(instance);
        let telling = self.client.put_state(instance, state);
        let taken = match tokio::time::timeout(self.config.state_timeout(), telling).await {
            Ok(Ok(answer)) => answer.state,
            Ok(Err(error)) => {
                tracing::warn!(%instance, %error, "could not be told its state");
                return None;
            }
            Err(_) => {
                tracing::warn!(%instance, "did not take its state in time");
                return None;
            }
        };
        tracing::info!(%instance, state = state.as_str(), taken = taken.as_str(), "told its state");
        if let Some(epoch) = epoch
            && self.instances().answered(instance, epoch, taken, self.now())
        {
            self.lifecycle.changed.notify_waiters();
        }
        Some(taken)
    }

    /// Resolves once all that is known of an instance is on stable storage. Whoever comes first writes for all.
    async fn record_instance(&self, instance: &BaseUri) -> Result<(), Unwritten> {
        if self.instances().is_recorded(instance) {
            return Ok(());
        }
        let _turn = self.lifecycle.writing.lock().await;
        let changes = {
            let instances = self.instances();
            if instances.is_recorded(instance) {
                return Ok(());
            }
            instances.unrecorded()
        };
        let rows = codec::rows(&changes).map_err(|error| {
            tracing::error!(%error, "an instance could not be written as a row");
            Unwritten
        })?;
        // A request that goes away here leaves rows that are written again: that changes nothing.
        self.lifecycle.commits.commit(rows).await.map_err(|error| {
            tracing::error!(%error, "instances cannot be recorded");
            Unwritten
        })?;
        self.instances().recorded(changes);
        Ok(())
    }

    /// An instance, as it is shown.
    pub(crate) fn view_instance(&self, instance: &BaseUri) -> Option<InstanceView> {
        let held = self.instances().view(instance, self.now())?;
        let sessions = self.hosted(instance);
        Some(InstanceView {
            status: held.status,
            wanted: Some(held.wanted),
            sessions: Some(sessions),
            shards: Some(self.maps_at(instance)),
        })
    }

    /// All instances, as they are shown, ordered by URI.
    pub(crate) fn list_instances(&self) -> Vec<InstanceView> {
        let held = self.instances().list(self.now());
        let sessions = self.sessions_by_host();
        let view = |held: kvsp_core::instances::HeldInstance| InstanceView {
            sessions: Some(sessions.get(&held.status.instance).copied().unwrap_or(0)),
            shards: Some(self.maps_at(&held.status.instance)),
            status: held.status,
            wanted: Some(held.wanted),
        };
        held.into_iter().map(view).collect()
    }
}

/// What was remembered of instances, as it goes into the service.
pub(crate) type RestoredInstances = Vec<InstanceRow>;
