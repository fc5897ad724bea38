//! Router and life of an instance.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::routing::{delete, get, post, put};
use kvsp_blocks::{BlockService, BlocksConfig, BlocksDeps};
use kvsp_client::Client;
use kvsp_engine::{Engine, Tokenizer};
use kvsp_net::clock::Clock;
use kvsp_net::metrics::Metrics;
use kvsp_net::random::Random;
use kvsp_net::service::{Bound, ServeError, ServiceFacts};
use kvsp_proto::block_key::ScopeKey;
use kvsp_proto::path;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::copies::{self, Copies};
use crate::engine::{EngineHandle, EngineSource, EngineThread, HostTier, SchedulerConfig, ScopedKey};
use crate::group::{self, Group};
use crate::lifecycle::Lifecycle;
use crate::links::Links;
use crate::load::{Coming, LoadCounters};
use crate::prefetch::Directives;
use crate::session::{self, Sessions};
use crate::status::StatusSeq;
use crate::{Agent, AgentConfig, completions, events, metrics, prefetch, state, status};

/// How long running requests may go on after a stop was asked for.
const DRAIN: Duration = Duration::from_secs(10);

/// What an instance is made of.
pub struct AgentParts<E> {
    /// The engine, or what builds it; it gets a thread of its own.
    pub engine: EngineSource<E>,
    /// The engine's tokenizer.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Keys of the scopes in which the instance shares blocks; the first is the default.
    pub scopes: Vec<Arc<ScopeKey>>,
    /// Tiers and publication of the blocks that it serves.
    pub blocks: BlocksConfig,
    /// The client for index, controller and holders.
    pub client: Client,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness for identifiers and seeds.
    pub random: Arc<dyn Random>,
}

/// The host tier as the engine thread asks for it.
struct Host {
    blocks: Arc<BlockService>,
    coming: Coming,
    compat: kvsp_proto::id::CompatId,
}

impl HostTier for Host {
    fn holds(&self, block: &ScopedKey) -> bool {
        self.blocks.contains(self.compat, block.scope, block.key)
    }

    fn expects(&self, block: &ScopedKey) -> bool {
        self.coming.has(block)
    }
}

/// Serve until `stop`; then take no new work, finish what runs, withdraw the replicas and end. While the engine is
/// being built the instance is there, and active: it takes prefetches, and requests wait. `ready` is called once
/// they are answered.
///
/// # Errors
/// [`ServeError`]; that the engine could not be built, or broke, among them.
pub async fn serve<E: Engine>(
    config: AgentConfig,
    bound: Bound,
    parts: AgentParts<E>,
    ready: impl FnOnce() + Send,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let metrics = Metrics::new();
    let descriptor = parts.engine.info().descriptor.clone();
    let deps = BlocksDeps {
        client: parts.client.clone(),
        clock: parts.clock.clone(),
        random: parts.random.clone(),
        metrics: metrics.clone(),
    };
    let blocks =
        BlockService::open(parts.blocks, bound.base(), "instance", deps).await.map_err(ServeError::setup)?;
    blocks.register_descriptor(descriptor.as_ref().clone()).map_err(ServeError::setup)?;
    let coming = Coming::default();
    let host =
        Arc::new(Host { blocks: blocks.clone(), coming: coming.clone(), compat: descriptor.compat_id() });
    let scheduling = SchedulerConfig {
        max_running: config.max_running.max(1),
        max_queued: config.max_queued,
        chunk_tokens: config.chunk_tokens.max(1),
    };
    let (engine, engine_events, engine_thread) =
        EngineHandle::spawn(parts.engine, scheduling, host, parts.clock.clone())
            .map_err(ServeError::setup)?;
    let (copies, queue) = match &config.holder {
        Some(holder) => {
            let (copies, queue) = Copies::new(holder.clone(), config.max_copy_octets);
            (Some(Arc::new(copies)), Some(queue))
        }
        None => (None, None),
    };
    let agent = Arc::new(Agent {
        base: bound.base(),
        epoch: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
        served_name: config.served_name.clone().unwrap_or_else(|| descriptor.model.clone()),
        descriptor: descriptor.clone(),
        engine,
        blocks: blocks.clone(),
        tokenizer: parts.tokenizer,
        scopes: parts.scopes,
        client: parts.client,
        clock: parts.clock,
        random: parts.random,
        lifecycle: Lifecycle::new(config.sleep_wish()),
        links: Links::new(config.link_mbit_per_s),
        directives: Directives::new(config.max_directives, config.directive_history),
        coming,
        load_counters: LoadCounters::default(),
        status_seq: StatusSeq::default(),
        resident: events::Resident::default(),
        copies,
        sessions: Sessions::new(config.max_sessions, config.max_directives),
        group: Group::new(bound.base(), &metrics),
        tasks: TaskTracker::new(),
        config,
    });
    metrics::register(&metrics, &agent);
    for (peer, without) in [
        (&agent.config.index, "no index is configured: nothing can be prefetched"),
        (&agent.config.controller, "no controller is configured: no gateway finds this instance"),
        (&agent.config.holder, "no holder is configured: the blocks of sessions end with this process"),
    ] {
        if peer.is_none() {
            tracing::warn!("{without}");
        }
    }
    register_descriptor(&agent).await;

    // The blocks outlive the listeners: replicas are withdrawn only after the last request has ended.
    let withdraw = CancellationToken::new();
    let publisher = tokio::spawn(blocks.clone().run(withdraw.clone()));
    let listening = CancellationToken::new();
    let engine_ended = CancellationToken::new();
    let mut background = vec![
        tokio::spawn(watch_engine(agent.clone(), engine_events, engine_ended.clone(), listening.clone())),
        // Also while it drains: to fall silent then would look like a failure, and its sessions would be taken away.
        tokio::spawn(status::run(agent.clone(), listening.clone())),
        tokio::spawn(drain(agent.clone(), stop, listening.clone())),
        tokio::spawn(session::keep(agent.clone())),
        tokio::spawn(group::keep(agent.clone())),
    ];
    if let (Some(copies), Some(queue)) = (agent.copies.clone(), queue) {
        background.push(tokio::spawn(copies::run(agent.clone(), copies, queue)));
    }
    let facts = ServiceFacts {
        roles: vec!["instance", "holder"],
        extensions: kvsp_blocks::EXTENSIONS
            .iter()
            .copied()
            .chain(["openai", "session-end", "group-attention"])
            .collect(),
        limits: agent.config.limits,
    };
    let routes = routes(agent.clone()).merge(blocks.router());
    let is_ready = Arc::new(AtomicBool::new(false));
    let served = {
        let mut serving = pin!(bound.serve(routes, facts, metrics, is_ready.clone(), listening));
        tokio::select! {
            served = &mut serving => served,
            up = agent.engine.until_up() => {
                if up.is_ok() {
                    is_ready.store(true, Ordering::Release);
                    ready();
                }
                serving.await
            }
        }
    };
    agent.sessions.stop_all(agent.clock.now());
    withdraw.cancel();
    // A publisher that panicked has nothing left to withdraw with; its records run out by themselves.
    drop(publisher.await);
    background.iter().for_each(tokio::task::JoinHandle::abort);
    if engine_ended.is_cancelled() {
        return Err(why_it_ended(engine_thread).await);
    }
    served
}

