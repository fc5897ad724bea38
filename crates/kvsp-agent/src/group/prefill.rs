//! Computing K and V of a range of positions at their owner, with the attention of the owners of what comes before.
//!
//! All members of a group compute their ranges at the same time, layer by layer: who needs earlier keys of a layer
//! asks their owner, who answers once it has computed them there. One asks only for earlier positions, so nobody
//! waits in a circle.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use http::StatusCode;
use kvsp_core::reshard::{Ranges, cover, ranges_of};
use kvsp_engine::{Merge, Queries};
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::principal::Role;
use kvsp_net::{Caller, Failure, reply};
use kvsp_proto::message::{MapId, PrefillAnswer, PrefillRequest, Shard, TokenRange};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::uri::BaseUri;
use tokio::time::Instant;

use super::member;
use super::remote::{Part, Peers};
use super::routes::require_scope_of;
use super::trouble::Trouble;
use crate::Agent;
use crate::engine::{Advanced, Gauges, PassId};

/// How long the owner of earlier positions may take to get to a layer: it may have many of them to compute.
const NEIGHBOUR_WAIT: Duration = Duration::from_secs(120);
/// Passes of one layer whose attention is asked for while the next ones are projected.
const IN_FLIGHT: usize = 4;

/// What is to be computed, and among whom.
pub(super) struct Order {
    pub(super) map: MapId,
    pub(super) version: u64,
    pub(super) epoch: u64,
    /// All shards of that version.
    pub(super) shards: Vec<Shard>,
    /// The position of the first token.
    pub(super) position: u64,
    pub(super) tokens: Vec<u32>,
}

/// Some of the tokens, in one pass of the engine.
struct Chunk {
    pass: PassId,
    /// Where it ends.
    end: u64,
    /// Of the layer that is projected.
    attention: Option<Vec<f32>>,
}

/// Compute K and V of these tokens in all layers, chunk by chunk through one layer before the next.
///
/// # Errors
/// [`Trouble`]; what is computed of them by then counts for nothing.
pub(super) async fn compute(agent: &Arc<Agent>, order: Order) -> Result<(), Trouble> {
    let held = agent.engine.context_held(&order.map).await;
    let chunks = begin(agent, &order).await?;
    let group = Group::new(agent, &order, held);
    let chunks = group.compute(chunks).await?;
    for Chunk { pass, .. } in chunks {
        agent.engine.pass_finish(pass, false).await?;
    }
    let gauges = agent.engine.gauges();
    Gauges::count(&gauges.prompt_tokens_computed, order.tokens.len());
    Ok(())
}

async fn begin(agent: &Agent, order: &Order) -> Result<Vec<Chunk>, Trouble> {
    let mut chunks = Vec::new();
    let mut at = order.position;
    for tokens in order.tokens.chunks(agent.config.chunk_tokens.max(1)) {
        let pass = agent.engine.pass_begin(&order.map, at, tokens.to_vec()).await?;
        at = at.saturating_add(tokens.len() as u64);
        chunks.push(Chunk { pass, end: at, attention: None });
    }
    Ok(chunks)
}

/// A chunk at a layer.
struct Projected {
    queries: Queries,
    /// Attention over the keys that are here.
    parts: Vec<Part>,
    /// Keys of this member that another computation of the same context is about to bring.
    awaited: Ranges,
    /// Keys of other members.
    remote: Vec<(BaseUri, Range<u64>)>,
}

/// One computation and what it asks others for.
struct Group<'a> {
    agent: &'a Agent,
    order: &'a Order,
    peers: Peers,
    /// Positions that were here before it began.
    held: Ranges,
}

impl<'a> Group<'a> {
    fn new(agent: &'a Agent, order: &'a Order, held: Ranges) -> Self {
        let peers =
            Peers::new(&agent.client, NEIGHBOUR_WAIT, order.map.clone(), (order.version, order.epoch));
        Self { agent, order, peers, held }
    }

