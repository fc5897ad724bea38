//! A running Index Service and a plain HTTP client.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kvsp_index::{Deps, IndexServiceConfig, serve};
use kvsp_net::auth::{Authenticator, Development};
use kvsp_net::clock::{Clock, SystemClock};
use kvsp_net::metrics::Metrics;
use kvsp_net::random::SeededRandom;
use kvsp_net::service::{ServeError, Service, ServiceConfig};
use kvsp_proto::digest::replica_digest;
use kvsp_proto::id::{Digest, NamedDigest};
use kvsp_proto::uri::BaseUri;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) const TYPE_PREFIX: &str = "https://iana.org/assignments/http-problem-types#";

pub(crate) struct Server {
    pub(crate) base: BaseUri,
    pub(crate) admin: BaseUri,
    client: Client<HttpConnector, Full<Bytes>>,
    served: JoinHandle<Result<(), ServeError>>,
    stop: DropGuard,
}

/// What a server is made of.
pub(crate) struct Setup {
    pub(crate) index: IndexServiceConfig,
    pub(crate) service: ServiceConfig,
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Two processes draw different numbers.
    pub(crate) seed: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            index: IndexServiceConfig::default(),
            service: ServiceConfig::default(),
            authenticator: Arc::new(Development::new()),
            clock: Arc::new(SystemClock::new()),
            seed: 1,
        }
    }
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) media: String,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Status and name of a problem.
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(self.media, "application/problem+json", "{self:?}");
        let json = self.json();
        assert_eq!(json["status"], self.status.as_u16());
        let name = json["type"].as_str().unwrap();
        (self.status.as_u16(), name.strip_prefix(TYPE_PREFIX).unwrap_or(name).to_owned())
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(IndexServiceConfig::default(), Arc::new(Development::new())).await
    }

    pub(crate) async fn with(config: IndexServiceConfig, authenticator: Arc<dyn Authenticator>) -> Self {
        Self::of(Setup { index: config, authenticator, ..Setup::default() }).await
    }

    pub(crate) async fn of(setup: Setup) -> Self {
        let bound = Service::bind(setup.service, setup.authenticator).await.unwrap();
        let (base, admin) = (bound.base(), bound.admin());
        let deps = Deps {
            clock: setup.clock,
            random: Arc::new(SeededRandom::new(setup.seed)),
            metrics: Metrics::new(),
        };
        let stop = CancellationToken::new();
        let served = tokio::spawn(serve(setup.index, bound, deps, || {}, stop.clone()));
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { base, admin, client, served, stop: stop.drop_guard() }
    }

    /// Stops and waits until it has ended.
    pub(crate) async fn stop(self) -> Result<(), ServeError> {
        drop(self.stop);
        drop(self.client);
        self.served.await.unwrap()
    }

    /// The value of a metric.
    pub(crate) async fn metric(&self, name: &str) -> i64 {
        let metrics = self.send_to(&self.admin.join("metrics"), Method::GET, None).await;
        let text = String::from_utf8(metrics.body.to_vec()).unwrap();
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until a metric has a value.
    pub(crate) async fn until(&self, name: &str, value: i64) {
        let reached = async {
            while self.metric(name).await != value {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        let time = std::time::Duration::from_secs(20);
        tokio::time::timeout(time, reached).await.unwrap_or_else(|_| panic!("{name} never became {value}"));
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: Option<(&str, Bytes)>) -> Answer {
        self.send_to(&self.base.join(path), method, body).await
    }

    pub(crate) async fn send_to(&self, uri: &str, method: Method, body: Option<(&str, Bytes)>) -> Answer {
        let mut request = Request::builder().method(method).uri(uri);
        if let Some((media, _)) = &body {
            request = request.header("content-type", *media);
        }
        let body = body.map_or_else(Bytes::new, |(_, octets)| octets);
        let response = self.client.request(request.body(Full::new(body)).unwrap()).await.unwrap();
        let status = response.status();
        let media = response.headers().get("content-type");
        let media = media.map_or_else(String::new, |value| value.to_str().unwrap().to_owned());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Answer { status, media, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, None).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, None).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::PUT, path, Some(("application/kvsp+json", body.to_string().into()))).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, body.to_string()).await
    }

    pub(crate) async fn post_text(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.send(Method::POST, path, Some(("application/json", body.into()))).await
    }
}

pub(crate) fn compat() -> String {
    "2c".repeat(32)
}

pub(crate) fn scope() -> String {
    "5c".repeat(16)
}

pub(crate) fn key(n: u32) -> String {
    format!("{n:064x}")
}

pub(crate) fn uri64(uri: &str) -> String {
    uri.parse::<kvsp_proto::uri::HolderUri>().unwrap().to_uri64()
}

/// A record of two layers, all in host memory.
pub(crate) fn record(n: u32, holder: &str) -> Value {
    let digests = [Digest([n as u8; 32]), Digest([1; 32])];
    json!({
        "block_key": key(n), "compat_id": compat(), "scope_id": scope(), "holder": holder,
        "codec": 1, "size": 1_000_000, "digest": NamedDigest(replica_digest(&digests)),
        "layer_digests": digests, "residency": [{"tier": "host", "layers": [0, 1]}], "ttl_ms": 60_000
    })
}

pub(crate) fn path_of(record: &Value) -> String {
    let text = |member: &str| record[member].as_str().unwrap().to_owned();
    let holder = uri64(record["holder"].as_str().unwrap());
    format!("replicas/{}/{}/{}/{holder}", text("compat_id"), text("scope_id"), text("block_key"))
}

pub(crate) fn lookup_of(keys: &[u32]) -> Value {
    let keys: Vec<String> = keys.iter().map(|&n| key(n)).collect();
    json!({"scope_id": scope(), "compat_id": compat(), "block_keys": keys})
}

pub(crate) fn status(instance: &str, epoch: u64) -> Value {
    json!({
        "instance": instance, "epoch": epoch, "state": "active", "running": 0, "queued": 0,
        "batch_size": 8, "kv_utilization": 0.5, "prefill_tokens_per_s": 1000, "decode_tokens_per_s": 10,
        "links": [{"holder": "https://h1.example/kvsp/", "mbit_per_s": 1000, "rtt_us": 12}],
        "requested_state": null, "ttl_ms": 60_000
    })
}

pub(crate) fn descriptor() -> Value {
    let digest = format!("sha-256:{}", "ab".repeat(32));
    json!({
        "model": "m", "model_digest": digest, "tokenizer_digest": digest, "layers": 2, "kv_heads": 2,
        "head_dim": 4, "kv_dtype": "bfloat16", "positional": "none", "block_tokens": 16,
        "layout": "kvsp-layout-1"
    })
}
