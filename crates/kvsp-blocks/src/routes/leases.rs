//! Leases (draft section 6.6, profile section 5).

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::header::LOCATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use kvsp_core::lease::Lease;
use kvsp_core::tier::LeaseOf;
use kvsp_core::time::Time;
use kvsp_net::Caller;
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::reply::{Failure, empty, json};
use kvsp_proto::digest::sha256;
use kvsp_proto::id::BlockKey;
use kvsp_proto::json::from_slice;
use kvsp_proto::message::{LeaseAnswer, LeaseRequest, RenewRequest};
use kvsp_proto::path;
use kvsp_proto::problem::ProblemType;
use kvsp_store::BlockName;
use uuid::Uuid;

use crate::problems;
use crate::service::BlockService;

/// Longest idempotency key.
const MAX_KEY_OCTETS: usize = 255;

pub(super) async fn create(
    State(service): State<Arc<BlockService>>,
    caller: Caller,
    body: RequestBody,
) -> Result<Response, Failure> {
    let idempotency = idempotency_key(body.headers())?;
    let octets = body.json(&service.config.limits).await?;
    let request: LeaseRequest = from_slice(&octets)?;
    check_ttl(request.ttl_ms)?;
    check_keys(&service, request.block_keys.len())?;
    caller.require_scope(request.scope_id)?;
    let LeaseRequest { compat_id: compat, scope_id: scope, block_keys, ttl_ms } = request;
    let names: Vec<_> = block_keys.into_iter().map(|key| BlockName { compat, scope, key }).collect();
    let request = LeaseOf {
        id: service.random.uuid(),
        keys: &names,
        ttl_ms,
        idempotency: idempotency.map(|key| (key, fingerprint(&octets))),
    };
    cover(&service, ttl_ms).await?;
    let now = service.now();
    let lease = {
        let mut state = service.state();
        let lease = state.holdings.lease(caller.name(), &request, now);
        service.measure(&state);
        lease.map_err(problems::lease)?
    };
    // What was missing is told once and not kept: no quota would count it.
    let granted: BTreeSet<_> = lease.granted.iter().map(|name| name.key).collect();
    let mut told: BTreeSet<BlockKey> = BTreeSet::new();
    let missing = names.iter().map(|name| name.key).filter(|key| !granted.contains(key) && told.insert(*key));
    let created = LeaseAnswer { missing: missing.collect(), ..answer(&lease, now) };
    let mut response = json(StatusCode::CREATED, &created);
    if let Ok(location) = HeaderValue::from_str(&service.base.join(&path::lease(lease.id))) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

pub(super) async fn get(
    State(service): State<Arc<BlockService>>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
) -> Result<Response, Failure> {
    let now = service.now();
    let lease = service.state().holdings.get_lease(caller.name(), id, now).map_err(problems::lease)?;
    Ok(json(StatusCode::OK, &answer(&lease, now)))
}

pub(super) async fn renew(
    State(service): State<Arc<BlockService>>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
    body: RequestBody,
) -> Result<Response, Failure> {
    let request: RenewRequest = from_slice(&body.json(&service.config.limits).await?)?;
    check_ttl(request.ttl_ms)?;
    cover(&service, request.ttl_ms).await?;
    let now = service.now();
    let renewed = service.state().holdings.renew_lease(caller.name(), id, request.ttl_ms, now);
    Ok(json(StatusCode::OK, &answer(&renewed.map_err(problems::lease)?, now)))
}

pub(super) async fn release(
    State(service): State<Arc<BlockService>>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
) -> Result<Response, Failure> {
    let now = service.now();
    let mut state = service.state();
    state.holdings.release_lease(caller.name(), id, now).map_err(problems::lease)?;
    service.measure(&state);
    Ok(empty(StatusCode::NO_CONTENT))
}

fn answer(lease: &Lease<BlockName>, now: Time) -> LeaseAnswer {
    LeaseAnswer {
        lease: lease.id,
        ttl_ms: now.millis_until(lease.until),
        block_keys: lease.granted.iter().map(|name| name.key).collect(),
        missing: Vec::new(),
    }
}

/// Before a lease is granted it is made sure that a later process of this holder keeps its promise.
async fn cover(service: &BlockService, ttl_ms: u64) -> Result<(), Failure> {
    let ttl_ms = ttl_ms.min(service.config.limits.max_lease_ttl_ms);
    service.lease_horizon.cover(ttl_ms).await.map_err(|error| problems::store(&error).into())
}

fn check_ttl(ttl_ms: u64) -> Result<(), Failure> {
    if ttl_ms == 0 {
        return Err(Failure::new(ProblemType::MalformedJson, "member ttl_ms is not at least 1"));
    }
    Ok(())
}

pub(super) fn check_keys(service: &BlockService, keys: usize) -> Result<(), Failure> {
    let max = service.config.limits.max_lookup_keys;
    if keys as u64 > max {
        return Err(Failure::new(ProblemType::LimitExceeded, format!("{keys} block keys exceed {max}")));
    }
    Ok(())
}

/// The key of a retry, as it came: a structured string or a bare token.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let mut values = headers.get_all("idempotency-key").iter();
    let (first, second) = (values.next(), values.next());
    let Some(value) = first else {
        return Ok(None);
    };
    let text = value.to_str().map(|text| text.trim().trim_matches('"')).unwrap_or_default();
    if second.is_some() || text.is_empty() || text.len() > MAX_KEY_OCTETS {
        let detail = format!("Idempotency-Key is one text of 1 to {MAX_KEY_OCTETS} characters");
        return Err(Failure::blank(StatusCode::BAD_REQUEST, detail));
    }
    Ok(Some(text.to_owned()))
}

fn fingerprint(body: &Bytes) -> [u8; 32] {
    sha256(body).0
}
