//! The records that are published and looked up.

use kvsp_proto::digest::replica_digest;
use kvsp_proto::fast::write::RecordParts;
use kvsp_proto::id::{BlockKey, Digest, NamedDigest};
use kvsp_proto::message::Detail;
use kvsp_proto::path;
use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::{Codec, Tier};
use kvsp_proto::uri::HolderUri;

use super::super::blocks::{COMPAT, CONTAINER_OCTETS, LAYERS, SCOPE};
use super::super::child::{Service, address_of};
use super::super::error::BenchError;
use super::super::wire::{Wire, http_request};

const HOLDER: &str = "https://h1.example/kvsp/";
const JSON: (&str, &str) = ("content-type", "application/kvsp+json");
/// Records of a batch that fills the index.
const FILL: usize = 1000;

/// From this block on records have no layer digests: they are there to fill the tables.
pub(super) const FILLER: usize = 200 * 512;

/// The record of one block, with layer digests of which no two are equal.
pub(super) fn record(block: usize) -> Result<ReplicaRecord, BenchError> {
    let holder: HolderUri = HOLDER.parse().map_err(|_| BenchError::Differ("the holder's URI"))?;
    let seed = block as u64 * 64;
    let digests: Vec<_> = (0..LAYERS).map(|n| Digest(octets(seed + 1 + u64::from(n)))).collect();
    Ok(ReplicaRecord {
        block_key: key(block),
        compat_id: COMPAT,
        scope_id: SCOPE,
        holder,
        codec: Codec::RAW,
        size: CONTAINER_OCTETS as u64,
        digest: NamedDigest(replica_digest(&digests)),
        layer_digests: (block < FILLER).then_some(digests),
        residency: vec![Residency {
            tier: Tier::Host,
            layers: LayerSpan(0, LAYERS - 1),
            read_mbit_per_s: Some(400_000.0),
        }],
        ttl_ms: 3_600_000,
        seq: Some(1),
        holder_epoch: Some(1),
        producer: None,
        moqt_namespace: None,
    })
}

pub(super) fn key(block: usize) -> BlockKey {
    BlockKey(octets(block as u64 * 64))
}

/// 32 octets that look like the output of a hash.
fn octets(seed: u64) -> [u8; 32] {
    let mut all = [0; 32];
    for (word, at) in all.chunks_exact_mut(8).zip(1_u64..) {
        word.copy_from_slice(&mix(seed.wrapping_mul(5).wrapping_add(at)).to_le_bytes());
    }
    all
}

const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A record as JSON.
pub(super) fn text(record: &ReplicaRecord) -> Vec<u8> {
    let mut out = Vec::new();
    RecordParts::of(record).write(&mut out);
    out
}

/// The octets of a batch that publishes these blocks.
pub(super) fn batch(index: &Service, blocks: impl IntoIterator<Item = usize>) -> Result<Vec<u8>, BenchError> {
    let mut body = b"{\"put\":[".to_vec();
    for (n, block) in blocks.into_iter().enumerate() {
        if n > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&text(&record(block)?));
    }
    body.extend_from_slice(b"]}");
    let path = format!("{}{}", index.base().path(), path::REPLICAS);
    Ok(http_request("POST", &path, &[JSON], &body))
}

/// The octets of a PUT of one block's record.
pub(super) fn put(index: &Service, block: usize) -> Result<Vec<u8>, BenchError> {
    let record = record(block)?;
    let path = path::replica(COMPAT, SCOPE, record.block_key, &record.holder);
    let path = format!("{}{path}", index.base().path());
    Ok(http_request("PUT", &path, &[JSON], &text(&record)))
}

/// The octets of a lookup of `count` blocks from `first` on.
pub(super) fn lookup(index: &Service, first: usize, count: usize, detail: Detail) -> Vec<u8> {
    let keys: Vec<_> = (first..first + count).map(|block| format!("\"{}\"", key(block))).collect();
    let detail = match detail {
        Detail::Full => "full",
        Detail::Location => "location",
        Detail::None => "none",
    };
    let body = format!(
        r#"{{"scope_id":"{SCOPE}","compat_id":"{COMPAT}","block_keys":[{}],"detail":"{detail}"}}"#,
        keys.join(",")
    );
    let path = format!("{}{}", index.base().path(), path::LOOKUP);
    http_request("POST", &path, &[JSON], body.as_bytes())
}

/// Publishes blocks 0 to `count`.
pub(super) fn fill(index: &Service, count: usize) -> Result<(), BenchError> {
    let mut wire = Wire::connect(address_of(index.base())?, 1 << 20)?;
    for first in (0..count).step_by(FILL) {
        wire.send(&batch(index, first..count.min(first + FILL))?)?;
        good_batch(&mut wire)?;
    }
    Ok(())
}

/// Takes the answer to a batch, of which no item may have failed.
pub(super) fn good_batch(wire: &mut Wire) -> Result<(), BenchError> {
    let answer = wire.http()?;
    let body = answer.good("a batch")?;
    // A problem is an object within the item; a good one has its TTL alone.
    if body.windows(9).any(|window| window == b"\"problem\"") {
        return Err(BenchError::Differ("a batch and its answer"));
    }
    Ok(())
}
