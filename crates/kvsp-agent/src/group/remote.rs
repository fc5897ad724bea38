//! Attention at other members: one layer, all of them asked at once, each answer held to its query.

use std::ops::Range;
use std::time::Duration;

use futures_util::future::try_join_all;
use kvsp_client::{Client, ClientError};
use kvsp_engine::{Partial, Queries};
use kvsp_proto::attention::{AttentionPartial, AttentionQuery};
use kvsp_proto::message::{MapId, TokenRange};
use kvsp_proto::problem::ProblemType;
use kvsp_proto::uri::BaseUri;
use tokio::time::Instant;

use super::trouble::Trouble;

/// How soon a member is asked again whose keys are still to be computed.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// Partial attention and the keys that it is over.
pub(super) type Part = (Range<usize>, Partial);

/// The members of a context at one version, as who needs their attention sees them.
#[derive(Debug, Clone)]
pub(super) struct Peers {
    client: Client,
    map: MapId,
    version: u64,
    /// The epoch of the session.
    epoch: u64,
}

impl Peers {
    /// `timeout`: for one answer.
    pub(super) fn new(client: &Client, timeout: Duration, map: MapId, (version, epoch): (u64, u64)) -> Self {
        Self { client: client.with_timeout(timeout), map, version, epoch }
    }

    /// Attention of `queries` over keys of members, in their order. All are asked at once; the first that fails
    /// ends the others.
    ///
    /// # Errors
    /// [`Trouble::Member`], [`Trouble::Fenced`].
    pub(super) async fn attend(
        &self,
        (step, layer): (u64, u32),
        queries: &Queries,
        parts: &[(BaseUri, Range<u64>)],
    ) -> Result<Vec<Part>, Trouble> {
        let ask = |(member, keys): &(BaseUri, Range<u64>)| {
            let query = query(step, layer, queries, keys);
            let (peers, member) = (self.clone(), member.clone());
            async move { peers.one(&member, &query?).await }
        };
        try_join_all(parts.iter().map(ask)).await
    }

    /// As [`Self::attend`], of members that may still be computing those keys, or be about to.
    ///
    /// # Errors
    /// As [`Self::attend`]; that keys are missing only once `until` has passed.
    pub(super) async fn attend_until(
        &self,
        layer: u32,
        queries: &Queries,
        parts: &[(BaseUri, Range<u64>)],
        until: Instant,
    ) -> Result<Vec<Part>, Trouble> {
        loop {
            match self.attend((0, layer), queries, parts).await {
                Err(Trouble::Member { source, .. })
                    if source.problem_type() == Some(ProblemType::LayersUnavailable)
                        && Instant::now() < until =>
                {
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                answer => return answer,
            }
        }
    }

    async fn one(&self, member: &BaseUri, query: &AttentionQuery) -> Result<Part, Trouble> {
        let asked = self.client.partial_attention(member, &self.map, self.version, self.epoch, query).await;
        part(asked.map_err(|error| Trouble::of_member(member, error))?)
            .ok_or_else(|| Trouble::of_member(member, ClientError::Protocol("keys beyond all memory".into())))
    }
}

/// The query that asks a member for its part.
fn query(step: u64, layer: u32, queries: &Queries, keys: &Range<u64>) -> Result<AttentionQuery, Trouble> {
    let count = |n: usize| u32::try_from(n).map_err(|_| Trouble::TooLarge);
    Ok(AttentionQuery {
        step,
        layer,
        position: queries.position as u64,
        keys: TokenRange::try_from(keys.clone()).map_err(|_| Trouble::TooLarge)?,
        rows: count(queries.rows)?,
        heads: count(queries.heads)?,
        head_dim: count(queries.head_dim)?,
        values: queries.values.clone(),
    })
}

/// What a member answered, as it is merged.
fn part(answer: AttentionPartial) -> Option<Part> {
    let size = |n: u32| usize::try_from(n).ok();
    let at = |n: u64| usize::try_from(n).ok();
    let keys = at(answer.keys.start())?..at(answer.keys.end())?;
    let (rows, heads, head_dim) = (size(answer.rows)?, size(answer.heads)?, size(answer.head_dim)?);
    Some((keys, Partial { rows, heads, head_dim, out: answer.out, lse: answer.lse }))
}
