//! Shard maps: the machine of [`kvsp_core::reshard`] behind a short lock, and what carries out its effects.
//!
//! Maps are few and change seldom beside sessions, so one machine has them all. What it records goes through the same
//! thread that commits sessions.

mod codec;
mod groups;
mod tell;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvsp_core::reshard::{
    Change, Decision, Effect, MapError, Maps, MapsConfig, NewMap, Outcome, Row, Ticket,
};
use kvsp_core::time::Time;
use kvsp_net::Failure;
use kvsp_proto::id::ScopeId;
use kvsp_proto::message::{MapCreate, MapId, MapList, MapView, ReshardRequest, Shard};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::InstanceState;
use kvsp_proto::uri::BaseUri;
use kvsp_store::state::{GroupCommit, StateError};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;

use crate::service::ControllerService;
pub(crate) use codec::{RestoreError, restore};
use tell::{MAX_CALLS, MAX_PLANS};

/// Seconds after which a peer may come again whose change could not be recorded.
const RETRY_AFTER_S: u64 = 1;

/// How long a request waits for an earlier change of the same map to be recorded.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// A request on a map is not carried out; nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unmade {
    /// The machine refuses it.
    #[error(transparent)]
    Refused(#[from] MapError),
    /// An earlier change of the map is on its way to the disk for too long.
    #[error("an earlier change of the map is still being written")]
    Busy,
    /// The store failed.
    #[error("the map's state cannot be written at present; nothing has changed")]
    Store,
}

impl From<Unmade> for Problem {
    fn from(error: Unmade) -> Self {
        match error {
            Unmade::Refused(error) => error.into(),
            Unmade::Busy | Unmade::Store => {
                Self::new(ProblemType::Overloaded, error.to_string()).retry_after(RETRY_AFTER_S)
            }
        }
    }
}

impl From<Unmade> for Failure {
    fn from(error: Unmade) -> Self {
        Self(error.into())
    }
}

/// All maps of a controller.
pub(crate) struct MapTable {
    machine: Mutex<Maps>,
    commits: GroupCommit,
    /// Something of some map has changed, or a write has ended.
    changed: Notify,
    calls: Semaphore,
    plans: Semaphore,
    /// Whether there is any map, so that sessions without one need not ask.
    any: AtomicBool,
}

impl MapTable {
    /// The maps that were recorded.
    pub(crate) fn new(config: MapsConfig, commits: GroupCommit, restored: Vec<Row>, now: Time) -> Self {
        Self {
            any: AtomicBool::new(!restored.is_empty()),
            machine: Mutex::new(Maps::restore(config, restored, now)),
            commits,
            changed: Notify::new(),
            calls: Semaphore::new(MAX_CALLS),
            plans: Semaphore::new(MAX_PLANS),
        }
    }

    fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Maps> {
        // A panic under the lock is answered with 500; the machine stays usable, so poison is passed over.
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ControllerService {
    /// Creates a map; whether it is new, and how it stands.
    ///
    /// # Errors
    /// [`Unmade`].
    pub(crate) async fn create_map(
        self: &Arc<Self>,
        map: MapId,
        create: MapCreate,
    ) -> Result<(bool, MapView), Unmade> {
        let leader = create.session.and_then(|session| self.leader_of(session));
        let new = NewMap {
            map,
            compat_id: create.compat_id,
            scope_id: create.scope_id,
            session: create.session,
            shards: create.shards,
            leader,
        };
        self.refuse_failed(&new.shards)?;
        let mut created = false;
        let view = self
            .change_map(|maps, now| {
                let outcome = maps.create(new.clone(), now);
                created = matches!(outcome, Ok(Outcome::Persist { .. }));
                outcome
            })
            .await?;
        if let Some(session) = new.session {
            // It may have ended or moved meanwhile, when nobody knew that it has a map.
            self.session_changed(session);
        }
        Ok((created, view))
    }

    /// Begins to split a map anew.
    ///
    /// # Errors
    /// [`Unmade`].
    pub(crate) async fn reshard_map(
        self: &Arc<Self>,
        map: &MapId,
        request: ReshardRequest,
    ) -> Result<MapView, Unmade> {
        let ReshardRequest { from, shards, deadline_ms } = request;
        self.view_map(map)?;
        self.refuse_failed(&shards)?;
        self.change_map(|maps, now| maps.reshard(map, from, shards.clone(), deadline_ms, now)).await
    }

    /// An instance whose status has expired gets no part. The machine knows of failures of those that are in maps.
    fn refuse_failed(&self, shards: &[Shard]) -> Result<(), MapError> {
        let (mut instances, now) = (self.instances(), self.now());
        let failed = shards.iter().map(|shard| &shard.instance).find(|instance| {
            instances.view(instance, now).is_some_and(|held| held.status.state == InstanceState::Failed)
        });
        failed.map_or(Ok(()), |instance| Err(MapError::Failed { instance: instance.clone() }))
    }

    /// Ends a map.
    ///
    /// # Errors
    /// [`Unmade`].
    pub(crate) async fn end_map(self: &Arc<Self>, map: &MapId) -> Result<(), Unmade> {
        self.change_map(|maps, now| maps.end(map, now)).await
    }

    /// How a map stands.
    ///
    /// # Errors
    /// Unknown.
    pub(crate) fn view_map(self: &Arc<Self>, map: &MapId) -> Result<MapView, Unmade> {
        Ok(self.maps.lock().view(map)?)
    }

    /// Up to `limit` of the maps of scopes that may be shown, ordered by identifier.
    pub(crate) fn list_maps(&self, limit: usize, shown: impl Fn(ScopeId) -> bool) -> MapList {
        self.maps.lock().list(limit, |row| shown(row.scope_id))
    }

    /// In how many maps an instance has a part.
    pub(crate) fn maps_at(&self, instance: &BaseUri) -> u64 {
        if self.maps.any() { self.maps.lock().of_instance(instance).len() as u64 } else { 0 }
    }

    /// Looks at the clock, and counts maps for the metrics.
    pub(crate) fn tick_maps(self: &Arc<Self>) {
        let (all, restless) = self.with_maps(|maps, now| {
            maps.tick(now);
            maps.count()
        });
        self.metrics.maps.count("settled", all - restless);
        self.metrics.maps.count("changing", restless);
    }

    /// Tells the machine something, and has done what follows.
    pub(crate) fn with_maps<T>(self: &Arc<Self>, work: impl FnOnce(&mut Maps, Time) -> T) -> T {
        let mut effects = Vec::new();
        let answer = {
            let mut maps = self.maps.lock();
            let answer = work(&mut maps, self.now());
            effects.extend(std::iter::from_fn(|| maps.poll_effect()));
            self.maps.any.store(!maps.list(1, |_| true).maps.is_empty(), Ordering::Relaxed);
            answer
        };
        effects.into_iter().for_each(|effect| self.do_of_maps(effect));
        answer
    }

    /// Changes a map; resolves once the change is on stable storage.
    async fn change_map<T>(
        self: &Arc<Self>,
        mut ask: impl FnMut(&mut Maps, Time) -> Result<Outcome<T>, MapError>,
    ) -> Result<T, Unmade> {
        let deadline = Instant::now() + BUSY_WAIT;
        loop {
            let mut changed = pin!(self.maps.changed.notified());
            // Before the map is looked at, so that no change falls between the two.
            changed.as_mut().enable();
            match self.with_maps(&mut ask)? {
                Outcome::Done(answer) => return Ok(answer),
                Outcome::Persist { ticket, change, then } => {
                    let (written, wait) = oneshot::channel();
                    self.write_map(ticket, change, Some(written));
                    return match wait.await {
                        Ok(true) => Ok(then),
                        _ => Err(Unmade::Store),
                    };
                }
                Outcome::Busy => {
                    if tokio::time::timeout_at(deadline, changed).await.is_err() {
                        return Err(Unmade::Busy);
                    }
                }
            }
        }
    }

    /// Writes a change in a task of its own: a request that goes away leaves it to be written.
    fn write_map(self: &Arc<Self>, ticket: Ticket, change: Change, told: Option<oneshot::Sender<bool>>) {
        let service = Arc::clone(self);
        self.sessions.spawn(async move {
            let written = service.commit_map(&change).await;
            if let Err(error) = &written {
                tracing::error!(%error, "a shard map cannot be recorded");
            }
            let is_written = written.is_ok();
            if is_written {
                service.note_decision(&change);
            }
            service.with_maps(|maps, now| {
                if is_written { maps.persisted(ticket, now) } else { maps.persist_failed(ticket, now) }
            });
            if let Some(told) = told {
                // Whoever asked may be gone.
                let _gone = told.send(is_written);
            }
        });
    }

    async fn commit_map(&self, change: &Change) -> Result<(), StateError> {
        let row = match change {
            Change::Row(row) => codec::set(row).map_err(|_| StateError::BadRow("not JSON"))?,
            Change::Erase(map) => codec::remove(map),
        };
        self.maps.commits.commit(vec![row]).await
    }

    fn note_decision(&self, change: &Change) {
        let Change::Row(row) = change else { return };
        let Some(plan) = row.plan.as_ref().filter(|_| !row.ended) else { return };
        let (map, to) = (&row.map, plan.to);
        match plan.decision {
            None => tracing::info!(%map, to, "a change of a shard map begins"),
            Some(Decision::Commit) => {
                tracing::info!(%map, to, "committed");
                self.metrics.maps.decided("committed");
            }
            Some(Decision::Abort) => {
                tracing::warn!(%map, to, "aborted");
                self.metrics.maps.decided("aborted");
            }
        }
    }

    fn do_of_maps(self: &Arc<Self>, effect: Effect) {
        match effect {
            Effect::Persist { ticket, change } => self.write_map(ticket, change, None),
            Effect::Send { sent, message } => self.go_on(Arc::clone(self).tell_member(sent, message)),
            Effect::AskLength { sent, version, request } => {
                self.go_on(Arc::clone(self).ask_length(sent, version, request));
            }
            Effect::Forget(sent) => self.go_on(Arc::clone(self).have_forgotten(sent)),
            Effect::Regroup { map, lost } => self.regroup(&map, lost),
            Effect::Changed(_) => self.maps.changed.notify_waiters(),
        }
    }
}
