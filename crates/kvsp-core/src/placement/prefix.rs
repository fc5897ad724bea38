//! The complete blocks of a prompt, as the index answered them.

use std::sync::Arc;

use kvsp_proto::id::BlockKey;
use kvsp_proto::message::LookupAnswer;
use kvsp_proto::record::ReplicaRecord;

use crate::estimate::Block;

/// One complete block.
#[derive(Debug, Clone, PartialEq)]
pub struct PrefixBlock {
    /// Its key.
    pub key: BlockKey,
    /// Its live replicas, ordered by holder.
    pub replicas: Vec<Arc<ReplicaRecord>>,
}

/// The leading complete blocks of a prompt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prefix {
    /// The blocks, in prefix order.
    pub blocks: Vec<PrefixBlock>,
    /// L, where a descriptor says it.
    pub layers: Option<u32>,
}

impl Prefix {
    /// The complete blocks of a lookup of `keys`. The index may be wrong, so what it answers beyond the
    /// keys, or for another key, or without replicas, ends the prefix.
    #[must_use]
    pub fn of(answer: LookupAnswer, keys: &[BlockKey], layers: Option<u32>) -> Self {
        let complete = usize::try_from(answer.complete).unwrap_or(usize::MAX);
        let blocks = answer
            .blocks
            .unwrap_or_default()
            .into_iter()
            .zip(keys)
            .take(complete)
            .take_while(|(block, key)| block.block_key == **key && !block.replicas.is_empty())
            .map(|(block, _)| PrefixBlock { key: block.block_key, replicas: block.replicas })
            .collect();
        Self { blocks, layers }
    }

    pub(super) fn blocks_for_estimates(&self) -> Vec<Block<'_>> {
        self.blocks
            .iter()
            .map(|block| Block::of(block.replicas.iter().map(Arc::as_ref), self.layers))
            .collect()
    }
}
