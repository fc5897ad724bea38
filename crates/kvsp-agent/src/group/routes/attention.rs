//! `POST maps/{map}/{version}/attention` (extension `group-attention`): attention of a leader's queries over keys
//! that are here.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use kvsp_engine::{Partial, Queries};
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::principal::Role;
use kvsp_net::{Caller, Failure};
use kvsp_proto::attention::{AttentionPartial, AttentionQuery};
use kvsp_proto::message::MapId;
use kvsp_proto::path::MEDIA_ATTENTION;
use kvsp_proto::problem::{Problem, ProblemType};

use super::super::member;
use super::{digested, epoch, require_scope_of};
use crate::Agent;

/// Most octets of a query.
const MAX_QUERY_OCTETS: u64 = 64 << 20;
/// Most rows of a query.
const MAX_ROWS: u32 = 4096;
/// How long keys that are on their way are waited for.
const WAIT: Duration = Duration::from_secs(10);

/// The handler.
pub(super) async fn attend(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    PathOf((map, version)): PathOf<(MapId, u64)>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Instance])?;
    require_scope_of(&agent, &caller, &map)?;
    let epoch = epoch(body.headers())?.unwrap_or(0);
    let stated = digested::stated(body.headers());
    let max = agent.config.limits.max_container_octets.min(MAX_QUERY_OCTETS);
    let octets = body.octets(&[MEDIA_ATTENTION], max).await?;
    let query = AttentionQuery::decode(&octets)
        .map_err(|error| Problem::new(ProblemType::MalformedContainer, error.to_string()))?;
    digested::verify(&octets, stated?).await?;
    if query.rows > MAX_ROWS {
        let detail = format!("a query has at most {MAX_ROWS} rows");
        return Err(Failure(Problem::new(ProblemType::LimitExceeded, detail).with("limit", MAX_ROWS)));
    }
    let members = &agent.group.members;
    members.may_attend(&map, version, epoch)?;
    let (keys, queries) = (Range::from(query.keys), queries(&query)?);
    let until = agent.clock.now() + WAIT;
    let partial = match agent.engine.attend(&map, query.layer, keys, queries, until).await {
        Ok(partial) => partial,
        Err(error) => {
            // Where the version has changed meanwhile, that is the reason.
            members.may_attend(&map, version, epoch)?;
            return Err(member::problem(error).into());
        }
    };
    Ok(digested::answer(MEDIA_ATTENTION, answer(&query, partial).encode(), None).await?)
}

fn queries(query: &AttentionQuery) -> Result<Queries, Problem> {
    let too_far = |_| Problem::new(ProblemType::ContainerMismatch, "the position is beyond every context");
    Ok(Queries {
        position: usize::try_from(query.position).map_err(too_far)?,
        rows: query.rows as usize,
        heads: query.heads as usize,
        head_dim: query.head_dim as usize,
        values: query.values.clone(),
    })
}

fn answer(query: &AttentionQuery, partial: Partial) -> AttentionPartial {
    AttentionPartial {
        step: query.step,
        layer: query.layer,
        keys: query.keys,
        rows: query.rows,
        heads: query.heads,
        head_dim: query.head_dim,
        out: partial.out,
        lse: partial.lse,
    }
}