/// Why an engine thread ended that should not have.
async fn why_it_ended(thread: EngineThread) -> ServeError {
    match tokio::task::spawn_blocking(move || thread.join()).await {
        Ok(Ok(Err(error))) => ServeError::setup(error),
        _ => ServeError::setup("the engine thread ended; see the log"),
    }
}

/// Handle the engine's events. The engine thread outlives its handles, so an end of the events while the
/// instance lives means that the engine broke: an instance without an engine must not go on looking alive.
async fn watch_engine(
    agent: Arc<Agent>,
    events: tokio::sync::mpsc::Receiver<crate::engine::EngineEvent>,
    ended: CancellationToken,
    listening: CancellationToken,
) {
    events::run(agent, events).await;
    tracing::error!("the engine thread ended");
    ended.cancel();
    listening.cancel();
}

/// Between the wish to stop and the end of listening, running requests may finish.
async fn drain(agent: Arc<Agent>, stop: CancellationToken, listening: CancellationToken) {
    stop.cancelled().await;
    agent.lifecycle.stop();
    if let Some(controller) = &agent.config.controller {
        let status = agent.status();
        let last = agent.client.put_status(controller, &status);
        // The controller finds out by expiry all the same.
        drop(tokio::time::timeout(Duration::from_secs(1), last).await);
    }
    let finished = async {
        while agent.load() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(DRAIN, finished).await.is_err() {
        tracing::warn!("requests are cut off: they ran on past the drain time");
        // What is acknowledged of sessions goes on at another instance; their streams end now.
        agent.sessions.stop_all(agent.clock.now());
    }
    listening.cancel();
}

/// Tell index and controller the geometry of this instance's blocks, as far as they can be reached now.
async fn register_descriptor(agent: &Arc<Agent>) {
    for service in [&agent.config.index, &agent.config.controller, &agent.config.holder].into_iter().flatten()
    {
        if let Err(error) = agent.client.put_descriptor(service, &agent.descriptor).await {
            tracing::warn!(%service, %error, "the descriptor was not registered");
        }
    }
}

fn routes(agent: Arc<Agent>) -> Router {
    let at = |path: &str| format!("/{path}");
    Router::new()
        .route(&at(path::STATUS), get(state::status))
        .route(&at(path::STATE), put(state::order))
        .route(&at(path::PREFETCH), post(prefetch::create))
        .route(&at(path::DIRECTIVE_ROUTE), get(prefetch::read).delete(prefetch::cancel))
        .route(&at(path::COMPLETIONS), post(completions::create))
        .route(&at(path::SESSION_ROUTE), delete(session::end))
        .route(&at(path::SESSION_RESUME_ROUTE), post(session::resume))
        .route(&at(path::SESSION_PROMPT_ROUTE), post(session::prompt))
        .route(&at(path::SESSION_TOKENS_ROUTE), get(session::tokens))
        .merge(group::routes())
        .with_state(agent)
}
