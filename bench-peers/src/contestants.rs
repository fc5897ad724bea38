//! What is compared: all answer how many leading keys are known.

use std::hash::{BuildHasherDefault, Hasher};

use dashmap::DashMap;
use dynamo_kv_router::indexer::concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::radix_tree::RadixTree;
use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheStoreData, KvCacheStoredBlockData,
    LocalBlockHash, RouterEvent,
};
use hashbrown::HashMap;
use kvsp_core::index::{Index, IndexConfig, Publisher};
use kvsp_core::time::Time;
use kvsp_proto::id::{BlockKey, CompatId, Digest, NamedDigest, ScopeId};
use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::{Codec, Tier};

use crate::keys::{PROMPT, key, local, mix};

pub const COMPAT: CompatId = CompatId([0xc3; 32]);
pub const SCOPE: ScopeId = ScopeId([0x5c; 16]);
pub const NOW: Time = Time::from_millis(1);
const TTL_MS: u64 = 600_000;

/// One index, filled.
pub trait Contestant {
    /// Leading keys that are known and live. The keys come in both forms.
    fn look_up(&self, keys: &[BlockKey], locals: &[LocalBlockHash]) -> usize;
}

/// The index of this project, quiet: 256-bit keys, whole records, deadlines, completeness.
impl Contestant for Index {
    fn look_up(&self, keys: &[BlockKey], _: &[LocalBlockHash]) -> usize {
        let found = self.lookup(COMPAT, SCOPE, keys, NOW);
        found.matched().min(found.complete())
    }
}

pub fn record(n: usize) -> ReplicaRecord {
    ReplicaRecord {
        block_key: key(n),
        compat_id: COMPAT,
        scope_id: SCOPE,
        holder: format!("https://h{}.example/kvsp/", n / PROMPT % 16).parse().expect("a base URI"),
        codec: Codec::RAW,
        size: 2_097_152,
        digest: NamedDigest(Digest(key(n + (1 << 40)).0)),
        layer_digests: None,
        residency: vec![Residency { tier: Tier::Host, layers: LayerSpan(0, 31), read_mbit_per_s: None }],
        ttl_ms: TTL_MS,
        seq: Some(1),
        holder_epoch: None,
        producer: None,
        moqt_namespace: None,
    }
}

/// An index with the blocks in an order of publication.
pub fn index(order: impl Iterator<Item = usize>, blocks: usize) -> Index {
    let config = IndexConfig {
        max_records: blocks,
        max_records_per_holder: blocks,
        max_octets: u64::MAX,
        ..IndexConfig::default()
    };
    let mut index = Index::new(config, [mix(1), mix(2), mix(3), mix(4)]);
    for n in order {
        index.put(&record(n), Publisher::Holder, NOW).expect("there is room");
    }
    index
}

/// A hash that is the first word of the key, because keys are hashes already.
#[derive(Default)]
pub struct Identity(u64);

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
pub type Map = HashMap<BlockKey, u64, BuildHasherDefault<Identity>>;

impl Contestant for Map {
    fn look_up(&self, keys: &[BlockKey], _: &[LocalBlockHash]) -> usize {
        keys.iter()
            .take_while(|key| self.get(*key).is_some_and(|&deadline| deadline > NOW.as_micros()))
            .count()
    }
}

pub fn map(order: impl Iterator<Item = usize>) -> Map {
    order.map(|n| (key(n), NOW.after_millis(TTL_MS).as_micros())).collect()
}

/// The same in a map of many locks.
pub type Dash = DashMap<BlockKey, u64, BuildHasherDefault<Identity>>;

impl Contestant for Dash {
    fn look_up(&self, keys: &[BlockKey], _: &[LocalBlockHash]) -> usize {
        let live = |key: &&BlockKey| self.get(*key).is_some_and(|deadline| *deadline > NOW.as_micros());
        keys.iter().take_while(live).count()
    }
}

pub fn dash(order: impl Iterator<Item = usize>) -> Dash {
    order.map(|n| (key(n), NOW.after_millis(TTL_MS).as_micros())).collect()
}

/// Dynamo's radix tree with compressed edges: 64-bit hashes, a score for each worker.
impl Contestant for ConcurrentRadixTreeCompressed {
    fn look_up(&self, _: &[BlockKey], locals: &[LocalBlockHash]) -> usize {
        self.find_matches(locals, false).scores.values().max().map_or(0, |&score| score as usize)
    }
}

pub fn compressed_radix(blocks: usize) -> ConcurrentRadixTreeCompressed {
    let tree = ConcurrentRadixTreeCompressed::new();
    let (send, receive) = flume::unbounded();
    for prompt in 0..blocks / PROMPT {
        send.send(WorkerTask::Event(stored(prompt))).expect("the receiver is here");
    }
    drop(send);
    tree.worker(receive, None).expect("the events are applied");
    tree
}

/// Dynamo's plain radix tree, a node for each block. It takes the sequence by value; the copy is part of
/// asking it.
impl Contestant for RadixTree {
    fn look_up(&self, _: &[BlockKey], locals: &[LocalBlockHash]) -> usize {
        let found = self.find_matches(locals.to_vec(), false);
        found.scores.values().max().map_or(0, |&score| score as usize)
    }
}

pub fn radix(blocks: usize) -> RadixTree {
    let mut tree = RadixTree::new();
    for prompt in 0..blocks / PROMPT {
        tree.apply_event(stored(prompt)).expect("the event is applied");
    }
    tree
}

/// A prompt as its worker announces it.
fn stored(prompt: usize) -> RouterEvent {
    let blocks = (prompt * PROMPT..(prompt + 1) * PROMPT)
        .map(|n| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(mix(n as u64 ^ (1 << 50))),
            tokens_hash: local(n),
            mm_extra_info: None,
        })
        .collect();
    let data = KvCacheEventData::Stored(KvCacheStoreData { parent_hash: None, start_position: None, blocks });
    let event = KvCacheEvent { event_id: prompt as u64, data, dp_rank: 0 };
    RouterEvent::new((prompt % 16) as u64, event)
}
