//! The blocks of one holder or instance: storing, finding, leasing and losing them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvsp_client::Client;
use kvsp_core::descriptors::Descriptors;
use kvsp_core::tier::{AdmitError, Removed, Sizes};
use kvsp_core::time::Time;
use kvsp_net::clock::Clock;
use kvsp_net::metrics::Metrics;
use kvsp_net::random::Random;
use kvsp_proto::container::LayerRange;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::id::CompatId;
use kvsp_proto::uri::{BaseUri, HolderUri};
use kvsp_store::{
    BlockMeta, BlockName, BlockPart, BlockStore, DiskConfig, DiskStore, MemoryStore, StoreError, StoredBlock,
};
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::config::BlocksConfig;
use crate::digests::DigestCache;
use crate::metrics::BlockMetrics;
use crate::publish::Publisher;
use crate::state::{RecordFacts, State};

/// Octets that one permit of the ingest budget stands for.
pub(crate) const BUDGET_UNIT: u64 = 1024;

/// Blocks transcoded or hashed at once: these use a processor each.
const MAX_COMPUTING: usize = 4;

/// How often the counters are brought up to date where nothing else does.
const MEASURE_PERIOD: Duration = Duration::from_secs(1);

/// What a [`BlockService`] works with.
#[derive(Clone)]
pub struct BlocksDeps {
    /// Reaches the index.
    pub client: Client,
    /// Judges leases and refreshes.
    pub clock: Arc<dyn Clock>,
    /// Names leases and spreads refreshes.
    pub random: Arc<dyn Random>,
    /// Where counters are registered.
    pub metrics: Metrics,
}

/// A block was given to [`BlockService::put_local`] or to a PUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// It is stored.
    Stored,
    /// A replica was there, and is kept (draft section 6.7).
    Exists,
}

/// Octets used, and the cap, of each tier; those of blocks on their way are used already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Host memory: used, cap.
    pub host: (u64, u64),
    /// Disk: used, cap.
    pub disk: (u64, u64),
    /// Blocks held.
    pub blocks: usize,
}

/// The device failed, or no eviction can make room.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeepError {
    #[error("no eviction can make room")]
    Full,
    #[error("the block is under lease")]
    Leased,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The blocks that a holder or an instance keeps and serves.
///
/// Mount [`BlockService::router`] and run [`BlockService::run`]; an instance also uses the methods named
/// `*_local` for the blocks of its own engine.
pub struct BlockService {
    pub(crate) config: BlocksConfig,
    pub(crate) base: BaseUri,
    pub(crate) holder: HolderUri,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) client: Client,
    pub(crate) metrics: BlockMetrics,
    pub(crate) facts: RecordFacts,
    pub(crate) descriptors: Mutex<Descriptors>,
    pub(crate) digests: DigestCache,
    /// Room for the bodies of PUTs in flight, in units of [`BUDGET_UNIT`].
    pub(crate) ingest: Arc<Semaphore>,
    pub(crate) computing: Arc<Semaphore>,
    /// Wakes the publisher.
    pub(crate) news: Notify,
    host: MemoryStore,
    disk: Option<DiskStore>,
    state: Mutex<State>,
    /// Counts the blocks that ceased to be on their way: who waits for one looks again.
    moved: watch::Sender<u64>,
}

impl std::fmt::Debug for BlockService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockService").field("base", &self.base).finish_non_exhaustive()
    }
}

impl BlockService {
    /// Opens the tiers and takes up what an earlier process left on disk. `base` is the URI by which peers
    /// reach the blocks; `role`, `holder` or `instance`, names the metrics.
    ///
    /// # Errors
    /// The disk tier cannot be used.
    pub async fn open(
        config: BlocksConfig,
        base: BaseUri,
        role: &str,
        deps: BlocksDeps,
    ) -> Result<Arc<Self>, StoreError> {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut epoch = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        let mut disk = None;
        if let Some(tier) = &config.disk {
            let quarantine_octets = tier.octets / 16;
            let store = DiskStore::open(DiskConfig { dir: tier.dir.clone(), quarantine_octets }).await?;
            epoch = store.next_epoch(epoch).await?;
            disk = Some(store);
        }
        let metrics = BlockMetrics::new(&deps.metrics, role);
        let mut state = State::new(&config, epoch);
        if let Some(store) = &disk {
            let now = deps.clock.now();
            for held in store.list().await? {
                state.adopt(held.meta, held.octets, now);
            }
            metrics.quarantined.inc_by(store.quarantined());
        }
        let holder = HolderUri::from(&base);
        let budget = usize::try_from(config.ingest_octets / BUDGET_UNIT).unwrap_or(usize::MAX);
        let service = Self {
            facts: RecordFacts {
                holder: holder.clone(),
                ttl_ms: config.replica_ttl_ms,
                epoch,
                host_rate: config.host_read_mbit_per_s,
                disk_rate: config.disk.as_ref().and_then(|disk| disk.read_mbit_per_s),
            },
            base,
            holder,
            clock: deps.clock,
            random: deps.random,
            client: deps.client,
            metrics,
            descriptors: Mutex::new(Descriptors::new(config.max_descriptors)),
            digests: DigestCache::default(),
            ingest: Arc::new(Semaphore::new(budget.min(Semaphore::MAX_PERMITS))),
            computing: Arc::new(Semaphore::new(MAX_COMPUTING)),
            news: Notify::new(),
            host: MemoryStore::new(),
            disk,
            state: Mutex::new(state),
            moved: watch::Sender::new(0),
            config,
        };
        service.measure(&service.state());
        Ok(Arc::new(service))
    }

