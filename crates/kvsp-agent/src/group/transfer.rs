//! Fetching K and V of token ranges from their owners: in pieces, a few at once, each verified before anything of it
//! is written.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::{self, TryStreamExt as _};
use kvsp_client::ClientError;
use kvsp_core::reshard::Ranges;
use kvsp_proto::message::{FetchRange, MapId, TokenRange};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::uri::BaseUri;

use super::member;
use crate::Agent;
use crate::engine::VerifiedSections;

/// Ranges of a plan that are loaded at once.
const RANGES_IN_FLIGHT: usize = 2;
/// Pieces of a range that are on their way at once.
const IN_FLIGHT: usize = 4;
/// Octets of a piece, where the limits allow as many: enough to use a link well, and little for the engine's thread to
/// copy while decoding waits.
const PIECE_OCTETS: u64 = 512 << 10;
/// How often a piece is asked for where a source cannot be reached.
const TRIES: u32 = 4;
/// The wait before the second try; it doubles.
const RETRY: Duration = Duration::from_millis(50);

/// The plan that something is loaded for.
pub(super) struct Order {
    pub(super) map: MapId,
    /// The version at which the sources hold it.
    pub(super) from: u64,
    /// The version that it leads to.
    pub(super) to: u64,
    /// Its number.
    pub(super) attempt: Option<u64>,
}

/// Load all ranges, whose memory is reserved. A source that says that it holds less of a range is believed: the
/// context is shorter, or nobody has the rest and whoever needs it computes it.
///
/// # Errors
/// What the first source that failed did.
pub(super) async fn load(agent: &Arc<Agent>, order: &Order, fetch: &[FetchRange]) -> Result<(), Problem> {
    stream::iter(fetch.to_vec())
        .map(|part| async move { load_range(agent, order, &part).await })
        .buffer_unordered(RANGES_IN_FLIGHT)
        .try_collect::<()>()
        .await
}

async fn load_range(agent: &Arc<Agent>, order: &Order, part: &FetchRange) -> Result<(), Problem> {
    // What is here already may be of a later leader than what the source has: where the controller counted us out, it
    // was computed here meanwhile.
    let here = agent.engine.context_held(&order.map).await;
    let wanted = Ranges::one(part.tokens.into()).difference(&here);
    if wanted.is_empty() {
        return Ok(());
    }
    let held = held_by(agent, order, &part.from).await;
    let (wanted, epoch) = match &held {
        Held::Known { held, epoch } => (wanted.intersection(held), *epoch),
        Held::Nothing | Held::Unknown => (wanted, 0),
    };
    let step = piece_tokens(agent);
    let pieces = wanted.iter().flat_map(move |range| pieces(range, step));
    let source = Source { base: &part.from, epoch, may_lack: matches!(held, Held::Nothing) };
    stream::iter(pieces)
        .map(|range| load_piece(agent, order, &source, range))
        .buffer_unordered(IN_FLIGHT)
        .try_collect::<()>()
        .await
}

/// Whom a range is loaded from.
struct Source<'a> {
    base: &'a BaseUri,
    epoch: u64,
    /// That it does not know the map means that there is nothing to be loaded.
    may_lack: bool,
}

/// What a source says that it holds.
enum Held {
    Known {
        held: Ranges,
        /// The highest epoch of a leader that it had seen.
        epoch: u64,
    },
    /// It does not know the map.
    Nothing,
    /// It does not say: it need not know the question, which is an extension.
    Unknown,
}

async fn held_by(agent: &Agent, order: &Order, source: &BaseUri) -> Held {
    match agent.client.held(source, &order.map).await {
        Ok(view) => Held::Known { held: view.held.into_iter().collect(), epoch: view.epoch },
        Err(error) if error.problem_type() == Some(ProblemType::MapUnknown) => Held::Nothing,
        Err(_) => Held::Unknown,
    }
}

