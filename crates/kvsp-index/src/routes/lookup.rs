//! `POST lookup` (draft section 6.2).

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use kvsp_core::estimate::{Block, Target, fetch_us, recompute_us};
use kvsp_core::time::Time;
use kvsp_net::auth::Caller;
use kvsp_net::extract::RequestBody;
use kvsp_net::principal::Role;
use kvsp_net::{Failure, reply};
use kvsp_proto::id::BlockKey;
use kvsp_proto::json::{self, JsonError};
use kvsp_proto::message::{Detail, LookupAnswer, LookupBlock, LookupRequest, TargetEstimate};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::uri::BaseUri;

use super::{HEAVY_OCTETS, Service, offload};
use crate::service::IndexService;

/// Keys looked up under one lock.
const KEYS_A_LOCK: usize = 1024;

/// A lookup of more keys than this is worked on off the reactor.
const LIGHT_KEYS: usize = 64;

pub(super) async fn lookup(
    State(service): Service,
    Caller(caller): Caller,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let octets = body.json(&service.limits).await?;
    let request: LookupRequest =
        offload(octets.len() > HEAVY_OCTETS, move || Ok(json::from_slice(&octets)?)).await?;
    caller.require_scope(request.scope_id)?;
    check(&service, &request)?;
    let heavy = request.block_keys.len() > LIGHT_KEYS || !request.targets.is_empty();
    offload(heavy, move || Ok(reply::json(StatusCode::OK, &answer(&service, &request)?))).await
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

/// A matched block, taken out of the index.
struct Found {
    key: BlockKey,
    layers: u32,
    records: Vec<Arc<ReplicaRecord>>,
}

/// The matched prefix, taken out of the index.
#[derive(Default)]
struct Prefix {
    matched: usize,
    complete: usize,
    blocks: Vec<Found>,
    block_tokens: Option<u32>,
}

fn answer(service: &IndexService, request: &LookupRequest) -> Result<LookupAnswer, Failure> {
    let now = service.now();
    let prefix = find(service, request, now)?;
    service.metrics.lookups.inc();
    service.metrics.looked_up.inc_by(request.block_keys.len() as u64);
    service.metrics.matched.inc_by(prefix.matched as u64);
    let targets = estimates(service, &request.targets, &prefix, now);
    let blocks = prefix.blocks.into_iter().map(|b| LookupBlock { block_key: b.key, replicas: b.records });
    Ok(LookupAnswer {
        matched: prefix.matched as u64,
        complete: prefix.complete as u64,
        blocks: (request.detail != Detail::None).then(|| blocks.collect()),
        targets: (!request.targets.is_empty()).then_some(targets),
    })
}

/// The answer is no snapshot of one moment: the index is advisory, and a lock held for all keys would
/// keep publishers waiting.
fn find(service: &IndexService, request: &LookupRequest, now: Time) -> Result<Prefix, Failure> {
    let wanted = request.detail != Detail::None || !request.targets.is_empty();
    let digests = request.detail == Detail::Full;
    let descriptor = service.read().descriptors().get(request.compat_id).cloned();
    let block_tokens = descriptor.map(|d| d.block_tokens).or(request.block_tokens);
    let mut prefix = Prefix { block_tokens, ..Prefix::default() };
    let mut octets = 0_u64;
    for keys in request.block_keys.chunks(KEYS_A_LOCK) {
        let index = service.read();
        let found = index.lookup(request.compat_id, request.scope_id, keys, now);
        if prefix.complete == prefix.matched {
            prefix.complete += found.complete();
        }
        prefix.matched += found.matched();
        for block in found.blocks().take_while(|_| wanted) {
            let records = block.replicas().map(|replica| Arc::new(replica.to_record(digests))).collect();
            let found = Found { key: block.key(), layers: block.layers(), records };
            octets += found.records.iter().map(|record| octets_of(record)).sum::<u64>();
            prefix.blocks.push(found);
            let max = service.config.max_answer_octets;
            if octets > max {
                let detail = "the answer would be too large; ask for fewer keys or with less detail";
                return Err(Problem::new(ProblemType::LimitExceeded, detail).with("limit", max).into());
            }
        }
        if found.matched() < keys.len() {
            break;
        }
    }
    Ok(prefix)
}

/// About the octets that a record takes in an answer.
fn octets_of(record: &ReplicaRecord) -> u64 {
    let digests = record.layer_digests.as_ref().map_or(0, Vec::len) as u64;
    400 + 67 * digests + 80 * record.residency.len() as u64 + 2 * record.holder.as_str().len() as u64
}

fn estimates(service: &IndexService, targets: &[BaseUri], prefix: &Prefix, now: Time) -> Vec<TargetEstimate> {
    if targets.is_empty() {
        return Vec::new();
    }
    let complete = prefix.blocks.get(..prefix.complete).unwrap_or_default();
    let blocks: Vec<Block<'_>> = complete
        .iter()
        .map(|block| Block::of(block.records.iter().map(Arc::as_ref), Some(block.layers)))
        .collect();
    let tokens = prefix.block_tokens.map(|n| (prefix.complete as u64).saturating_mul(u64::from(n)));
    let statuses: Vec<_> =
        targets.iter().map(|target| service.instances().live_status(target, now)).collect();
    targets
        .iter()
        .zip(statuses)
        .map(|(target, status)| TargetEstimate {
            instance: target.clone(),
            fetch_us: status.as_ref().and_then(|status| fetch_us(&Target::of(status), &blocks)),
            recompute_us: status
                .as_ref()
                .zip(tokens)
                .and_then(|(status, tokens)| recompute_us(tokens, status.prefill_tokens_per_s)),
        })
        .collect()
}
