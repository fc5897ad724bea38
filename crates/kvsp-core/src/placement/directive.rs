//! The prefetch directive of a placement (draft section 6.5).

use std::collections::BTreeMap;

use kvsp_proto::id::{CompatId, Digest, ScopeId};
use kvsp_proto::message::{DirectiveBlock, LayerOrder, PrefetchDirective};
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::registry::{Codec, Tier};
use kvsp_proto::uri::{BaseUri, HolderUri};
use uuid::Uuid;

use super::{Prefix, PrefixBlock, Ranked};
use crate::index::covers;

/// Bounds of the times that a directive carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectiveBounds {
    /// The shortest deadline, in ms.
    pub min_deadline_ms: u64,
    /// The longest deadline, in ms.
    pub max_deadline_ms: u64,
    /// The longest lease, in ms.
    pub max_lease_ms: u64,
}

impl Default for DirectiveBounds {
    fn default() -> Self {
        Self { min_deadline_ms: 100, max_deadline_ms: 30_000, max_lease_ms: 60_000 }
    }
}

/// What names a directive and its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectiveIds {
    /// The directive.
    pub directive: Uuid,
    /// The request that it is for.
    pub request_ref: String,
    /// The scope of the blocks.
    pub scope_id: ScopeId,
    /// Their compatibility.
    pub compat_id: CompatId,
}

/// The directive for the blocks that are worth loading at an instance and not resident there; `None`
/// where there is none.
///
/// The deadline is twice the time that loading should take, but no less than half of the time that computing
/// the prompt would: estimates of a loaded machine are wrong by more than a factor, layers that come late are
/// still worth having, and a source from which nothing comes costs half of a recomputation at most. Where
/// loading cannot be estimated it is the time that computing would take. A lease lasts as long again.
#[must_use]
pub fn directive(
    ranked: &Ranked,
    prefix: &Prefix,
    ids: DirectiveIds,
    bounds: &DirectiveBounds,
) -> Option<PrefetchDirective> {
    let instance = HolderUri::from(ranked.instance());
    let blocks: Vec<DirectiveBlock> = prefix
        .blocks
        .iter()
        .take(ranked.load)
        .filter_map(|block| wanted(block, &instance, prefix.layers))
        .collect();
    if blocks.is_empty() {
        return None;
    }
    let us = match (ranked.load_us, ranked.candidate.recompute_us) {
        (Some(load), compute) => load.saturating_mul(2).max(compute.unwrap_or(0) / 2),
        (None, Some(compute)) => compute,
        (None, None) => u64::MAX,
    };
    let longest = bounds.max_deadline_ms.max(bounds.min_deadline_ms);
    let deadline_ms = us.div_ceil(1000).clamp(bounds.min_deadline_ms, longest);
    Some(PrefetchDirective {
        directive: ids.directive,
        request_ref: Some(ids.request_ref),
        scope_id: ids.scope_id,
        compat_id: ids.compat_id,
        blocks,
        layer_order: LayerOrder::Ascending,
        deadline_ms,
        lease_ms: deadline_ms.saturating_mul(2).min(bounds.max_lease_ms).max(1),
    })
}

/// A block with its sources, unless it is resident at the instance or no source of it speaks HTTP. What
/// the instance has on disk it loads from itself, the last of the sources.
fn wanted(block: &PrefixBlock, instance: &HolderUri, layers: Option<u32>) -> Option<DirectiveBlock> {
    let group = complete_group(block, layers)?;
    let own = group.iter().find(|record| record.holder == *instance);
    if own.is_some_and(|own| is_resident(own, layers_of(block, layers))) {
        return None;
    }
    let sources: Vec<BaseUri> = group
        .iter()
        .filter(|record| record.holder != *instance)
        .chain(own)
        .filter_map(|record| record.http_holder())
        .collect();
    (!sources.is_empty()).then_some(DirectiveBlock { block_key: block.key, sources })
}

/// The replicas of one computation that hold every layer together; of several such groups the one with
/// the most replicas, so that one holder's failure costs the least.
fn complete_group(block: &PrefixBlock, layers: Option<u32>) -> Option<Vec<&ReplicaRecord>> {
    let layers = layers_of(block, layers);
    let mut groups: BTreeMap<(Digest, Codec), Vec<&ReplicaRecord>> = BTreeMap::new();
    for record in &block.replicas {
        groups.entry((record.digest.0, record.codec)).or_default().push(record);
    }
    let complete = groups.into_values().filter(|group| {
        let mut spans: Vec<_> =
            group.iter().flat_map(|r| r.residency.iter().map(|held| held.layers)).collect();
        spans.sort_unstable();
        covers(spans.into_iter(), layers)
    });
    complete.reduce(|most, group| if group.len() > most.len() { group } else { most })
}

fn layers_of(block: &PrefixBlock, layers: Option<u32>) -> u32 {
    let listed = || {
        block.replicas.iter().filter_map(|r| r.layer_digests.as_ref().map(Vec::len)).max().map(|n| n as u32)
    };
    let highest = || block.replicas.iter().flat_map(|r| r.residency.iter().map(|held| held.layers.1)).max();
    layers.or_else(listed).or_else(|| highest().map(|layer| layer.saturating_add(1))).unwrap_or(0)
}

fn is_resident(record: &ReplicaRecord, layers: u32) -> bool {
    let mut spans: Vec<_> = record
        .residency
        .iter()
        .filter(|held| matches!(held.tier, Tier::Device | Tier::Host))
        .map(|held| held.layers)
        .collect();
    spans.sort_unstable();
    covers(spans.into_iter(), layers)
}
