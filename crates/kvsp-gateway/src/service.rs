//! Router and start of the gateway.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{any, get, post};
use bytes::Bytes;
use futures_util::Stream;
use http::HeaderMap;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use kvsp_client::Client;
use kvsp_engine::Tokenizer;
use kvsp_net::metrics::Metrics;
use kvsp_net::random::Random;
use kvsp_net::service::{Bound, ServeError, ServiceFacts};
use kvsp_proto::block_key::ScopeKey;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::path;
use prometheus_client::metrics::counter::Counter;
use tokio_util::sync::CancellationToken;

use crate::{Gateway, GatewayConfig, chat, completions, error, models};

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
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
    let counters = Counters {
        requests: metrics.counter("gateway_requests", "Completions and chats that were placed"),
        upstream_failures: metrics
            .counter("gateway_upstream_failures", "Instances that did not take a request"),
    };
    let facts = ServiceFacts { roles: vec!["gateway"], extensions: vec!["openai"], limits: config.limits };
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
        counters,
        config,
    });
    let routes = routes(gateway);
    // Clients take either `…/kvsp/v1` or `…/v1` for the API's base.
    let bound = if bound.base().path() == "/" { bound } else { bound.with_extra(routes.clone()) };
    let is_ready = Arc::new(AtomicBool::new(true));
    ready();
    bound.serve(routes, facts, metrics, is_ready, stop).await
}

fn routes(gateway: Arc<Gateway>) -> Router {
    let at = |path: &str| format!("/{path}");
    Router::new()
        .route(&at(path::COMPLETIONS), post(completions::create).fallback(|| async { error::method("POST") }))
        .route(&at(path::CHAT_COMPLETIONS), post(chat::create).fallback(|| async { error::method("POST") }))
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

/// A response of server-sent events.
pub(crate) fn event_stream(
    events: impl Stream<Item = Result<Bytes, serde_json::Error>> + Send + 'static,
) -> Response {
    let events: Pin<Box<dyn Stream<Item = Result<Bytes, serde_json::Error>> + Send>> = Box::pin(events);
    let mut response = Response::new(Body::from_stream(events));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
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
