//! The sessions of a gateway, within bounds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use uuid::Uuid;

use super::{FrontEnd, Session};
use crate::GatewayConfig;

/// Sessions that run, and for a while those that have ended.
pub(crate) struct Registry {
    sessions: Mutex<Sessions>,
    /// Room for sessions that run.
    room: Arc<Semaphore>,
    /// Octets that all transcripts take.
    octets: Arc<AtomicU64>,
    max_octets: u64,
    max_ended: usize,
    retention: Duration,
}

#[derive(Default)]
struct Sessions {
    by_id: BTreeMap<Uuid, Arc<Session>>,
    /// Those that have ended, oldest first, and when they go.
    ended: VecDeque<(Instant, Uuid)>,
}

impl Registry {
    pub(crate) fn new(config: &GatewayConfig) -> Self {
        Self {
            sessions: Mutex::default(),
            room: Arc::new(Semaphore::new(config.max_sessions.min(Semaphore::MAX_PERMITS))),
            octets: Arc::new(AtomicU64::new(0)),
            max_octets: config.max_transcript_octets,
            max_ended: config.max_sessions,
            retention: Duration::from_millis(config.stream_retention_ms),
        }
    }

    /// Room for one more session; `None` where there are too many, or too much of them is kept. Those that
    /// have ended make room first.
    pub(crate) fn admit(&self) -> Option<OwnedSemaphorePermit> {
        while self.octets.load(Ordering::Relaxed) >= self.max_octets {
            let oldest = {
                let mut sessions = self.lock();
                let (_, id) = sessions.ended.pop_front()?;
                sessions.by_id.remove(&id)
            };
            // Its octets go with the last that holds it, outside the lock.
            drop(oldest);
        }
        Arc::clone(&self.room).try_acquire_owned().ok()
    }

    /// A new session, or the one of that identifier that is there already.
    pub(crate) fn begin(
        &self,
        id: Uuid,
        front_end: FrontEnd,
        patience: Duration,
    ) -> Result<Arc<Session>, Arc<Session>> {
        let mut sessions = self.lock();
        if let Some(session) = sessions.by_id.get(&id) {
            return Err(Arc::clone(session));
        }
        let session = Arc::new(Session::new(id, front_end, patience, Arc::clone(&self.octets)));
        sessions.by_id.insert(id, Arc::clone(&session));
        Ok(session)
    }

    /// A session that runs or has not long ended.
    pub(crate) fn find(&self, id: Uuid) -> Option<Arc<Session>> {
        self.lock().by_id.get(&id).cloned()
    }

    /// A session nobody will come back to.
    pub(super) fn remove(&self, id: Uuid) {
        let removed = self.lock().by_id.remove(&id);
        drop(removed);
    }

    /// A session has ended; it is kept for a while.
    pub(super) fn retire(&self, id: Uuid) {
        let goes = Instant::now() + self.retention;
        let mut sessions = self.lock();
        sessions.ended.push_back((goes, id));
        let surplus = sessions.ended.len().saturating_sub(self.max_ended);
        for (_, id) in sessions.ended.drain(..surplus).collect::<Vec<_>>() {
            sessions.by_id.remove(&id);
        }
    }

    /// Forgets what has been kept long enough.
    pub(crate) fn expire(&self) {
        let now = Instant::now();
        let mut sessions = self.lock();
        while let Some((_, id)) = sessions.ended.pop_front_if(|(goes, _)| *goes <= now) {
            sessions.by_id.remove(&id);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
