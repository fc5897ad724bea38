//! One client's way through a transcript.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use kvsp_openai::{ApiError, sse};
use tokio::sync::watch;
use tokio::time::timeout;

use super::Session;
use super::place::Place;
use super::transcript::{End, Found, Transcript, usage};

/// Readers of one session at a time: a client and its successor, whose predecessor's connection is not yet
/// known to be broken, a few times over.
const MAX_READERS: usize = 8;

/// A reader of a session. While one is there, the session goes on.
pub(crate) struct Reader {
    session: Arc<Session>,
    transcript: watch::Receiver<Transcript>,
}

/// What goes to the client, and where the reader is then.
enum Step {
    Send(Bytes, Option<Place>),
    Skip(Place),
    Wait,
    Over,
}

impl Reader {
    /// A reader of a session; `None` where it has enough of them.
    pub(crate) fn attach(session: Arc<Session>) -> Option<Self> {
        let attached = session.presence.send_if_modified(|presence| {
            let room = presence.readers < MAX_READERS;
            presence.readers += usize::from(room);
            room
        });
        let transcript = session.transcript.subscribe();
        attached.then_some(Self { session, transcript })
    }

    /// The session.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// The answer as events, from `place` on or from the start; a comment after each `keep_alive` without any.
    pub(crate) fn stream(
        mut self,
        place: Option<Place>,
        keep_alive: Duration,
    ) -> impl futures_util::Stream<Item = Result<Bytes, serde_json::Error>> + Send + 'static {
        async_stream::try_stream! {
            let mut at = place.unwrap_or(Place::Tokens(0));
            let opening = if place.is_none() { self.session.front_end.form.opening() } else { None };
            if let Some(opening) = opening {
                yield sse::event_at(at, &opening)?;
            }
            loop {
                match self.step(at)? {
                    Step::Send(event, next) => {
                        yield event;
                        let Some(next) = next else { break };
                        at = next;
                    }
                    Step::Skip(next) => at = next,
                    Step::Wait => {
                        // The session, which holds the sender, is held here.
                        let mut changed = pin!(self.transcript.changed());
                        while timeout(keep_alive, &mut changed).await.is_err() {
                            yield sse::keep_alive();
                        }
                    }
                    Step::Over => break,
                }
            }
            // Only once the client's connection has asked for more than the last event.
            self.delivered();
        }
    }

    /// The whole answer in one.
    ///
    /// # Errors
    /// [`ApiError::Upstream`] where it broke off.
    pub(crate) async fn whole(mut self) -> Result<Response, ApiError> {
        // The session, which holds the sender, is held here.
        let _ = self.transcript.wait_for(|transcript| transcript.end().is_some()).await.map(|_| ());
        let response = {
            let transcript = self.transcript.borrow();
            let front_end = &self.session.front_end;
            match transcript.end() {
                Some(End::Finished { rest, reason, cached }) => {
                    let usage = usage(front_end.prompt_tokens, transcript.tokens(), *cached);
                    let text = [transcript.text(), rest].concat();
                    Ok(front_end.form.whole(text, Some(*reason), Some(usage)))
                }
                Some(End::Failed(why)) => Err(ApiError::Upstream(why.clone())),
                None => Err(ApiError::Upstream("the gateway stops".into())),
            }
        };
        self.delivered();
        response
    }

    fn step(&mut self, at: Place) -> Result<Step, serde_json::Error> {
        let transcript = self.transcript.borrow_and_update();
        let front_end = &self.session.front_end;
        let form = &front_end.form;
        Ok(match transcript.after(at) {
            None => Step::Over,
            Some(Found::Nothing) => Step::Wait,
            Some(Found::Text(text, next)) => {
                Step::Send(sse::event_at(next, &form.text(text.to_owned()))?, Some(next))
            }
            Some(Found::Finish(reason, next)) => {
                Step::Send(sse::event_at(next, &form.finish(reason))?, Some(next))
            }
            Some(Found::Usage(_, _, next)) if !front_end.include_usage => Step::Skip(next),
            Some(Found::Usage(output, cached, next)) => {
                let usage = usage(front_end.prompt_tokens, output, cached);
                Step::Send(sse::event_at(next, &form.usage(Some(usage)))?, Some(next))
            }
            Some(Found::Done(next)) => Step::Send(sse::done_at(next), None),
            // The status is out; the error goes as an event, and no `[DONE]` follows.
            Some(Found::Failed(why)) => {
                Step::Send(sse::event(&ApiError::Upstream(why.to_owned()).body())?, None)
            }
        })
    }

    fn delivered(&self) {
        self.session.presence.send_modify(|presence| presence.delivered = true);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.session.presence.send_modify(|presence| presence.readers = presence.readers.saturating_sub(1));
    }
}
