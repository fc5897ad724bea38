//! Sessions: the machines of [`kvsp_core::session`] behind short locks, and what carries out their effects.
//!
//! Sessions are cut into shards by identifier, so that requests about different sessions seldom meet. All shards
//! share one thread that commits, so that the checkpoints of many sessions share one sync of the device.

mod codec;
mod commit;
mod failover;
mod state;
mod views;
mod waits;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvsp_core::session::{Change, Effect, Outcome, SessionError, Sessions, Stored, Ticket};
use kvsp_core::time::Time;
use kvsp_net::Failure;
use kvsp_proto::message::SessionState;
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::uri::BaseUri;
use kvsp_store::state::{GroupCommit, StateError};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::config::SessionSettings;
use crate::service::ControllerService;
use codec::HeadRows;
pub(crate) use codec::Restored;
use commit::Commit;
pub use state::StateOpenError;
pub(crate) use state::{Keeper, State};
use waits::Waits;

/// Seconds after which a peer may come again whose change could not be recorded, or that met another.
const RETRY_AFTER_S: u64 = 1;

/// A change of a session is not recorded; nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unrecorded {
    /// The machine refuses it.
    #[error(transparent)]
    Refused(#[from] SessionError),
    /// An earlier change of the session is on its way to the disk for too long.
    #[error("an earlier change of the session is still being written")]
    Busy,
    /// The store failed.
    #[error("the session's state cannot be written at present; nothing has changed")]
    Store,
}

impl From<Unrecorded> for Problem {
    fn from(error: Unrecorded) -> Self {
        match error {
            Unrecorded::Refused(error) => error.into(),
            // Not `kvsp-storage-full`, which is about blocks: who sends a checkpoint has nothing to evict and tries again.
            Unrecorded::Busy | Unrecorded::Store => {
                Self::new(ProblemType::Overloaded, error.to_string()).retry_after(RETRY_AFTER_S)
            }
        }
    }
}

impl From<Unrecorded> for Failure {
    fn from(error: Unrecorded) -> Self {
        Self(error.into())
    }
}

/// Every state of a session.
const STATES: [SessionState; 4] =
    [SessionState::Running, SessionState::Resuming, SessionState::Done, SessionState::Failed];

/// All sessions of a controller.
pub(crate) struct SessionTable {
    shards: Box<[Mutex<Shard>]>,
    commits: GroupCommit,
    waits: Waits,
    /// What goes on without a request.
    tasks: TaskTracker,
    /// The service stops: those who wait are let go.
    closing: CancellationToken,
    /// The last commit failed.
    failing: AtomicBool,
}

/// The sessions of one shard.
struct Shard {
    machine: Sessions,
    /// Sessions by state, as they were last counted, in the order of [`STATES`].
    counts: [usize; STATES.len()],
    /// How many rows the head of each session takes.
    head_rows: HashMap<Uuid, u32>,
    /// Since when sessions are without an instance.
    lost: HashMap<Uuid, Time>,
}

impl Shard {
    fn heads_of(&self, changes: &[Change]) -> HeadRows {
        HeadRows::of(changes, |session| self.head_rows.get(&session).copied().unwrap_or(0))
    }
}

impl SessionTable {
    /// The sessions that were recorded, cut into shards.
    pub(crate) fn new(
        settings: &SessionSettings,
        commits: GroupCommit,
        restored: Vec<Restored>,
        now: Time,
    ) -> Self {
        let count = settings.shards.max(1);
        let mut parts: Vec<(Vec<Stored>, HashMap<Uuid, u32>)> = Vec::new();
        parts.resize_with(count, Default::default);
        for Restored { stored, head_rows } in restored {
            let session = stored.head.session;
            let (sessions, rows) = &mut parts[shard_of(session, count)];
            sessions.push(stored);
            rows.insert(session, head_rows);
        }
        let shards = parts.into_iter().map(|(sessions, head_rows)| {
            let machine = Sessions::restore(settings.shard(), sessions, now);
            Mutex::new(Shard { machine, counts: [0; STATES.len()], head_rows, lost: HashMap::new() })
        });
        Self {
            shards: shards.collect(),
            commits,
            waits: Waits::new(settings.max_long_polls),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            failing: AtomicBool::new(false),
        }
    }

