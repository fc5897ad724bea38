//! Instances, an index and holders in this process, on free ports, and what a client does with them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use kvsp_agent::{AgentConfig, AgentParts, EngineSource};
use kvsp_blocks::{BlocksConfig, BlocksDeps};
use kvsp_client::{BlockQuery, Client, ClientConfig, StreamedBody};
use kvsp_holder::HolderConfig;
use kvsp_llama::{LlamaEngine, LoadOptions, ModelSource, Prepared};
use kvsp_net::auth::{Authenticator, Development};
use kvsp_net::clock::SystemClock;
use kvsp_net::metrics::Metrics;
use kvsp_net::random::SeededRandom;
use kvsp_net::service::{Bound, ServeError, Service, ServiceConfig};
use kvsp_openai::{Completion, sse};
use kvsp_proto::block_key::{ScopeKey, block_keys};
use kvsp_proto::container::Container;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::message::{
    Detail, DirectiveBlock, DirectiveState, DirectiveStatus, LayerOrder, LookupAnswer, LookupRequest,
    PrefetchDirective,
};
use kvsp_proto::registry::ElementType;
use kvsp_proto::uri::BaseUri;
use kvsp_testkit::{Prefix, Running, generate};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use uuid::Uuid;

/// How long anything that is bound to happen may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

const SOURCE: ModelSource = ModelSource::Tiny { seed: 0 };
pub(crate) const MODEL: &str = "kvsp/tiny";

pub(crate) fn client() -> Client {
    Client::new(ClientConfig::default())
}

pub(crate) fn scope_key() -> ScopeKey {
    generate::scope_key(7)
}

pub(crate) fn scope() -> ScopeId {
    scope_key().scope_id()
}

/// Tokens of the tiny model's vocabulary, without those that end a text.
pub(crate) fn prompt(seed: u64, count: usize) -> Vec<u32> {
    generate::tokens(seed, count).into_iter().map(|token| token % 256).collect()
}

async fn bind(config: ServiceConfig) -> Bound {
    Service::bind(config, Arc::new(Development::new())).await.unwrap()
}

/// Waits until `look` gives something.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let seen = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            tokio::time::sleep(LOOK).await;
        }
    });
    seen.await.unwrap_or_else(|_| panic!("in vain: {what}"))
}

/// An index.
pub(crate) struct Index {
    pub(crate) base: BaseUri,
    _running: Running<Result<(), ServeError>>,
}

impl Index {
    pub(crate) async fn start() -> Self {
        let bound = bind(ServiceConfig::default()).await;
        let base = bound.base();
        let deps = kvsp_index::Deps {
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SeededRandom::new(1)),
            metrics: Metrics::new(),
        };
        let running = Running::spawn(|stop| kvsp_index::serve(Default::default(), bound, deps, || {}, stop));
        Self { base, _running: running }
    }

    pub(crate) async fn lookup(&self, compat: CompatId, keys: &[BlockKey]) -> LookupAnswer {
        let request = LookupRequest {
            scope_id: scope(),
            compat_id: compat,
            block_keys: keys.to_vec(),
            targets: Vec::new(),
            detail: Detail::Full,
            block_tokens: None,
        };
        client().lookup(&self.base, &request).await.unwrap()
    }

    /// Waits until each key has a replica at the holder; answers what the index knows then.
    pub(crate) async fn published(
        &self,
        compat: CompatId,
        keys: &[BlockKey],
        holder: &BaseUri,
    ) -> LookupAnswer {
        eventually("the publication of replicas", async || {
            let answer = self.lookup(compat, keys).await;
            let at_holder = |replicas: &[Arc<kvsp_proto::record::ReplicaRecord>]| {
                replicas.iter().any(|r| r.http_holder().as_ref() == Some(holder))
            };
            let blocks = answer.blocks.as_deref().unwrap_or_default();
            let all = blocks.len() == keys.len() && blocks.iter().all(|b| at_holder(&b.replicas));
            all.then_some(answer)
        })
        .await
    }

    /// Publishes the records of a prefix as a holder's own.
    pub(crate) async fn record(&self, prefix: &Prefix, holder: &BaseUri) {
        for record in prefix.records(&holder.into()) {
            client().put_replica(&self.base, &record).await.unwrap();
        }
    }
}

