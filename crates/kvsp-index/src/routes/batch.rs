//! `POST replicas`: many records at once, each judged alone (profile section 5).

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use kvsp_core::index::{IndexError, Published};
use kvsp_net::Failure;
use kvsp_net::auth::Caller;
use kvsp_net::extract::RequestBody;
use kvsp_net::principal::Principal;
use kvsp_proto::fast::write::push_integer;
use kvsp_proto::fast::{self, Batch};
use kvsp_proto::id::ScopeId;
use kvsp_proto::json;
use kvsp_proto::message::{BatchRequest, ReplicaName};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::uri::HolderUri;

use super::replicas::{PUBLISHERS, publisher};
use super::{Service, json_octets, offload};
use crate::service::IndexService;

/// Items worked on under one lock, so that lookups wait some tens of µs at most.
const ITEMS_A_LOCK: usize = 64;

/// A larger batch is worked on off the reactor.
const LIGHT_OCTETS: usize = 32 << 10;

type Puts = Vec<Result<ReplicaRecord, Problem>>;
type Deletes = Vec<Result<ReplicaName, Problem>>;

pub(super) async fn batch(
    State(service): Service,
    Caller(caller): Caller,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(PUBLISHERS)?;
    let octets = body.json(&service.limits).await?;
    offload(octets.len() > LIGHT_OCTETS, move || {
        let (puts, deletes) = read(&octets, service.config.max_batch_items)?;
        Ok(json_octets(work(&service, &caller, puts, deletes)))
    })
    .await
}

fn read(octets: &[u8], max: usize) -> Result<(Puts, Deletes), Failure> {
    if let Some(Batch { put, delete }) = fast::batch(octets, max) {
        return Ok((put.into_iter().map(Ok).collect(), delete.into_iter().map(Ok).collect()));
    }
    let request: BatchRequest = json::from_value(json::parse(octets)?)?;
    let items = request.put.len() + request.delete.len();
    if items > max {
        let detail = format!("the batch has {items} items, over the limit of {max}");
        return Err(Problem::new(ProblemType::LimitExceeded, detail).with("limit", max).into());
    }
    let record = |item| {
        ReplicaRecord::from_value(item).map_err(|error| error.into_problem(ProblemType::InvalidRecord))
    };
    let name = |item| Ok(json::from_value(item)?);
    Ok((request.put.into_iter().map(record).collect(), request.delete.into_iter().map(name).collect()))
}

fn work(service: &IndexService, caller: &Principal, puts: Puts, deletes: Deletes) -> Bytes {
    let puts: Puts = puts
        .into_iter()
        .map(|item| item.and_then(|r| authorise(caller, r.scope_id, &r.holder).map(|()| r)))
        .collect();
    let deletes: Deletes = deletes
        .into_iter()
        .map(|item| item.and_then(|name| authorise(caller, name.scope_id, &name.holder).map(|()| name)))
        .collect();
    let mut out = Items::new(puts.len() + deletes.len());
    for some in puts.chunks(ITEMS_A_LOCK) {
        let now = service.now();
        let outcomes: Vec<Result<Published, IndexError>> = service.change(|index| {
            let records = some.iter().filter_map(|item| item.as_ref().ok());
            records.map(|record| index.put(record, publisher(caller, &record.holder), now)).collect()
        });
        let mut outcomes = outcomes.into_iter();
        for item in some {
            match item {
                Err(problem) => out.refused(problem),
                // One outcome for each record that was read.
                Ok(_) => match outcomes.next() {
                    Some(Ok(published)) => out.published(published),
                    Some(Err(error)) => out.refused(&error.into()),
                    None => {}
                },
            }
        }
    }
    out.deletes();
    for some in deletes.chunks(ITEMS_A_LOCK) {
        let now = service.now();
        let outcomes: Vec<Result<bool, IndexError>> = service.change(|index| {
            some.iter().filter_map(|item| item.as_ref().ok()).map(|name| index.delete(name, now)).collect()
        });
        let mut outcomes = outcomes.into_iter();
        for item in some {
            match item {
                Err(problem) => out.refused(problem),
                Ok(_) => match outcomes.next() {
                    Some(Ok(_)) => out.deleted(),
                    Some(Err(error)) => out.refused(&error.into()),
                    None => {}
                },
            }
        }
    }
    out.finish()
}

fn authorise(caller: &Principal, scope: ScopeId, holder: &HolderUri) -> Result<(), Problem> {
    caller.require_scope(scope)?;
    caller.require_holder(holder)
}

/// `{"put": [...], "delete": [...]}` in the making; items as `kvsp_proto::problem::BatchItem`.
struct Items {
    out: Vec<u8>,
    first: bool,
}

impl Items {
    fn new(items: usize) -> Self {
        let mut out = Vec::with_capacity(32 + 32 * items);
        out.extend_from_slice(b"{\"put\":[");
        Self { out, first: true }
    }

    fn item(&mut self, status: u16) {
        if !std::mem::replace(&mut self.first, false) {
            self.out.push(b',');
        }
        self.out.extend_from_slice(b"{\"status\":");
        push_integer(&mut self.out, u64::from(status));
    }

    fn published(&mut self, published: Published) {
        self.item(if published.created { 201 } else { 200 });
        self.out.extend_from_slice(b",\"ttl_ms\":");
        push_integer(&mut self.out, published.ttl_ms);
        self.out.push(b'}');
    }

    fn deleted(&mut self) {
        self.item(204);
        self.out.push(b'}');
    }

    fn refused(&mut self, problem: &Problem) {
        self.item(problem.status());
        self.out.extend_from_slice(b",\"problem\":");
        self.out.extend_from_slice(problem.to_json().to_string().as_bytes());
        self.out.push(b'}');
    }

    /// What follows is about the deletes.
    fn deletes(&mut self) {
        self.out.extend_from_slice(b"],\"delete\":[");
        self.first = true;
    }

    fn finish(mut self) -> Bytes {
        self.out.extend_from_slice(b"]}");
        Bytes::from(self.out)
    }
}
