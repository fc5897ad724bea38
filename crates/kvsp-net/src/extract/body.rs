//! The body of a request, unread until its media type and size are known to be right.

use axum::body::{Body, HttpBody as _};
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use kvsp_buffer::PageBuffer;
use kvsp_proto::message::Limits;
use kvsp_proto::path::{MEDIA_BLOCK, MEDIA_JSON};
use kvsp_proto::problem::{Problem, ProblemType};

use crate::inbound::InboundError;
use crate::reply::Failure;

/// The first buffer of a body that declares no length.
const LEAST_GUESS_OCTETS: usize = 256 << 10;
/// When a peer that was refused for want of memory may come again.
const RETRY_AFTER_S: u64 = 1;

/// An unread request body with the request's headers: the last argument of a handler.
#[derive(Debug)]
pub struct RequestBody {
    headers: HeaderMap,
    body: Body,
}

impl<S: Send + Sync> FromRequest<S> for RequestBody {
    type Rejection = std::convert::Infallible;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Self::Rejection> {
        let (parts, body) = request.into_parts();
        Ok(Self { headers: parts.headers, body })
    }
}

impl RequestBody {
    /// The headers and the body, taken out of a request.
    #[must_use]
    pub fn take(request: &mut Request) -> Self {
        Self { headers: std::mem::take(request.headers_mut()), body: std::mem::take(request.body_mut()) }
    }

    /// The request's headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The headers and the body as it is.
    pub fn into_parts(self) -> (HeaderMap, Body) {
        (self.headers, self.body)
    }

    /// The octets of a JSON object (`application/kvsp+json` or `application/json`), at most
    /// `limits.max_json_octets`.
    ///
    /// # Errors
    /// As [`RequestBody::octets`], and 400 `kvsp-malformed-json` for what cannot be an object: the members
    /// of a body are named, never told apart by their place in an array.
    pub async fn json(self, limits: &Limits) -> Result<Bytes, Failure> {
        let body = self.octets(&[MEDIA_JSON, "application/json"], limits.max_json_octets).await?;
        match body.trim_ascii_start().first() {
            Some(b'{') => Ok(body),
            _ => Err(Failure::new(ProblemType::MalformedJson, "the body is not a JSON object")),
        }
    }

    /// The octets of a container (`application/kvsp-block`), at most `max` of them.
    ///
    /// # Errors
    /// As [`RequestBody::octets`].
    pub async fn container(self, max: u64) -> Result<Bytes, Failure> {
        self.octets(&[MEDIA_BLOCK], max).await
    }

    /// The octets of a container (`application/kvsp-block`), at most `max` of them, in a buffer that `take`
    /// gives: asked for the declared number of octets once the first of them have come, so that a peer that
    /// sends none holds no memory. A body that declares no length grows through buffers of `take`.
    ///
    /// # Errors
    /// As [`RequestBody::octets`], and 503 `kvsp-overloaded` with `Retry-After` where `take` gives `None`.
    pub async fn container_into(
        self,
        max: u64,
        take: impl FnMut(usize) -> Option<PageBuffer>,
    ) -> Result<Bytes, Failure> {
        let (mut body, declared) = self.of_media(&[MEDIA_BLOCK], max)?;
        let mut arrived = PageAligned::new(take, declared, max);
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                arrived.push(&data)?;
            }
        }
        arrived.finish()
    }

    /// The octets of a body of one of the `media` types, at most `max` of them, in one buffer.
    ///
    /// # Errors
    /// 415 for another type, no type, or a `Content-Encoding`; 413 `kvsp-limit-exceeded` before anything is
    /// read where the declared length is over `max`, else as soon as more has come; 408 for a body that
    /// comes too slowly; 400 for one that breaks off.
    pub async fn octets(self, media: &[&str], max: u64) -> Result<Bytes, Failure> {
        let (mut body, declared) = self.of_media(media, max)?;
        let mut buffer = Buffer::new(declared, max);
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                buffer.take(data)?;
            }
        }
        Ok(buffer.finish())
    }

    /// The body and its declared octets, at most `max`, where it is of one of the `media` types.
    fn of_media(self, media: &[&str], max: u64) -> Result<(Body, Option<u64>), Failure> {
        self.check_media(media)?;
        let declared = self.body.size_hint().exact();
        if declared.is_some_and(|octets| octets > max) {
            return Err(over(max));
        }
        Ok((self.body, declared))
    }

    fn check_media(&self, media: &[&str]) -> Result<(), Failure> {
        if self.headers.contains_key(CONTENT_ENCODING) {
            return Err(Failure::blank(StatusCode::UNSUPPORTED_MEDIA_TYPE, "a body has no Content-Encoding"));
        }
        let mut types = self.headers.get_all(CONTENT_TYPE).iter();
        let named = match (types.next(), types.next()) {
            (Some(value), None) => essence(value.as_bytes()),
            // Without a body there is nothing to be of a type; its absence is found by who reads it.
            (None, _) if self.body.is_end_stream() => return Ok(()),
            _ => &[],
        };
        if media.iter().any(|name| named.eq_ignore_ascii_case(name.as_bytes())) {
            return Ok(());
        }
        let detail = format!("the body's Content-Type must be {}", media.join(" or "));
        Err(Failure::blank(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail))
    }
}

