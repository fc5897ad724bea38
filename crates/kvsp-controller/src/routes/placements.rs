//! `POST placements` (profile section 5).

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use kvsp_net::auth::Caller;
use kvsp_net::extract::RequestBody;
use kvsp_net::principal::Role;
use kvsp_net::{Failure, reply};
use kvsp_proto::json::{self, JsonError};
use kvsp_proto::message::PlacementRequest;
use kvsp_proto::problem::{Problem, ProblemType};

use super::Service;
use crate::config::ControllerConfig;

/// Octets of a `request_ref`, which travels in a header field.
const MAX_REQUEST_REF: usize = 1024;

pub(super) async fn place(
    State(service): Service,
    Caller(caller): Caller,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let octets = body.json(&service.limits).await?;
    let read = move || Ok::<PlacementRequest, Failure>(json::from_slice(&octets)?);
    let request = tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| {
        tracing::error!(%error, "reading a placement broke");
        Err(Failure::blank(StatusCode::INTERNAL_SERVER_ERROR, "the request could not be read"))
    })?;
    caller.require_scope(request.scope_id)?;
    check(&service.config, &request)?;
    let answer = Arc::clone(&service).place(request, caller.name()).await?;
    Ok(reply::json(StatusCode::OK, &answer))
}

fn check(config: &ControllerConfig, request: &PlacementRequest) -> Result<(), Failure> {
    let continuation = request.continuation.as_ref().map_or(0, |value| value.to_string().len());
    let limits = [
        ("block_keys", request.block_keys.len(), config.max_lookup_keys),
        ("continuation", continuation, config.max_continuation_octets),
    ];
    for (member, got, max) in limits {
        if got > max {
            let detail = format!("member {member} has {got}, over the limit of {max}");
            return Err(Problem::new(ProblemType::LimitExceeded, detail).with("limit", max).into());
        }
    }
    let is_field = |text: &String| text.len() <= MAX_REQUEST_REF && !text.chars().any(char::is_control);
    if request.request_ref.as_ref().is_some_and(|text| !is_field(text)) {
        let detail = format!("member request_ref is over {MAX_REQUEST_REF} octets or has control characters");
        return Err(JsonError::Malformed(detail).into());
    }
    Ok(())
}
