//! `POST lookup` (draft section 6.2).

mod body;
mod targets;

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use kvsp_core::time::Time;
use kvsp_net::Failure;
use kvsp_net::auth::Caller;
use kvsp_net::extract::RequestBody;
use kvsp_net::principal::Role;
use kvsp_proto::json::JsonError;
use kvsp_proto::message::{Detail, LookupRequest};
use kvsp_proto::problem::{Problem, ProblemType};

use super::{HEAVY_OCTETS, Service, json_octets, offload};
use crate::service::IndexService;
use body::Body;
use targets::Prefix;

/// Keys looked up under one lock, so that publishers wait some tens of µs at most.
const fn keys_a_lock(detail: Detail) -> usize {
    match detail {
        Detail::Full => 64,
        Detail::Location => 256,
        Detail::None => 2048,
    }
}

/// A lookup of more keys than this, which take about 150 µs, is worked on off the reactor; below, the change
/// of thread costs more than it saves others: an answer of a megabyte comes from another thread's memory.
const fn light_keys(detail: Detail) -> usize {
    match detail {
        Detail::Full => 512,
        Detail::Location => 512,
        Detail::None => 4096,
    }
}

/// Blocks whose memory is asked for before the first of them is written: about what the first level of a
/// cache holds with all digests.
const BLOCKS_AHEAD: usize = 8;

pub(super) async fn lookup(
    State(service): Service,
    Caller(caller): Caller,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let octets = body.json(&service.limits).await?;
    let request =
        offload(octets.len() > HEAVY_OCTETS, move || Ok(LookupRequest::from_json(&octets)?)).await?;
    caller.require_scope(request.scope_id)?;
    check(&service, &request)?;
    let heavy = request.block_keys.len() > light_keys(request.detail) || !request.targets.is_empty();
    offload(heavy, move || Ok(json_octets(answer(&service, &request)?))).await
}

fn check(service: &IndexService, request: &LookupRequest) -> Result<(), Failure> {
    let limits = [
        ("block_keys", request.block_keys.len(), service.config.max_lookup_keys),
        ("targets", request.targets.len(), service.config.max_lookup_targets),
    ];
    for (member, got, max) in limits {
        if got > max {
            let detail = format!("member {member} has {got} entries, over the limit of {max}");
            return Err(Problem::new(ProblemType::LimitExceeded, detail).with("limit", max).into());
        }
    }
    if request.block_tokens == Some(0) {
        return Err(JsonError::Malformed("member block_tokens is not at least 1".into()).into());
    }
    Ok(())
}

fn answer(service: &Arc<IndexService>, request: &LookupRequest) -> Result<Bytes, Failure> {
    let now = service.now();
    let mut body = Body::new(request, service.config.max_answer_octets);
    let prefix = find(service, request, &mut body, now)?;
    service.metrics.lookups.inc();
    service.metrics.looked_up.inc_by(request.block_keys.len() as u64);
    service.metrics.matched.inc_by(prefix.matched as u64);
    let targets = targets::estimates(service, &request.targets, &prefix, now);
    Ok(body.finish(prefix.matched, prefix.complete, &targets))
}

/// The answer is no snapshot of one moment: the index is advisory, and a lock held for all keys would
/// keep publishers waiting.
fn find(
    service: &IndexService,
    request: &LookupRequest,
    body: &mut Body<'_>,
    now: Time,
) -> Result<Prefix, Failure> {
    let mut prefix = Prefix::default();
    let wants_blocks = request.detail != Detail::None || !request.targets.is_empty();
    for keys in request.block_keys.chunks(keys_a_lock(request.detail)) {
        let index = service.read();
        if prefix.matched == 0 {
            let descriptor = index.descriptors().get(request.compat_id);
            prefix.block_tokens = descriptor.map(|known| known.block_tokens).or(request.block_tokens);
        }
        let found = index.lookup(request.compat_id, request.scope_id, keys, now);
        if prefix.complete == prefix.matched {
            prefix.complete += found.complete();
        }
        prefix.matched += found.matched();
        let mut blocks = found.blocks();
        while wants_blocks && blocks.len() > 0 {
            let some: [_; BLOCKS_AHEAD] = std::array::from_fn(|_| blocks.next());
            let some = || some.iter().flatten();
            some().for_each(|block| body.fetch(block));
            for block in some() {
                body.block(block)?;
                if !request.targets.is_empty() {
                    prefix.take(block);
                }
            }
        }
        if found.matched() < keys.len() {
            break;
        }
    }
    Ok(prefix)
}
