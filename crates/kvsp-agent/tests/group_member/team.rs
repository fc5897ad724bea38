//! Members, K and V whose octets tell their place, and the messages that members get.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use kvsp_client::ClientError;
use kvsp_proto::container::Container;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::digest::ReprDigest;
use kvsp_proto::message::{
    FetchRange, MapId, OpenContext, ReshardAnswer, ReshardMessage, ReshardPlan, Shard, TokenRange,
};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::registry::Codec;
use kvsp_proto::uri::BaseUri;

use crate::support::{Answer, Instance, Setup, client, scope, send};

pub(crate) const FETCHED: &str = "kvsp_reshard_octets_total{direction=\"fetched\"}";
pub(crate) const SERVED: &str = "kvsp_reshard_octets_total{direction=\"served\"}";
pub(crate) const STORED: &str = "kvsp_reshard_octets_total{direction=\"stored\"}";
pub(crate) const RETAINED: &str = "kvsp_reshard_retained_tokens_total";
pub(crate) const RESERVED: &str = "kvsp_context_tokens_reserved";

pub(crate) fn map() -> MapId {
    "m".parse().unwrap()
}

pub(crate) fn range(start: u64, end: u64) -> TokenRange {
    TokenRange::new(start, end).unwrap()
}

pub(crate) async fn member() -> Instance {
    Instance::start(Setup::alone()).await
}

/// K and V of a range of tokens: each octet depends on layer, section, position and its place, so that any cut of
/// it can be told from any other.
pub(crate) fn sections(descriptor: &Descriptor, tokens: TokenRange) -> Container {
    let (k, v) = descriptor.section_octets(1).unwrap();
    let section = |layer: u32, kind: u64, octets: u64| -> Vec<u8> {
        let octet = |position: u64, at: u64| {
            let mixed =
                (u64::from(layer) * 7919 + kind * 104_729 + position * 1009 + at).wrapping_mul(2_654_435_761);
            // Every other octet is the high one of a float16; below 0x7c it is finite.
            if at % 2 == 1 { (mixed >> 9) as u8 % 0x70 } else { (mixed >> 9) as u8 }
        };
        (tokens.start()..tokens.end()).flat_map(|p| (0..octets).map(move |at| octet(p, at))).collect()
    };
    let layers: Vec<_> = (0..descriptor.layers).map(|l| (section(l, 0, k), section(l, 1, v))).collect();
    Container::build(Codec::RAW, 0, u32::try_from(tokens.tokens()).unwrap(), &layers).unwrap()
}

pub(crate) fn octets_of(descriptor: &Descriptor, tokens: u64) -> u64 {
    let (k, v) = descriptor.section_octets(1).unwrap();
    (k + v) * u64::from(descriptor.layers) * tokens
}

/// Shards one after the other: where each ends, and whose it is.
pub(crate) fn shards(parts: &[(u64, &BaseUri)]) -> Vec<Shard> {
    let mut start = 0;
    let mut shard = |&(end, instance): &(u64, &BaseUri)| {
        let tokens = range(start, end);
        start = end;
        Shard { tokens, instance: instance.clone() }
    };
    parts.iter().map(&mut shard).collect()
}

pub(crate) fn opening(member: &Instance, epoch: u64, length: u64, shards: Vec<Shard>) -> OpenContext {
    OpenContext {
        version: 1,
        epoch,
        length,
        certain: None,
        shards,
        compat_id: member.compat(),
        scope_id: scope(),
        session: None,
    }
}

/// A plan from version 1 to 2.
#[derive(Clone)]
pub(crate) struct Plan(pub(crate) ReshardPlan);

impl Plan {
    pub(crate) fn new() -> Self {
        Self(ReshardPlan {
            map: map(),
            from: 1,
            to: 2,
            deadline_ms: 30_000,
            retain: Vec::new(),
            fetch: Vec::new(),
            release: Vec::new(),
            rebuild: Vec::new(),
            length: None,
            shards: Vec::new(),
            compat_id: None,
            scope_id: None,
            session: None,
            attempt: None,
        })
    }

    pub(crate) fn from(mut self, version: u64) -> Self {
        (self.0.from, self.0.to) = (version, version + 1);
        self
    }

    pub(crate) fn retain(mut self, start: u64, end: u64) -> Self {
        self.0.retain.push(range(start, end));
        self
    }

    pub(crate) fn release(mut self, start: u64, end: u64) -> Self {
        self.0.release.push(range(start, end));
        self
    }

    pub(crate) fn fetch(mut self, start: u64, end: u64, from: &BaseUri) -> Self {
        self.0.fetch.push(FetchRange { tokens: range(start, end), from: from.clone() });
        self
    }

    pub(crate) fn length(mut self, length: u64) -> Self {
        self.0.length = Some(length);
        self
    }

    pub(crate) fn within(mut self, deadline_ms: u64) -> Self {
        self.0.deadline_ms = deadline_ms;
        self
    }

