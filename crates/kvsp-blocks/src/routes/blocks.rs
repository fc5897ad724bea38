//! One block: GET, HEAD, PUT, DELETE.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName, IF_NONE_MATCH, LOCATION};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use kvsp_net::Caller;
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::principal::Role;
use kvsp_net::reply::{Failure, empty};
use kvsp_proto::digest::ReprDigest;
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::path::{self, MEDIA_BLOCK};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_store::{BlockName, BlockPart};
use tokio::sync::OwnedSemaphorePermit;

use crate::ingest::Claims;
use crate::problems;
use crate::represent::{Asked, Plan};
use crate::room::Arriving;
use crate::service::{BUDGET_UNIT, BlockService, PutOutcome};

const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");

type Block = PathOf<(CompatId, ScopeId, BlockKey)>;

fn authorised(caller: &Caller, path: &Block) -> Result<BlockName, Failure> {
    let (compat, scope, key) = path.0;
    caller.require_scope(scope)?;
    Ok(BlockName { compat, scope, key })
}

pub(super) async fn get(
    State(service): State<Arc<BlockService>>,
    caller: Caller,
    path: Block,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let name = authorised(&caller, &path)?;
    let asked = Asked::from_uri(&uri)?;
    answer(&service, &name, asked, &headers).await.inspect_err(|Failure(problem)| {
        if problem.status() == 404 {
            service.metrics.misses.inc();
        }
    })
}

async fn answer(
    service: &BlockService,
    name: &BlockName,
    asked: Asked,
    headers: &HeaderMap,
) -> Result<Response, Failure> {
    let plan = service.plan(name, asked)?;
    let made = if headers.contains_key(IF_NONE_MATCH) {
        let (digest, made) = service.digest_of(&plan).await?;
        if matches_etag(headers, digest) {
            return Ok(not_modified(service, &plan, digest));
        }
        made
    } else {
        None
    };
    let made = match made {
        Some(made) => made,
        None => service.represent(&plan).await?,
    };
    service.metrics.gets.inc();
    let mut response = described(service, &plan, made.digest);
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(made.parts.size()));
    *response.body_mut() = body_of(made.parts);
    Ok(response)
}

pub(super) async fn head(
    State(service): State<Arc<BlockService>>,
    caller: Caller,
    path: Block,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let name = authorised(&caller, &path)?;
    let asked = Asked::from_uri(&uri)?;
    let plan = service.plan(&name, asked)?;
    let (digest, made) = service.digest_of(&plan).await?;
    if matches_etag(&headers, digest) {
        return Ok(not_modified(&service, &plan, digest));
    }
    let octets = match (made, plan.known_octets()) {
        (Some(made), _) => made.parts.size(),
        (None, Some(octets)) => octets,
        (None, None) => service.represent(&plan).await?.parts.size(),
    };
    let mut response = described(&service, &plan, digest);
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(octets));
    Ok(response)
}

/// The fields that describe a representation, which GET and HEAD have in common.
fn described(service: &BlockService, plan: &Plan, digest: ReprDigest) -> Response {
    let mut response = not_modified(service, plan, digest);
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_BLOCK));
    insert(headers, REPR_DIGEST, &digest.to_string());
    response
}

/// 304 with the fields of RFC 9110 section 15.4.5.
fn not_modified(service: &BlockService, plan: &Plan, digest: ReprDigest) -> Response {
    let mut response = empty(StatusCode::NOT_MODIFIED);
    let headers = response.headers_mut();
    insert(headers, ETAG, &etag(digest));
    let age = service.max_age(&plan.meta.name);
    insert(headers, CACHE_CONTROL, &format!("private, immutable, max-age={}", whole_seconds(age)));
    response
}

const fn whole_seconds(age: Duration) -> u64 {
    age.as_secs()
}

fn etag(digest: ReprDigest) -> String {
    format!("\"{}\"", digest.0)
}

/// `If-None-Match` by weak comparison (RFC 9110 section 13.1.2).
fn matches_etag(headers: &HeaderMap, digest: ReprDigest) -> bool {
    let own = etag(digest);
    let fields = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    fields.flat_map(|field| field.split(',')).any(|tag| {
        let tag = tag.trim();
        tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == own
    })
}

fn insert(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    // Made of hex, base64 and digits, so it is a valid field value.
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

/// Both parts, one after the other, uncopied.
fn body_of(parts: BlockPart) -> Body {
    if parts.data.is_empty() {
        return Body::from(parts.head);
    }
    Body::from_stream(stream::iter([Ok::<Bytes, std::convert::Infallible>(parts.head), Ok(parts.data)]))
}

pub(super) async fn put(
    State(service): State<Arc<BlockService>>,
    caller: Caller,
    path: Block,
    body: RequestBody,
) -> Result<Response, Failure> {
    let name = authorised(&caller, &path)?;
    caller.require_role(&[Role::Holder, Role::Instance])?;
    let claims = Claims {
        producer: caller.name().to_owned(),
        repr_digest: joined(body.headers(), &REPR_DIGEST),
        if_none_match: joined(body.headers(), &IF_NONE_MATCH).is_some_and(|field| field.trim() == "*"),
    };
    let _room = room(&service, body.headers()).await?;
    let max = service.config.limits.max_container_octets;
    let mut arriving = Arriving::new(&service);
    let octets = body.container_into(max, |octets| arriving.take(octets)).await?;
    match service.ingest(name, octets, claims).await? {
        PutOutcome::Exists => Err(problems::exists().into()),
        PutOutcome::Stored => {
            let mut response = empty(StatusCode::CREATED);
            let location = service.base.join(&path::block(name.compat, name.scope, name.key));
            insert(response.headers_mut(), LOCATION, &location);
            if let Some(meta) = service.meta(&name) {
                insert(response.headers_mut(), ETAG, &etag(meta.repr_digest));
            }
            Ok(response)
        }
    }
}

/// All lines of a field as one value.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let lines: Vec<_> =
        headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}

/// Room for a body among those in flight: for what it declares, else for the largest.
async fn room(service: &BlockService, headers: &HeaderMap) -> Result<OwnedSemaphorePermit, Failure> {
    let max = service.config.limits.max_container_octets;
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let most = service.config.ingest_octets / BUDGET_UNIT;
    // A body over the limit is refused without being read, so it needs no room.
    let octets = declared.map_or(max, |octets: u64| if octets > max { 0 } else { octets });
    let units = u32::try_from(octets.div_ceil(BUDGET_UNIT).min(most)).unwrap_or(u32::MAX);
    match tokio::time::timeout(service.wait(), service.ingest.clone().acquire_many_owned(units)).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(Problem::new(ProblemType::Overloaded, "too many octets are on their way in")
            .retry_after(1)
            .into()),
    }
}

pub(super) async fn delete(
    State(service): State<Arc<BlockService>>,
    caller: Caller,
    path: Block,
) -> Result<Response, Failure> {
    let name = authorised(&caller, &path)?;
    let producer = |meta: &kvsp_store::BlockMeta| meta.producer == caller.name();
    let may = caller.has_role(Role::Admin)
        || caller.is_itself(&service.holder)
        || service.meta(&name).is_none_or(|meta| producer(&meta));
    if !may {
        let detail = "a block is deleted by its producer, its holder or an admin";
        return Err(Failure::new(ProblemType::NotHolder, detail));
    }
    service.discard(name).await.map_err(problems::keep)?;
    Ok(empty(StatusCode::NO_CONTENT))
}
