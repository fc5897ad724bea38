//! One durable commit for many callers.
//!
//! A device syncs a few hundred to a few thousand times a second, however little is written each time. So one thread
//! takes all that waits, commits it as one transaction, and tells every caller. While it syncs, the next ones gather.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{MAX_CHANGES, RowChange, StateError, StateStore, check_changes};

/// How much may wait, and how much goes into one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupBounds {
    /// Change lists that wait or are being committed; who comes then waits for room.
    pub waiting: usize,
    /// Octets of keys and values that wait or are being committed, 64 more a row.
    pub waiting_octets: usize,
    /// Rows in one transaction, at most [`MAX_CHANGES`]; a longer list goes alone.
    pub rows: usize,
    /// The longest time that a transaction is held back for callers who were in the one before.
    pub gather: Duration,
}

impl Default for GroupBounds {
    fn default() -> Self {
        Self { waiting: 4096, waiting_octets: 64 << 20, rows: 8192, gather: Duration::from_micros(500) }
    }
}

/// What was committed so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Transactions that are durable.
    pub transactions: u64,
    /// Transactions that failed.
    pub failed: u64,
    /// Change lists in durable transactions.
    pub lists: u64,
    /// Rows in durable transactions.
    pub rows: u64,
}

/// A handle for async callers; clones share one thread, which ends with the last of them.
#[derive(Debug, Clone)]
pub struct GroupCommit {
    sender: Arc<Sender>,
}

/// The thread that commits. Dropped without [`Self::join`] it goes on until all that waits is done.
#[derive(Debug)]
pub struct GroupThread {
    thread: JoinHandle<()>,
}

impl GroupThread {
    /// Waits until all that was asked for is done; the handles must be dropped before, or it waits for them.
    pub fn join(self) {
        // A panic was told to callers as `Stopped`.
        drop(self.thread.join());
    }
}

impl GroupCommit {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn start(store: Arc<dyn StateStore>, bounds: GroupBounds) -> io::Result<(Self, GroupThread)> {
        let queue = Arc::new(Queue::default());
        let worker = Worker { store, queue: queue.clone(), bounds, last: Last::default() };
        let thread = thread::Builder::new().name("state-commit".into()).spawn(move || worker.run())?;
        let units =
            bounds.waiting_octets.div_ceil(UNIT).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let sender = Sender {
            queue,
            lists: Arc::new(Semaphore::new(bounds.waiting.clamp(1, Semaphore::MAX_PERMITS))),
            octets: Arc::new(Semaphore::new(units)),
            units,
        };
        Ok((Self { sender: Arc::new(sender) }, GroupThread { thread }))
    }

    /// Commits a list of changes, together with whatever else waits; durable when the future resolves. Lists are
    /// committed in the order in which they were taken up, and of two rows with one key the later stays. A future
    /// that is dropped may still have its effect.
    ///
    /// # Errors
    /// As [`StateStore::commit`], for every list of a transaction that failed and no other; [`StateError::Stopped`].
    pub async fn commit(&self, changes: Vec<RowChange>) -> Result<(), StateError> {
        check_changes(&changes)?;
        let octets = changes.iter().map(|change| change.octets() + 64).sum::<usize>();
        let units = octets.div_ceil(UNIT);
        if units > self.sender.units {
            return Err(StateError::BadRow("the list is too long"));
        }
        let units = u32::try_from(units).map_err(|_| StateError::BadRow("the list is too long"))?;
        let stopped = |_| StateError::Stopped;
        let list = self.sender.lists.clone().acquire_owned().await.map_err(stopped)?;
        let octets = self.sender.octets.clone().acquire_many_owned(units).await.map_err(stopped)?;
        let (done, result) = oneshot::channel();
        self.sender.queue.push(Waiting { changes, done, permits: (list, octets) })?;
        result.await.unwrap_or(Err(StateError::Stopped))
    }

    /// Lists that wait and are not yet being committed.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.sender.queue.lock().waiting.len()
    }

    /// What was committed so far.
    #[must_use]
    pub fn counts(&self) -> GroupCounts {
        self.sender.queue.counts.read()
    }
}

/// Octets to a permit, so that a semaphore's width is enough.
const UNIT: usize = 64;

#[derive(Debug)]
struct Sender {
    queue: Arc<Queue>,
    lists: Arc<Semaphore>,
    octets: Arc<Semaphore>,
    units: usize,
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.queue.lock().closed = true;
        self.queue.ready.notify_all();
    }
}

