//! Statuses of instances, the source of estimates.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use kvsp_net::auth::Caller;
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::principal::Role;
use kvsp_net::{Failure, reply};
use kvsp_proto::message::StateBody;
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::InstanceStatus;
use kvsp_proto::uri::{BaseUri, HolderUri};

use super::Service;

pub(super) async fn put_status(
    State(service): Service,
    Caller(caller): Caller,
    PathOf(instance): PathOf<BaseUri>,
    body: RequestBody,
) -> Result<Response, Failure> {
    let holder = HolderUri::from(&instance);
    caller.require_role(&[Role::Instance])?;
    caller.require_holder(&holder)?;
    let octets = body.json(&service.limits).await?;
    let status =
        InstanceStatus::from_json(&octets).map_err(|error| error.into_problem(ProblemType::InvalidRecord))?;
    if status.instance != instance {
        return Err(Failure::new(ProblemType::InvalidRecord, "member instance contradicts the path"));
    }
    let (state, now) = (status.state, service.now());
    let accepted = service.instances().report(status, now).map_err(Problem::from)?;
    if accepted.restarted {
        // The process that held them in memory has ended.
        service.change(|index| index.drop_volatile(&holder, now));
    }
    Ok(reply::json(StatusCode::OK, &StateBody { state }))
}
