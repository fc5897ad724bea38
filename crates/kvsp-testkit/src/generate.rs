//! Descriptors, keys, containers and records, the same for the same seed.

use bytes::Bytes;
use kvsp_proto::block_key::{ScopeKey, block_keys};
use kvsp_proto::container::Container;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::digest::replica_digest;
use kvsp_proto::id::{BlockKey, CompatId, NamedDigest, ScopeId};
use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::{Codec, ElementType, Tier};
use kvsp_proto::uri::HolderUri;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::json;

/// The shape of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Layers.
    pub layers: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Element type.
    pub element: ElementType,
}

impl Default for Geometry {
    /// Small enough that a test may make hundreds: 4 KiB of bfloat16 a block.
    fn default() -> Self {
        Self { layers: 4, kv_heads: 2, head_dim: 8, block_tokens: 16, element: ElementType::Bfloat16 }
    }
}

/// A descriptor of this shape; `model` makes it another's.
///
/// # Panics
/// The shape is not one that a descriptor can have.
#[must_use]
pub fn descriptor(model: &str, geometry: Geometry) -> Descriptor {
    let digest = format!("sha-256:{}", "5a".repeat(32));
    Descriptor::from_value(json!({
        "model": model,
        "model_digest": digest,
        "tokenizer_digest": digest,
        "layers": geometry.layers,
        "kv_heads": geometry.kv_heads,
        "head_dim": geometry.head_dim,
        "kv_dtype": geometry.element.as_str(),
        "positional": "rope",
        "block_tokens": geometry.block_tokens,
        "layout": "kvsp-layout-1",
    }))
    .expect("a valid shape")
}

/// A scope key of 32 octets.
///
/// # Panics
/// Never.
#[must_use]
pub fn scope_key(seed: u64) -> ScopeKey {
    let mut octets = vec![0; 32];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut octets);
    ScopeKey::new(octets).expect("32 octets")
}

/// `count` tokens.
#[must_use]
pub fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| random.next_u32() % 50_000).collect()
}

/// A container of one whole block of codec `raw`. The elements look like a cache's: small numbers, so that
/// a lossless codec finds something to do.
///
/// # Panics
/// The block does not fit into memory.
#[must_use]
pub fn container(descriptor: &Descriptor, seed: u64) -> Container {
    let (k, v) = descriptor.section_octets(descriptor.block_tokens).expect("sections fit 64 bits");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut section = |octets: u64| {
        section(&mut random, descriptor.kv_dtype, usize::try_from(octets).expect("fits memory"))
    };
    let sections: Vec<(Bytes, Bytes)> = (0..descriptor.layers).map(|_| (section(k), section(v))).collect();
    Container::build(Codec::RAW, 0, descriptor.block_tokens, &sections).expect("a valid container")
}

fn section(random: &mut ChaCha8Rng, element: ElementType, octets: usize) -> Bytes {
    let mut section = vec![0; octets];
    random.fill_bytes(&mut section);
    for pair in section.chunks_exact_mut(2) {
        let value = f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 16_384.0;
        match element {
            ElementType::Bfloat16 => pair.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
            ElementType::Float16 => pair.copy_from_slice(&half::f16::from_f32(value).to_le_bytes()),
            _ => break,
        }
    }
    section.into()
}

/// The record of a container that `holder` keeps in host memory, for ten minutes.
///
/// # Panics
/// The container has layers beyond those that a record can list.
#[must_use]
pub fn record(
    container: &Container,
    compat_id: CompatId,
    scope_id: ScopeId,
    block_key: BlockKey,
    holder: &HolderUri,
) -> ReplicaRecord {
    let layer_digests = container.layer_digests();
    let layers = container.layers();
    ReplicaRecord {
        block_key,
        compat_id,
        scope_id,
        holder: holder.clone(),
        codec: container.codec(),
        size: container.size(),
        digest: NamedDigest(replica_digest(&layer_digests)),
        layer_digests: Some(layer_digests),
        residency: vec![Residency {
            tier: Tier::Host,
            layers: LayerSpan(layers.first(), layers.last()),
            read_mbit_per_s: None,
        }],
        ttl_ms: 600_000,
        seq: None,
        holder_epoch: None,
        producer: None,
        moqt_namespace: None,
    }
}

/// A prompt's complete blocks with their contents.
#[derive(Debug)]
pub struct Prefix {
    /// The descriptor of the caches.
    pub descriptor: Descriptor,
    /// The key of the scope.
    pub scope_key: ScopeKey,
    /// The prompt.
    pub tokens: Vec<u32>,
    /// The keys of its complete blocks.
    pub keys: Vec<BlockKey>,
    /// One container a key.
    pub containers: Vec<Container>,
}

impl Prefix {
    /// A prompt of `blocks` complete blocks and a tail of one token.
    #[must_use]
    pub fn new(geometry: Geometry, seed: u64, blocks: usize) -> Self {
        let descriptor = descriptor("test/model", geometry);
        let scope_key = scope_key(seed);
        let tokens = tokens(seed, blocks * descriptor.block_tokens as usize + 1);
        let keys = block_keys(&scope_key, descriptor.compat_id(), descriptor.block_tokens, &tokens);
        let containers =
            (0..blocks as u64).map(|block| container(&descriptor, seed ^ (block << 32))).collect();
        Self { descriptor, scope_key, tokens, keys, containers }
    }

    /// The Compatibility ID.
    #[must_use]
    pub const fn compat(&self) -> CompatId {
        self.descriptor.compat_id()
    }

    /// The Scope ID.
    #[must_use]
    pub fn scope(&self) -> ScopeId {
        self.scope_key.scope_id()
    }

    /// The records of all blocks at `holder`.
    #[must_use]
    pub fn records(&self, holder: &HolderUri) -> Vec<ReplicaRecord> {
        let blocks = self.keys.iter().zip(&self.containers);
        blocks.map(|(key, container)| record(container, self.compat(), self.scope(), *key, holder)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_prefix() {
        let (one, two) = (Prefix::new(Geometry::default(), 1, 3), Prefix::new(Geometry::default(), 1, 3));
        assert_eq!((&one.keys, &one.containers), (&two.keys, &two.containers));
        assert_eq!((one.keys.len(), one.containers.len()), (3, 3));
        assert_ne!(one.containers[0], one.containers[1]);
        assert_ne!(one.keys, Prefix::new(Geometry::default(), 2, 3).keys);
        assert_eq!(one.containers[0].size(), one.descriptor.block_octets().unwrap());
        one.containers[0].check_geometry(&one.descriptor).unwrap();
    }

    #[test]
    fn a_record_is_one_that_is_accepted() {
        let prefix = Prefix::new(Geometry::default(), 1, 1);
        let record = &prefix.records(&"http://127.0.0.1:1/".parse().unwrap())[0];
        let read = ReplicaRecord::from_value(serde_json::to_value(record).unwrap()).unwrap();
        assert_eq!(read, *record);
    }
}
