//! Registered descriptors (profile section 2).

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use kvsp_core::descriptors::MAX_DESCRIPTOR_OCTETS;
use kvsp_net::Caller;
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::reply::{Failure, json};
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::id::CompatId;
use kvsp_proto::message::Limits;
use kvsp_proto::problem::ProblemType;

use crate::problems;
use crate::service::BlockService;

pub(super) async fn get(
    State(service): State<Arc<BlockService>>,
    _caller: Caller,
    PathOf(compat): PathOf<CompatId>,
) -> Result<Response, Failure> {
    let found = service.descriptor(compat);
    let found = found
        .ok_or_else(|| Failure::new(ProblemType::DescriptorUnknown, "the descriptor is not registered"))?;
    Ok(json(StatusCode::OK, found.json()))
}

pub(super) async fn put(
    State(service): State<Arc<BlockService>>,
    _caller: Caller,
    PathOf(compat): PathOf<CompatId>,
    body: RequestBody,
) -> Result<Response, Failure> {
    let max = service.config.limits.max_json_octets.min(MAX_DESCRIPTOR_OCTETS as u64);
    let octets = body.json(&Limits { max_json_octets: max, ..service.config.limits }).await?;
    let descriptor = Descriptor::from_json(&octets).map_err(problems::descriptor)?;
    let answer = descriptor.json().clone();
    let new = service
        .lock_descriptors()
        .register(compat, descriptor)
        .map_err(kvsp_proto::problem::Problem::from)?;
    Ok(json(if new { StatusCode::CREATED } else { StatusCode::OK }, &answer))
}