    /// Publishes, refreshes and withdraws replicas until `stop`; then withdraws them all.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        tokio::join!(Publisher::new(self.clone()).run(stop.clone()), self.keep_measuring(stop));
    }

    /// Ends leases that nobody asks for any more, so that the counters tell the truth.
    async fn keep_measuring(&self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(MEASURE_PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let mut state = self.state();
            state.holdings.expire(self.now());
            self.measure(&state);
        }
    }

    /// The base URI by which peers reach the blocks.
    #[must_use]
    pub const fn base(&self) -> &BaseUri {
        &self.base
    }

    /// Octets used and caps.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let state = self.state();
        Usage {
            host: state.holdings.host_octets(),
            disk: state.holdings.disk_octets(),
            blocks: state.holdings.len(),
        }
    }

    /// The descriptor of a compatibility, where it is registered.
    #[must_use]
    pub fn descriptor(&self, compat: CompatId) -> Option<Arc<Descriptor>> {
        self.lock_descriptors().get(compat).cloned()
    }

    pub(crate) fn lock_descriptors(&self) -> MutexGuard<'_, Descriptors> {
        // Each change is one insertion, which is whole whoever panicked.
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state; never held over an await.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // The machines behind the lock do not panic; what a panic elsewhere left behind is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Brings the gauges up to date.
    pub(crate) fn measure(&self, state: &State) {
        let gauge = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.metrics.blocks.set(gauge(state.holdings.len()));
        self.metrics.set_octets("host", state.holdings.host_octets().0);
        self.metrics.set_octets("disk", state.holdings.disk_octets().0);
        self.metrics.leases.set(gauge(state.holdings.leases().len()));
        self.metrics.leased_octets.set(i64::try_from(state.holdings.leases().octets()).unwrap_or(i64::MAX));
    }

    /// What is known of a block that is visible.
    pub(crate) fn meta(&self, name: &BlockName) -> Option<Arc<BlockMeta>> {
        self.state().entries.get(name).map(|entry| entry.meta.clone())
    }

    /// Stores a block. Runs to its end even where the caller goes away.
    pub(crate) async fn keep(self: &Arc<Self>, block: StoredBlock) -> Result<PutOutcome, KeepError> {
        let service = self.clone();
        let task = tokio::spawn(async move { service.keep_now(block).await });
        task.await.unwrap_or(Err(KeepError::Store(StoreError::Stopped)))
    }

    async fn keep_now(&self, block: StoredBlock) -> Result<PutOutcome, KeepError> {
        let name = block.meta.name;
        let disk_octets = self.disk.as_ref().map_or(0, |disk| disk.charge(&block.meta, block.layers()));
        let sizes = Sizes { host: self.host.charge(&block.meta, block.layers()), disk: disk_octets };
        let admitted = loop {
            let mut moved = self.moved.subscribe();
            let admitted = self.state().admit(name, sizes, &self.host, self.now());
            match admitted {
                Ok(admitted) => break admitted,
                Err(AdmitError::Exists) => return Ok(PutOutcome::Exists),
                Err(AdmitError::Full) => return Err(KeepError::Full),
                // Every move ends by itself; the sender lives as long as the service.
                Err(AdmitError::Busy) => drop(moved.changed().await),
            }
        };
        self.metrics.demotions.inc_by(admitted.demoted as u64);
        self.metrics.evictions.inc_by(admitted.evicted.len() as u64);
        self.news.notify_one();
        if let Some(disk) = &self.disk
            && let Err(error) = self.write(disk, &admitted.evicted, &block).await
        {
            self.state().holdings.abandoned(&name);
            self.has_moved();
            return Err(error.into());
        }
        {
            let mut state = self.state();
            state.arrived(&block, admitted.place, &self.host, self.now());
            self.measure(&state);
        }
        self.metrics.puts.inc();
        self.has_moved();
        self.news.notify_one();
        Ok(PutOutcome::Stored)
    }

    /// Deletes the files that make room for a block, then writes it.
    async fn write(
        &self,
        disk: &DiskStore,
        evicted: &[Arc<BlockMeta>],
        block: &StoredBlock,
    ) -> Result<(), StoreError> {
        let mut failed = None;
        for meta in evicted {
            let deleted = disk.delete(meta.name).await;
            let mut state = self.state();
            state.holdings.left(&meta.name, deleted.is_ok());
            if let Err(error) = deleted {
                // The file is still there; its octets were promised to this block, which is not written.
                state.holdings.strand(disk.charge(meta, meta.layer_count()));
                failed = Some(error);
            }
            drop(state);
            self.has_moved();
        }
        match failed {
            Some(error) => Err(error),
            None => disk.put(block.clone()).await,
        }
    }

    /// Deletes a block. Runs to its end even where the caller goes away.
    pub(crate) async fn discard(self: &Arc<Self>, name: BlockName) -> Result<bool, KeepError> {
        let service = self.clone();
        let task = tokio::spawn(async move { service.discard_now(name).await });
        task.await.unwrap_or(Err(KeepError::Store(StoreError::Stopped)))
    }

    async fn discard_now(&self, name: BlockName) -> Result<bool, KeepError> {
        let place = loop {
            let mut moved = self.moved.subscribe();
            let removed = self.state().remove(&name, &self.host, self.now());
            match removed {
                Removed::Was(place) => break place,
                Removed::Absent => return Ok(false),
                Removed::Leased => return Err(KeepError::Leased),
                Removed::Busy => drop(moved.changed().await),
            }
        };
        self.news.notify_one();
        if let (true, Some(disk)) = (place.disk, &self.disk) {
            let deleted = disk.delete(name).await;
            self.state().holdings.left(&name, deleted.is_ok());
            self.has_moved();
            deleted?;
        }
        self.measure(&self.state());
        Ok(true)
    }

    /// A whole block: from host memory, else from disk, verified, and taken up into host memory.
    pub(crate) async fn find(&self, name: BlockName) -> Result<Option<StoredBlock>, StoreError> {
        if let Some(block) = self.find_in_host(&name) {
            return Ok(Some(block));
        }
        let (Some(meta), Some(disk)) = (self.meta(&name), &self.disk) else {
            return Ok(None);
        };
        let Some(block) = self.sound(&meta, disk.get(name).await)? else {
            return Ok(None);
        };
        let mut state = self.state();
        state.holdings.touch(&name);
        let demoted = state.promote(&block, &self.host, self.now());
        self.metrics.demotions.inc_by(demoted as u64);
        self.measure(&state);
        drop(state);
        self.news.notify_one();
        Ok(Some(block))
    }

    /// Some layers of a block, read from where it is and not moved.
    pub(crate) async fn find_part(
        &self,
        name: BlockName,
        range: LayerRange,
    ) -> Result<Option<BlockPart>, StoreError> {
        if let Some(block) = self.find_in_host(&name) {
            return Ok(block.part(range));
        }
        let (Some(meta), Some(disk)) = (self.meta(&name), &self.disk) else {
            return Ok(None);
        };
        self.state().holdings.touch(&name);
        self.sound(&meta, disk.part(name, range).await)
    }

    fn find_in_host(&self, name: &BlockName) -> Option<StoredBlock> {
        let block = self.host.find(name)?;
        self.state().holdings.touch(name);
        Some(block)
    }

    /// What was read, unless it is rotten: then the block is lost, and missing from now on.
    fn sound<T>(
        &self,
        meta: &Arc<BlockMeta>,
        read: Result<Option<T>, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        match read {
            Err(StoreError::Rotten(why)) => {
                tracing::warn!(block = ?meta.name, why, "a block on disk is rotten; it is withdrawn");
                let mut state = self.state();
                if state.lost(meta, &self.host, self.now()) {
                    self.metrics.quarantined.inc();
                }
                self.measure(&state);
                drop(state);
                self.news.notify_one();
                Ok(None)
            }
            read => read,
        }
    }

    fn has_moved(&self) {
        self.moved.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// How long a GET may be cached: what remains of the replica's record.
    pub(crate) fn max_age(&self, name: &BlockName) -> Duration {
        let remaining = match self.config.index {
            Some(_) => self.state().desired.remaining_ms(name, self.now()),
            None => self.config.replica_ttl_ms,
        };
        Duration::from_millis(remaining)
    }
}