    async fn compute(&self, mut chunks: Vec<Chunk>) -> Result<Vec<Chunk>, Trouble> {
        for layer in 0..self.agent.descriptor.layers {
            let mut asked = FuturesOrdered::new();
            let mut merged = Vec::with_capacity(chunks.len());
            for chunk in &mut chunks {
                // Each chunk is projected before the next one, which needs its keys.
                let projected = self.project(layer, chunk).await?;
                asked.push_back(self.merge(layer, projected));
                if asked.len() >= IN_FLIGHT
                    && let Some(attention) = asked.next().await
                {
                    merged.push(attention?);
                }
            }
            while let Some(attention) = asked.next().await {
                merged.push(attention?);
            }
            for (chunk, attention) in chunks.iter_mut().zip(merged) {
                chunk.attention = Some(attention);
            }
        }
        for chunk in &mut chunks {
            let attention = chunk.attention.take();
            match self.agent.engine.pass_advance(&chunk.pass, attention, Ranges::new()).await? {
                Advanced::Done => {}
                Advanced::Layer { .. } => return Err(Trouble::Layers),
            }
        }
        Ok(chunks)
    }

    /// Bring a chunk to a layer: its queries, their attention over what is here, and the keys that are elsewhere.
    async fn project(&self, layer: u32, chunk: &mut Chunk) -> Result<Projected, Trouble> {
        let mut here = self.held.clone();
        here.insert(self.order.position..chunk.end);
        let own = &self.agent.base;
        let cover = cover(&self.order.shards, own, &here, chunk.end);
        let nobodys = cover.missing.difference(&ranges_of(&self.order.shards, own));
        if let Some(at) = nobodys.start() {
            return Err(Trouble::Uncovered(at));
        }
        let attention = chunk.attention.take();
        match self.agent.engine.pass_advance(&chunk.pass, attention, cover.local).await? {
            Advanced::Layer { layer: at, queries, local } if at == layer => {
                let parts = local.into_iter().map(|(keys, partial)| (positions(&keys), partial));
                let parts = parts.collect();
                Ok(Projected { queries, parts, awaited: cover.missing, remote: cover.remote })
            }
            _ => Err(Trouble::Layers),
        }
    }

    /// Attention over all keys.
    async fn merge(&self, layer: u32, projected: Projected) -> Result<Vec<f32>, Trouble> {
        let Projected { queries, parts, awaited, remote } = projected;
        let mut merge = Merge::new(&queries);
        for (keys, partial) in parts {
            merge.add(keys, partial)?;
        }
        for keys in awaited.iter() {
            let until = self.agent.clock.now() + NEIGHBOUR_WAIT;
            let attended =
                self.agent.engine.attend(&self.order.map, layer, keys.clone(), queries.clone(), until);
            merge.add(positions(&keys), attended.await?)?;
        }
        let until = Instant::now() + NEIGHBOUR_WAIT;
        for (keys, partial) in self.peers.attend_until(layer, &queries, &remote, until).await? {
            merge.add(keys, partial)?;
        }
        Ok(merge.finish()?)
    }
}

/// Positions as the engine counts them; what is beyond its memory is beyond every sequence.
pub(super) fn positions(keys: &Range<u64>) -> Range<usize> {
    let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    at(keys.start)..at(keys.end)
}

/// `POST maps/{map}/{version}/prefill` (extension `group-attention`): answered once it is computed.
pub(super) async fn prefill(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    PathOf((map, version)): PathOf<(MapId, u64)>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Instance])?;
    require_scope_of(&agent, &caller, &map)?;
    let body = body.json(&agent.config.limits).await?;
    let PrefillRequest { epoch, position, tokens } = kvsp_proto::json::from_slice(&body)?;
    let end = position.saturating_add(tokens.len() as u64);
    let range = TokenRange::new(position, end).map_err(|error| {
        Failure::new(ProblemType::InvalidShardMap, format!("members position and tokens: {error}"))
    })?;
    if tokens.iter().any(|token| *token as usize >= agent.engine.info().vocab) {
        return Err(Failure::new(ProblemType::InvalidShardMap, "a token is not in the vocabulary"));
    }
    let shards = member::shards(&agent, &map, version)?;
    member::may_compute(&agent, &map, version, epoch, range)?;
    compute(&agent, Order { map, version, epoch, shards, position, tokens }).await.map_err(Problem::from)?;
    Ok(reply::json(StatusCode::OK, &PrefillAnswer { computed: range }))
}