/// A holder.
pub(crate) struct Holder {
    pub(crate) base: BaseUri,
    _running: Running<Result<(), ServeError>>,
}

impl Holder {
    /// `advertise`: the base URI by which it is known, where it is another.
    pub(crate) async fn start(
        index: &Index,
        host_octets: u64,
        bound_by: impl AsyncFnOnce(&BaseUri) -> Option<BaseUri>,
    ) -> Self {
        // The port is needed for the URI that is advertised, which is needed to bind.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = listener.local_addr().unwrap();
        let own: BaseUri = format!("http://{listen}/kvsp/").parse().unwrap();
        let advertise = bound_by(&own).await;
        drop(listener);
        let bound = bind(ServiceConfig { listen, advertise, ..ServiceConfig::default() }).await;
        let base = bound.base();
        let blocks = BlocksConfig { host_octets, index: Some(index.base.clone()), ..BlocksConfig::default() };
        let deps = BlocksDeps {
            client: client(),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SeededRandom::new(2)),
            metrics: Metrics::new(),
        };
        let config = HolderConfig { blocks };
        let running = Running::spawn(|stop| kvsp_holder::serve(config, bound, deps, || {}, stop));
        Self { base, _running: running }
    }
}

/// How an instance is set up.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) block_tokens: u32,
    pub(crate) kv_dtype: ElementType,
    pub(crate) pool_octets: u64,
    pub(crate) host_octets: u64,
    /// Whether it shares blocks; one that does not computes everything itself.
    pub(crate) shares: bool,
    pub(crate) agent: AgentConfig,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            block_tokens: 16,
            kv_dtype: ElementType::Float16,
            pool_octets: 32 << 20,
            host_octets: 64 << 20,
            shares: true,
            agent: AgentConfig { status_ttl_ms: 600, ..AgentConfig::default() },
        }
    }
}

impl Setup {
    pub(crate) fn at(index: &Index) -> Self {
        let mut setup = Self::default();
        setup.agent.index = Some(index.base.clone());
        setup
    }

    pub(crate) fn alone() -> Self {
        Self { shares: false, ..Self::default() }
    }

    /// The tiny model in this setup, without its weights.
    pub(crate) fn prepared(&self) -> Prepared {
        let options = LoadOptions {
            name: Some(MODEL.into()),
            block_tokens: self.block_tokens,
            kv_dtype: self.kv_dtype,
            pool_octets: self.pool_octets,
        };
        kvsp_llama::prepare(&SOURCE, &options, &|_, _| {}).unwrap()
    }
}

/// An instance of the tiny model.
pub(crate) struct Instance {
    pub(crate) base: BaseUri,
    pub(crate) admin: BaseUri,
    pub(crate) descriptor: Arc<Descriptor>,
    pub(crate) running: Running<Result<(), ServeError>>,
}

/// A completion to ask for.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: u32,
    pub(crate) temperature: f64,
    pub(crate) request_ref: Option<String>,
}

impl Ask {
    pub(crate) fn new(prompt: &[u32], max_tokens: u32) -> Self {
        Self { prompt: prompt.to_vec(), max_tokens, temperature: 0.0, request_ref: None }
    }

    pub(crate) fn sampled(self) -> Self {
        Self { temperature: 0.8, ..self }
    }

    pub(crate) fn referring(self, request_ref: &str) -> Self {
        Self { request_ref: Some(request_ref.to_owned()), ..self }
    }

    fn request(&self, stream: bool) -> Request<Bytes> {
        let mut body = json!({
            "model": MODEL, "prompt": self.prompt, "max_tokens": self.max_tokens,
            "temperature": self.temperature, "seed": 11, "stream": stream,
        });
        if stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        let mut request = Request::post("/").header("content-type", "application/json");
        if let Some(request_ref) = &self.request_ref {
            request = request.header("kvsp-request-ref", request_ref);
        }
        request.body(body.to_string().into()).unwrap()
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) text: String,
    pub(crate) tokens: u64,
    pub(crate) cached: u64,
}

