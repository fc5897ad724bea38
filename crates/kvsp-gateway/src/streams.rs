//! `GET v1/streams/{session}`: a client whose connection broke goes on where it was.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use http::{HeaderMap, HeaderName};
use kvsp_client::ClientError;
use kvsp_core::session::Delivery;
use kvsp_net::Caller;
use kvsp_net::principal::Role;
use kvsp_openai::ApiError;
use kvsp_proto::message::SessionState;
use uuid::Uuid;

use crate::Gateway;
use crate::answer::of_session;
use crate::error::Refusal;
use crate::session::{Continuation, Driver, FrontEnd, Place, Reader, Session, Start, Watch};

static LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The handler.
pub(crate) async fn follow(
    State(gateway): State<Arc<Gateway>>,
    id: Result<Path<String>, PathRejection>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    // The parser takes braces and bare hex too; a session's name has one form.
    let id = id.ok().filter(|Path(id)| id.len() == 36).and_then(|Path(id)| Uuid::try_parse(&id).ok());
    let id = id.ok_or_else(|| ApiError::invalid("session", "a session's name is a UUID"))?;
    let place = match headers.get(&LAST_EVENT_ID) {
        // An empty name is none, as browsers have it.
        Some(value) if !value.is_empty() => {
            let place = value.to_str().ok().and_then(Place::parse);
            let unknown = || ApiError::invalid("Last-Event-ID", "no event of a stream here has that name");
            Some(place.ok_or_else(unknown)?)
        }
        _ => None,
    };
    let reader = match gateway.registry.find(id) {
        Some(session) => {
            require_reader(&caller, session.front_end())?;
            attach(session)?
        }
        None => gateway.take_up(id, &caller).await?,
    };
    Ok(of_session(gateway.follow(reader, place), id))
}

/// Whether the client may read the session; for others it does not exist.
fn require_reader(caller: &Caller, front_end: &FrontEnd) -> Result<(), ApiError> {
    let may = front_end.client == caller.name() || caller.has_role(Role::Admin);
    if may { Ok(()) } else { Err(ApiError::StreamNotFound) }
}

fn attach(session: Arc<Session>) -> Result<Reader, ApiError> {
    let many = || ApiError::Overloaded("the session has too many readers now".into());
    Reader::attach(session).ok_or_else(many)
}

impl Gateway {
    /// Goes on with a session that another gateway began, or this one before it was started again.
    async fn take_up(self: &Arc<Self>, id: Uuid, caller: &Caller) -> Result<Reader, ApiError> {
        if !self.has_sessions() {
            return Err(ApiError::StreamNotFound);
        }
        let full = || ApiError::Overloaded("the gateway has no room for one more session now".into());
        let room = self.registry.admit().ok_or_else(full)?;
        let client = self.client.with_timeout(Duration::from_millis(self.config.placement_timeout_ms));
        let view = client.session(&self.controller, id).await.map_err(|error| unknown_or_away(&error))?;
        if view.state == SessionState::Done {
            return Err(ApiError::StreamNotFound);
        }
        let continuation = client.continuation(&self.controller, id).await;
        let continuation = continuation.map_err(|error| unknown_or_away(&error))?;
        let continuation = Continuation::from_value(continuation).ok_or(ApiError::StreamNotFound)?;
        require_reader(caller, &continuation.front_end)?;
        let front_end = continuation.front_end.clone();
        let patience = Duration::from_millis(self.config.reconnect_ms);
        // Another request may have taken the session up meanwhile.
        let session = match self.registry.begin(id, front_end, patience) {
            Err(session) => return attach(session),
            Ok(session) => session,
        };
        let reader = attach(Arc::clone(&session));
        // The first answer comes at once: it tells a session that has failed, too.
        let seen = view.epoch.saturating_sub(1);
        let watch = Watch::new(self, id, seen);
        let delivery = Delivery::new(view.epoch, view.instance);
        let (original, stream) = (None, None);
        Driver::start(self, Start { session, continuation, delivery, watch, original, stream, room });
        reader
    }
}

fn unknown_or_away(error: &ClientError) -> ApiError {
    if error.is_not_found() {
        return ApiError::StreamNotFound;
    }
    tracing::error!(%error, "the controller did not tell of a session");
    ApiError::Upstream("the placement controller did not answer".into())
}
