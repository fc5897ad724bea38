//! The resources of a member of maps (draft section 6.9, profile sections 5 and 8).

mod attention;
mod digested;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode};
use kvsp_core::reshard::Ranges;
use kvsp_net::extract::{PathOf, PathSegment as _, RequestBody};
use kvsp_net::principal::Role;
use kvsp_net::{Caller, Failure, reply};
use kvsp_proto::id::ScopeId;
use kvsp_proto::message::{MapId, OpenContext, ReshardAnswer, ReshardMessage};
use kvsp_proto::path::{self, SESSION_EPOCH_HEADER};
use kvsp_proto::problem::{Problem, ProblemType};

use super::{leader, member, prefill};
use crate::Agent;

/// The routes.
pub(crate) fn routes() -> Router<Arc<Agent>> {
    let at = |path: &str| format!("/{path}");
    Router::new()
        .route(&at(path::RESHARD), post(reshard))
        .route(&at(path::MAP_ROUTE), get(held).put(open).delete(forget))
        .route(&at(path::MAP_TOKENS_ROUTE), get(tokens::get).put(tokens::put))
        .route(&at(path::MAP_ATTENTION_ROUTE), post(attention::attend))
        .route(&at(path::MAP_PREFILL_ROUTE), post(prefill::prefill))
        .route(&at(path::MAP_LENGTH_ROUTE), post(leader::length))
}

/// `POST reshard`: a plan, a commit or an abort.
async fn reshard(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Controller])?;
    let body = body.json(&agent.config.limits).await?;
    let message =
        ReshardMessage::from_json(&body).map_err(|error| error.into_problem(ProblemType::InvalidShardMap))?;
    let named = match &message {
        ReshardMessage::Plan(plan) => plan.scope_id,
        ReshardMessage::Commit { .. } | ReshardMessage::Abort { .. } => None,
    };
    let known = agent.group.members.scope(message.map()).ok().flatten();
    for scope in [named, known].into_iter().flatten() {
        caller.require_scope(scope)?;
    }
    let answer = match message {
        ReshardMessage::Plan(plan) => member::plan(&agent, *plan).await?,
        ReshardMessage::Commit { map, version, attempt, keep } => {
            let keep: Ranges = keep.into_iter().collect();
            let done = member::commit(&agent, &map, version, attempt, &keep).await;
            let answer = led(&agent, &map, version, done)?;
            agent.group.leads.committed(&map, version);
            answer
        }
        ReshardMessage::Abort { map, version, attempt, keep } => {
            let keep: Ranges = keep.into_iter().collect();
            let done = member::abort(&agent, &map, version, attempt, &keep).await;
            let answer = led(&agent, &map, version.saturating_sub(1), done)?;
            agent.group.leads.aborted(&map, version);
            answer
        }
    };
    Ok(reply::json(StatusCode::OK, &answer))
}

/// A decision about a map that this instance leads and is no member of is taken by its leader alone.
fn led(
    agent: &Agent,
    map: &MapId,
    version: u64,
    done: Result<ReshardAnswer, Problem>,
) -> Result<ReshardAnswer, Problem> {
    match done {
        Err(problem)
            if problem.problem_type() == Some(ProblemType::MapUnknown) && agent.group.leads.leads(map) =>
        {
            Ok(ReshardAnswer { map: map.clone(), version, prepared: None })
        }
        done => done,
    }
}

/// `GET maps/{map}` (an extension).
async fn held(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    PathOf(map): PathOf<MapId>,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    require_scope_of(&agent, &caller, &map)?;
    Ok(reply::json(StatusCode::OK, &member::view(&agent, &map).await?))
}

/// `PUT maps/{map}` (an extension): a leader begins to use the context here.
async fn open(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    PathOf(map): PathOf<MapId>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Instance])?;
    if let Ok(scope) = agent.group.members.scope(&map) {
        require_scope(&caller, scope)?;
    }
    let epoch = epoch(body.headers())?;
    let body = body.json(&agent.config.limits).await?;
    let open =
        OpenContext::from_json(&body).map_err(|error| error.into_problem(ProblemType::InvalidShardMap))?;
    caller.require_scope(open.scope_id)?;
    if epoch.is_some_and(|epoch| epoch != open.epoch) {
        let detail = format!("member epoch contradicts {SESSION_EPOCH_HEADER}");
        return Err(Failure::new(ProblemType::InvalidShardMap, detail));
    }
    Ok(reply::json(StatusCode::OK, &member::open(&agent, &map, &open).await?))
}

/// `DELETE maps/{map}` (an extension). Idempotent.
async fn forget(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    PathOf(map): PathOf<MapId>,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Controller, Role::Instance, Role::Admin])?;
    match agent.group.members.scope(&map) {
        Ok(scope) if !is_director(&caller) => require_scope(&caller, scope)?,
        _ => {}
    }
    member::forget(&agent, &map).await;
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

fn is_director(caller: &Caller) -> bool {
    caller.has_role(Role::Controller) || caller.has_role(Role::Admin)
}

/// Require the scope of a map that is known here.
pub(super) fn require_scope_of(agent: &Agent, caller: &Caller, map: &MapId) -> Result<(), Problem> {
    require_scope(caller, agent.group.members.scope(map)?)
}

/// Require a scope that may not have been told; then only those may pass who direct all maps.
fn require_scope(caller: &Caller, scope: Option<ScopeId>) -> Result<(), Problem> {
    match scope {
        Some(scope) => caller.require_scope(scope),
        None if is_director(caller) => Ok(()),
        None => Err(Problem::new(ProblemType::ScopeDenied, "the principal does not have this scope")),
    }
}

/// The epoch of the leader that sends a request.
fn epoch(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let mut values = headers.get_all(SESSION_EPOCH_HEADER).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => u64::from_segment(value.to_str().unwrap_or_default()).map(Some),
        (Some(_), Some(_)) => {
            Err(Problem::new(ProblemType::BadIdentifier, format!("{SESSION_EPOCH_HEADER} is given twice")))
        }
    }
}