/// An answer under way.
pub(crate) struct Stream {
    body: StreamedBody,
    reader: sse::EventReader,
    ready: std::collections::VecDeque<String>,
}

impl Stream {
    /// The next chunk; `None` after the end.
    pub(crate) async fn next(&mut self) -> Option<Completion> {
        loop {
            if let Some(payload) = self.ready.pop_front() {
                return (payload != sse::DONE).then(|| serde_json::from_str(&payload).unwrap());
            }
            let data = self.body.chunk().await.unwrap().expect("the stream ends with [DONE]");
            self.ready.extend(self.reader.push(&data).unwrap());
        }
    }
}

impl Stream {
    /// Reads to the end; whether that comes before the answer's.
    pub(crate) async fn breaks_off(mut self) -> bool {
        while let Ok(Some(data)) = self.body.chunk().await {
            if self.reader.push(&data).unwrap().iter().any(|payload| payload == sse::DONE) {
                return false;
            }
        }
        true
    }
}

/// An answer of the raw HTTP kind.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Status and name of a problem.
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        let kind = self.json()["type"].as_str().unwrap().to_owned();
        let name = kind.strip_prefix("https://iana.org/assignments/http-problem-types#").unwrap_or(&kind);
        (self.status, name.to_owned())
    }
}

/// Sends any request.
pub(crate) async fn send(base: &BaseUri, method: &str, path: &str, body: &str) -> Answer {
    let request = Request::builder()
        .method(method)
        .header("content-type", "application/kvsp+json")
        .body(Bytes::copy_from_slice(body.as_bytes()))
        .unwrap();
    let (head, mut body) = client().forward(base, path, request).await.unwrap().into_parts();
    let mut octets = Vec::new();
    while let Some(chunk) = body.chunk().await.unwrap() {
        octets.extend_from_slice(&chunk);
    }
    Answer { status: head.status.as_u16(), headers: head.headers, body: octets.into() }
}

impl Instance {
    pub(crate) async fn start(setup: Setup) -> Self {
        Self::start_with(setup, Arc::new(Development::new())).await
    }

    /// An instance that tells principals apart.
    pub(crate) async fn start_with(setup: Setup, authenticator: Arc<dyn Authenticator>) -> Self {
        let engine = setup.prepared().load(&|_, _| {}).unwrap();
        let (instance, is_ready) = Self::starting(setup, EngineSource::of(engine), authenticator).await;
        is_ready.await.unwrap();
        instance
    }

