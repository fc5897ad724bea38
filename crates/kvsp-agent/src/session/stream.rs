//! The token stream of a session: what is released, in order, as it is released.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use kvsp_openai::sse;
use kvsp_proto::message::{Needs, TokenEvent};
use kvsp_proto::path::{MEDIA_EVENTS, SESSION_NEEDS_HEADER};
use tokio::time::{Instant, timeout_at};

use super::{Next, Phase, Seen, Session};

/// A silent stream carries a comment this often, well within the silence that clients bear.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

type Octets = Pin<Box<dyn Stream<Item = Result<Bytes, serde_json::Error>> + Send>>;

/// The answer of the tokens from an index on. It ends without [`TokenEvent::Done`] where the session goes on
/// elsewhere, or comes to need its prompt: who connects again is told so by the header.
pub(super) fn answer(session: Arc<Session>, from: u64) -> Response {
    let needs = matches!(session.phase(), Phase::NeedsPrompt(_));
    let octets: Octets = Box::pin(async_stream::try_stream! {
        let mut changes = session.changed.subscribe();
        let mut next = from;
        loop {
            changes.mark_unchanged();
            let Seen { tokens, reused, next: then } = session.read(next);
            let epoch = session.facts.epoch;
            if !tokens.is_empty() {
                let mut events = BytesMut::new();
                for token in tokens {
                    // Told at once, because a stop string ends the stream before its end.
                    let reused = (next == 0 && !session.facts.resumed).then_some(reused);
                    let event = TokenEvent::Token { index: next, epoch, token, text: None, reused };
                    events.extend_from_slice(&sse::event(&event)?);
                    next += 1;
                }
                yield events.freeze();
            }
            match then {
                Next::Done(finish) => {
                    let done = finish.as_str().to_owned();
                    yield sse::event(&TokenEvent::Done { done, epoch: Some(epoch), reused: Some(reused) })?;
                    break;
                }
                Next::Broken => break,
                Next::Prompt if !needs => break,
                Next::Prompt | Next::More => {}
            }
            loop {
                match timeout_at(Instant::now() + KEEP_ALIVE, changes.changed()).await {
                    Ok(_) => break,
                    Err(_) => yield sse::keep_alive(),
                }
            }
        }
    });
    let mut response = Response::new(Body::from_stream(octets));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_EVENTS));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if needs {
        headers.insert(SESSION_NEEDS_HEADER, HeaderValue::from_static(Needs::Prompt.as_str()));
    }
    response
}
