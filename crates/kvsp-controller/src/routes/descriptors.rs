//! Registered descriptors (profile section 2).

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use kvsp_core::descriptors::{self, MAX_DESCRIPTOR_OCTETS};
use kvsp_net::auth::Caller;
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::principal::Role;
use kvsp_net::{Failure, reply};
use kvsp_proto::id::CompatId;
use kvsp_proto::path::MEDIA_JSON;
use kvsp_proto::problem::{Problem, ProblemType};

use super::Service;

pub(super) async fn put(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(compat): PathOf<CompatId>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let max = service.limits.max_json_octets.min(MAX_DESCRIPTOR_OCTETS as u64);
    let octets = body.octets(&[MEDIA_JSON, "application/json"], max).await?;
    let descriptor = descriptors::read(&octets)?;
    let created = service.descriptors().register(compat, descriptor).map_err(Problem::from)?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(reply::json(status, &serde_json::json!({ "compat_id": compat })))
}

pub(super) async fn get(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(compat): PathOf<CompatId>,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let known = service.descriptors().get(compat).cloned();
    let descriptor = known.ok_or_else(|| {
        Problem::new(ProblemType::DescriptorUnknown, "no descriptor of this compatibility is registered")
    })?;
    Ok(reply::json(StatusCode::OK, descriptor.json()))
}
