//! Single records, the records of a block, and all of a holder.

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use kvsp_core::index::Publisher;
use kvsp_net::auth::Caller;
use kvsp_net::extract::{PathOf, RequestBody, query};
use kvsp_net::principal::{Principal, Role};
use kvsp_net::{Failure, reply};
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::json::MAX_INTEGER;
use kvsp_proto::message::{ReplicaName, TtlAnswer};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::uri::HolderUri;
use serde::Serialize;

use super::{HEAVY_OCTETS, Service, offload};

type ReplicaPath = PathOf<(CompatId, ScopeId, BlockKey, HolderUri)>;

/// Who may publish and withdraw.
pub(super) const PUBLISHERS: &[Role] = &[Role::Holder, Role::Instance];

pub(super) fn publisher(caller: &Principal, holder: &HolderUri) -> Publisher {
    if caller.is_itself(holder) { Publisher::Holder } else { Publisher::Delegate }
}

fn authorise_write(caller: &Principal, scope: ScopeId, holder: &HolderUri) -> Result<(), Problem> {
    caller.require_role(PUBLISHERS)?;
    caller.require_scope(scope)?;
    caller.require_holder(holder)
}

fn authorise_read(caller: &Principal, scope: ScopeId) -> Result<(), Problem> {
    caller.require_role(&Role::ALL)?;
    caller.require_scope(scope)
}

pub(super) async fn put(
    State(service): Service,
    Caller(caller): Caller,
    PathOf((compat, scope, key, holder)): ReplicaPath,
    body: RequestBody,
) -> Result<Response, Failure> {
    authorise_write(&caller, scope, &holder)?;
    let by = publisher(&caller, &holder);
    let octets = body.json(&service.limits).await?;
    let (record, holder) = offload(octets.len() > HEAVY_OCTETS, move || {
        let record = ReplicaRecord::from_json_of(&octets, &holder)
            .map_err(|error| error.into_problem(ProblemType::InvalidRecord))?;
        Ok((record, holder))
    })
    .await?;
    if (record.compat_id, record.scope_id, record.block_key, &record.holder) != (compat, scope, key, &holder)
    {
        return Err(Failure::new(ProblemType::InvalidRecord, "the record's members contradict the path"));
    }
    let now = service.now();
    let published = service.change(|index| index.put(&record, by, now)).map_err(Problem::from)?;
    let status = if published.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(reply::json(status, &TtlAnswer { ttl_ms: published.ttl_ms }))
}

pub(super) async fn get(
    State(service): Service,
    Caller(caller): Caller,
    PathOf((compat, scope, key, holder)): ReplicaPath,
) -> Result<Response, Failure> {
    authorise_read(&caller, scope)?;
    let record = service.read().get(compat, scope, key, &holder, service.now());
    let record = record.ok_or_else(|| {
        Problem::new(ProblemType::BlockNotFound, "no live record of this replica; a holder may publish it")
    })?;
    Ok(reply::json(StatusCode::OK, &record))
}

pub(super) async fn delete(
    State(service): Service,
    Caller(caller): Caller,
    PathOf((compat_id, scope_id, block_key, holder)): ReplicaPath,
    uri: Uri,
) -> Result<Response, Failure> {
    authorise_write(&caller, scope_id, &holder)?;
    let seq = seq_of(&uri)?;
    let name = ReplicaName { compat_id, scope_id, block_key, holder, seq };
    let now = service.now();
    service.change(|index| index.delete(&name, now)).map_err(Problem::from)?;
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

fn seq_of(uri: &Uri) -> Result<Option<u64>, Failure> {
    let wrong = || Failure::new(ProblemType::BadIdentifier, "seq is one unsigned integer up to 2^53-1");
    let mut seq = None;
    for (name, value) in query(uri)? {
        if name != "seq" {
            continue;
        }
        let digits = !value.is_empty() && value.bytes().all(|c| c.is_ascii_digit());
        let number = if digits { value.parse().ok() } else { None };
        let number = number.filter(|&number: &u64| number <= MAX_INTEGER).ok_or_else(wrong)?;
        if seq.replace(number).is_some() {
            return Err(wrong());
        }
    }
    Ok(seq)
}

/// `{"replicas": [...]}`, without a shared pointer for each record.
#[derive(Serialize)]
struct Records {
    replicas: Vec<ReplicaRecord>,
}

pub(super) async fn list(
    State(service): Service,
    Caller(caller): Caller,
    PathOf((compat, scope, key)): PathOf<(CompatId, ScopeId, BlockKey)>,
) -> Result<Response, Failure> {
    authorise_read(&caller, scope)?;
    let replicas = service.read().list(compat, scope, key, service.now());
    Ok(reply::json(StatusCode::OK, &Records { replicas }))
}

pub(super) async fn delete_holder(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(holder): PathOf<HolderUri>,
) -> Result<Response, Failure> {
    caller.require_role(PUBLISHERS)?;
    caller.require_holder(&holder)?;
    offload(true, move || {
        let now = service.now();
        service.change(|index| index.delete_holder(&holder, now));
        Ok(reply::empty(StatusCode::NO_CONTENT))
    })
    .await
}
