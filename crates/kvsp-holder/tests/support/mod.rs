//! A holder on a free port, and requests to it over sockets.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kvsp_blocks::{BlocksConfig, BlocksDeps, DiskTier, Stores};
use kvsp_client::{Client, ClientConfig};
use kvsp_holder::{HolderConfig, serve, serve_on};
use kvsp_net::auth::{Authenticator, Development};
use kvsp_net::clock::{Clock, ManualClock, SystemClock};
use kvsp_net::metrics::Metrics;
use kvsp_net::random::SeededRandom;
use kvsp_net::service::{ServeError, Service, ServiceConfig};
use kvsp_proto::container::Container;
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::registry::Codec;
use kvsp_proto::uri::BaseUri;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const COMPAT: CompatId = CompatId([0x11; 32]);
pub const SCOPE: ScopeId = ScopeId([0x22; 16]);
pub const BLOCK: &str = "application/kvsp-block";
pub const JSON: &str = "application/kvsp+json";

pub struct Holder {
    pub base: BaseUri,
    pub admin: BaseUri,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
}

pub fn config() -> BlocksConfig {
    BlocksConfig { host_octets: 1 << 20, ..BlocksConfig::default() }
}

pub fn on_disk(dir: &std::path::Path, octets: u64) -> BlocksConfig {
    BlocksConfig {
        host_octets: 0,
        disk: Some(DiskTier { dir: dir.to_owned(), octets, read_mbit_per_s: None }),
        ..config()
    }
}

pub fn deps(clock: Arc<dyn Clock>) -> BlocksDeps {
    BlocksDeps {
        client: Client::new(ClientConfig::default()),
        clock,
        random: Arc::new(SeededRandom::new(7)),
        metrics: Metrics::new(),
    }
}

impl Holder {
    pub async fn start(blocks: BlocksConfig) -> Self {
        Self::start_with(blocks, Arc::new(SystemClock::new()), Arc::new(Development::new())).await
    }

    pub async fn with_clock(blocks: BlocksConfig) -> (Self, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::default());
        (Self::start_with(blocks, clock.clone(), Arc::new(Development::new())).await, clock)
    }

    pub async fn start_with(
        blocks: BlocksConfig,
        clock: Arc<dyn Clock>,
        authenticator: Arc<dyn Authenticator>,
    ) -> Self {
        Self::serve(None, blocks, clock, authenticator).await
    }

    /// On stores that are open already.
    pub async fn start_on(stores: Stores, blocks: BlocksConfig) -> Self {
        let (clock, callers) = (Arc::new(SystemClock::new()), Arc::new(Development::new()));
        Self::serve(Some(stores), blocks, clock, callers).await
    }

    async fn serve(
        stores: Option<Stores>,
        blocks: BlocksConfig,
        clock: Arc<dyn Clock>,
        authenticator: Arc<dyn Authenticator>,
    ) -> Self {
        let bound = Service::bind(ServiceConfig::default(), authenticator).await.unwrap();
        let (base, admin, stop) = (bound.base(), bound.admin(), CancellationToken::new());
        let deps = deps(clock);
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let config = HolderConfig { blocks };
        let (stopped, ready) = (stop.clone(), move || ready.send(()).unwrap());
        let task = tokio::spawn(async move {
            match stores {
                Some(stores) => serve_on(stores, config, bound, deps, ready, stopped).await,
                None => serve(config, bound, deps, ready, stopped).await,
            }
        });
        is_ready.await.unwrap();
        Self { base, admin, stop, task }
    }

    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }

    pub async fn connect(&self) -> Connection {
        Connection::to(&self.base).await
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.connect().await.send(method, path, headers, body).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"").await
    }

    pub async fn put(&self, path: &str, container: &[u8]) -> Answer {
        self.send("PUT", path, &[("content-type", BLOCK), ("if-none-match", "*")], container).await
    }

    pub async fn json(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.send(method, path, &[("content-type", JSON)], body.to_string().as_bytes()).await
    }

    /// Waits until a metric, its labels included, has a value.
    pub async fn until(&self, metric: &str, wanted: impl Fn(u64) -> bool) {
        let reached = tokio::time::timeout(Duration::from_secs(20), async {
            while !wanted(self.metric(metric).await) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        if reached.await.is_err() {
            panic!("{metric} is {}", self.metric(metric).await);
        }
    }

    pub async fn metric(&self, metric: &str) -> u64 {
        let text = self.metrics().await;
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("kvsp_holder_{metric} ")));
        line.unwrap_or_else(|| panic!("no {metric} in {text}")).parse().unwrap()
    }

    pub async fn metrics(&self) -> String {
        let answer = Connection::to(&self.admin).await.send("GET", "metrics", &[], b"").await;
        String::from_utf8(answer.body.to_vec()).unwrap()
    }
}

pub struct Connection {
    sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
    base: BaseUri,
}

impl Connection {
    async fn to(base: &BaseUri) -> Self {
        let stream = TcpStream::connect(authority(base)).await.unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { sender, base: base.clone() }
    }

    /// `path` is relative to the base, or absolute.
    pub async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let (parts, body) = self.begin(method, path, headers, body).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// Sends a request and reads no more than the head of its answer.
    pub async fn begin(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response<Incoming> {
        let target =
            if path.starts_with('/') { path.to_owned() } else { format!("{}{path}", self.base.path()) };
        let mut request = Request::builder().method(method).uri(target).header("host", authority(&self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body))).unwrap();
        self.sender.send_request(request).await.unwrap()
    }
}

pub fn authority(base: &BaseUri) -> String {
    let rest = base.as_str().strip_prefix("http://").unwrap();
    rest.split('/').next().unwrap().to_owned()
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}")).to_str().unwrap()
    }

    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// The status, and the problem's name where it is one.
    pub fn problem(&self) -> (u16, String) {
        if self.status < 400 {
            return (self.status, String::new());
        }
        assert_eq!(self.header("content-type"), "application/problem+json");
        let body = self.value();
        assert_eq!(body["status"], self.status);
        let kind = body["type"].as_str().unwrap();
        let name = kind.strip_prefix("https://iana.org/assignments/http-problem-types#").unwrap_or(kind);
        (self.status, name.to_owned())
    }
}

#[track_caller]
pub fn assert_problem(answer: &Answer, status: u16, name: &str) {
    assert_eq!(answer.problem(), (status, name.to_owned()), "{:?}", String::from_utf8_lossy(&answer.body));
}

/// A block with `layers` layers of sections of `octets` octets.
pub fn container(seed: u8, layers: u8, octets: usize) -> Container {
    build(Codec::RAW, 0, seed, layers, octets)
}

pub fn build(codec: Codec, first: u32, seed: u8, layers: u8, octets: usize) -> Container {
    let section = |salt: u8| -> Vec<u8> { (0..octets).map(|at| seed ^ salt ^ (at % 251) as u8).collect() };
    let sections: Vec<_> = (0..layers).map(|layer| (section(layer), section(layer ^ 0x80))).collect();
    Container::build(codec, first, 4, &sections).unwrap()
}

pub fn key(n: u8) -> BlockKey {
    BlockKey([n; 32])
}

pub fn path(n: u8) -> String {
    kvsp_proto::path::block(COMPAT, SCOPE, key(n))
}
