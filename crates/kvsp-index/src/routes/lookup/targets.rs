//! Estimates for the targets of a lookup (draft section 6.4).

use kvsp_core::estimate::{Block, Target, fetch_us, recompute_us};
use kvsp_core::index::BlockView;
use kvsp_core::time::Time;
use kvsp_proto::message::TargetEstimate;
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::uri::BaseUri;

use crate::service::IndexService;

/// The matched prefix, as far as estimates go.
#[derive(Default)]
pub(super) struct Prefix {
    pub(super) matched: usize,
    pub(super) complete: usize,
    pub(super) block_tokens: Option<u32>,
    blocks: Vec<Found>,
}

/// A matched block, taken out of the index.
struct Found {
    layers: u32,
    records: Vec<ReplicaRecord>,
}

impl Prefix {
    /// Takes a block out of the index, so that estimates need no lock.
    pub(super) fn take(&mut self, block: &BlockView<'_>) {
        let records = block.replicas().map(|replica| replica.to_record(false)).collect();
        self.blocks.push(Found { layers: block.layers(), records });
    }
}

pub(super) fn estimates(
    service: &IndexService,
    targets: &[BaseUri],
    prefix: &Prefix,
    now: Time,
) -> Vec<TargetEstimate> {
    if targets.is_empty() {
        return Vec::new();
    }
    let complete = prefix.blocks.get(..prefix.complete).unwrap_or_default();
    let blocks: Vec<Block<'_>> =
        complete.iter().map(|block| Block::of(&block.records, Some(block.layers))).collect();
    let tokens = prefix.block_tokens.map(|n| (prefix.complete as u64).saturating_mul(u64::from(n)));
    let statuses: Vec<_> =
        targets.iter().map(|target| service.instances().live_status(target, now)).collect();
    targets
        .iter()
        .zip(statuses)
        .map(|(target, status)| TargetEstimate {
            instance: target.clone(),
            fetch_us: status.as_ref().and_then(|status| fetch_us(&Target::of(status), &blocks)),
            recompute_us: status
                .as_ref()
                .zip(tokens)
                .and_then(|(status, tokens)| recompute_us(tokens, status.prefill_tokens_per_s)),
        })
        .collect()
}