/// The type and subtype of a media type, without its parameters.
fn essence(value: &[u8]) -> &[u8] {
    value.split(|c| *c == b';').next().unwrap_or_default().trim_ascii()
}

/// One buffer of at most `max` octets.
struct Buffer {
    octets: BytesMut,
    /// A first frame that may turn out to be all; then nothing is copied.
    only: Option<Bytes>,
    declared: Option<u64>,
    max: u64,
}

impl Buffer {
    fn new(declared: Option<u64>, max: u64) -> Self {
        Self { octets: BytesMut::new(), only: None, declared, max }
    }

    fn take(&mut self, data: Bytes) -> Result<(), Failure> {
        let held = self.octets.len() + self.only.as_ref().map_or(0, Bytes::len);
        if (held as u64).saturating_add(data.len() as u64) > self.max {
            return Err(over(self.max));
        }
        if held == 0 {
            self.only = Some(data);
            return Ok(());
        }
        if let Some(first) = self.only.take() {
            let whole = self.declared.and_then(|octets| usize::try_from(octets).ok());
            self.octets.reserve(whole.unwrap_or(held + data.len()));
            self.octets.extend_from_slice(&first);
        }
        self.octets.extend_from_slice(&data);
        Ok(())
    }

    fn finish(self) -> Bytes {
        self.only.unwrap_or_else(|| self.octets.freeze())
    }
}

/// One page-aligned buffer of at most `max` octets.
struct PageAligned<F> {
    take: F,
    buffer: Option<PageBuffer>,
    arrived: usize,
    declared: Option<u64>,
    max: u64,
}

impl<F: FnMut(usize) -> Option<PageBuffer>> PageAligned<F> {
    fn new(take: F, declared: Option<u64>, max: u64) -> Self {
        Self { take, buffer: None, arrived: 0, declared, max }
    }

    fn push(&mut self, data: &[u8]) -> Result<(), Failure> {
        let end = self.arrived.saturating_add(data.len());
        if end as u64 > self.max {
            return Err(over(self.max));
        }
        if self.buffer.as_ref().is_none_or(|buffer| buffer.len() < end) {
            self.grow(end)?;
        }
        if let Some(buffer) = &mut self.buffer {
            buffer[self.arrived..end].copy_from_slice(data);
        }
        self.arrived = end;
        Ok(())
    }

    /// Goes over to a buffer of at least `octets`, with what has arrived.
    fn grow(&mut self, octets: usize) -> Result<(), Failure> {
        let declared = self.declared.and_then(|octets| usize::try_from(octets).ok());
        let most = usize::try_from(self.max).unwrap_or(usize::MAX);
        let guess = octets.saturating_mul(2).max(LEAST_GUESS_OCTETS).min(most);
        let wanted = declared.unwrap_or(guess);
        let mut grown = (self.take)(wanted.max(octets)).ok_or_else(overloaded)?;
        if let Some(former) = &self.buffer {
            grown[..self.arrived].copy_from_slice(&former[..self.arrived]);
        }
        self.buffer = Some(grown);
        Ok(())
    }

    fn finish(mut self) -> Result<Bytes, Failure> {
        match self.buffer.take() {
            None => Ok(Bytes::new()),
            Some(buffer) if buffer.len() == self.arrived => Ok(buffer.freeze()),
            // A guess that was too large must not be counted for as long as the block lives.
            Some(buffer) => {
                let mut fitting = (self.take)(self.arrived).ok_or_else(overloaded)?;
                fitting.copy_from_slice(&buffer[..self.arrived]);
                Ok(fitting.freeze())
            }
        }
    }
}

fn overloaded() -> Failure {
    let problem = Problem::new(ProblemType::Overloaded, "there is no memory for another body now");
    Failure(problem.retry_after(RETRY_AFTER_S))
}

fn over(max: u64) -> Failure {
    let problem =
        Problem::new(ProblemType::LimitExceeded, format!("the body is over the limit of {max} octets"));
    Failure(problem.with("limit", max))
}

fn broken(error: axum::Error) -> Failure {
    match error.into_inner().downcast_ref::<InboundError>() {
        Some(InboundError::Slow) => Failure::blank(StatusCode::REQUEST_TIMEOUT, "the body came too slowly"),
        Some(InboundError::Broken(_)) | None => Failure::blank(StatusCode::BAD_REQUEST, "the body broke off"),
    }
}

#[cfg(test)]
mod tests {
    use kvsp_buffer::{Arena, footprint};

    use super::*;

