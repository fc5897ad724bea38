//! The blocks of one holder or instance: storing, finding, leasing and losing them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvsp_buffer::Arena;
use kvsp_client::Client;
use kvsp_core::descriptors::Descriptors;
use kvsp_core::tier::{Level, PerLevel};
use kvsp_core::time::Time;
use kvsp_net::clock::Clock;
use kvsp_net::metrics::Metrics;
use kvsp_net::random::Random;
use kvsp_proto::container::Limits;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::id::CompatId;
use kvsp_proto::uri::{BaseUri, HolderUri};
use kvsp_store::{BlockMeta, BlockName, BlockStore as _, Held, MemoryStore, StoreError};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::background::{Lift, MAX_LIFTS};
use crate::config::BlocksConfig;
use crate::digests::DigestCache;
use crate::lease_horizon::LeaseHorizon;
use crate::metrics::BlockMetrics;
use crate::publish::Publisher;
use crate::room::Room;
use crate::state::{RecordFacts, State};
use crate::tiers::{Stores, Tiers};
use crate::transcode::TranscodeCache;

/// Octets that one permit of the ingest budget stands for.
pub(crate) const BUDGET_UNIT: u64 = 1024;

/// Blocks transcoded or hashed at once: these use a processor each. A PUT in a compressed codec is decoded to see
/// that it decodes; what that works on, some twice the block, is not of the arena.
const MAX_COMPUTING: usize = 4;

/// Representations that are made in another codec at once. What each works on, some three times the block, is
/// not of the arena; its input and what comes of it are.
const MAX_RECODING: usize = 2;

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
    /// Object store: used, cap.
    pub object: (u64, u64),
    /// Blocks held.
    pub blocks: usize,
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
    pub(crate) transcoded: TranscodeCache,
    /// The memory of all blocks: held, coming in, or still being sent.
    pub(crate) buffers: Arena,
    /// Who waits for some of it to read into.
    pub(crate) room: Room,
    /// Room for the bodies of PUTs in flight, in units of [`BUDGET_UNIT`].
    pub(crate) ingest: Arc<Semaphore>,
    pub(crate) computing: Arc<Semaphore>,
    /// Turns at making another representation.
    pub(crate) recoding: Semaphore,
    /// Wakes the publisher.
    pub(crate) news: Notify,
    /// Wakes who copies cold blocks.
    pub(crate) arrivals: Notify,
    pub(crate) tiers: Arc<Tiers>,
    /// What a later process is told of leases.
    pub(crate) lease_horizon: LeaseHorizon,
    /// Promotions asked for.
    pub(crate) lifts: (mpsc::Sender<Lift>, tokio::sync::Mutex<mpsc::Receiver<Lift>>),
    state: Mutex<State>,
    /// Counts the blocks that ceased to be on their way: who waits for one looks again.
    pub(crate) moved: watch::Sender<u64>,
}

impl std::fmt::Debug for BlockService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockService").field("base", &self.base).finish_non_exhaustive()
    }
}

impl BlockService {
    /// Opens the tiers and takes up what an earlier process left in them. `base` is the URI by which peers
    /// reach the blocks; `role`, `holder` or `instance`, names the metrics.
    ///
    /// # Errors
    /// A tier cannot be used, or the floors of scopes do not fit in the home tier.
    pub async fn open(
        config: BlocksConfig,
        base: BaseUri,
        role: &str,
        deps: BlocksDeps,
    ) -> Result<Arc<Self>, StoreError> {
        let stores = Stores::open(&config, &base).await?;
        Self::open_on(config, stores, base, role, deps).await
    }

    /// The same on stores that are open already.
    ///
    /// # Errors
    /// As [`BlockService::open`].
    pub async fn open_on(
        config: BlocksConfig,
        stores: Stores,
        base: BaseUri,
        role: &str,
        deps: BlocksDeps,
    ) -> Result<Arc<Self>, StoreError> {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut epoch = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        let metrics = BlockMetrics::new(&deps.metrics, role);
        if let Some(disk) = &stores.disk {
            epoch = disk.next_epoch(epoch).await?;
            metrics.quarantined.inc_by(disk.quarantined());
        }
        let buffers = Arena::new(config.memory_octets());
        if let Some(disk) = &stores.disk {
            disk.use_buffers(buffers.clone());
        }
        if let Some(object) = &stores.object {
            object.use_buffers(buffers.clone());
        }
        let tiers = Arc::new(Tiers { host: MemoryStore::on(buffers.clone()), below: stores });
        let mut state = State::new(&config, tiers.clone(), epoch)
            .map_err(|error| StoreError::Unusable(error.to_string()))?;
        let max_ttl_ms = config.limits.max_lease_ttl_ms;
        let disk = tiers.below.disk.clone();
        let (lease_horizon, until) = LeaseHorizon::open(disk, deps.clock.clone(), max_ttl_ms).await?;
        adopt(&mut state, &tiers, until, deps.clock.now()).await?;
        let holder = HolderUri::from(&base);
        let budget = usize::try_from(config.ingest_octets / BUDGET_UNIT).unwrap_or(usize::MAX);
        let (lift, lifts) = mpsc::channel(MAX_LIFTS);
        let service = Self {
            facts: RecordFacts {
                holder: holder.clone(),
                ttl_ms: config.replica_ttl_ms,
                epoch,
                rates: PerLevel::new(
                    config.host_read_mbit_per_s,
                    config.disk.as_ref().and_then(|tier| tier.read_mbit_per_s),
                    config.object.as_ref().and_then(|tier| tier.read_mbit_per_s),
                ),
            },
            base,
            holder,
            clock: deps.clock,
            random: deps.random,
            client: deps.client,
            metrics,
            descriptors: Mutex::new(Descriptors::new(config.max_descriptors)),
            digests: DigestCache::default(),
            transcoded: TranscodeCache::new(config.transcode_octets),
            buffers,
            room: Room::default(),
            ingest: Arc::new(Semaphore::new(budget.min(Semaphore::MAX_PERMITS))),
            computing: Arc::new(Semaphore::new(MAX_COMPUTING)),
            recoding: Semaphore::new(MAX_RECODING),
            news: Notify::new(),
            arrivals: Notify::new(),
            tiers,
            lease_horizon,
            lifts: (lift, tokio::sync::Mutex::new(lifts)),
            state: Mutex::new(state),
            moved: watch::Sender::new(0),
            config,
        };
        service.measure(&service.state());
        Ok(Arc::new(service))
    }

