//! The answers of the hostile holder.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, LOCATION};
use http::{HeaderValue, Method, StatusCode};
use kvsp_net::Failure;
use kvsp_net::reply;
use kvsp_proto::container::{Container, LayerRange};
use kvsp_proto::digest::ReprDigest;
use kvsp_proto::id::BlockKey;
use kvsp_proto::message::{LeaseAnswer, LeaseRequest};
use kvsp_proto::path::{BLOCKS_HEADER, MEDIA_BLOCK, MEDIA_BLOCK_SEQUENCE};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::LayerSpan;
use serde::Deserialize;
use uuid::Uuid;

use super::{Behaviour, Shared};

const MAX_REQUEST_OCTETS: usize = 16 << 20;
const FLUSH_PAUSE: Duration = Duration::from_millis(20);

pub(super) fn routes(shared: Arc<Shared>) -> Router {
    Router::new().fallback(answer).with_state(shared)
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    shared.note(format!("{} {target}", parts.method));
    let body = to_bytes(body, MAX_REQUEST_OCTETS).await.unwrap_or_default();
    let segments: Vec<&str> = parts.uri.path().trim_start_matches("/kvsp/").split('/').collect();
    let query = parts.uri.query().unwrap_or_default();
    let behaviour = shared.behaviour();
    let get = parts.method == Method::GET || parts.method == Method::HEAD;
    match behaviour {
        Behaviour::OnlyGet if !get => return only_get(),
        Behaviour::HangBeforeAnswer => return std::future::pending().await,
        Behaviour::Redirect => return redirect(target),
        Behaviour::Html(status) => return html(status),
        _ => {}
    }
    match (&segments[..], get) {
        (["blocks", _, _, key], true) => block(&shared, key, query),
        (["blocks", _, _], false) if !shared.layer_stream.load(Ordering::Relaxed) => only_get(),
        (["blocks", _, _], false) => layer_stream(&shared, &body),
        (["leases"], false) => lease(&shared, &body),
        (["leases", _], false) => reply::empty(StatusCode::NO_CONTENT),
        _ => Failure::blank(StatusCode::NOT_FOUND, "").into_response(),
    }
}

fn only_get() -> Response {
    let mut response = Failure::blank(StatusCode::METHOD_NOT_ALLOWED, "").into_response();
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

fn redirect(target: &str) -> Response {
    let mut response = reply::empty(StatusCode::TEMPORARY_REDIRECT);
    response.headers_mut().insert(LOCATION, HeaderValue::try_from(target).expect("it came in a request"));
    response
}

fn html(status: u16) -> Response {
    let status = StatusCode::from_u16(status).expect("a status");
    (status, [(CONTENT_TYPE, "text/html")], "<html>no</html>").into_response()
}

fn miss(problem: ProblemType) -> Response {
    Failure(Problem::new(problem, "")).into_response()
}

fn block(shared: &Shared, key: &str, query: &str) -> Response {
    let behaviour = shared.behaviour();
    let held = key.parse::<BlockKey>().ok().and_then(|key| shared.block(key));
    let Some(container) = held.filter(|_| behaviour != Behaviour::NotFound) else {
        return miss(ProblemType::BlockNotFound);
    };
    let layers = query.split('&').find_map(|pair| pair.strip_prefix("layers="));
    let layers = layers.and_then(|text| text.parse::<LayerRange>().ok());
    let part = match layers.filter(|_| behaviour != Behaviour::AllLayers) {
        None => container,
        Some(range) => match container.slice(range) {
            Some(slice) => slice.join(),
            None => return miss(ProblemType::LayersUnavailable),
        },
    };
    represent(&part, behaviour)
}

fn represent(container: &Container, behaviour: Behaviour) -> Response {
    let mut octets = container.bytes().clone();
    match behaviour {
        Behaviour::CorruptUnderItsDigest => octets = corrupt(&octets),
        Behaviour::NotAContainer => octets = Bytes::from_static(b"KVB2, which does not exist"),
        _ => {}
    }
    let digest = match behaviour {
        Behaviour::WrongReprDigest => ReprDigest::of(b"another's"),
        _ => ReprDigest::of(&octets),
    };
    let declared = if behaviour == Behaviour::Oversize { u64::MAX / 4 } else { octets.len() as u64 };
    let mut response = Response::new(body(octets, behaviour));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_BLOCK));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(declared));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, immutable, max-age=60"));
    headers.insert(ETAG, HeaderValue::from_static("\"one\""));
    if behaviour != Behaviour::NoReprDigest {
        headers.insert("repr-digest", HeaderValue::try_from(digest.to_string()).expect("a field value"));
    }
    response
}