/// A list and who waits for it.
#[derive(Debug)]
struct Waiting {
    changes: Vec<RowChange>,
    done: oneshot::Sender<Result<(), StateError>>,
    permits: (OwnedSemaphorePermit, OwnedSemaphorePermit),
}

/// Bounded by the permits of what is in it.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<QueueState>,
    ready: Condvar,
    counts: Counters,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<Waiting>,
    /// The worker sleeps until so many wait; 0 where it does not sleep.
    wanted: usize,
    /// No more will come.
    closed: bool,
    /// Nobody will take what comes.
    ended: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, waiting: Waiting) -> Result<(), StateError> {
        let mut state = self.lock();
        if state.ended {
            return Err(StateError::Stopped);
        }
        state.waiting.push_back(waiting);
        let wake = state.wanted > 0 && state.waiting.len() >= state.wanted;
        if wake {
            state.wanted = 0;
        }
        drop(state);
        if wake {
            self.ready.notify_all();
        }
        Ok(())
    }

    /// Waits for the first list, and a little for others; `None` at the end.
    fn wait(&self, expected: usize, gather: Duration) -> Option<MutexGuard<'_, QueueState>> {
        let mut state = self.lock();
        while state.waiting.is_empty() {
            if state.closed {
                return None;
            }
            state.wanted = 1;
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.waiting.len() < expected && !gather.is_zero() {
            state.wanted = expected;
            let few = |state: &mut QueueState| state.waiting.len() < expected && !state.closed;
            let waited = self.ready.wait_timeout_while(state, gather, few);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.wanted = 0;
        Some(state)
    }
}

#[derive(Debug, Default)]
struct Counters {
    transactions: AtomicU64,
    failed: AtomicU64,
    lists: AtomicU64,
    rows: AtomicU64,
}

impl Counters {
    fn read(&self) -> GroupCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GroupCounts {
            transactions: get(&self.transactions),
            failed: get(&self.failed),
            lists: get(&self.lists),
            rows: get(&self.rows),
        }
    }

    fn add(&self, lists: usize, rows: usize, committed: bool) {
        if !committed {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.transactions.fetch_add(1, Ordering::Relaxed);
        self.lists.fetch_add(lists as u64, Ordering::Relaxed);
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }
}

/// The transaction before: how many were in it and how long it took.
#[derive(Debug, Default)]
struct Last {
    lists: usize,
    took: Duration,
}

struct Worker {
    store: Arc<dyn StateStore>,
    queue: Arc<Queue>,
    bounds: GroupBounds,
    last: Last,
}

impl Drop for Worker {
    /// Also when the store panicked: then whoever waits is told, and whoever comes.
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.ended = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for waiting in waiting {
            // Whoever dropped the future is not interested.
            let _ = waiting.done.send(Err(StateError::Stopped));
        }
    }
}

impl Worker {
    fn run(mut self) {
        while let Some((changes, callers)) = self.take() {
            let started = Instant::now();
            let result = self.store.commit(&changes);
            self.last = Last { lists: callers.len(), took: started.elapsed() };
            self.queue.counts.add(callers.len(), changes.len(), result.is_ok());
            for (done, permits) in callers {
                drop(permits);
                let _ = done.send(result.clone());
            }
        }
    }

    /// The lists of the next transaction as one.
    fn take(&self) -> Option<(Vec<RowChange>, Vec<Caller>)> {
        // Whoever was in the last transaction comes back soon or not at all: without waiting for them the first to
        // come back would have a sync for himself, and all others would wait for the next.
        let gather = (self.last.took / 4).min(self.bounds.gather);
        let mut state = self.queue.wait(self.last.lists, gather)?;
        let limit = self.bounds.rows.min(MAX_CHANGES);
        let (mut changes, mut callers) = (Vec::new(), Vec::new());
        while let Some(next) = state.waiting.front() {
            if !callers.is_empty() && changes.len() + next.changes.len() > limit {
                break;
            }
            let Some(next) = state.waiting.pop_front() else { break };
            changes.extend(next.changes);
            callers.push((next.done, next.permits));
        }
        Some((changes, callers))
    }
}

/// Whom to tell, and the room that is free again then.
type Caller = (oneshot::Sender<Result<(), StateError>>, (OwnedSemaphorePermit, OwnedSemaphorePermit));
