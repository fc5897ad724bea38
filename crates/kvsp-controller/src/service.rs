//! The service: the machines behind short locks, and the task that watches the clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use kvsp_client::Client;
use kvsp_core::descriptors::Descriptors;
use kvsp_core::instances::Instances;
use kvsp_core::reshard::Row;
use kvsp_core::time::Time;
use kvsp_net::clock::Clock;
use kvsp_net::metrics::Metrics;
use kvsp_net::random::Random;
use kvsp_net::service::{Bound, ServeError, ServiceFacts};
use kvsp_proto::message::Limits;
use kvsp_proto::uri::BaseUri;
use kvsp_store::state::GroupCommit;
use tokio_util::sync::CancellationToken;

use crate::config::ControllerConfig;
use crate::knowledge::Unknown;
use crate::lifecycle::{Lifecycle, RestoredInstances};
use crate::maps::MapTable;
use crate::metrics::ControllerMetrics;
use crate::routes;
use crate::sessions::{Keeper, Restored, SessionTable, State, StateOpenError};

/// How often the clock is looked at: so much later than it must does a failover begin at most.
const TICK: Duration = Duration::from_millis(20);

/// How long the store's thread has to end what waits.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What the service takes from outside.
#[derive(Clone)]
pub struct Deps {
    /// Monotonic time.
    pub clock: Arc<dyn Clock>,
    /// Identifiers come from here.
    pub random: Arc<dyn Random>,
    /// Calls to the index and the instances.
    pub client: Client,
    /// Where metrics are registered.
    pub metrics: Metrics,
}

/// The Placement Controller.
pub(crate) struct ControllerService {
    pub(crate) config: ControllerConfig,
    pub(crate) limits: Limits,
    pub(crate) metrics: ControllerMetrics,
    pub(crate) client: Client,
    pub(crate) random: Arc<dyn Random>,
    pub(crate) sessions: SessionTable,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) maps: MapTable,
    clock: Arc<dyn Clock>,
    instances: Mutex<Instances>,
    descriptors: Mutex<Descriptors>,
    unknown: Mutex<Unknown>,
    turn: AtomicU64,
}

impl ControllerService {
    /// A service that knows what was recorded. Blocks while that is read.
    ///
    /// # Errors
    /// [`StateOpenError`].
    pub(crate) fn open(config: ControllerConfig, deps: &Deps) -> Result<(Arc<Self>, Keeper), StateOpenError> {
        let State { commits, sessions, instances, maps, keeper } = State::open(&config)?;
        Ok((Self::new(config, deps, commits, sessions, instances, maps), keeper))
    }

    /// A service that records by `commits`, and knows what was recorded.
    pub(crate) fn new(
        config: ControllerConfig,
        deps: &Deps,
        commits: GroupCommit,
        sessions: Vec<Restored>,
        instances: RestoredInstances,
        maps: Vec<Row>,
    ) -> Arc<Self> {
        let instances = Instances::restore(config.instances(), instances, deps.clock.now());
        Arc::new(Self {
            lifecycle: Lifecycle::new(&config, commits.clone()),
            maps: MapTable::new(config.maps(), commits.clone(), maps, deps.clock.now()),
            sessions: SessionTable::new(&config.sessions, commits, sessions, deps.clock.now()),
            limits: config.limits(),
            metrics: ControllerMetrics::new(&deps.metrics),
            client: deps.client.clone(),
            random: Arc::clone(&deps.random),
            clock: Arc::clone(&deps.clock),
            instances: Mutex::new(instances),
            descriptors: Mutex::new(Descriptors::new(config.max_descriptors)),
            unknown: Mutex::new(Unknown::default()),
            turn: AtomicU64::new(0),
            config,
        })
    }

    /// Its resources, relative to the base URI.
    pub(crate) fn router(self: &Arc<Self>) -> Router {
        routes::router(Arc::clone(self))
    }

    /// What `GET {base}` tells of it.
    #[must_use]
    pub(crate) fn facts(&self) -> ServiceFacts {
        let extensions = vec!["checkpoint-append", "session-failover", "session-continuation", "shard-maps"];
        ServiceFacts { roles: vec!["controller"], extensions, limits: self.limits }
    }

    /// Watches for instances that fail and lets their sessions go on elsewhere, until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut tick = 0_usize;
        self.follow_sessions();
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            for failed in self.failed_instances() {
                tracing::warn!(instance = %failed, "failed: its status expired");
                self.with_every_session(|sessions, now| sessions.instance_failed(&failed, now));
                self.with_maps(|maps, now| maps.instance_failed(&failed, now));
            }
            self.tick_sessions();
            self.tick_maps();
            self.count_sessions(tick);
            tick = tick.wrapping_add(1);
        }
        self.sessions.close().await;
    }

    /// The instances that failed since the last look and have not come back meanwhile.
    fn failed_instances(&self) -> Vec<BaseUri> {
        let now = self.now();
        let mut instances = self.instances();
        let failed = instances.tick(now);
        self.metrics.count(&instances);
        failed.into_iter().filter(|instance| instances.live_status(instance, now).is_none()).collect()
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Rises with every placement.
    pub(crate) fn turn(&self) -> u64 {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    // A panic under a lock is answered with 500; the machines stay usable, so poison is passed over.

    pub(crate) fn instances(&self) -> MutexGuard<'_, Instances> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn descriptors(&self) -> MutexGuard<'_, Descriptors> {
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn unknown(&self) -> MutexGuard<'_, Unknown> {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves a Placement Controller until `stop`. `ready` is called once requests are taken, which is after the sessions
/// have been read.
///
/// # Errors
/// [`ServeError`], [`ServeError::Setup`] with a [`StateOpenError`] where the sessions cannot be read.
pub async fn serve(
    config: ControllerConfig,
    bound: Bound,
    deps: Deps,
    ready: impl FnOnce(),
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let opening = deps.clone();
    let opened = tokio::task::spawn_blocking(move || ControllerService::open(config, &opening)).await?;
    let (service, keeper) = opened.map_err(ServeError::setup)?;
    service.lifecycle.is_reached_at(bound.base());
    let (router, facts) = (service.router(), service.facts());
    let bound = {
        let direct = routes::Direct::new(Arc::clone(&service), bound.base_path());
        bound.with_shortcut(direct)
    };
    let is_ready = Arc::new(AtomicBool::new(false));
    let watcher = tokio::spawn(service.run(stop.clone()));
    // The listeners have been accepting since they were bound: what is sent from now on is answered.
    is_ready.store(true, Ordering::Release);
    ready();
    let served = bound.serve(router, facts, deps.metrics, is_ready, stop.clone()).await;
    stop.cancel();
    watcher.await?;
    let closed = tokio::task::spawn_blocking(move || keeper.close());
    if tokio::time::timeout(CLOSE_TIMEOUT, closed).await.is_err() {
        tracing::warn!("the state store did not end in time");
    }
    served
}
