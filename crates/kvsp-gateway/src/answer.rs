//! What goes back to the client, of completions and chats alike.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::Stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use kvsp_openai::{ApiError, sse};
use kvsp_proto::path::SESSION_HEADER;
use uuid::Uuid;

use crate::Gateway;
use crate::form::Form;
use crate::open::{Asked, Opened};
use crate::session::{Place, Reader};
use crate::upstream::Upstream;

impl Gateway {
    /// Has a request answered.
    pub(crate) async fn answer(self: &Arc<Self>, asked: Asked, id: &str) -> Result<Response, ApiError> {
        self.counters.requests.inc();
        let (form, streams, wants_usage) =
            (asked.form.clone(), asked.sampling.streams(), asked.sampling.wants_usage());
        match self.open(asked, id).await? {
            Opened::Plain(upstream) if streams => Ok(stream(*upstream, form, wants_usage)),
            Opened::Plain(upstream) => whole(*upstream, &form).await,
            Opened::Session(reader) => {
                let session = reader.session().id();
                let response = if streams { self.follow(reader, None) } else { reader.whole().await? };
                Ok(of_session(response, session))
            }
        }
    }

    /// A session's events from `place` on, or from the start.
    pub(crate) fn follow(&self, reader: Reader, place: Option<Place>) -> Response {
        events(reader.stream(place, Duration::from_millis(self.config.keep_alive_ms)))
    }
}

/// A response that names its session.
pub(crate) fn of_session(mut response: Response, session: Uuid) -> Response {
    // A UUID can go into a header.
    if let Ok(value) = HeaderValue::from_str(&session.to_string()) {
        response.headers_mut().insert(SESSION_HEADER, value);
    }
    response
}

/// A response of server-sent events, each sent as soon as it is there.
fn events(events: impl Stream<Item = Result<Bytes, serde_json::Error>> + Send + 'static) -> Response {
    let events: Pin<Box<dyn Stream<Item = Result<Bytes, serde_json::Error>> + Send>> = Box::pin(events);
    let mut response = Response::new(Body::from_stream(events));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn stream(mut upstream: Upstream, form: Form, wants_usage: bool) -> Response {
    events(async_stream::try_stream! {
        if let Some(opening) = form.opening() {
            yield sse::event(&opening)?;
        }
        while let Some(chunk) = upstream.next().await {
            let chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => {
                    yield sse::event(&error.body())?;
                    return;
                }
            };
            match chunk.choices.into_iter().next() {
                Some(choice) => {
                    if !choice.text.is_empty() {
                        yield sse::event(&form.text(choice.text))?;
                    }
                    if let Some(reason) = choice.finish_reason {
                        yield sse::event(&form.finish(reason))?;
                    }
                }
                // The instance always tells the usage, in a chunk without a choice.
                None if wants_usage => yield sse::event(&form.usage(chunk.usage))?,
                None => {}
            }
        }
        yield sse::done();
    })
}

async fn whole(mut upstream: Upstream, form: &Form) -> Result<Response, ApiError> {
    let (mut text, mut reason, mut usage, mut answered) = (String::new(), None, None, false);
    while let Some(chunk) = upstream.next().await {
        let chunk = chunk?;
        answered = true;
        for choice in chunk.choices {
            text.push_str(&choice.text);
            reason = choice.finish_reason.or(reason);
        }
        usage = chunk.usage.or(usage);
    }
    if !answered {
        return Err(ApiError::Upstream("the instance sent no answer".into()));
    }
    Ok(form.whole(text, reason, usage))
}