    /// An instance whose engine may be on its way; told once it is ready.
    pub(crate) async fn starting(
        setup: Setup,
        engine: EngineSource<LlamaEngine>,
        authenticator: Arc<dyn Authenticator>,
    ) -> (Self, oneshot::Receiver<()>) {
        let bound = Service::bind(ServiceConfig::default(), authenticator).await.unwrap();
        let (base, admin) = (bound.base(), bound.admin());
        let descriptor = setup.prepared().info().descriptor.clone();
        let index = setup.agent.index.clone();
        let parts = AgentParts {
            engine,
            tokenizer: Arc::new(kvsp_llama::tokenizer(&SOURCE).unwrap()),
            scopes: if setup.shares { vec![Arc::new(scope_key())] } else { Vec::new() },
            blocks: BlocksConfig { host_octets: setup.host_octets, index, ..BlocksConfig::default() },
            client: client(),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SeededRandom::new(3)),
        };
        let (ready, is_ready) = oneshot::channel();
        let running = Running::spawn(|stop| {
            // Who starts many does not listen to each.
            kvsp_agent::serve(setup.agent, bound, parts, move || ready.send(()).unwrap_or(()), stop)
        });
        (Self { base, admin, descriptor, running }, is_ready)
    }

    pub(crate) fn compat(&self) -> CompatId {
        self.descriptor.compat_id()
    }

    /// The keys of the complete blocks of a prompt.
    pub(crate) fn keys(&self, prompt: &[u32]) -> Vec<BlockKey> {
        block_keys(&scope_key(), self.compat(), self.descriptor.block_tokens, prompt)
    }

    pub(crate) async fn ask(&self, ask: &Ask) -> Reply {
        let answer = client().forward(&self.base, "v1/completions", ask.request(false)).await.unwrap();
        let (head, mut body) = answer.into_parts();
        let mut octets = Vec::new();
        while let Some(chunk) = body.chunk().await.unwrap() {
            octets.extend_from_slice(&chunk);
        }
        assert_eq!(head.status, 200, "{}", String::from_utf8_lossy(&octets));
        let answer: Completion = serde_json::from_slice(&octets).unwrap();
        let usage = answer.usage.unwrap();
        Reply {
            text: answer.choices[0].text.clone(),
            tokens: usage.completion_tokens,
            cached: usage.prompt_tokens_details.unwrap_or_default().cached_tokens,
        }
    }

    pub(crate) async fn stream(&self, ask: &Ask) -> Stream {
        let answer = client().forward(&self.base, "v1/completions", ask.request(true)).await.unwrap();
        assert_eq!(answer.status(), 200);
        Stream { body: answer.into_body(), reader: sse::EventReader::default(), ready: Default::default() }
    }

    /// Orders a prefetch; answers the URI of its status.
    pub(crate) async fn order(&self, directive: &PrefetchDirective) -> String {
        client().prefetch(&self.base, directive).await.unwrap()
    }

    /// Orders a prefetch and waits for its end.
    pub(crate) async fn load(&self, keys: &[BlockKey], sources: &[&BaseUri]) -> DirectiveStatus {
        let uri = self.order(&self.directive(keys, sources, 30_000)).await;
        ended(&uri).await
    }

    pub(crate) fn directive(
        &self,
        keys: &[BlockKey],
        sources: &[&BaseUri],
        deadline_ms: u64,
    ) -> PrefetchDirective {
        let sources: Vec<BaseUri> = sources.iter().copied().cloned().collect();
        let block = |key: &BlockKey| DirectiveBlock { block_key: *key, sources: sources.clone() };
        PrefetchDirective {
            directive: Uuid::from_u128(rand_id()),
            request_ref: None,
            scope_id: scope(),
            compat_id: self.compat(),
            blocks: keys.iter().map(block).collect(),
            layer_order: LayerOrder::Ascending,
            deadline_ms,
            lease_ms: 2000,
        }
    }

    /// What the instance holds of a prompt, as a prefix that a hostile holder can serve.
    pub(crate) async fn prefix(&self, prompt: &[u32]) -> Prefix {
        let keys = self.keys(prompt);
        let mut containers: Vec<Container> = Vec::new();
        for key in &keys {
            containers.push(self.block(*key).await);
        }
        Prefix {
            descriptor: self.descriptor.as_ref().clone(),
            scope_key: scope_key(),
            tokens: prompt.to_vec(),
            keys,
            containers,
        }
    }

    /// A block, as soon as the instance serves it.
    pub(crate) async fn block(&self, key: BlockKey) -> Container {
        eventually("a computed block", async || {
            let got =
                client().get_block(&self.base, self.compat(), scope(), key, &BlockQuery::default()).await;
            got.ok().map(|fetched| fetched.container)
        })
        .await
    }

    /// A counter or gauge.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let text = send(&self.admin, "GET", "metrics", "").await.body;
        let text = String::from_utf8(text.to_vec()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse::<f64>().unwrap() as u64
    }
}

/// Waits for the end of a directive.
pub(crate) async fn ended(uri: &str) -> DirectiveStatus {
    eventually("the end of a directive", async || {
        let status = client().directive_status(uri).await.unwrap();
        (status.state != DirectiveState::Pending).then_some(status)
    })
    .await
}

/// A fresh identifier.
fn rand_id() -> u128 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) | 0x0000_0000_0000_4000_8000_0000_0000_0000
}
