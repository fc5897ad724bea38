//! The extension `layer-stream` (profile section 5): layer a of every block, then layer a + 1 of every
//! block, so that a receiver computes one layer of a whole prefix while the next one arrives.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt as _};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use kvsp_net::Caller;
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::reply::{Failure, empty};
use kvsp_proto::container::LayerRange;
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::json::from_slice;
use kvsp_proto::path::{BLOCKS_HEADER, MEDIA_BLOCK_SEQUENCE};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::registry::Codec;
use kvsp_store::{BlockName, BlockPart};
use serde::Deserialize;

use super::leases::check_keys;
use crate::find::Reading;
use crate::represent::{Asked, Plan};
use crate::service::BlockService;

/// ms for which a stream keeps its blocks from eviction.
const STREAM_MS: u64 = 60_000;

#[derive(Deserialize)]
struct StreamRequest {
    block_keys: Vec<BlockKey>,
    layers: (u32, u32),
    #[serde(default)]
    codec: Option<u16>,
}

pub(super) async fn layers(
    State(service): State<Arc<BlockService>>,
    caller: Caller,
    PathOf((compat, scope)): PathOf<(CompatId, ScopeId)>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_scope(scope)?;
    let request: StreamRequest = from_slice(&body.json(&service.config.limits).await?)?;
    let range = LayerRange::new(request.layers.0, request.layers.1)
        .map_err(|error| Failure::new(ProblemType::InvalidRange, error.to_string()))?;
    let codec = match request.codec {
        Some(number) => Some(
            Codec::new(number)
                .ok_or_else(|| Failure::new(ProblemType::MalformedJson, "member codec is not in 1…65534"))?,
        ),
        None => None,
    };
    check_keys(&service, request.block_keys.len())?;
    let names = request.block_keys.into_iter().map(|key| BlockName { compat, scope, key });
    let plans = leading(&service, names, Asked { layers: Some(range), codec })?;
    let count = plans.len();
    service.metrics.gets.inc_by(count as u64);
    let names: Vec<_> = plans.iter().map(|plan| plan.meta.name).collect();
    service.state().holdings.touch_prefix(&names);
    let reading = Reading::begin(service.clone(), &names, STREAM_MS);

    let mut response = empty(StatusCode::OK);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_BLOCK_SEQUENCE));
    response.headers_mut().insert(BLOCKS_HEADER, HeaderValue::from(count));
    if count > 0 {
        *response.body_mut() = Body::from_stream(sequence(reading, service, plans, range));
    }
    Ok(response)
}

/// The leading blocks that are held with those layers. One that is not, or not in that codec, ends the
/// list; where that is the first for want of the codec, there is nothing to wait for and the answer is 406.
fn leading(
    service: &BlockService,
    names: impl Iterator<Item = BlockName>,
    asked: Asked,
) -> Result<Vec<Plan>, Problem> {
    let mut plans = Vec::new();
    for name in names {
        match service.plan(&name, asked) {
            Ok(plan) => plans.push(plan),
            Err(problem) if plans.is_empty() && problem.status() == 406 => return Err(problem),
            Err(_) => break,
        }
    }
    Ok(plans)
}

/// One layer of one block after the other, each made only when the peer has taken the one before. A block
/// that is lost on the way breaks the sequence off, which the peer sees; none is evicted while `reading` holds
/// it.
fn sequence(
    reading: Reading<Arc<BlockService>>,
    service: Arc<BlockService>,
    plans: Vec<Plan>,
    range: LayerRange,
) -> impl Stream<Item = Result<Bytes, Broken>> {
    let plans = Arc::new((plans, reading));
    let steps = range.layers().flat_map({
        let blocks = plans.0.len();
        move |layer| (0..blocks).map(move |block| (layer, block))
    });
    let parts = stream::iter(steps).then(move |(layer, block)| {
        let (service, plans) = (service.clone(), plans.clone());
        async move { one_layer(&service, &plans.0, block, LayerRange::from_count(layer, 1), range).await }
    });
    parts.flat_map(|part| {
        let pieces = match part {
            Ok(BlockPart { head, data }) => vec![Ok(head), Ok(data)],
            Err(problem) => vec![Err(Broken(problem))],
        };
        stream::iter(pieces.into_iter().filter(|piece| !piece.as_ref().is_ok_and(Bytes::is_empty)))
    })
}

async fn one_layer(
    service: &BlockService,
    plans: &[Plan],
    block: usize,
    layer: Option<LayerRange>,
    range: LayerRange,
) -> Result<BlockPart, Problem> {
    let plan = plans.get(block).ok_or_else(crate::problems::not_found)?;
    let layer = layer.ok_or_else(crate::problems::layers_unavailable)?;
    let part = service.layers(&plan.of(layer)).await?;
    if layer.last() == range.last() {
        service.was_read(plan.meta.name, range);
    }
    Ok(part)
}

/// A sequence cannot go on; the connection ends in the middle of the body.
#[derive(Debug, thiserror::Error)]
#[error("the sequence breaks off: {0}")]
struct Broken(Problem);
