//! The sessions of an instance, bounded in number.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvsp_core::time::Time;
use kvsp_proto::problem::{Problem, ProblemType};
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::{Facts, Phase, Session, SessionCounters};
use crate::Agent;

/// How often ended sessions are looked through.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The table.
pub(crate) struct Sessions {
    max: usize,
    by_id: Mutex<BTreeMap<Uuid, Arc<Session>>>,
    /// Loads of resumed sessions that run at once.
    pub(super) loads: Arc<Semaphore>,
    pub(crate) counters: SessionCounters,
}

/// A session that was asked for.
pub(super) enum Opened {
    /// It is here at that epoch already.
    Known(Arc<Session>),
    /// It was put there now.
    New(Arc<Session>),
}

impl Sessions {
    pub(crate) fn new(max: usize, loads: usize) -> Self {
        Self {
            max: max.max(1),
            by_id: Mutex::default(),
            loads: Arc::new(Semaphore::new(loads.max(1))),
            counters: SessionCounters::default(),
        }
    }

    fn with<R>(&self, run: impl FnOnce(&mut BTreeMap<Uuid, Arc<Session>>) -> R) -> R {
        run(&mut self.by_id.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The session, whatever became of it here.
    pub(super) fn get(&self, id: Uuid) -> Option<Arc<Session>> {
        self.with(|table| table.get(&id).cloned())
    }

    /// The session at an epoch, where it is here; none where it is new, or here at a lower one. A session that
    /// the controller resumes takes the place of one that a request began at the same epoch: the front end was
    /// too early, and the checkpoint decides.
    ///
    /// # Errors
    /// `kvsp-stale-epoch` where a higher epoch was seen, or this one has ended without completing.
    pub(super) fn at_epoch(
        &self,
        id: Uuid,
        epoch: u64,
        resumes: bool,
    ) -> Result<Option<Arc<Session>>, Problem> {
        let known = self.get(id);
        known.map_or(Ok(None), |session| at(session, epoch, resumes))
    }

    /// Put a session there, in the place of the one that was there, which is fenced.
    ///
    /// # Errors
    /// As [`Self::at_epoch`], and `kvsp-overloaded` where as many run as may.
    pub(super) fn open(&self, session: Session, now: Time) -> Result<Opened, Problem> {
        let Facts { id, epoch, resumed, .. } = session.facts;
        self.with(|table| {
            let old = table.get(&id).cloned();
            if let Some(old) = &old
                && let Some(known) = at(old.clone(), epoch, resumed)?
            {
                return Ok(Opened::Known(known));
            }
            if old.is_none() && table.len() >= self.max && !evict(table) {
                return Err(full());
            }
            if let Some(old) = old {
                old.stop(Phase::Fenced(now));
            }
            let session = Arc::new(session);
            table.insert(id, session.clone());
            Ok(Opened::New(session))
        })
    }

    /// Whether a new session would find a place.
    pub(super) fn has_place(&self) -> Result<(), Problem> {
        let place = self.with(|table| {
            table.len() < self.max || table.values().any(|session| session.phase().ended().is_some())
        });
        place.then_some(()).ok_or_else(full)
    }

    /// Forget this session, unless another epoch has taken its place.
    pub(super) fn forget(&self, session: &Arc<Session>) {
        self.with(|table| {
            if table.get(&session.facts.id).is_some_and(|known| Arc::ptr_eq(known, session)) {
                table.remove(&session.facts.id);
            }
        });
    }

    /// Sessions that are not over.
    pub(crate) fn open_count(&self) -> usize {
        self.with(|table| table.values().filter(|s| s.phase().ended().is_none()).count())
    }

    /// End all of them here, as they stand.
    pub(crate) fn stop_all(&self, now: Time) {
        self.with(|table| table.values().for_each(|session| session.stop(Phase::Failed(now))));
    }

    /// Forget what ended longer ago than `retention`, and give up what waits for its prompt for as long.
    fn sweep(&self, retention: Duration, now: Time) {
        self.with(|table| {
            table.retain(|_, session| {
                if let Phase::NeedsPrompt(since) = session.phase()
                    && now.since(since) > retention
                {
                    tracing::warn!(session = %session.facts.id, "nobody brought the session's prompt");
                    session.stop(Phase::Failed(now));
                }
                session.phase().ended().is_none_or(|at| now.since(at) <= retention)
            });
        });
    }
}

/// The session at that epoch; none where another is to take its place.
fn at(session: Arc<Session>, epoch: u64, resumes: bool) -> Result<Option<Arc<Session>>, Problem> {
    let stale = |detail: String| Err(Problem::new(ProblemType::StaleEpoch, detail));
    if session.facts.epoch > epoch {
        return stale(format!("the session is at epoch {}", session.facts.epoch));
    }
    if session.facts.epoch < epoch || (resumes && !session.facts.resumed) {
        return Ok(None);
    }
    match session.phase() {
        Phase::Fenced(_) | Phase::Failed(_) => stale("this epoch of the session has ended here".into()),
        _ => Ok(Some(session)),
    }
}

/// Forget the session that ended first; false where all of them run.
fn evict(table: &mut BTreeMap<Uuid, Arc<Session>>) -> bool {
    let first = table.iter().filter_map(|(id, session)| Some((session.phase().ended()?, *id))).min();
    first.is_some_and(|(_, id)| table.remove(&id).is_some())
}

fn full() -> Problem {
    Problem::new(ProblemType::Overloaded, "the instance has as many sessions as it takes").retry_after(1)
}

/// Look after the table until the task is ended.
pub(crate) async fn keep(agent: Arc<Agent>) {
    let retention = Duration::from_millis(agent.config.session_retention_ms);
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        agent.sessions.sweep(retention, agent.clock.now());
    }
}
