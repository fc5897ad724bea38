//! The checkpoints of a session (draft section 6.8, profile section 5).

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use kvsp_net::auth::Caller;
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::principal::{Principal, Role};
use kvsp_net::{Failure, reply};
use kvsp_proto::message::{CheckpointAppend, SessionAck};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::SessionCheckpoint;
use kvsp_proto::uri::HolderUri;
use uuid::Uuid;

use super::Service;
use super::sessions::require_owner;
use crate::service::ControllerService;
use crate::sessions::Unrecorded;

/// The epoch of a session that has been at one instance only.
const FIRST_EPOCH: u64 = 1;

pub(super) async fn put(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(session): PathOf<Uuid>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Instance])?;
    let sender = Sender::of(&service, &caller, session)?;
    let octets = body.json(&service.limits).await?;
    let checkpoint = SessionCheckpoint::from_json(&octets)
        .map_err(|error| error.into_problem(ProblemType::InvalidCheckpoint))?;
    drop(octets);
    caller.require_scope(checkpoint.scope_id)?;
    sender.require_current(&service, session, checkpoint.epoch)?;
    let block_tokens = service.descriptors().get(checkpoint.compat_id).map(|known| known.block_tokens);
    let recorded = service
        .record(session, |sessions, now| sessions.checkpoint(session, &checkpoint, block_tokens, now))
        .await;
    answer(&service, session, recorded)
}

pub(super) async fn patch(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(session): PathOf<Uuid>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Instance])?;
    let sender = Sender::of(&service, &caller, session)?;
    let append = CheckpointAppend::from_json(&body.json(&service.limits).await?)
        .map_err(|error| error.into_problem(ProblemType::InvalidCheckpoint))?;
    sender.require_current(&service, session, append.epoch)?;
    let recorded = service.record(session, |sessions, now| sessions.append(session, &append, now)).await;
    answer(&service, session, recorded)
}

pub(super) async fn get(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(session): PathOf<Uuid>,
) -> Result<Response, Failure> {
    let is_own = Sender::of(&service, &caller, session).is_ok_and(|sender| sender == Sender::Current);
    if !(is_own && caller.has_role(Role::Instance)) {
        require_owner(&service, &caller, session)?;
    }
    let checkpoint = service
        .with_session(session, |sessions, now| sessions.read_checkpoint(session, now))
        .map_err(Problem::from)?;
    Ok(reply::json(StatusCode::OK, &checkpoint))
}

fn answer(
    service: &Arc<ControllerService>,
    session: Uuid,
    recorded: Result<SessionAck, Unrecorded>,
) -> Result<Response, Failure> {
    service.metrics.sessions.checkpoint(recorded.as_ref().err());
    let recorded = recorded?;
    if recorded.output_offset > 0 {
        service.output_recorded(session);
    }
    Ok(reply::json(StatusCode::OK, &recorded))
}

/// Who sends a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    /// The session's instance, or there is no such session, which is found out in its turn.
    Current,
    /// Not the session's instance, though the session has been elsewhere before: perhaps there. Then it is told
    /// that its epoch is over, which is what it must learn.
    PerhapsFormer,
}

impl Sender {
    /// # Errors
    /// `kvsp-not-holder` where the caller neither is nor can have been the session's instance.
    fn of(service: &Arc<ControllerService>, caller: &Principal, session: Uuid) -> Result<Self, Failure> {
        service.with_session(session, |sessions, _| match sessions.reporter(session, u64::MAX) {
            Ok(instance) if !caller.is_itself(&HolderUri::from(instance)) => {
                let has_moved = sessions.reporter(session, FIRST_EPOCH).is_err();
                if has_moved { Ok(Self::PerhapsFormer) } else { Err(not_its_instance()) }
            }
            _ => Ok(Self::Current),
        })
    }

    fn require_current(
        self,
        service: &Arc<ControllerService>,
        session: Uuid,
        epoch: u64,
    ) -> Result<(), Failure> {
        match self {
            Self::Current => Ok(()),
            Self::PerhapsFormer => {
                service
                    .with_session(session, |sessions, _| sessions.reporter(session, epoch).map(drop))
                    .map_err(Problem::from)?;
                Err(not_its_instance())
            }
        }
    }
}

fn not_its_instance() -> Failure {
    Failure::new(ProblemType::NotHolder, "the principal is not the instance of the session")
}
