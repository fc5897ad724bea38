//! What is checked before a request is computed over a map.

use http::HeaderMap;
use kvsp_client::ClientError;
use kvsp_net::Caller;
use kvsp_proto::id::ScopeId;
use kvsp_proto::message::MapId;
use kvsp_proto::path::MAP_HEADER;
use kvsp_proto::problem::{Problem, ProblemType};

use super::sync::LOOK_TIMEOUT;
use crate::Agent;

/// The map that a request names.
///
/// # Errors
/// `kvsp-bad-identifier` where it is malformed or given twice.
pub(crate) fn map_header(headers: &HeaderMap) -> Result<Option<MapId>, Problem> {
    let bad = |detail: &str| Problem::new(ProblemType::BadIdentifier, format!("{MAP_HEADER}: {detail}"));
    let mut values = headers.get_all(MAP_HEADER).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            let map = value.to_str().ok().and_then(|text| text.parse().ok());
            map.map(Some).ok_or_else(|| bad("expected a map identifier"))
        }
        (Some(_), Some(_)) => Err(bad("given twice")),
    }
}

/// Whether a prompt of so many tokens may be computed over a map here; the map's scope.
///
/// # Errors
/// `kvsp-map-unknown`, `kvsp-scope-denied`, `kvsp-compat-mismatch`, `kvsp-invalid-shard-map` where the map ends
/// before the prompt does, `kvsp-overloaded` while the controller does not answer, 501 without one.
pub(crate) async fn admit(
    agent: &Agent,
    caller: &Caller,
    map: &MapId,
    prompt: usize,
) -> Result<ScopeId, Problem> {
    let Some(controller) = &agent.config.controller else {
        return Err(Problem::blank(501, "no controller is configured here, so nobody knows the map"));
    };
    let view =
        agent.client.with_timeout(LOOK_TIMEOUT).map(controller, map).await.map_err(|error| match error {
            ClientError::Problem(problem) if problem.problem_type() == Some(ProblemType::MapUnknown) => {
                problem
            }
            error => {
                tracing::warn!(%error, "the controller did not tell of a map");
                Problem::new(ProblemType::Overloaded, "the controller did not tell how the map stands")
                    .retry_after(1)
            }
        })?;
    caller.require_scope(view.scope_id)?;
    if view.compat_id != agent.descriptor.compat_id() {
        return Err(Problem::new(ProblemType::CompatMismatch, "the map is of another model"));
    }
    let capacity = view.shards.last().map_or(0, |shard| shard.tokens.end());
    if prompt as u64 >= capacity {
        let detail = format!("the map has room for {capacity} tokens, the prompt has {prompt}");
        return Err(Problem::new(ProblemType::InvalidShardMap, detail));
    }
    Ok(view.scope_id)
}
