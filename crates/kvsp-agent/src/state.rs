//! `GET status` and `PUT state` of the instance itself (draft section 6.3).

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use kvsp_net::extract::RequestBody;
use kvsp_net::principal::Role;
use kvsp_net::{Caller, Failure, reply};
use kvsp_proto::message::StateBody;
use kvsp_proto::problem::ProblemType;

use crate::Agent;

/// `GET status`.
pub(crate) async fn status(State(agent): State<Arc<Agent>>, caller: Caller) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    Ok(reply::json(StatusCode::OK, &agent.status()))
}

/// `PUT state`: answers with the state taken up.
pub(crate) async fn order(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Controller])?;
    let body = body.json(&agent.config.limits).await?;
    let StateBody { state } =
        StateBody::from_json(&body).map_err(|error| error.into_problem(ProblemType::InvalidRecord))?;
    let state = agent.lifecycle.order(state, agent.is_idle());
    Ok(reply::json(StatusCode::OK, &StateBody { state }))
}
