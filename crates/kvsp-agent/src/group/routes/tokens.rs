//! `maps/{map}/{version}/tokens`: K and V of a range of tokens.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use kvsp_net::extract::{PathOf, RequestBody, query};
use kvsp_net::principal::Role;
use kvsp_net::{Caller, Failure, reply};
use kvsp_proto::container::{Container, ContainerError, Limits};
use kvsp_proto::message::{MapId, TokenRange};
use kvsp_proto::path::MEDIA_BLOCK;
use kvsp_proto::problem::{Problem, ProblemType};

use super::super::member;
use super::super::transfer::token_octets;
use super::{digested, epoch, require_scope_of};
use crate::Agent;
use crate::engine::{SectionsError, VerifiedSections};

/// `GET`: one container, all layers, codec `raw`.
pub(super) async fn get(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    PathOf((map, version)): PathOf<(MapId, u64)>,
    uri: Uri,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Instance, Role::Holder])?;
    let range = range(&uri)?;
    require_scope_of(&agent, &caller, &map)?;
    require_fits(&agent, range)?;
    let members = &agent.group.members;
    let place = members.reads.clone().acquire_owned().await.map_err(|_| stopping())?;
    members.may_serve(&map, version)?;
    let octets = match agent.engine.context_read(&map, range.into()).await {
        Ok(octets) => octets,
        Err(error) => {
            // Where the version has changed meanwhile, that is the reason.
            members.may_serve(&map, version)?;
            return Err(member::problem(error).into());
        }
    };
    members.counters.served.inc_by(range.tokens().saturating_mul(token_octets(&agent)));
    Ok(digested::answer(MEDIA_BLOCK, octets, Some(place)).await?)
}

/// `PUT` (an extension): the leader of the context stores what it has computed.
pub(super) async fn put(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    PathOf((map, version)): PathOf<(MapId, u64)>,
    uri: Uri,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Instance])?;
    let range = range(&uri)?;
    require_scope_of(&agent, &caller, &map)?;
    let epoch = epoch(body.headers())?.unwrap_or(0);
    let stated = digested::stated(body.headers());
    let _place = agent.group.members.stores.acquire().await.map_err(|_| stopping())?;
    let limits = limits(&agent);
    let octets = body.container(limits.max_octets).await?;
    let container = Container::parse(octets, &limits).map_err(malformed)?;
    digested::verify(container.bytes(), stated?).await?;
    let tokens = u32::try_from(range.tokens())
        .map_err(|_| Problem::new(ProblemType::ContainerMismatch, "no container holds so many tokens"))?;
    let sections = VerifiedSections::of(&container, &agent.descriptor, tokens).map_err(mismatch)?;
    member::store(&agent, &map, (version, epoch), range, sections).await?;
    agent.group.members.counters.stored.inc_by(range.tokens().saturating_mul(token_octets(&agent)));
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

/// The one `range=` of a query.
fn range(uri: &Uri) -> Result<TokenRange, Failure> {
    let invalid = |detail: String| Failure::new(ProblemType::InvalidRange, detail);
    let parameters = query(uri)?;
    let mut given = parameters.iter().filter(|(name, _)| name == "range").map(|(_, value)| value);
    match (given.next(), given.next()) {
        (Some(value), None) => value.parse().map_err(|error| invalid(format!("range: {error}"))),
        (None, _) => Err(invalid("range is missing".into())),
        (Some(_), Some(_)) => Err(invalid("range is given twice".into())),
    }
}

/// Refuse a range whose container would be over the limit.
fn require_fits(agent: &Agent, range: TokenRange) -> Result<(), Problem> {
    let max = agent.config.limits.max_container_octets;
    let octets = range.tokens().saturating_mul(token_octets(agent));
    if octets <= max {
        return Ok(());
    }
    let detail = format!("a container of that range is over the limit of {max} octets");
    Err(Problem::new(ProblemType::LimitExceeded, detail).with("limit", max))
}

fn limits(agent: &Agent) -> Limits {
    Limits { max_octets: agent.config.limits.max_container_octets, ..Limits::default() }
}

fn malformed(error: ContainerError) -> Problem {
    let kind = match error {
        ContainerError::Malformed(_) => ProblemType::MalformedContainer,
        ContainerError::Codec(_) => ProblemType::UnsupportedCodec,
        ContainerError::TooLarge { .. } | ContainerError::TooManyLayers { .. } => ProblemType::LimitExceeded,
    };
    Problem::new(kind, error.to_string())
}

fn mismatch(error: SectionsError) -> Problem {
    let kind = match error {
        SectionsError::Codec(_) => ProblemType::UnsupportedCodec,
        SectionsError::Layers | SectionsError::Geometry(_) => ProblemType::ContainerMismatch,
    };
    Problem::new(kind, error.to_string())
}

fn stopping() -> Problem {
    Problem::blank(503, "the service is stopping")
}
