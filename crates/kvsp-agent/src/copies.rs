//! Copies of computed blocks in a holder outside the process, where they outlive it (profile section 7).

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use kvsp_core::time::Time;
use kvsp_proto::problem::ProblemType;
use kvsp_proto::uri::BaseUri;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::Agent;
use crate::engine::ScopedKey;

/// Blocks that may wait to be copied.
const QUEUE: usize = 1024;
/// Copies under way at once.
const AT_ONCE: usize = 4;
/// Blocks that are remembered to be offered again, and blocks remembered as copied.
const MAX_REMEMBERED: usize = 65_536;
/// How long an acknowledged copy is relied on without asking the index: the holder may evict it later.
const RELIED_ON: Duration = Duration::from_secs(10);
/// How often copies that failed, or found no place in the queue, are offered again.
const AGAIN_EVERY: Duration = Duration::from_millis(200);

/// A block on its way.
struct Copy {
    block: ScopedKey,
    container: Bytes,
    /// A session relies on it.
    wanted: bool,
}

/// Copies on their way to the holder, bounded in number and octets.
pub(crate) struct Copies {
    holder: BaseUri,
    queue: mpsc::Sender<Copy>,
    /// Octets in the queue.
    waiting: AtomicU64,
    max_octets: u64,
    /// Blocks that a session relies on and that are to be offered again.
    again: Mutex<BTreeSet<ScopedKey>>,
    acknowledged: Mutex<Acknowledged>,
    changed: watch::Sender<()>,
}

/// What the holder acknowledged lately.
#[derive(Default)]
struct Acknowledged {
    at: HashMap<ScopedKey, Time>,
    order: VecDeque<ScopedKey>,
}

/// The receiving end of a queue of copies, for [`run`].
pub(crate) struct CopyQueue(mpsc::Receiver<Copy>);

impl Copies {
    pub(crate) fn new(holder: BaseUri, max_octets: u64) -> (Self, CopyQueue) {
        let (queue, blocks) = mpsc::channel(QUEUE);
        let copies = Self {
            holder,
            queue,
            waiting: AtomicU64::new(0),
            max_octets,
            again: Mutex::default(),
            acknowledged: Mutex::default(),
            changed: watch::Sender::new(()),
        };
        (copies, CopyQueue(blocks))
    }

    /// Queue a copy. Where the queue is full the holder goes without, unless a session wants the copy: then it
    /// is offered again later, from the host tier.
    pub(crate) fn offer(&self, block: ScopedKey, container: Bytes, wanted: bool) {
        let octets = container.len() as u64;
        let fits = self.waiting.load(Ordering::Relaxed).saturating_add(octets) <= self.max_octets;
        if fits {
            self.waiting.fetch_add(octets, Ordering::Relaxed);
            if self.queue.try_send(Copy { block, container, wanted }).is_ok() {
                return;
            }
            self.waiting.fetch_sub(octets, Ordering::Relaxed);
        }
        if wanted {
            self.offer_again(block);
        } else {
            tracing::debug!("a block was not copied to the holder: too many wait");
        }
    }

    /// Have a block of the host tier copied.
    pub(crate) fn offer_again(&self, block: ScopedKey) {
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        if again.len() < MAX_REMEMBERED {
            again.insert(block);
        }
    }

    /// Whether the holder acknowledged a copy of the block a moment ago.
    pub(crate) fn has(&self, block: &ScopedKey, now: Time) -> bool {
        let acknowledged = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        acknowledged.at.get(block).is_some_and(|at| now.since(*at) < RELIED_ON)
    }

    /// Tells of each acknowledgement.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn acknowledge(&self, block: ScopedKey, now: Time) {
        {
            let mut acknowledged = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
            if acknowledged.at.insert(block, now).is_none() {
                acknowledged.order.push_back(block);
            }
            if acknowledged.order.len() > MAX_REMEMBERED
                && let Some(oldest) = acknowledged.order.pop_front()
            {
                acknowledged.at.remove(&oldest);
            }
        }
        self.changed.send_replace(());
    }

    /// Some of the blocks that are to be offered again.
    fn take_again(&self, most: usize) -> Vec<ScopedKey> {
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| again.pop_first()).take(most).collect()
    }

    fn has_again(&self) -> bool {
        !self.again.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// Copy what is queued, a few at once, until the task is ended.
pub(crate) async fn run(agent: Arc<Agent>, copies: Arc<Copies>, mut queue: CopyQueue) {
    let mut puts = JoinSet::new();
    let mut again = tokio::time::interval(AGAIN_EVERY);
    again.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let room = puts.len() < AT_ONCE;
        tokio::select! {
            Some(_) = puts.join_next(), if !puts.is_empty() => {}
            queued = queue.0.recv(), if room => {
                let Some(copy) = queued else { return };
                copies.waiting.fetch_sub(copy.container.len() as u64, Ordering::Relaxed);
                puts.spawn(put(agent.clone(), copies.clone(), copy));
            }
            _ = again.tick(), if room && copies.has_again() => {
                for block in copies.take_again(AT_ONCE - puts.len()) {
                    puts.spawn(put_held(agent.clone(), copies.clone(), block));
                }
            }
        }
    }
}

/// Copy a block of the host tier; one that is gone from there is gone.
async fn put_held(agent: Arc<Agent>, copies: Arc<Copies>, block: ScopedKey) {
    let compat = agent.descriptor.compat_id();
    if let Some(held) = agent.blocks.get_local(compat, block.scope, block.key).await {
        put(agent, copies, Copy { block, container: held.bytes().clone(), wanted: true }).await;
    }
}

async fn put(agent: Arc<Agent>, copies: Arc<Copies>, copy: Copy) {
    let Copy { block, container, wanted } = copy;
    let compat = agent.descriptor.compat_id();
    match agent.client.put_block(&copies.holder, compat, block.scope, block.key, container).await {
        Ok(()) => copies.acknowledge(block, agent.clock.now()),
        Err(error) if error.problem_type() == Some(ProblemType::BlockExists) => {
            copies.acknowledge(block, agent.clock.now());
        }
        Err(error) => {
            tracing::warn!(%error, "a block was not copied to the holder");
            if wanted {
                copies.offer_again(block);
            }
        }
    }
}
