//! The Replica Records of a directive's blocks, from the index.

use std::collections::HashMap;
use std::sync::Arc;

use kvsp_core::prefetch::Directive;
use kvsp_proto::id::BlockKey;
use kvsp_proto::message::{Detail, LookupRequest};
use kvsp_proto::record::ReplicaRecord;

use super::Load;

/// Lookups of one directive: each ends at the first block without a record, so a directive with more gaps
/// than this is not a prefix, and its remaining blocks count as unrecorded.
const MAX_LOOKUPS: usize = 16;

/// Ask the index for the records of all blocks still wanted and tell the directive. Without an index, or
/// without an answer, no block has a record.
pub(super) async fn look_up(load: &Load) {
    let wanted = load.with(|d| d.wanted());
    let mut records: HashMap<BlockKey, Vec<Arc<ReplicaRecord>>> = HashMap::new();
    if let Some(index) = &load.agent.config.index {
        let mut rest = wanted.as_slice();
        for _ in 0..MAX_LOOKUPS {
            if rest.is_empty() {
                break;
            }
            let request = LookupRequest {
                scope_id: load.scope,
                compat_id: load.compat,
                block_keys: rest.iter().map(|(_, key)| *key).collect(),
                targets: Vec::new(),
                detail: Detail::Full,
                block_tokens: None,
            };
            match load.agent.client.lookup(index, &request).await {
                Ok(answer) => {
                    let matched = usize::try_from(answer.matched).unwrap_or(usize::MAX).min(rest.len());
                    for block in answer.blocks.unwrap_or_default() {
                        records.insert(block.block_key, block.replicas);
                    }
                    rest = rest.get(matched + 1..).unwrap_or_default();
                }
                Err(error) => {
                    tracing::warn!(%error, "the index did not answer; nothing can be prefetched");
                    break;
                }
            }
        }
    }
    load.with(|directive: &mut Directive| {
        for (index, key) in wanted {
            directive.recorded(index, records.get(&key).map_or(&[], Vec::as_slice));
        }
    });
}
