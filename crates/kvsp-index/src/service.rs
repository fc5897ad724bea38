//! The service: the machines behind short locks, and the task that reclaims what has expired.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use axum::Router;
use kvsp_core::index::Index;
use kvsp_core::instances::Instances;
use kvsp_core::time::Time;
use kvsp_net::clock::Clock;
use kvsp_net::metrics::Metrics;
use kvsp_net::random::Random;
use kvsp_net::service::{Bound, ServeError, ServiceFacts};
use kvsp_proto::message::Limits;
use kvsp_store::fs::LocalFileSystem;
use tokio_util::sync::CancellationToken;

use crate::config::IndexServiceConfig;
use crate::feed::Feed;
use crate::metrics::IndexMetrics;
use crate::routes;
use crate::snapshot::Snapshots;

/// How often expiry is looked at; readers never see what has expired.
const SWEEP: Duration = Duration::from_millis(250);

/// Slots reclaimed under one lock.
const SWEEP_BUDGET: usize = 1024;

/// What the service takes from outside.
#[derive(Clone)]
pub struct Deps {
    /// Monotonic time.
    pub clock: Arc<dyn Clock>,
    /// The secret that keys the hash table comes from here.
    pub random: Arc<dyn Random>,
    /// Where metrics are registered.
    pub metrics: Metrics,
}

/// The Index Service.
pub struct IndexService {
    pub(crate) config: IndexServiceConfig,
    pub(crate) limits: Limits,
    pub(crate) metrics: IndexMetrics,
    pub(crate) feed: Arc<Feed>,
    /// The service stops: those who follow the feed are let go.
    pub(crate) closing: CancellationToken,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    index: RwLock<Index>,
    instances: Mutex<Instances>,
}

impl IndexService {
    /// An empty service.
    #[must_use]
    pub fn new(config: IndexServiceConfig, deps: &Deps) -> Arc<Self> {
        let metrics = IndexMetrics::new(&deps.metrics);
        Arc::new(Self {
            limits: config.limits(),
            feed: Feed::new(deps.random.u64(), config.max_subscribers, metrics.subscribers.clone()),
            metrics,
            closing: CancellationToken::new(),
            clock: Arc::clone(&deps.clock),
            random: Arc::clone(&deps.random),
            index: RwLock::new(empty_index(&config, deps.random.as_ref())),
            instances: Mutex::new(Instances::new(config.instances(), deps.clock.now())),
            config,
        })
    }

    /// Its resources, relative to the base URI.
    pub fn router(self: &Arc<Self>) -> Router {
        routes::router(Arc::clone(self), "/")
    }

    /// What `GET {base}` tells of it.
    #[must_use]
    pub fn facts(&self) -> ServiceFacts {
        ServiceFacts { roles: vec!["index"], extensions: vec!["events"], limits: self.limits }
    }

    /// Reclaims expired records until `stop`, and then lets go those who follow the feed.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(SWEEP);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.instances().tick(self.now());
            while self.sweep() {
                tokio::task::yield_now().await;
            }
        }
        self.closing.cancel();
    }

    /// Reclaims a bounded number of slots; `true` where there may be more.
    fn sweep(&self) -> bool {
        let now = self.now();
        let (expired, more) = self.change(|index| {
            let expired = index.expire(now, SWEEP_BUDGET);
            (expired, index.poll_timeout().is_some_and(|due| due <= now))
        });
        self.metrics.expired.inc_by(expired as u64);
        more
    }

    /// Changes the index, and tells those who follow it.
    pub(crate) fn change<T>(&self, work: impl FnOnce(&mut Index) -> T) -> T {
        let (outcome, records) = {
            let mut index = self.write();
            (work(&mut index), index.len())
        };
        self.count(records);
        self.feed.tell();
        outcome
    }

    pub(crate) fn count(&self, records: usize) {
        self.metrics.replicas.set(i64::try_from(records).unwrap_or(i64::MAX));
    }

    pub(crate) fn empty_index(&self) -> Index {
        empty_index(&self.config, self.random.as_ref())
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    // A panic under a lock is answered with 500; the machines stay usable, so poison is passed over.

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn instances(&self) -> MutexGuard<'_, Instances> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn empty_index(config: &IndexServiceConfig, random: &dyn Random) -> Index {
    Index::new(config.index(), std::array::from_fn(|_| random.u64()))
}

/// Serves an Index Service until `stop`. `ready` is called once requests are taken, which is after the last
/// snapshot has been read, where there is one.
///
/// # Errors
/// [`ServeError`], [`ServeError::Setup`] where the place of snapshots cannot be used.
pub async fn serve(
    config: IndexServiceConfig,
    bound: Bound,
    deps: Deps,
    ready: impl FnOnce(),
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let service = IndexService::new(config, &deps);
    let snapshots = service.open_snapshots(Arc::new(LocalFileSystem)).map_err(ServeError::setup)?;
    let snapshots = snapshots.map(Arc::new);
    if let Some(snapshots) = snapshots.clone() {
        let service = Arc::clone(&service);
        tokio::task::spawn_blocking(move || service.restore(&snapshots)).await?;
    }
    // With their whole paths, because a router below another writes the URI of every request anew.
    let router = routes::router(Arc::clone(&service), bound.base_path());
    let direct = routes::Direct::new(Arc::clone(&service), bound.base_path());
    let bound = bound.with_extra(router).with_shortcut(direct);
    let is_ready = Arc::new(AtomicBool::new(false));
    let sweeper = tokio::spawn(Arc::clone(&service).run(stop.clone()));
    let writer = snapshots
        .clone()
        .map(|snapshots| tokio::spawn(write_snapshots(Arc::clone(&service), snapshots, stop.clone())));
    // The listeners have been accepting since they were bound: what is sent from now on is answered.
    is_ready.store(true, Ordering::Release);
    ready();
    let facts = service.facts();
    let served = bound.serve(Router::new(), facts, deps.metrics, is_ready, stop.clone()).await;
    stop.cancel();
    sweeper.await?;
    if let Some(writer) = writer {
        writer.await?;
    }
    if let Some(snapshots) = snapshots {
        // Nothing changes any more.
        tokio::task::spawn_blocking(move || service.write_snapshot(&snapshots, true)).await?;
    }
    served
}

/// Writes a snapshot every so often until `stop`.
async fn write_snapshots(service: Arc<IndexService>, snapshots: Arc<Snapshots>, stop: CancellationToken) {
    let pause = Duration::from_millis(service.config.snapshot_every_ms.max(1));
    while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
        let (service, snapshots) = (Arc::clone(&service), Arc::clone(&snapshots));
        let written = tokio::task::spawn_blocking(move || service.write_snapshot(&snapshots, false)).await;
        if let Err(error) = written {
            tracing::error!(%error, "writing a snapshot broke");
        }
    }
}
