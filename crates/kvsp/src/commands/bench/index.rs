//! Lookups in a large index, and the memory that a replica takes in it.

use std::hint::black_box;

use kvsp_core::index::{Index, IndexConfig, Publisher};
use kvsp_core::time::Time;
use kvsp_proto::id::{BlockKey, CompatId, Digest, NamedDigest, ScopeId};
use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::{Codec, Tier};
use kvsp_proto::uri::HolderUri;

use super::BenchError;
use super::measure::{Series, figure, sample};
use super::report::Bench;
use crate::progress;

/// Blocks of one prompt, published in prefix order.
const PREFIX: usize = 2048;
/// Layer digests of a replica, of which no two are equal.
const LAYERS: u32 = 32;
const KEYS: [usize; 3] = [64, 512, 2048];
const COMPAT: CompatId = CompatId([0xc3; 32]);
const SCOPE: ScopeId = ScopeId([0x5c; 16]);
const HOLDER: &str = "https://h1.example/kvsp/";
const NOW: Time = Time::from_millis(1);

/// Measures lookups a second and resident octets of a replica.
pub(super) fn measure(quick: bool) -> Result<Bench, BenchError> {
    let (replicas, rounds) = if quick { (100_000, 3) } else { (1_000_000, 9) };
    let bar = progress::spinner("lookup".to_owned());
    let before = resident_octets()?;
    let index = publish(replicas)?;
    let resident = resident_octets()?.saturating_sub(before) as f64;
    let prefixes: Vec<Vec<BlockKey>> = (0..replicas)
        .step_by(PREFIX)
        .map(|first| (first..replicas.min(first + PREFIX)).map(key).collect())
        .collect();
    let mut figures = Vec::new();
    for keys in KEYS {
        let mut counts = Series::new(format!("lookups of {keys} keys among {replicas} replicas"));
        let lookups = 4_000_000 / keys;
        // The first round warms up and is thrown away.
        for round in 0..=rounds {
            let (matched, took) = sample(|| Ok(look_up(&index, &prefixes, keys, lookups, false)))?;
            if matched == 0 {
                return Err(BenchError::Differ("lookups"));
            }
            if round > 0 {
                counts.push(took);
            }
        }
        figures.push(counts.rate(lookups as f64, "lookups/s"));
    }
    let mut records = Series::new("lookups of 512 keys with whole records".to_owned());
    for _ in 0..rounds {
        records.push(sample(|| Ok(look_up(&index, &prefixes, 512, 500, true)))?.1);
    }
    figures.push(records.rate(500.0, "lookups/s"));
    figures.push(figure(
        format!("resident octets of a replica with {LAYERS} layer digests"),
        "octets",
        [resident / replicas as f64],
    ));
    bar.finish_and_clear();
    let notes = vec![
        format!("{replicas} replicas of one holder in prompts of {PREFIX} blocks, published in prefix order"),
        "a lookup takes the leading keys of one prompt after the other and counts matched and complete blocks, \
         one thread, without HTTP and JSON"
            .to_owned(),
        "memory is the growth of the resident set (VmRSS) while the records were published; memory \
         that other measurements left behind in the same process makes it look smaller"
            .to_owned(),
    ];
    Ok(Bench { name: "lookup", figures, notes })
}

/// Keys matched by `lookups` lookups, each of another prompt than the one before.
fn look_up(index: &Index, prefixes: &[Vec<BlockKey>], keys: usize, lookups: usize, records: bool) -> usize {
    let prompts = prefixes.iter().cycle().step_by(7).take(lookups);
    let matched = prompts.map(|prompt| {
        let asked = prompt.get(..keys).unwrap_or(prompt);
        let found = index.lookup(COMPAT, SCOPE, black_box(asked), NOW);
        if records {
            for block in found.blocks() {
                black_box(block.replicas().map(|replica| replica.to_record(true)).collect::<Vec<_>>());
            }
        }
        black_box(found.complete().min(found.matched()))
    });
    matched.sum()
}

fn publish(replicas: usize) -> Result<Index, BenchError> {
    let config =
        IndexConfig { max_records: replicas, max_records_per_holder: replicas, ..IndexConfig::default() };
    let mut index = Index::new(config, [mix(1), mix(2), mix(3), mix(4)]);
    let holder: HolderUri = HOLDER.parse().map_err(|_| BenchError::Differ("the holder's URI"))?;
    for n in 0..replicas {
        let published = index.put(&record(n, &holder), Publisher::Holder, NOW);
        published.map_err(|_| BenchError::Differ("published records"))?;
    }
    Ok(index)
}

fn record(n: usize, holder: &HolderUri) -> ReplicaRecord {
    let digests = (0..LAYERS).map(|layer| Digest(octets(n as u64 * 64 + u64::from(layer) + 1)));
    ReplicaRecord {
        block_key: key(n),
        compat_id: COMPAT,
        scope_id: SCOPE,
        holder: holder.clone(),
        codec: Codec::RAW,
        size: 2_097_152,
        digest: NamedDigest(Digest(octets(n as u64 * 64 + 63))),
        layer_digests: Some(digests.collect()),
        residency: vec![Residency {
            tier: Tier::Host,
            layers: LayerSpan(0, LAYERS - 1),
            read_mbit_per_s: Some(400_000.0),
        }],
        ttl_ms: 600_000,
        seq: Some(1),
        holder_epoch: Some(1),
        producer: Some("https://ii7.example/kvsp/".to_owned()),
        moqt_namespace: None,
    }
}

fn key(n: usize) -> BlockKey {
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

const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `VmRSS`, which the system gives in units of 1,024 octets.
fn resident_octets() -> Result<u64, BenchError> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(BenchError::io("/proc/self/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib.saturating_mul(1024)).ok_or(BenchError::Differ("VmRSS"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_key_is_found() {
        let index = publish(5_000).unwrap();
        let keys: Vec<BlockKey> = (0..5_000).map(key).collect();
        let found = index.lookup(COMPAT, SCOPE, &keys, NOW);
        assert_eq!((found.matched(), found.complete(), index.len()), (5_000, 5_000, 5_000));
        assert_eq!(look_up(&index, &[keys], 64, 10, true), 640);
    }
}
