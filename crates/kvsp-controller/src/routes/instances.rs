//! Instances: what they report, what is known of them, and the states they are given.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use kvsp_net::auth::Caller;
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::principal::Role;
use kvsp_net::{Failure, reply};
use kvsp_proto::message::{InstanceList, StateBody, StateOrder};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::InstanceStatus;
use kvsp_proto::uri::{BaseUri, HolderUri};

use super::Service;
use crate::lifecycle::Ordered;

pub(super) async fn put_status(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(instance): PathOf<BaseUri>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Instance])?;
    caller.require_holder(&HolderUri::from(&instance))?;
    let octets = body.json(&service.limits).await?;
    let status =
        InstanceStatus::from_json(&octets).map_err(|error| error.into_problem(ProblemType::InvalidRecord))?;
    if status.instance != instance {
        return Err(Failure::new(ProblemType::InvalidRecord, "member instance contradicts the path"));
    }
    let state = service.take_status(status).await?;
    Ok(reply::json(StatusCode::OK, &StateBody { state }))
}

pub(super) async fn list(State(service): Service, Caller(caller): Caller) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let instances = service.list_instances();
    Ok(reply::json(StatusCode::OK, &InstanceList { instances }))
}

pub(super) async fn get(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(instance): PathOf<BaseUri>,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let view = service.view_instance(&instance).ok_or_else(|| {
        Problem::new(ProblemType::InstanceUnknown, "no such instance; it becomes known by its first status")
    })?;
    Ok(reply::json(StatusCode::OK, &view))
}

pub(super) async fn put_state(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(instance): PathOf<BaseUri>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Admin])?;
    let StateOrder { state, migrate } = StateOrder::from_json(&body.json(&service.limits).await?)
        .map_err(|error| error.into_problem(ProblemType::InvalidRecord))?;
    let Ordered { state, .. } = service.order(&instance, state, migrate).await?;
    Ok(reply::json(StatusCode::OK, &StateBody { state }))
}
