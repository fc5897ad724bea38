//! Octets with their `Repr-Digest`, in both directions.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use kvsp_proto::digest::ReprDigest;
use kvsp_proto::problem::{Problem, ProblemType};
use tokio::sync::OwnedSemaphorePermit;

const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");
/// Octets that are hashed at once; more of them on a thread of their own.
const SMALL_OCTETS: usize = 256 << 10;
/// Octets of an answer that are handed over at once.
const PIECE_OCTETS: usize = 256 << 10;

/// The digest that a request states of its body.
///
/// # Errors
/// 400: none with `sha-256`, or one that does not parse. These octets are not told apart from others by any record,
/// so they are taken only with a digest.
pub(super) fn stated(headers: &HeaderMap) -> Result<ReprDigest, Problem> {
    let lines: Vec<_> =
        headers.get_all(&REPR_DIGEST).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    match ReprDigest::parse(&lines.join(", ")) {
        Ok(Some(digest)) => Ok(digest),
        Ok(None) => Err(Problem::blank(400, "a Repr-Digest with sha-256 is required")),
        Err(error) => Err(Problem::blank(400, format!("Repr-Digest: {error}"))),
    }
}

/// Hold octets to the digest that was stated.
///
/// # Errors
/// `kvsp-digest-mismatch`.
pub(super) async fn verify(octets: &Bytes, stated: ReprDigest) -> Result<(), Problem> {
    if digest(octets).await? == stated {
        return Ok(());
    }
    Err(Problem::new(ProblemType::DigestMismatch, "the Repr-Digest is not that of the octets received"))
}

/// An answer of these octets. `place` is kept until the last of them is on its way, so that readers that are slow do
/// not make many containers live at once.
///
/// # Errors
/// 503 while the service stops.
pub(super) async fn answer(
    media: &'static str,
    octets: Bytes,
    place: Option<OwnedSemaphorePermit>,
) -> Result<Response, Problem> {
    let digest = digest(&octets).await?;
    let length = HeaderValue::from(octets.len());
    let body = match place {
        None => Body::from(octets),
        Some(place) => Body::from_stream(stream::unfold((octets, place), async |(mut rest, place)| {
            let piece = rest.split_to(rest.len().min(PIECE_OCTETS));
            (!piece.is_empty()).then_some((Ok::<_, Infallible>(piece), (rest, place)))
        })),
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    // Made of base64 and punctuation, so it is a valid field value.
    if let Ok(value) = HeaderValue::from_str(&digest.to_string()) {
        headers.insert(REPR_DIGEST, value);
    }
    Ok(response)
}

async fn digest(octets: &Bytes) -> Result<ReprDigest, Problem> {
    if octets.len() <= SMALL_OCTETS {
        return Ok(ReprDigest::of(octets));
    }
    let octets = octets.clone();
    let hashed = tokio::task::spawn_blocking(move || ReprDigest::of(&octets)).await;
    hashed.map_err(|_| Problem::blank(503, "the service is stopping"))
}
