//! What the indexes are filled with.

use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;
use kvsp_core::index::{Index, IndexConfig, Publisher};
use kvsp_core::time::Time;
use kvsp_proto::id::{BlockKey, CompatId, Digest, NamedDigest, ScopeId};
use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::{Codec, Tier};

use super::BenchError;

/// Blocks of a prompt, and keys of a lookup.
pub(super) const PROMPT: usize = 512;
pub(super) const LAYERS: u32 = 32;
pub(super) const COMPAT: CompatId = CompatId([0xc3; 32]);
pub(super) const SCOPE: ScopeId = ScopeId([0x5c; 16]);
pub(super) const NOW: Time = Time::from_millis(1);
pub(super) const TTL_MS: u64 = 600_000;

/// Layer digests of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Digests {
    None,
    Unique,
}

pub(super) fn empty(records: usize) -> Index {
    let config = IndexConfig {
        max_records: records,
        max_records_per_holder: records,
        max_octets: u64::MAX,
        ..IndexConfig::default()
    };
    Index::new(config, [mix(1), mix(2), mix(3), mix(4)])
}

pub(super) fn publish(
    index: &mut Index,
    order: impl Iterator<Item = usize>,
    holder: usize,
    digests: Digests,
) -> Result<(), BenchError> {
    for n in order {
        let published = index.put(&record(n, holder, digests)?, Publisher::Holder, NOW);
        published.map_err(|_| BenchError::Differ("published records"))?;
    }
    Ok(())
}

pub(super) fn record(n: usize, holder: usize, digests: Digests) -> Result<ReplicaRecord, BenchError> {
    let holder = format!("https://h{holder}.example/kvsp/");
    let list = || (1..=LAYERS).map(|layer| Digest(octets(n as u64 * 64 + u64::from(layer)))).collect();
    Ok(ReplicaRecord {
        block_key: key(n),
        compat_id: COMPAT,
        scope_id: SCOPE,
        holder: holder.parse().map_err(|_| BenchError::Differ("the holder's URI"))?,
        codec: Codec::RAW,
        size: 2_097_152,
        digest: NamedDigest(Digest(octets(n as u64 * 64 + 63))),
        layer_digests: (digests == Digests::Unique).then(list),
        residency: vec![Residency {
            tier: Tier::Host,
            layers: LayerSpan(0, LAYERS - 1),
            read_mbit_per_s: Some(400_000.0),
        }],
        ttl_ms: TTL_MS,
        seq: Some(1),
        holder_epoch: Some(1),
        producer: Some("https://ii7.example/kvsp/".to_owned()),
        moqt_namespace: None,
    })
}

/// A hash that is the first word of the key, because keys are hashes already.
#[derive(Debug, Default)]
pub(super) struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, octets: &[u8]) {
        if let Some(word) = octets.first_chunk::<8>() {
            self.0 = u64::from_le_bytes(*word);
        }
    }

    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A hash map from keys to deadlines.
pub(super) type Map = HashMap<BlockKey, Time, BuildHasherDefault<Identity>>;

pub(super) fn map(blocks: usize) -> Map {
    (0..blocks).map(|n| (key(n), NOW.after_millis(TTL_MS))).collect()
}

/// `0..n` in an order that has nothing to do with the numbers.
pub(super) fn shuffled(n: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..n).collect();
    for at in (1..n).rev() {
        all.swap(at, (mix(at as u64 ^ 0x5eed) % (at as u64 + 1)) as usize);
    }
    all
}

pub(super) fn key(n: usize) -> BlockKey {
    BlockKey(octets(n as u64 * 64))
}

/// 32 octets that look like the output of a hash.
fn octets(seed: u64) -> [u8; 32] {
    let mut all = [0; 32];
    for (word, at) in all.chunks_exact_mut(8).zip(1_u64..) {
        word.copy_from_slice(&mix(seed.wrapping_mul(5).wrapping_add(at)).to_le_bytes());
    }
    all
}

pub(super) const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
