//! A running controller, where wanted with an index, and a plain HTTP client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kvsp_client::{Client as KvspClient, ClientConfig};
use kvsp_controller::{ControllerConfig, Deps, serve};
use kvsp_net::auth::{Authenticator, Development};
use kvsp_net::clock::{Clock, SystemClock};
use kvsp_net::metrics::Metrics;
use kvsp_net::random::SeededRandom;
use kvsp_net::service::{ServeError, Service, ServiceConfig};
use kvsp_proto::uri::BaseUri;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) const TYPE_PREFIX: &str = "https://iana.org/assignments/http-problem-types#";

pub(crate) struct Server {
    pub(crate) base: BaseUri,
    pub(crate) admin: BaseUri,
    client: Client<HttpConnector, Full<Bytes>>,
    stop: DropGuard,
    serving: JoinHandle<Result<(), ServeError>>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The body of a 200.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// Status and name of a problem.
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        let json = self.json();
        let name = json["type"].as_str().unwrap();
        (self.status.as_u16(), name.strip_prefix(TYPE_PREFIX).unwrap_or(name).to_owned())
    }
}

/// The base URI of an address where nothing listens.
pub(crate) async fn nowhere() -> BaseUri {
    let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    format!("http://{}/kvsp/", listener.local_addr().unwrap()).parse().unwrap()
}

/// An index that runs as long as the guard lives.
pub(crate) async fn index() -> (BaseUri, DropGuard) {
    let bound = Service::bind(ServiceConfig::default(), Arc::new(Development::new())).await.unwrap();
    let base = bound.base();
    let deps = kvsp_index::Deps {
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SeededRandom::new(1)),
        metrics: Metrics::new(),
    };
    let stop = CancellationToken::new();
    tokio::spawn(kvsp_index::serve(Default::default(), bound, deps, || {}, stop.clone()));
    (base, stop.drop_guard())
}

impl Server {
    pub(crate) async fn start(index: Option<BaseUri>) -> Self {
        let config = ControllerConfig { index, prefetch_timeout_ms: 200, ..ControllerConfig::default() };
        Self::with(config, Arc::new(Development::new())).await
    }

    pub(crate) async fn with(config: ControllerConfig, authenticator: Arc<dyn Authenticator>) -> Self {
        Self::at(config, authenticator, Arc::new(SystemClock::new())).await
    }

    /// A controller that lives by the given clock.
    pub(crate) async fn at(
        config: ControllerConfig,
        authenticator: Arc<dyn Authenticator>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        static SEED: AtomicU64 = AtomicU64::new(1);
        let bound = Service::bind(ServiceConfig::default(), authenticator).await.unwrap();
        let (base, admin) = (bound.base(), bound.admin());
        let deps = Deps {
            clock,
            // Another one for each controller of a test: the next one must not repeat identifiers.
            random: Arc::new(SeededRandom::new(SEED.fetch_add(1, Ordering::Relaxed))),
            client: KvspClient::new(ClientConfig::default()),
            metrics: Metrics::new(),
        };
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(config, bound, deps, || {}, stop.clone()));
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { base, admin, client, stop: stop.drop_guard(), serving }
    }

    /// Stops it, and waits until it has.
    pub(crate) async fn stop(self) -> Result<(), ServeError> {
        drop((self.stop, self.client));
        self.serving.await.unwrap()
    }

    /// Waits for it to end by itself.
    pub(crate) async fn ended(self) -> Result<(), ServeError> {
        let ended = tokio::time::timeout(Duration::from_secs(20), self.serving).await;
        ended.expect("it ends").unwrap()
    }

    pub(crate) async fn send(&self, method: Method, uri: &str, body: Option<Bytes>) -> Answer {
        self.send_as("", method, uri, body).await
    }

    pub(crate) async fn send_as(&self, who: &str, method: Method, uri: &str, body: Option<Bytes>) -> Answer {
        let mut request = Request::builder().method(method).uri(uri).header("authorization", who);
        if body.is_some() {
            request = request.header("content-type", "application/kvsp+json");
        }
        let request = request.body(Full::new(body.unwrap_or_default())).unwrap();
        let response = self.client.request(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// A request as it is.
    pub(crate) async fn send_raw(&self, request: http::request::Builder, body: &str) -> Answer {
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap();
        let (parts, body) = self.client.request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, &self.base.join(path), None).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::PUT, &self.base.join(path), Some(body.to_string().into())).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, &self.base.join(path), Some(body.to_string().into())).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::PATCH, &self.base.join(path), Some(body.to_string().into())).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, &self.base.join(path), None).await
    }

    pub(crate) async fn report(&self, status: &Value) -> Answer {
        self.put(&status_path(status["instance"].as_str().unwrap()), status).await
    }

    pub(crate) async fn metrics(&self) -> String {
        let answer = self.send(Method::GET, &self.admin.join("metrics"), None).await;
        String::from_utf8(answer.body.to_vec()).unwrap()
    }
}

pub(crate) fn uri64(uri: &str) -> String {
    uri.parse::<BaseUri>().unwrap().to_uri64()
}

pub(crate) fn status_path(instance: &str) -> String {
    format!("instances/{}/status", uri64(instance))
}

pub(crate) fn compat() -> String {
    "2c".repeat(32)
}

pub(crate) fn scope() -> String {
    "5c".repeat(16)
}

pub(crate) fn key(n: usize) -> String {
    format!("{n:064x}")
}

pub(crate) fn status(instance: &str, epoch: u64) -> Value {
    json!({
        "instance": instance, "epoch": epoch, "state": "active", "running": 0, "queued": 0,
        "batch_size": 8, "kv_utilization": 0.5, "prefill_tokens_per_s": 1000, "decode_tokens_per_s": 10,
        "links": [{"holder": "https://h1.example/kvsp/", "mbit_per_s": 1000, "rtt_us": 10}],
        "requested_state": null, "ttl_ms": 60_000
    })
}

pub(crate) fn placement(keys: usize, tokens: u64) -> Value {
    let keys: Vec<String> = (0..keys).map(key).collect();
    json!({"scope_id": scope(), "compat_id": compat(), "block_keys": keys, "tokens": tokens})
}
