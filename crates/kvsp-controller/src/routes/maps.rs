//! Shard maps (draft section 6.9, profile sections 5 and 8).
//!
//! A map is for whoever has its scope. Clients, controllers and operators make, split and end maps; a map with a
//! session is made, split and ended by the principal that placed the session, and by `admin`.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use kvsp_net::auth::Caller;
use kvsp_net::extract::{PathOf, RequestBody, query};
use kvsp_net::principal::{Principal, Role};
use kvsp_net::{Failure, reply};
use kvsp_proto::message::{MapCreate, MapId, MapView, ReshardRequest, Shard};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::uri::BaseUri;

use super::Service;
use super::sessions::{list_limit, require_owner};
use crate::service::ControllerService;

/// Who may make, split and end maps.
const CHANGERS: [Role; 3] = [Role::Client, Role::Controller, Role::Admin];

/// Octets that the instances' URIs of a map may have together: what is recorded of a map is one row of the store, and
/// each URI is in it up to six times while a change is under way.
pub(crate) const MAX_URI_OCTETS: usize = 96 << 10;

pub(super) async fn put(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(map): PathOf<MapId>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&CHANGERS)?;
    let create = MapCreate::from_json(&body.json(&service.limits).await?, &map)
        .map_err(|error| error.into_problem(ProblemType::InvalidShardMap))?;
    caller.require_scope(create.scope_id)?;
    if let Some(session) = create.session {
        require_owner(&service, &caller, session)?;
    }
    require_allowed(&service, &create.shards)?;
    let (created, view) = service.create_map(map, create).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(reply::json(status, &view))
}

pub(super) async fn get(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(map): PathOf<MapId>,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let view = service.view_map(&map)?;
    caller.require_scope(view.scope_id)?;
    Ok(reply::json(StatusCode::OK, &view))
}

pub(super) async fn list(
    State(service): Service,
    Caller(caller): Caller,
    uri: Uri,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let limit = list_limit(&query(&uri)?)?;
    Ok(reply::json(StatusCode::OK, &service.list_maps(limit, |scope| caller.has_scope(scope))))
}

pub(super) async fn reshard(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(map): PathOf<MapId>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&CHANGERS)?;
    require_changer(&service, &caller, &map)?;
    let request = ReshardRequest::from_json(&body.json(&service.limits).await?)
        .map_err(|error| error.into_problem(ProblemType::InvalidShardMap))?;
    require_allowed(&service, &request.shards)?;
    let view = service.reshard_map(&map, request).await?;
    Ok(reply::json(StatusCode::ACCEPTED, &view))
}

pub(super) async fn delete(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(map): PathOf<MapId>,
) -> Result<Response, Failure> {
    caller.require_role(&CHANGERS)?;
    require_changer(&service, &caller, &map)?;
    service.end_map(&map).await?;
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

/// Whether there is such a map is found out in its turn.
fn require_changer(service: &Arc<ControllerService>, caller: &Principal, map: &MapId) -> Result<(), Problem> {
    let Ok(MapView { scope_id, session, .. }) = service.view_map(map) else { return Ok(()) };
    caller.require_scope(scope_id)?;
    session.map_or(Ok(()), |session| require_owner(service, caller, session))
}

/// Members are asked things, and ask each other: at places where policy lets requests go, or that have registered here.
fn require_allowed(service: &ControllerService, shards: &[Shard]) -> Result<(), Problem> {
    let octets: usize = shards.iter().map(|shard| shard.instance.as_str().len()).sum();
    if octets > MAX_URI_OCTETS {
        let detail =
            format!("the URIs of the shards have {octets} octets, over the limit of {MAX_URI_OCTETS}");
        return Err(Problem::new(ProblemType::LimitExceeded, detail).with("limit", MAX_URI_OCTETS));
    }
    let instances: BTreeSet<&BaseUri> = shards.iter().map(|shard| &shard.instance).collect();
    let policy = &service.client.config().policy;
    let forbidden = instances.into_iter().find(|instance| {
        policy.allow(instance).is_err() && service.instances().live_status(instance, service.now()).is_none()
    });
    match forbidden {
        None => Ok(()),
        Some(instance) => {
            Err(Problem::new(ProblemType::SourceForbidden, format!("policy forbids {instance}")))
        }
    }
}
