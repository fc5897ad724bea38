//! Router and start of the gateway.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{any, get, post};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use kvsp_client::Client;
use kvsp_engine::Tokenizer;
use kvsp_net::metrics::Metrics;
use kvsp_net::random::Random;
use kvsp_net::service::{Bound, ServeError, ServiceFacts};
use kvsp_proto::block_key::ScopeKey;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::path;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::session::{Polls, Registry};
use crate::{Gateway, GatewayConfig, chat, completions, error, models, streams};

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// How often answers that have been kept long enough are looked for.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(1);
/// Longest request identifier taken from a client.
const MAX_REQUEST_ID: usize = 128;

/// The model that the gateway tokenises for.
pub struct GatewayModel {
    /// Its descriptor, the same as the instances'.
    pub descriptor: Arc<Descriptor>,
    /// Its tokenizer.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Longest sequence in tokens.
    pub max_context: usize,
}

/// What a gateway is made of.
pub struct GatewayParts {
    /// The model.
    pub model: GatewayModel,
    /// The scope in which prompts are shared; without one nothing is.
    pub scope: Option<Arc<ScopeKey>>,
    /// The client for controller and instances.
    pub client: Client,
    /// Randomness for identifiers.
    pub random: Arc<dyn Random>,
}

/// The gateway's own metrics.
pub(crate) struct Counters {
    pub(crate) requests: Counter,
    pub(crate) upstream_failures: Counter,
    pub(crate) sessions: Gauge,
    pub(crate) session_reconnects: Counter,
    pub(crate) session_failovers: Counter,
    pub(crate) session_gaps: Histogram,
    pub(crate) session_failures: Counter,
    pub(crate) sessions_abandoned: Counter,
}

impl Counters {
    fn new(metrics: &Metrics) -> Self {
        Self {
            requests: metrics.counter("gateway_requests", "Completions and chats that were placed"),
            upstream_failures: metrics
                .counter("gateway_upstream_failures", "Instances that did not take a request"),
            sessions: metrics.gauge("gateway_sessions", "Sessions that run"),
            session_reconnects: metrics
                .counter("gateway_session_reconnects", "Streams of sessions opened after the first"),
            session_failovers: metrics
                .counter("gateway_session_failovers", "Sessions seen to move to another epoch"),
            session_gaps: metrics.seconds(
                "gateway_session_gap_seconds",
                "Time from the last token before a session's stream was lost to the next one",
            ),
            session_failures: metrics.counter("gateway_session_failures", "Sessions that broke off"),
            sessions_abandoned: metrics
                .counter("gateway_sessions_abandoned", "Sessions ended because nobody read them"),
        }
    }
}

/// Serve until `stop`; `ready` is called once requests are taken.
///
/// # Errors
/// [`ServeError`]; a missing controller among them.
pub async fn serve(
    config: GatewayConfig,
    bound: Bound,
    parts: GatewayParts,
    ready: impl FnOnce() + Send,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let controller = config
        .controller
        .clone()
        .ok_or_else(|| ServeError::setup("a gateway needs a controller: --controller URI"))?;
    let metrics = Metrics::new();
    let extensions = vec!["openai", "session-streams"];
    let facts = ServiceFacts { roles: vec!["gateway"], extensions, limits: config.limits };
    let descriptor = parts.model.descriptor;
    let gateway = Arc::new(Gateway {
        served_name: config.served_name.clone().unwrap_or_else(|| descriptor.model.clone()),
        controller,
        compat: descriptor.compat_id(),
        block_tokens: descriptor.block_tokens,
        max_context: parts.model.max_context,
        tokenizer: parts.model.tokenizer,
        scope: parts.scope,
        client: parts.client,
        random: parts.random,
        started_s: created(),
        counters: Counters::new(&metrics),
        registry: Registry::new(&config),
        polls: Polls::new(config.max_polls),
        tasks: TaskTracker::new(),
        stop: CancellationToken::new(),
        config,
    });
    gateway.tasks.spawn(expire(Arc::clone(&gateway)));
    let routes = routes(Arc::clone(&gateway));
    // Clients take either `…/kvsp/v1` or `…/v1` for the API's base.
    let bound = if bound.base().path() == "/" { bound } else { bound.with_extra(routes.clone()) };
    let is_ready = Arc::new(AtomicBool::new(true));
    ready();
    let served = bound.serve(routes, facts, metrics, is_ready, stop).await;
    gateway.stop.cancel();
    gateway.tasks.close();
    gateway.tasks.wait().await;
    served
}

/// Forgets answers in time, also while no requests come.
async fn expire(gateway: Arc<Gateway>) {
    let mut interval = tokio::time::interval(EXPIRE_INTERVAL);
    while gateway.stop.run_until_cancelled(interval.tick()).await.is_some() {
        gateway.registry.expire();
    }
}

fn routes(gateway: Arc<Gateway>) -> Router {
    let at = |path: &str| format!("/{path}");
    Router::new()
        .route(&at(path::COMPLETIONS), post(completions::create).fallback(|| async { error::method("POST") }))
        .route(&at(path::CHAT_COMPLETIONS), post(chat::create).fallback(|| async { error::method("POST") }))
        .route(
            &at(path::STREAM_ROUTE),
            get(streams::follow).fallback(|| async { error::method("GET, HEAD") }),
        )
        .route(&at(path::MODELS), get(models::list).fallback(|| async { error::method("GET, HEAD") }))
        .route("/v1/models/{*model}", get(models::one).fallback(|| async { error::method("GET, HEAD") }))
        .route("/v1/{*rest}", any(error::not_found))
        .layer(middleware::from_fn_with_state(gateway.clone(), name_request))
        .with_state(gateway)
}

/// Seconds since the Unix epoch, for people to read.
pub(crate) fn created() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The name of a request: the client's `x-request-id`, or one of the gateway's own.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(Arc<str>);

impl RequestId {
    fn of(headers: &HeaderMap, random: &dyn Random) -> Self {
        let given = headers.get(&REQUEST_ID).and_then(|value| value.to_str().ok());
        Self(match given {
            Some(text) if !text.is_empty() && text.len() <= MAX_REQUEST_ID => text.into(),
            _ => random.uuid().to_string().into(),
        })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Name the request for its handler, and put the name on the answer, whatever that is.
async fn name_request(State(gateway): State<Arc<Gateway>>, mut request: Request, next: Next) -> Response {
    let id = RequestId::of(request.headers(), gateway.random.as_ref());
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
    // A name that came in a header, or a UUID, can go into one.
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(&REQUEST_ID, value);
    }
    response
}
