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
use tokio_util::sync::CancellationToken;

use crate::config::IndexServiceConfig;
use crate::metrics::IndexMetrics;
use crate::routes;

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
    clock: Arc<dyn Clock>,
    index: RwLock<Index>,
    instances: Mutex<Instances>,
}

impl IndexService {
    /// An empty service.
    #[must_use]
    pub fn new(config: IndexServiceConfig, deps: &Deps) -> Arc<Self> {
        let seed = std::array::from_fn(|_| deps.random.u64());
        Arc::new(Self {
            limits: config.limits(),
            metrics: IndexMetrics::new(&deps.metrics),
            clock: Arc::clone(&deps.clock),
            index: RwLock::new(Index::new(config.index(), seed)),
            instances: Mutex::new(Instances::new(config.instances(), deps.clock.now())),
            config,
        })
    }

    /// Its resources, relative to the base URI.
    pub fn router(self: &Arc<Self>) -> Router {
        routes::router(Arc::clone(self))
    }

    /// What `GET {base}` tells of it.
    #[must_use]
    pub fn facts(&self) -> ServiceFacts {
        ServiceFacts { roles: vec!["index"], extensions: vec![], limits: self.limits }
    }

    /// Reclaims expired records until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(SWEEP);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.instances().tick(self.now());
            while self.sweep() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Reclaims a bounded number of slots; `true` where there may be more.
    fn sweep(&self) -> bool {
        let now = self.now();
        let (expired, more) = {
            let mut index = self.write();
            let expired = index.expire(now, SWEEP_BUDGET);
            (expired, index.poll_timeout().is_some_and(|due| due <= now))
        };
        self.metrics.expired.inc_by(expired as u64);
        self.count_replicas();
        more
    }

    pub(crate) fn count_replicas(&self) {
        let replicas = self.read().len();
        self.metrics.replicas.set(i64::try_from(replicas).unwrap_or(i64::MAX));
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

/// Serves an Index Service until `stop`. `ready` is called once requests are taken.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(
    config: IndexServiceConfig,
    bound: Bound,
    deps: Deps,
    ready: impl FnOnce(),
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let service = IndexService::new(config, &deps);
    let (router, facts) = (service.router(), service.facts());
    let is_ready = Arc::new(AtomicBool::new(false));
    let sweeper = tokio::spawn(service.run(stop.clone()));
    // The listeners have been accepting since they were bound: what is sent from now on is answered.
    is_ready.store(true, Ordering::Release);
    ready();
    let served = bound.serve(router, facts, deps.metrics, is_ready, stop.clone()).await;
    stop.cancel();
    sweeper.await?;
    served
}
