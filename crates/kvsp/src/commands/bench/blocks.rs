//! The blocks that are carried about.

use kvsp_buffer::PageBuffer;
use kvsp_proto::container::{Container, Limits};
use kvsp_proto::digest::replica_digest;
use kvsp_proto::id::{BlockKey, CompatId, NamedDigest, ScopeId};
use kvsp_proto::path;
use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::{Codec, Tier};
use kvsp_proto::uri::BaseUri;

use super::error::BenchError;

pub(super) const COMPAT: CompatId = CompatId([0xc3; 32]);
pub(super) const SCOPE: ScopeId = ScopeId([0x5c; 16]);
/// 32 layers of 64 KiB, as of a model with 8 KV heads of 64 dimensions of 2 octets and blocks of 32 tokens.
pub(super) const LAYERS: u32 = 32;
const SECTION_OCTETS: usize = 32 << 10;
const BLOCK_TOKENS: u32 = 32;
/// Octets of a container's header with its table.
pub(super) const HEADER_OCTETS: usize = 20 + 16 * LAYERS as usize;
pub(super) const LAYER_OCTETS: usize = 2 * SECTION_OCTETS;
/// Octets of a container.
pub(super) const CONTAINER_OCTETS: usize = HEADER_OCTETS + LAYERS as usize * LAYER_OCTETS;

/// Containers of different contents; what is in them does not change the speed. Each begins at a page.
pub(super) fn containers(blocks: usize) -> Result<Vec<Container>, BenchError> {
    (0..blocks as u64).map(container).collect()
}

fn container(block: u64) -> Result<Container, BenchError> {
    let mut state = block.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut section = || -> Vec<u8> {
        let words = std::iter::repeat_with(|| {
            // Xorshift: not random, but different.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        words.take(SECTION_OCTETS / 8).flatten().collect()
    };
    let sections: Vec<_> = (0..LAYERS).map(|_| (section(), section())).collect();
    let built = Container::build(Codec::RAW, 0, BLOCK_TOKENS, &sections)?;
    let mut aligned = PageBuffer::unpooled(built.bytes().len()).ok_or(BenchError::Memory)?;
    aligned.copy_from_slice(built.bytes());
    let limits = Limits { max_octets: built.size(), max_layers: LAYERS };
    let container = Container::parse(aligned.freeze(), &limits);
    container.map_err(|_| BenchError::Differ("a container and its octets"))
}

/// The key of a block.
pub(super) fn key(block: u64) -> BlockKey {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&block.to_be_bytes());
    BlockKey(key)
}

/// The path of a block's resource below a service's base.
pub(super) fn block_path(block: u64) -> String {
    path::block(COMPAT, SCOPE, key(block))
}

/// The record of a block at a holder.
pub(super) fn record(block: u64, container: &Container, holder: &BaseUri) -> ReplicaRecord {
    let digests = container.layer_digests();
    ReplicaRecord {
        block_key: key(block),
        compat_id: COMPAT,
        scope_id: SCOPE,
        holder: holder.into(),
        codec: container.codec(),
        size: container.size(),
        digest: NamedDigest(replica_digest(&digests)),
        layer_digests: Some(digests),
        residency: vec![Residency {
            tier: Tier::Host,
            layers: LayerSpan(0, LAYERS - 1),
            read_mbit_per_s: None,
        }],
        ttl_ms: 600_000,
        seq: None,
        holder_epoch: None,
        producer: None,
        moqt_namespace: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_shape_that_the_limits_expect() {
        let containers = containers(2).unwrap();
        assert_eq!(containers[0].bytes().len(), CONTAINER_OCTETS);
        assert_eq!(containers[0].header().octets(), HEADER_OCTETS);
        assert_eq!(containers[0].layer_octets(1).unwrap().len(), LAYER_OCTETS);
        assert_ne!(containers[0].bytes(), containers[1].bytes());
        assert_eq!(containers[1].bytes().as_ptr().align_offset(4096), 0);
    }
}
