//! Who waits for a session to change: long polls, and requests that met a change on its way to the disk.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use uuid::Uuid;

/// All who wait, by session.
#[derive(Debug)]
pub(crate) struct Waits {
    max: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    all: usize,
    sessions: HashMap<Uuid, Crowd>,
}

#[derive(Debug, Default)]
struct Crowd {
    size: usize,
    changed: Arc<Notify>,
}

/// One who waits; gone when dropped.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    waits: &'a Waits,
    session: Uuid,
    changed: Arc<Notify>,
}

impl Waits {
    /// At most `max` wait at a time.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, waiting: Mutex::default() }
    }

    /// Begins to wait for as long as a peer wishes; `None` where too many wait.
    pub(crate) fn join(&self, session: Uuid) -> Option<Waiter<'_>> {
        let mut waiting = self.lock();
        (waiting.all < self.max).then(|| waiting.join(self, session))
    }

    /// Begins to wait for as long as a change is on its way to the disk. There is always room: a request that
    /// records something must not be refused because others only look.
    pub(crate) fn join_briefly(&self, session: Uuid) -> Waiter<'_> {
        self.lock().join(self, session)
    }

    /// Wakes those who wait for a session.
    pub(crate) fn changed(&self, session: Uuid) {
        let waiting = self.lock();
        if let Some(crowd) = waiting.sessions.get(&session) {
            crowd.changed.notify_waiters();
        }
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // The counts are changed in single steps; a panic between them cannot come.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn join<'a>(&mut self, waits: &'a Waits, session: Uuid) -> Waiter<'a> {
        self.all += 1;
        let crowd = self.sessions.entry(session).or_default();
        crowd.size += 1;
        Waiter { waits, session, changed: Arc::clone(&crowd.changed) }
    }
}

impl Waiter<'_> {
    /// Resolves at the next change. To miss none it is enabled before the session is looked at.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waits.lock();
        waiting.all = waiting.all.saturating_sub(1);
        if let Some(crowd) = waiting.sessions.get_mut(&self.session) {
            crowd.size = crowd.size.saturating_sub(1);
            if crowd.size == 0 {
                waiting.sessions.remove(&self.session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_wakes_all_who_wait_for_it_and_nobody_else() {
        let waits = Waits::new(3);
        let (mine, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let (one, two, third) =
            (waits.join(mine).unwrap(), waits.join(mine).unwrap(), waits.join(other).unwrap());
        assert!(waits.join(mine).is_none(), "the room is bounded");
        drop(waits.join_briefly(mine));
        let mut woken = Box::pin(async { tokio::join!(one.changed(), two.changed()) });
        let mut sleeping = Box::pin(third.changed());
        assert!(futures_poll(woken.as_mut()).await.is_none());
        assert!(futures_poll(sleeping.as_mut()).await.is_none());
        waits.changed(mine);
        assert!(futures_poll(woken.as_mut()).await.is_some());
        assert!(futures_poll(sleeping.as_mut()).await.is_none());
        drop((woken, sleeping));
        drop((one, two, third));
        assert_eq!(waits.len(), 0);
        assert!(waits.lock().sessions.is_empty());
    }

    #[tokio::test]
    async fn what_comes_between_enabling_and_waiting_is_not_missed() {
        let waits = Waits::new(1);
        let waiter = waits.join(Uuid::nil()).unwrap();
        let mut changed = Box::pin(waiter.changed());
        changed.as_mut().enable();
        waits.changed(Uuid::nil());
        changed.await;
    }

    async fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = std::future::ready(()) => None,
        }
    }
}
