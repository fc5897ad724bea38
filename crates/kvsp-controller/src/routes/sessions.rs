//! Sessions as front ends see them: how they stand, and their end (profile section 5).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use kvsp_net::auth::Caller;
use kvsp_net::extract::{PathOf, RequestBody, query};
use kvsp_net::principal::{Principal, Role};
use kvsp_net::{Failure, reply};
use kvsp_proto::json;
use kvsp_proto::message::FailoverRequest;
use kvsp_proto::problem::{Problem, ProblemType};
use uuid::Uuid;

use super::Service;
use crate::service::ControllerService;

/// Sessions of a list where the request does not say.
const LISTED: u64 = 1000;
/// Sessions of a list at most.
const MAX_LISTED: u64 = 10_000;

/// The longest long poll in ms (profile section 5).
const MAX_WAIT_MS: u64 = 30_000;

pub(super) async fn list(
    State(service): Service,
    Caller(caller): Caller,
    uri: Uri,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let limit = list_limit(&query(&uri)?)?;
    let owner = (!caller.has_role(Role::Admin)).then(|| caller.name());
    Ok(reply::json(StatusCode::OK, &service.list_sessions(owner, limit)))
}

pub(super) async fn get(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(session): PathOf<Uuid>,
    uri: Uri,
) -> Result<Response, Failure> {
    let query = query(&uri)?;
    let after_epoch = number(&query, "after_epoch")?;
    let wait_ms = number(&query, "wait_ms")?.unwrap_or(0).min(MAX_WAIT_MS);
    require_owner(&service, &caller, session)?;
    let view = match after_epoch {
        Some(epoch) if wait_ms > 0 => {
            service.await_epoch(session, epoch, Duration::from_millis(wait_ms)).await?
        }
        _ => service.view_session(session)?,
    };
    Ok(reply::json(StatusCode::OK, &view))
}

pub(super) async fn delete(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(session): PathOf<Uuid>,
) -> Result<Response, Failure> {
    require_owner(&service, &caller, session)?;
    service.record(session, |sessions, now| sessions.end(session, now)).await?;
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

pub(super) async fn continuation(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(session): PathOf<Uuid>,
) -> Result<Response, Failure> {
    require_owner(&service, &caller, session)?;
    let answer = service.with_session(session, |sessions, now| {
        sessions.continuation(session, now).map(|continuation| reply::json(StatusCode::OK, continuation))
    });
    Ok(answer.map_err(Problem::from)?)
}

/// The front end's stream broke (extension `session-failover`).
pub(super) async fn failover(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(session): PathOf<Uuid>,
    body: RequestBody,
) -> Result<Response, Failure> {
    require_owner(&service, &caller, session)?;
    let FailoverRequest { epoch } = json::from_slice(&body.json(&service.limits).await?)?;
    let view = service.stream_broken(session, epoch)?;
    Ok(reply::json(StatusCode::ACCEPTED, &view))
}

/// A session is for the principal that placed it, and for `admin` (profile section 4). Whether there is one is found
/// out in its turn.
pub(super) fn require_owner(
    service: &Arc<ControllerService>,
    caller: &Principal,
    session: Uuid,
) -> Result<(), Problem> {
    if caller.has_role(Role::Admin) {
        return Ok(());
    }
    let is_owner = service.with_session(session, |sessions, _| {
        sessions.owner(session).map_or(true, |owner| owner == caller.name())
    });
    if is_owner {
        return Ok(());
    }
    Err(Problem::blank(403, "the session is another principal's"))
}

/// How many of a list are wanted.
pub(super) fn list_limit(query: &[(String, String)]) -> Result<usize, Failure> {
    Ok(number(query, "limit")?.unwrap_or(LISTED).min(MAX_LISTED) as usize)
}

/// The unsigned number of a parameter that is given at most once.
fn number(query: &[(String, String)], name: &str) -> Result<Option<u64>, Failure> {
    let mut values = query.iter().filter(|(given, _)| given == name).map(|(_, value)| value);
    let Some(value) = values.next() else { return Ok(None) };
    let digits = !value.is_empty() && value.bytes().all(|digit| digit.is_ascii_digit());
    match if digits && values.next().is_none() { value.parse().ok() } else { None } {
        Some(number) => Ok(Some(number)),
        None => {
            let detail = format!("{name} must be one unsigned decimal");
            Err(Failure::new(ProblemType::BadIdentifier, detail))
        }
    }
}
