//! From a request to its answer under way: placed, and taken by an instance.

use std::sync::Arc;
use std::time::Duration;

use kvsp_client::TokenStream;
use kvsp_core::session::Delivery;
use kvsp_openai::{ApiError, CompletionRequest, Sampling};
use kvsp_proto::message::{MapId, PlacedSession, PlacementAnswer};
use kvsp_proto::uri::BaseUri;
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use crate::Gateway;
use crate::form::Form;
use crate::prompt::Tokens;
use crate::session::{Continuation, Driver, FrontEnd, Original, Reader, Start, Told, Watch};
use crate::upstream::{Refused, Upstream};

/// What is to be answered.
pub(crate) struct Asked {
    pub(crate) tokens: Tokens,
    pub(crate) sampling: Sampling,
    pub(crate) form: Form,
    /// The principal that asks.
    pub(crate) client: String,
}

/// An answer under way.
pub(crate) enum Opened {
    /// Tied to the instance that gives it.
    Plain(Box<Upstream>),
    /// In a session.
    Session(Reader),
}

impl Gateway {
    /// Place a request and open its stream. Where an instance does not take it, the request is placed once
    /// more, without that one, so that the next instance is told to load what it lacks, too.
    pub(crate) async fn open(self: &Arc<Self>, asked: Asked, request_ref: &str) -> Result<Opened, ApiError> {
        let Asked { tokens, sampling, form, client } = asked;
        let mut place = self.placement_request(&tokens, request_ref);
        let continuation = Continuation {
            max_tokens: tokens.max_tokens as u64,
            front_end: FrontEnd {
                form,
                stops: sampling.stops(),
                include_usage: sampling.wants_usage(),
                prompt_tokens: tokens.prompt.len() as u64,
                client,
            },
        };
        let mut room = None;
        if self.has_sessions() {
            let full = || ApiError::Overloaded("the gateway has no room for one more session now".into());
            room = Some(self.registry.admit().ok_or_else(full)?);
            place.session = true;
            place.continuation = continuation.to_value();
        }
        let streams = sampling.streams();
        let request = self.upstream_request(tokens, sampling);
        let mut last: Option<String> = None;
        for _ in 0..self.config.max_attempts.max(1) {
            let placement = match (self.place(&place).await, last.take()) {
                (Ok(placement), _) => placement,
                (Err(ApiError::Overloaded(_)), Some(why)) => return Err(nobody(&why)),
                (Err(error), _) => return Err(error),
            };
            let placed = self.placed(&placement);
            let candidates = placement.candidates.into_iter().map(|c| c.instance);
            let instance =
                std::iter::once(placement.instance).chain(candidates).find(|i| !place.exclude.contains(i));
            let Some(instance) = instance else { break };
            let refused = match placed {
                // A session is its instance's: another one's checkpoints would be refused.
                Some(placed) if placed.instance == instance && room.is_some() => {
                    let map = placement.map.map(|split| split.map);
                    match self.try_session(placed, &request, &placement.request_ref, map).await {
                        Ok(begun) => {
                            let Some(room) = room.take() else { break };
                            return self.session_opened(begun, continuation, streams, room);
                        }
                        Err(refused) => refused,
                    }
                }
                _ => match self.post(&instance, &request, &placement.request_ref, None).await {
                    Ok(answer) => return Ok(Opened::Plain(Box::new(Upstream::new(answer)))),
                    Err(refused) => refused,
                },
            };
            match refused {
                Refused::Request(error) => return Err(error),
                Refused::Elsewhere { why, .. } => {
                    tracing::warn!(%instance, why, "an instance did not take a request");
                    self.counters.upstream_failures.inc();
                    place.exclude.push(instance);
                    last = Some(why);
                }
            }
        }
        Err(nobody(last.as_deref().unwrap_or("there is none left")))
    }

    /// Whether requests are served in sessions. Without a scope there are no blocks to go on from.
    pub(crate) fn has_sessions(&self) -> bool {
        self.config.sessions && self.scope.is_some()
    }

    fn placed(self: &Arc<Self>, placement: &PlacementAnswer) -> Option<Placed> {
        let PlacedSession { session, epoch } = placement.session?;
        let instance = placement.instance.clone();
        Some(Placed { gateway: Arc::clone(self), session, epoch, instance, begun: false })
    }

    /// Sends the session's instance its request, unless the controller gives the session to another first.
    async fn try_session(
        &self,
        placed: Placed,
        request: &CompletionRequest,
        request_ref: &str,
        map: Option<MapId>,
    ) -> Result<Begun, Refused> {
        let (session, epoch) = (placed.session, placed.epoch);
        let mut original = Original { request: request.clone(), request_ref: request_ref.to_owned(), map };
        // Tokens come, and the gateway looks for the strings in them: an instance must not stop at one.
        original.request.sampling.stop = None;
        let mut watch = Watch::new(self, session, epoch);
        let moved = async {
            loop {
                match watch.next().await {
                    Told::View(view) if view.epoch <= epoch && !view.state.is_final() => {}
                    Told::View(_) | Told::Unknown => return,
                }
            }
        };
        let stream = tokio::select! {
            stream = self.begin_session(session, epoch, &placed.instance, &original) => stream?,
            () = moved => return Err(Refused::elsewhere("the controller gave its session to another".into())),
        };
        Ok(Begun { placed, original, watch, stream })
    }

    fn session_opened(
        self: &Arc<Self>,
        begun: Begun,
        continuation: Continuation,
        streams: bool,
        room: OwnedSemaphorePermit,
    ) -> Result<Opened, ApiError> {
        let Begun { mut placed, original, watch, stream } = begun;
        let patience = Duration::from_millis(if streams { self.config.reconnect_ms } else { 0 });
        let front_end = continuation.front_end.clone();
        let twice = |_| ApiError::Upstream("the controller gave out a session twice".into());
        let session = self.registry.begin(placed.session, front_end, patience).map_err(twice)?;
        let nobody = || ApiError::Overloaded("the session has too many readers".into());
        let reader = Reader::attach(Arc::clone(&session)).ok_or_else(nobody)?;
        placed.begun = true;
        let delivery = Delivery::new(placed.epoch, placed.instance.clone());
        let (original, stream) = (Some(original), Some(stream));
        Driver::start(self, Start { session, continuation, delivery, watch, original, stream, room });
        Ok(Opened::Session(reader))
    }
}

fn nobody(last: &str) -> ApiError {
    ApiError::Overloaded(format!("no instance took the request; the last one: {last}"))
}

/// A session that the controller has made. Unless it is begun it is ended again, also where the client goes
/// away meanwhile.
struct Placed {
    gateway: Arc<Gateway>,
    session: Uuid,
    epoch: u64,
    instance: BaseUri,
    begun: bool,
}

impl Drop for Placed {
    fn drop(&mut self) {
        if self.begun {
            return;
        }
        let (gateway, session, instance) = (Arc::clone(&self.gateway), self.session, self.instance.clone());
        self.gateway.tasks.spawn(async move { gateway.end_session(session, &instance).await });
    }
}

/// A session whose instance answers.
struct Begun {
    placed: Placed,
    original: Original,
    watch: Watch,
    stream: TokenStream,
}
