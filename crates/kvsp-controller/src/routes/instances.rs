//! Instances: what they report, what is known of them, and the states they are given.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use kvsp_core::instances::HeldInstance;
use kvsp_net::auth::Caller;
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::principal::Role;
use kvsp_net::{Failure, reply};
use kvsp_proto::message::{InstanceList, InstanceView, StateBody};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::{InstanceState, InstanceStatus};
use kvsp_proto::uri::{BaseUri, HolderUri};

use super::Service;
use crate::service::ControllerService;

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
    let (epoch, ttl_ms) = (status.epoch, status.ttl_ms.min(service.config.max_ttl_ms));
    let accepted = {
        let mut instances = service.instances();
        let accepted = instances.report(status, service.now()).map_err(Problem::from)?;
        service.metrics.count(&instances);
        accepted
    };
    if accepted.restarted {
        tracing::info!(%instance, epoch, "restarted");
    }
    service.with_every_session(|sessions, now| sessions.instance_reported(&instance, epoch, ttl_ms, now));
    Ok(reply::json(StatusCode::OK, &StateBody { state: accepted.state }))
}

pub(super) async fn list(State(service): Service, Caller(caller): Caller) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let instances = service.instances().list(service.now());
    let instances = instances
        .into_iter()
        .map(|HeldInstance { status, wanted }| InstanceView {
            status,
            wanted: Some(wanted),
            sessions: None,
            shards: None,
        })
        .collect();
    Ok(reply::json(StatusCode::OK, &InstanceList { instances }))
}

pub(super) async fn get(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(instance): PathOf<BaseUri>,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let status = service.instances().view(&instance, service.now());
    let HeldInstance { status, wanted } = status.ok_or_else(|| {
        Problem::new(ProblemType::InstanceUnknown, "no such instance; it becomes known by its first status")
    })?;
    Ok(reply::json(
        StatusCode::OK,
        &InstanceView { status, wanted: Some(wanted), sessions: None, shards: None },
    ))
}

pub(super) async fn put_state(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(instance): PathOf<BaseUri>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Admin])?;
    let body = StateBody::from_json(&body.json(&service.limits).await?)
        .map_err(|error| error.into_problem(ProblemType::InvalidRecord))?;
    let ordered =
        service.instances().set_state(&instance, body.state, false, service.now()).map_err(Problem::from)?;
    tell(&service, &instance, ordered).await;
    Ok(reply::json(StatusCode::OK, &StateBody { state: ordered }))
}

/// Tells an instance its new state; where that fails it hears of it with the answer to its next status.
async fn tell(service: &Arc<ControllerService>, instance: &BaseUri, state: InstanceState) {
    let telling = service.client.put_state(instance, state);
    match tokio::time::timeout(service.config.state_timeout(), telling).await {
        Ok(Ok(_)) => tracing::info!(%instance, state = state.as_str(), "told its state"),
        Ok(Err(error)) => tracing::warn!(%instance, %error, "could not be told its state"),
        Err(_) => tracing::warn!(%instance, "did not take its state in time"),
    }
}