fn corrupt(octets: &Bytes) -> Bytes {
    let mut octets = octets.to_vec();
    if let Some(last) = octets.last_mut() {
        *last ^= 1;
    }
    octets.into()
}

fn body(octets: Bytes, behaviour: Behaviour) -> Body {
    let half = octets.slice(..octets.len() / 2);
    match behaviour {
        Behaviour::HangInBody | Behaviour::Oversize => {
            let pieces = stream::iter([Ok::<_, Infallible>(half)]).chain(stream::pending());
            Body::from_stream(pieces)
        }
        Behaviour::Truncated => {
            let broken = stream::once(async {
                // What was sent leaves the server's buffer first: it is the body that breaks, not the head.
                tokio::time::sleep(FLUSH_PAUSE).await;
                Err(std::io::Error::other("told to break off"))
            });
            Body::from_stream(stream::iter([Ok(half)]).chain(broken))
        }
        Behaviour::Slow { piece, pause } => {
            let pieces: Vec<Bytes> = octets.chunks(piece.max(1)).map(Bytes::copy_from_slice).collect();
            Body::from_stream(stream::iter(pieces).then(move |piece| async move {
                tokio::time::sleep(pause).await;
                Ok::<_, Infallible>(piece)
            }))
        }
        _ => octets.into(),
    }
}

#[derive(Deserialize)]
struct StreamRequest {
    block_keys: Vec<BlockKey>,
    layers: LayerSpan,
}

fn layer_stream(shared: &Shared, body: &[u8]) -> Response {
    let behaviour = shared.behaviour();
    let Ok(request) = kvsp_proto::json::from_slice::<StreamRequest>(body) else {
        return miss(ProblemType::MalformedJson);
    };
    let LayerSpan(first, last) = request.layers;
    let Ok(range) = LayerRange::new(first, last) else { return miss(ProblemType::InvalidRange) };
    let held = request.block_keys.iter().map_while(|key| {
        shared
            .block(*key)
            .filter(|container| container.layers().covers(range) && behaviour != Behaviour::NotFound)
    });
    let held: Vec<Container> = held.collect();
    let mut octets = Vec::new();
    for layer in range.layers().filter(|_| !held.is_empty()) {
        let one = LayerRange::new(layer, layer).expect("one layer");
        for container in &held {
            octets.extend_from_slice(container.slice(one).expect("it was found held").join().bytes());
        }
    }
    let octets: Bytes = match behaviour {
        Behaviour::CorruptUnderItsDigest => corrupt(&octets.into()),
        _ => octets.into(),
    };
    let mut response = Response::new(self::body(octets, behaviour));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_BLOCK_SEQUENCE));
    headers.insert(BLOCKS_HEADER, HeaderValue::from(held.len()));
    response
}

fn lease(shared: &Shared, body: &[u8]) -> Response {
    let Ok(request) = kvsp_proto::json::from_slice::<LeaseRequest>(body) else {
        return miss(ProblemType::MalformedJson);
    };
    let known = |key: &BlockKey| shared.behaviour() != Behaviour::NotFound && shared.block(*key).is_some();
    let (block_keys, missing): (Vec<_>, Vec<_>) = request.block_keys.into_iter().partition(known);
    if block_keys.is_empty() {
        return miss(ProblemType::BlockNotFound);
    }
    let lease = Uuid::from_u128(1);
    reply::json(StatusCode::CREATED, &LeaseAnswer { lease, ttl_ms: request.ttl_ms, block_keys, missing })
}