    fn shard_of(&self, session: Uuid) -> usize {
        shard_of(session, self.shards.len())
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // A panic under a lock is answered with 500; the machines stay usable, so poison is passed over.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets something go on that looks after its own end with [`ControllerService::until_closing`].
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(work);
    }

    /// Ends all waiting, and resolves when nothing goes on any more.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// The shard of a session among `count`. Identifiers are random, so any octets spread them.
fn shard_of(session: Uuid, count: usize) -> usize {
    let [.., a, b] = *session.as_bytes();
    usize::from(u16::from_be_bytes([a, b])) % count
}

impl ControllerService {
    /// Looks at the clock for all sessions.
    pub(crate) fn tick_sessions(self: &Arc<Self>) {
        self.with_every_session(Sessions::tick);
    }

    /// Counts sessions for the metrics: with each call those of another shard, because that takes time.
    pub(crate) fn count_sessions(&self, call: usize) {
        let table = &self.sessions;
        let mut sums = [0; STATES.len()];
        for number in 0..table.shards.len() {
            let mut shard = table.lock(number);
            if number == call % table.shards.len() {
                shard.counts = STATES.map(|state| shard.machine.count(state));
            }
            sums.iter_mut().zip(shard.counts).for_each(|(sum, count)| *sum += count);
        }
        let by_state = STATES.into_iter().zip(sums);
        self.metrics.sessions.count(by_state, table.waits.len(), table.commits.counts());
    }

    /// Tells the machine of a session something, and has done what it wants done.
    pub(crate) fn with_session<T>(
        self: &Arc<Self>,
        session: Uuid,
        work: impl FnOnce(&mut Sessions, Time) -> T,
    ) -> T {
        self.with_shard(self.sessions.shard_of(session), |shard, now| work(&mut shard.machine, now))
    }

    /// Tells every machine something.
    pub(crate) fn with_every_session(self: &Arc<Self>, mut work: impl FnMut(&mut Sessions, Time)) {
        for shard in 0..self.sessions.shards.len() {
            self.with_shard(shard, |shard, now| work(&mut shard.machine, now));
        }
    }

    fn with_shard<T>(self: &Arc<Self>, number: usize, work: impl FnOnce(&mut Shard, Time) -> T) -> T {
        let mut effects = Vec::new();
        let answer = {
            let mut shard = self.sessions.lock(number);
            let now = self.now();
            let answer = work(&mut shard, now);
            while let Some(effect) = shard.machine.poll_effect() {
                self.note(&mut shard, &effect, now);
                effects.push(effect);
            }
            answer
        };
        effects.into_iter().for_each(|effect| self.carry_out(number, effect));
        answer
    }

    /// Changes a session; resolves once the change is on stable storage.
    ///
    /// # Errors
    /// [`Unrecorded`].
    pub(crate) async fn record<T>(
        self: &Arc<Self>,
        session: Uuid,
        mut ask: impl FnMut(&mut Sessions, Time) -> Result<Outcome<T>, SessionError>,
    ) -> Result<T, Unrecorded> {
        if let Some(answer) = self.try_record(session, &mut ask).await? {
            return Ok(answer);
        }
        let deadline = Instant::now() + self.config.sessions.busy_wait();
        let waiter = self.sessions.waits.join_briefly(session);
        loop {
            let mut changed = pin!(waiter.changed());
            changed.as_mut().enable();
            if let Some(answer) = self.try_record(session, &mut ask).await? {
                return Ok(answer);
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                return Err(Unrecorded::Busy);
            }
        }
    }

    /// As [`Self::record`]; `None` where another change of the session is on its way.
    async fn try_record<T>(
        self: &Arc<Self>,
        session: Uuid,
        ask: &mut impl FnMut(&mut Sessions, Time) -> Result<Outcome<T>, SessionError>,
    ) -> Result<Option<T>, Unrecorded> {
        let shard = self.sessions.shard_of(session);
        let (outcome, heads) = self.with_shard(shard, |shard, now| {
            let outcome = ask(&mut shard.machine, now);
            let heads = match &outcome {
                Ok(Outcome::Persist { changes, .. }) => shard.heads_of(changes),
                _ => HeadRows::default(),
            };
            (outcome, heads)
        });
        match outcome? {
            Outcome::Done(answer) => Ok(Some(answer)),
            Outcome::Busy => Ok(None),
            Outcome::Persist { ticket, changes, then } => {
                match Commit::new(self, shard, ticket, &changes, heads).await {
                    Ok(()) => Ok(Some(then)),
                    Err(_) => Err(Unrecorded::Store),
                }
            }
        }
    }