    /// Publishes, refreshes and withdraws replicas, moves blocks between tiers and verifies them, until
    /// `stop`; then withdraws them all.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        tokio::join!(
            Publisher::new(self.clone()).run(stop.clone()),
            self.keep_moving(stop.clone()),
            self.keep_lifting(stop.clone()),
            self.keep_scrubbing(stop),
        );
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
            host: state.holdings.octets(Level::Host),
            disk: state.holdings.octets(Level::Disk),
            object: state.holdings.octets(Level::Object),
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

    /// What a container may be.
    pub(crate) const fn container_limits(&self) -> Limits {
        Limits { max_octets: self.config.limits.max_container_octets, max_layers: self.config.max_layers }
    }

    /// Brings the gauges up to date.
    pub(crate) fn measure(&self, state: &State) {
        let gauge = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        self.metrics.blocks.set(gauge(state.holdings.len() as u64));
        for (name, level) in [("host", Level::Host), ("disk", Level::Disk), ("object", Level::Object)] {
            self.metrics.set_octets(name, state.holdings.octets(level).0);
        }
        self.metrics.leases.set(gauge(state.holdings.leases().len() as u64));
        self.metrics.leased_octets.set(gauge(state.holdings.leases().octets()));
        self.metrics.disk_only.set(gauge(state.holdings.disk_only_octets()));
        self.measure_buffers();
    }

    pub(crate) fn measure_buffers(&self) {
        self.metrics.buffers.set(i64::try_from(self.buffers.used()).unwrap_or(i64::MAX));
    }

    /// What is known of a block that is visible.
    pub(crate) fn meta(&self, name: &BlockName) -> Option<Arc<BlockMeta>> {
        self.state().entries.get(name).map(|entry| entry.meta.clone())
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

/// Takes up what an earlier process left. Leading layers on disk of a block that is whole nowhere are the
/// rest of a trim whose other half is lost: they are deleted.
async fn adopt(state: &mut State, tiers: &Tiers, leased_until: Time, now: Time) -> Result<(), StoreError> {
    let mut objects: BTreeMap<BlockName, Held> = BTreeMap::new();
    if let Some(object) = &tiers.below.object {
        objects = object.list().await?.into_iter().map(|held| (held.meta.name, held)).collect();
    }
    let on_disk = match &tiers.below.disk {
        Some(disk) => disk.list().await?,
        None => Vec::new(),
    };
    for held in on_disk {
        let name = held.meta.name;
        let mut below = objects.remove(&name);
        if below.as_ref().is_some_and(|below| below.meta.repr_digest != held.meta.repr_digest) {
            // Two blocks of one name: the home knows better, where it has all of its own.
            let level = if held.is_whole() { Level::Object } else { Level::Disk };
            delete(tiers, level, &name).await?;
            if level == Level::Disk {
                objects.extend(below.map(|below| (name, below)));
                continue;
            }
            below = None;
        }
        let layers = below.map_or(0, |below| below.layers);
        if !state.adopt(&held.meta, PerLevel::new(0, held.layers, layers), leased_until, now) {
            tracing::warn!(block = ?name, "leading layers of a block that is whole nowhere are deleted");
            delete(tiers, Level::Disk, &name).await?;
        }
    }
    for (name, held) in objects {
        if !state.adopt(&held.meta, PerLevel::new(0, 0, held.layers), leased_until, now) {
            delete(tiers, Level::Object, &name).await?;
        }
    }
    Ok(())
}

async fn delete(tiers: &Tiers, level: Level, name: &BlockName) -> Result<(), StoreError> {
    match tiers.store(level) {
        Some(store) => store.delete(*name).await.map(drop),
        None => Ok(()),
    }
}