    fn body(headers: &[(&'static str, &'static str)], body: Body) -> RequestBody {
        let mut map = HeaderMap::new();
        for &(name, value) in headers {
            map.append(name, value.parse().unwrap());
        }
        RequestBody { headers: map, body }
    }

    async fn json(headers: &[(&'static str, &'static str)], octets: Body, max: u64) -> Result<Bytes, u16> {
        let limits = Limits { max_json_octets: max, ..Limits::default() };
        body(headers, octets).json(&limits).await.map_err(|failure| failure.0.status())
    }

    fn chunks(parts: &'static [&'static str]) -> Body {
        let parts = parts.iter().map(|part| Ok::<_, std::io::Error>(Bytes::from_static(part.as_bytes())));
        Body::from_stream(futures_util::stream::iter(parts))
    }

    #[tokio::test]
    async fn the_media_type_is_checked_first() {
        for media in
            ["application/json", "Application/KVSP+JSON; charset=utf-8", "application/json;x=\"a,b\""]
        {
            assert_eq!(json(&[("content-type", media)], "{}".into(), 2).await, Ok("{}".into()), "{media}");
        }
        for media in ["text/plain", "application/kvsp-block", "", "application/jsonx", ";application/json"] {
            assert_eq!(json(&[("content-type", media)], "{}".into(), 0).await, Err(415), "{media}");
        }
        assert_eq!(json(&[], "{}".into(), 2).await, Err(415));
        assert_eq!(json(&[], Body::empty(), 2).await, Err(400));
        let two = [("content-type", "application/json"), ("content-type", "application/json")];
        assert_eq!(json(&two, "{}".into(), 2).await, Err(415));
        let encoded = [("content-type", "application/json"), ("content-encoding", "identity")];
        assert_eq!(json(&encoded, "{}".into(), 2).await, Err(415));
    }

    #[tokio::test]
    async fn the_limit_holds_for_declared_and_streamed_bodies() {
        let media = [("content-type", "application/json")];
        assert_eq!(json(&media, "{2}".into(), 3).await, Ok("{2}".into()));
        assert_eq!(json(&media, "{2}".into(), 2).await, Err(413));
        assert_eq!(json(&media, chunks(&["{2", "3", "4}"]), 5).await, Ok("{234}".into()));
        assert_eq!(json(&media, chunks(&["{2", "3", "4}"]), 4).await, Err(413));
        assert_eq!(json(&media, chunks(&["{234}"]), 4).await, Err(413));
    }

    #[tokio::test]
    async fn a_json_body_is_an_object() {
        let media = [("content-type", "application/json")];
        assert_eq!(json(&media, " {}".into(), 3).await, Ok(" {}".into()));
        for other in ["[{}]", "1", "", "\u{feff}{}"] {
            assert_eq!(json(&media, other.into(), 9).await, Err(400), "{other}");
        }
    }

    async fn container(arena: &Arena, octets: Body, max: u64) -> Result<Bytes, u16> {
        let taken = body(&[("content-type", MEDIA_BLOCK)], octets);
        let taken = taken.container_into(max, |octets| arena.take(octets)).await;
        taken.map_err(|failure| {
            assert_eq!(failure.0.retry_after_s.is_some(), failure.0.status() == 503);
            failure.0.status()
        })
    }

    #[tokio::test]
    async fn a_container_comes_into_one_aligned_buffer_that_is_counted() {
        let arena = Arena::new(1 << 20);
        let octets: Bytes = (0..100_000_u32).map(|i| i as u8).collect();
        for declared in [true, false] {
            let body = if declared {
                Body::from(octets.clone())
            } else {
                let pieces: Vec<_> = octets.chunks(999).map(Bytes::copy_from_slice).collect();
                Body::from_stream(futures_util::stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>)))
            };
            let got = container(&arena, body, 100_000).await.unwrap();
            assert_eq!(got, octets);
            assert_eq!(got.as_ptr().align_offset(4096), 0);
            assert_eq!(arena.used(), footprint(100_000), "declared: {declared}");
        }
        assert_eq!(arena.used(), 0);
        assert_eq!(container(&arena, Body::empty(), 9).await, Ok(Bytes::new()));
    }

    #[tokio::test]
    async fn a_container_is_refused_before_its_memory_is_taken() {
        let arena = Arena::new(64);
        assert_eq!(container(&arena, "123".into(), 2).await, Err(413));
        assert_eq!(container(&arena, chunks(&["12", "3"]), 2).await, Err(413));
        assert_eq!(container(&arena, vec![0; 65].into(), 99).await, Err(503));
        let taken = body(&[("content-type", "text/plain")], "1".into());
        let taken = taken.container_into(9, |_| panic!("nothing may be taken")).await;
        assert_eq!(taken.unwrap_err().0.status(), 415);
        assert_eq!((arena.used(), container(&arena, "1".into(), 9).await), (0, Ok("1".into())));
    }
}
