//! `POST replicas`: many records at once, each judged alone (profile section 5).

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use kvsp_net::auth::Caller;
use kvsp_net::extract::RequestBody;
use kvsp_net::principal::Principal;
use kvsp_net::{Failure, reply};
use kvsp_proto::json;
use kvsp_proto::message::{BatchAnswer, BatchRequest, ReplicaName};
use kvsp_proto::problem::{BatchItem, Problem, ProblemType};
use kvsp_proto::record::ReplicaRecord;

use super::replicas::{PUBLISHERS, publisher};
use super::{Service, offload};
use crate::service::IndexService;

/// Items worked on under one lock.
const ITEMS_A_LOCK: usize = 128;

pub(super) async fn batch(
    State(service): Service,
    Caller(caller): Caller,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(PUBLISHERS)?;
    let octets = body.json(&service.limits).await?;
    offload(true, move || {
        let request: BatchRequest = json::from_value(json::parse(&octets)?)?;
        let (items, max) = (request.put.len() + request.delete.len(), service.config.max_batch_items);
        if items > max {
            let detail = format!("the batch has {items} items, over the limit of {max}");
            return Err(Problem::new(ProblemType::LimitExceeded, detail).with("limit", max).into());
        }
        Ok(reply::json(StatusCode::OK, &work(&service, &caller, request)))
    })
    .await
}

fn work(service: &IndexService, caller: &Arc<Principal>, request: BatchRequest) -> BatchAnswer {
    let records: Vec<_> = request.put.into_iter().map(|item| read_record(caller, item)).collect();
    let names: Vec<_> = request.delete.into_iter().map(|item| read_name(caller, item)).collect();
    let mut answer = BatchAnswer { put: Vec::new(), delete: Vec::new() };
    for some in records.chunks(ITEMS_A_LOCK) {
        let (mut index, now) = (service.write(), service.now());
        answer.put.extend(some.iter().map(|record| match record {
            Ok(record) => match index.put(record, publisher(caller, &record.holder), now) {
                Ok(published) => item(if published.created { 201 } else { 200 }, Some(published.ttl_ms)),
                Err(error) => Problem::from(error).into(),
            },
            Err(problem) => problem.clone().into(),
        }));
    }
    for some in names.chunks(ITEMS_A_LOCK) {
        let (mut index, now) = (service.write(), service.now());
        answer.delete.extend(some.iter().map(|name| match name {
            Ok(name) => index.delete(name, now).map_or_else(|e| Problem::from(e).into(), |_| item(204, None)),
            Err(problem) => problem.clone().into(),
        }));
    }
    service.count_replicas();
    answer
}

const fn item(status: u16, ttl_ms: Option<u64>) -> BatchItem {
    BatchItem { status, ttl_ms, problem: None }
}

fn read_record(caller: &Principal, item: serde_json::Value) -> Result<ReplicaRecord, Problem> {
    let record = ReplicaRecord::from_value(item).map_err(|e| e.into_problem(ProblemType::InvalidRecord))?;
    caller.require_scope(record.scope_id)?;
    caller.require_holder(&record.holder)?;
    Ok(record)
}

fn read_name(caller: &Principal, item: serde_json::Value) -> Result<ReplicaName, Problem> {
    let name: ReplicaName = json::from_value(item)?;
    caller.require_scope(name.scope_id)?;
    caller.require_holder(&name.holder)?;
    Ok(name)
}