    /// A change of sessions of a shard is on stable storage, or could not be brought there.
    fn committed(
        self: &Arc<Self>,
        shard: usize,
        ticket: Ticket,
        heads: &HeadRows,
        error: Option<&StateError>,
    ) {
        let had_failed = self.sessions.failing.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(error) if !had_failed => tracing::error!(%error, "sessions cannot be recorded"),
            None if had_failed => tracing::info!("sessions are recorded again"),
            _ => {}
        }
        self.with_shard(shard, |shard, now| match error {
            None => {
                for (session, rows) in heads.iter() {
                    match rows {
                        0 => shard.head_rows.remove(&session),
                        _ => shard.head_rows.insert(session, rows),
                    };
                }
                shard.machine.persisted(ticket, now);
            }
            Some(_) => shard.machine.persist_failed(ticket, now),
        });
    }

    /// Notes an effect for the metrics.
    fn note(&self, shard: &mut Shard, effect: &Effect, now: Time) {
        match effect {
            Effect::Place(place) if place.hand_over => self.metrics.sessions.leaves(),
            Effect::Place(place) => {
                shard.lost.entry(place.session).or_insert_with(|| {
                    self.metrics.sessions.lost();
                    now
                });
            }
            Effect::Changed(session) if shard.lost.contains_key(session) => {
                let view = shard.machine.view(*session, now);
                let state = view.as_ref().map_or(SessionState::Done, |view| view.state);
                if state != SessionState::Resuming
                    && let Some(since) = shard.lost.remove(session)
                {
                    match state {
                        SessionState::Running => self.metrics.sessions.found_again(now.since(since)),
                        SessionState::Failed => {
                            let reason = view.ok().and_then(|view| view.reason).unwrap_or_default();
                            tracing::warn!(%session, reason, "a session failed");
                        }
                        SessionState::Resuming | SessionState::Done => {}
                    }
                }
            }
            _ => {}
        }
    }

    /// Has an effect done; nothing of it is waited for.
    fn carry_out(self: &Arc<Self>, shard: usize, effect: Effect) {
        match effect {
            Effect::Changed(session) => {
                self.sessions.waits.changed(session);
                self.session_changed(session);
            }
            Effect::Persist { ticket, changes } => self.persist(shard, ticket, &changes),
            Effect::Place(place) => self.go_on(Arc::clone(self).find_instance(*place)),
            Effect::Resume { session, instance, request } => {
                self.go_on(Arc::clone(self).resume(session, instance, request));
            }
        }
    }

    fn persist(self: &Arc<Self>, shard: usize, ticket: Ticket, changes: &[Change]) {
        let heads = self.sessions.lock(shard).heads_of(changes);
        // Effects come up in requests and in tasks, so there is a runtime.
        Commit::new(self, shard, ticket, changes, heads).detach(&Handle::current());
    }

    /// How many sessions an instance has, or is being given.
    pub(crate) fn hosted(&self, instance: &BaseUri) -> u64 {
        let shards = 0..self.sessions.shards.len();
        shards.map(|number| self.sessions.lock(number).machine.hosted(instance) as u64).sum()
    }

    /// How many sessions each instance has, or is being given.
    pub(crate) fn sessions_by_host(&self) -> BTreeMap<BaseUri, u64> {
        let mut counts = BTreeMap::new();
        for number in 0..self.sessions.shards.len() {
            for (instance, count) in self.sessions.lock(number).machine.hosts() {
                *counts.entry(instance.clone()).or_default() += count as u64;
            }
        }
        counts
    }

    /// Waits for something, but no longer than until the service stops.
    pub(crate) async fn until_closing<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.sessions.closing.run_until_cancelled(work).await
    }

    /// Lets something go on until the service stops.
    pub(crate) fn go_on(&self, work: impl Future<Output = ()> + Send + 'static) {
        let closing = self.sessions.closing.clone();
        self.sessions.tasks.spawn(async move {
            closing.run_until_cancelled(work).await;
        });
    }
}