    pub(crate) fn attempt(mut self, attempt: u64) -> Self {
        self.0.attempt = Some(attempt);
        self
    }
}

/// What members are told, and what they hold.
pub(crate) trait Told {
    async fn open(&self, epoch: u64, length: u64, shards: Vec<Shard>) -> Vec<TokenRange>;
    async fn fill(&self, tokens: TokenRange);
    async fn plan(&self, plan: Plan) -> Result<ReshardAnswer, ClientError>;
    async fn commit(&self, version: u64) -> Result<ReshardAnswer, ClientError>;
    async fn abort(&self, version: u64) -> Result<ReshardAnswer, ClientError>;
    async fn abort_plan(&self, version: u64, attempt: u64) -> Result<ReshardAnswer, ClientError>;
    async fn held(&self) -> Vec<TokenRange>;
    async fn tokens(&self, version: u64, tokens: TokenRange) -> Result<Container, ClientError>;
}

impl Told for Instance {
    async fn open(&self, epoch: u64, length: u64, shards: Vec<Shard>) -> Vec<TokenRange> {
        let open = opening(self, epoch, length, shards);
        client().open_context(&self.base, &map(), &open).await.unwrap().held
    }

    /// Has it hold these tokens at version 1.
    async fn fill(&self, tokens: TokenRange) {
        let octets = sections(&self.descriptor, tokens).bytes().clone();
        client().put_tokens(&self.base, &map(), 1, 0, (tokens, octets)).await.unwrap();
    }

    async fn plan(&self, Plan(plan): Plan) -> Result<ReshardAnswer, ClientError> {
        tell(self, &ReshardMessage::Plan(Box::new(plan))).await
    }

    async fn commit(&self, version: u64) -> Result<ReshardAnswer, ClientError> {
        let message = ReshardMessage::Commit { map: map(), version, attempt: None, keep: Vec::new() };
        tell(self, &message).await
    }

    async fn abort(&self, version: u64) -> Result<ReshardAnswer, ClientError> {
        let message = ReshardMessage::Abort { map: map(), version, attempt: None, keep: Vec::new() };
        tell(self, &message).await
    }

    async fn abort_plan(&self, version: u64, attempt: u64) -> Result<ReshardAnswer, ClientError> {
        tell(self, &ReshardMessage::Abort { map: map(), version, attempt: Some(attempt), keep: Vec::new() })
            .await
    }

    async fn held(&self) -> Vec<TokenRange> {
        client().held(&self.base, &map()).await.unwrap().held
    }

    async fn tokens(&self, version: u64, tokens: TokenRange) -> Result<Container, ClientError> {
        client().get_tokens(&self.base, &map(), version, tokens, u64::MAX).await
    }
}

/// Sends a message, and reads the answer, which a client need not.
async fn tell(member: &Instance, message: &ReshardMessage) -> Result<ReshardAnswer, ClientError> {
    let answer = send(&member.base, "POST", "reshard", &serde_json::to_string(message).unwrap()).await;
    if answer.status == 200 {
        return Ok(serde_json::from_slice(&answer.body).unwrap());
    }
    Err(ClientError::Problem(Problem::from_json(answer.status, &answer.body)))
}

/// The problem's status and name of a call that failed.
pub(crate) fn problem<T: std::fmt::Debug>(outcome: Result<T, ClientError>) -> (u16, &'static str) {
    match outcome.unwrap_err() {
        ClientError::Problem(problem) => {
            (problem.status(), problem.problem_type().map_or("", ProblemType::name))
        }
        other => panic!("no problem: {other:?}"),
    }
}

/// Two members: the first holds [0, 37), the second [37, 100) of which 60 are there.
pub(crate) async fn pair() -> (Instance, Instance) {
    let (a, b) = (member().await, member().await);
    let split = shards(&[(37, &a.base), (100, &b.base)]);
    assert_eq!(a.open(0, 60, split.clone()).await, []);
    assert_eq!(b.open(0, 60, split).await, []);
    a.fill(range(0, 37)).await;
    b.fill(range(37, 60)).await;
    (a, b)
}

/// Sends octets of any media type.
pub(crate) async fn send_octets(
    base: &BaseUri,
    method: &str,
    path: &str,
    (media, octets): (&str, Bytes),
    headers: &[(&str, String)],
) -> Answer {
    let mut request = Request::builder().method(method).header("content-type", media);
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let request = request.body(octets).unwrap();
    let (head, mut body) = client().forward(base, path, request).await.unwrap().into_parts();
    let mut octets = Vec::new();
    while let Some(chunk) = body.chunk().await.unwrap() {
        octets.extend_from_slice(&chunk);
    }
    Answer { status: head.status.as_u16(), headers: head.headers, body: octets.into() }
}

pub(crate) fn digest(octets: &[u8]) -> (&'static str, String) {
    ("repr-digest", ReprDigest::of(octets).to_string())
}

/// A descriptor that is shared by all instances of the tiny model.
pub(crate) fn descriptor_of(member: &Instance) -> Arc<Descriptor> {
    member.descriptor.clone()
}