/// Tokens of a piece: at least one, so many that neither its octets nor those of a peer with the same limits are
/// over the limit.
fn piece_tokens(agent: &Agent) -> u64 {
    let octets = token_octets(agent).max(1);
    let most = agent.config.limits.max_container_octets.min(agent.client.config().max_container_octets);
    (PIECE_OCTETS.min(most.saturating_sub(head_octets(agent))) / octets).clamp(1, u64::from(u32::MAX))
}

/// Octets of a container before its data, all layers in it.
fn head_octets(agent: &Agent) -> u64 {
    20 + 16 * u64::from(agent.descriptor.layers)
}

/// Octets of K and V of a token in all layers.
pub(super) fn token_octets(agent: &Agent) -> u64 {
    let (k, v) = agent.descriptor.section_octets(1).unwrap_or((u64::MAX, u64::MAX));
    k.saturating_add(v).saturating_mul(u64::from(agent.descriptor.layers))
}

fn pieces(range: Range<u64>, step: u64) -> impl Iterator<Item = Range<u64>> {
    let mut start = range.start;
    std::iter::from_fn(move || {
        let end = range.end.min(start.saturating_add(step));
        let piece = start..end;
        start = end;
        (!piece.is_empty()).then_some(piece)
    })
}

async fn load_piece(
    agent: &Arc<Agent>,
    order: &Order,
    &Source { base: source, epoch, may_lack }: &Source<'_>,
    range: Range<u64>,
) -> Result<(), Problem> {
    let range = TokenRange::try_from(range).map_err(|error| failed(source, &error))?;
    let tokens = u32::try_from(range.tokens()).map_err(|error| failed(source, &error))?;
    let place = agent.group.members.fetches.acquire().await;
    let container = match fetch(agent, order, source, range).await {
        Ok(container) => container,
        Err(error) if may_lack && error.problem_type() == Some(ProblemType::MapUnknown) => return Ok(()),
        Err(ClientError::Denied(denied)) => {
            return Err(Problem::new(ProblemType::SourceForbidden, denied.to_string()));
        }
        Err(error) => return Err(failed(source, &error)),
    };
    let sections = VerifiedSections::of(&container, &agent.descriptor, tokens)
        .map_err(|error| failed(source, &error))?;
    member::fetched(agent, order, range, sections, epoch).await?;
    drop(place);
    agent.group.members.counters.fetched.inc_by(range.tokens().saturating_mul(token_octets(agent)));
    Ok(())
}

async fn fetch(
    agent: &Agent,
    order: &Order,
    source: &BaseUri,
    range: TokenRange,
) -> Result<kvsp_proto::container::Container, ClientError> {
    let mut wait = RETRY;
    // One that is longer is not what was asked for, and not worth receiving.
    let octets = head_octets(agent).saturating_add(range.tokens().saturating_mul(token_octets(agent)));
    let get = || agent.client.get_tokens(source, &order.map, order.from, range, octets);
    for _ in 1..TRIES {
        match get().await {
            Err(error) if is_passing(&error) => {}
            done => return done,
        }
        tokio::time::sleep(wait).await;
        wait *= 2;
    }
    get().await
}

/// Whether the same question may be answered a moment later.
fn is_passing(error: &ClientError) -> bool {
    let busy = Some(ProblemType::Overloaded);
    matches!(error, ClientError::Unreachable { .. }) || error.problem_type() == busy
}

/// A source did not give what it was asked for. The controller tells the plan again, as long as there is time.
fn failed(source: &BaseUri, error: &dyn std::fmt::Display) -> Problem {
    Problem::blank(502, format!("{source}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_up_the_range() {
        assert_eq!(pieces(3..10, 3).collect::<Vec<_>>(), [3..6, 6..9, 9..10]);
        assert!(pieces(3..10, u64::MAX).map(|piece| (piece.start, piece.end)).eq([(3, 10)]));
        assert_eq!(pieces(5..5, 2).count(), 0);
    }
}
