//! A change of the map of a split context: asked for, watched until every member has heard of it, and what it moved by
//! the members' own counters.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kvsp_client::{Client, ClientError};
use kvsp_core::reshard::{Copies, PlanParts, instances_of, plan_for};
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::message::{MapId, MapView, ReshardRequest, Shard, TokenRange};
use kvsp_proto::uri::BaseUri;

use super::{Member, Scrape};

/// Between two looks at a change under way.
const LOOK: Duration = Duration::from_millis(2);
/// How long after its deadline a change may take to be settled.
const SLACK: Duration = Duration::from_secs(30);

const FETCHED: &str = "kvsp_reshard_octets_total{direction=\"fetched\"}";
const STORED: &str = "kvsp_reshard_octets_total{direction=\"stored\"}";
const RETAINED: &str = "kvsp_reshard_retained_tokens_total";

/// Why a change could not be watched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the change to version {0} was given up")]
    Aborted(u64),
    #[error("the change to version {0} was not settled in time")]
    Late(u64),
}

/// Whom a change is asked of, and who is watched meanwhile.
pub(crate) struct Watch<'a> {
    pub(crate) client: &'a Client,
    pub(crate) controller: &'a BaseUri,
    /// Every instance that is a member before or after.
    pub(crate) members: &'a [Member],
}

/// What one member had to do, and what it counted.
#[derive(Debug, Clone)]
pub(crate) struct Moved {
    pub(crate) instance: BaseUri,
    /// Its part of the plan.
    pub(crate) plan: PlanParts,
    /// Octets that it fetched from other members.
    pub(crate) fetched: u64,
    /// Octets that the leader stored with it meanwhile: the tail.
    pub(crate) stored: u64,
    /// Tokens that it says it kept in place.
    pub(crate) retained: u64,
}

/// A change that is settled.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    /// The shards that hold now.
    pub(crate) view: MapView,
    /// Members before and after.
    pub(crate) sizes: (usize, usize),
    /// When it was asked for.
    pub(crate) asked: Instant,
    /// When the next version held: the decision is durable.
    pub(crate) decided: Instant,
    /// When every member had acknowledged the decision.
    pub(crate) settled: Instant,
    pub(crate) moved: Vec<Moved>,
}

/// Has a map split anew and waits until that is settled.
///
/// # Errors
/// [`ChangeError::Aborted`] where the version before goes on to hold.
pub(crate) async fn change(
    watch: &Watch<'_>,
    before: &MapView,
    shards: Vec<Shard>,
    deadline: Duration,
) -> Result<Change, ChangeError> {
    let counted = counters(watch).await?;
    let to = before.version.saturating_add(1);
    let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
    let request = ReshardRequest { from: before.version, shards: shards.clone(), deadline_ms };
    let asked = Instant::now();
    let taken = watch.client.reshard_map(watch.controller, &before.map, &request).await?;
    let mut decided = (taken.version >= to).then(Instant::now);
    let view = loop {
        let view = watch.client.map(watch.controller, &before.map).await?;
        if view.version >= to {
            decided.get_or_insert_with(Instant::now);
        }
        if view.pending.is_none() {
            break view;
        }
        if asked.elapsed() > deadline.saturating_add(SLACK) {
            return Err(ChangeError::Late(to));
        }
        tokio::time::sleep(LOOK).await;
    };
    let settled = Instant::now();
    let decided = decided.ok_or(ChangeError::Aborted(to))?;
    let now = counters(watch).await?;
    let moved = watch.members.iter().zip(counted.iter().zip(&now)).map(|(member, (was, is))| {
        let grown = |name: &str| is.count(name).saturating_sub(was.count(name));
        let lost = BTreeSet::new();
        let copies = Copies { shards: &before.shards, spare: &[], lost: &lost };
        Moved {
            instance: member.base.clone(),
            plan: plan_for(&member.base, copies, &shards),
            fetched: grown(FETCHED),
            stored: grown(STORED),
            retained: grown(RETAINED),
        }
    });
    let moved = moved.collect();
    Ok(Change {
        sizes: (instances_of(&before.shards).len(), instances_of(&shards).len()),
        view,
        asked,
        decided,
        settled,
        moved,
    })
}

/// The view of a map once it is there and nothing is under way.
pub(crate) async fn settled(watch: &Watch<'_>, map: &MapId) -> Result<MapView, ChangeError> {
    let begin = Instant::now();
    loop {
        let view = watch.client.map(watch.controller, map).await?;
        if view.pending.is_none() {
            return Ok(view);
        }
        if begin.elapsed() > SLACK {
            return Err(ChangeError::Late(view.version));
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn counters(watch: &Watch<'_>) -> Result<Vec<Scrape>, ClientError> {
    let mut all = Vec::new();
    for member in watch.members {
        all.push(Scrape::of(watch.client, &member.admin).await?);
    }
    Ok(all)
}

/// Octets of K and V of one token, all layers, codec raw.
pub(crate) fn token_octets(descriptor: &Descriptor) -> u64 {
    let (k, v) = descriptor.section_octets(1).unwrap_or_default();
    k.saturating_add(v).saturating_mul(u64::from(descriptor.layers))
}

impl Moved {
    /// Octets of K and V that its part of the plan demands, where all that it fetches is below the context's length.
    pub(crate) fn demanded(&self, descriptor: &Descriptor) -> u64 {
        self.tokens().saturating_mul(token_octets(descriptor))
    }

    /// Tokens that it fetches.
    pub(crate) fn tokens(&self) -> u64 {
        self.plan.fetch.iter().map(|part| part.tokens.tokens()).sum()
    }

    /// Tokens below `length` that stay with it.
    pub(crate) fn kept(&self, length: u64) -> u64 {
        let below = |range: &TokenRange| range.end().min(length).saturating_sub(range.start());
        self.plan.retain.iter().map(below).sum()
    }
}

impl Change {
    /// Octets that all members together fetched.
    pub(crate) fn fetched(&self) -> u64 {
        self.moved.iter().map(|moved| moved.fetched).sum()
    }

    /// Whether every member fetched exactly what its part of the plan demands, so that nothing moved for what stays.
    pub(crate) fn is_as_planned(&self, descriptor: &Descriptor) -> bool {
        self.moved.iter().all(|moved| moved.fetched == moved.demanded(descriptor))
    }

    /// From the request to the decision.
    pub(crate) fn to_decision(&self) -> Duration {
        self.decided.duration_since(self.asked)
    }

    /// From the request until every member had acknowledged.
    pub(crate) fn to_end(&self) -> Duration {
        self.settled.duration_since(self.asked)
    }
}
