//! Costs with exact numbers, the order of candidates, and the directive that follows.

use std::sync::Arc;

use kvsp_proto::digest::replica_digest;
use kvsp_proto::id::{BlockKey, CompatId, Digest, NamedDigest, ScopeId};
use kvsp_proto::message::{LookupAnswer, LookupBlock, PrefetchDirective};
use kvsp_proto::record::{InstanceStatus, ReplicaRecord};
use kvsp_proto::uri::BaseUri;
use serde_json::json;
use uuid::Uuid;

use super::{DirectiveBounds, DirectiveIds, Prefix, Ranked, Request, directive, rank};
use crate::instances::ActiveInstance;

/// 8 Mbit: 8,000 µs at 1,000 Mbit/s.
const BLOCK_OCTETS: u64 = 1_000_000;

struct Fleet(Vec<ActiveInstance>);

impl Fleet {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn with(mut self, name: &str, prefill: f64, links: &[(&str, f64)], queued: u64, service: f64) -> Self {
        let links: Vec<_> = links
            .iter()
            .map(|(h, rate)| json!({"holder": format!("https://{h}/"), "mbit_per_s": rate, "rtt_us": 10}))
            .collect();
        let status = InstanceStatus::from_value(json!({
            "instance": format!("https://{name}/"), "epoch": 1, "state": "active", "ttl_ms": 1000,
            "prefill_tokens_per_s": prefill, "links": links
        }))
        .unwrap();
        self.0.push(ActiveInstance { status: Arc::new(status), queued, mean_service_us: service });
        self
    }
}

fn key(n: usize) -> BlockKey {
    BlockKey([n as u8; 32])
}

fn record(block: usize, holder: &str, tier: &str, last: u32, digest: u8) -> Arc<ReplicaRecord> {
    let digests = [Digest([digest; 32]), Digest([2; 32])];
    let record = json!({
        "block_key": key(block), "compat_id": "22".repeat(32), "scope_id": "33".repeat(16),
        "holder": holder, "codec": 1, "size": BLOCK_OCTETS, "digest": NamedDigest(replica_digest(&digests)),
        "layer_digests": digests, "residency": [{"tier": tier, "layers": [0, last]}], "ttl_ms": 1000,
        "moqt_namespace": "AWEBYgFjAWQBZQ"
    });
    Arc::new(ReplicaRecord::from_value(record).unwrap())
}

fn prefix(blocks: Vec<Vec<Arc<ReplicaRecord>>>) -> Prefix {
    let keys: Vec<BlockKey> = (0..blocks.len()).map(key).collect();
    let count = blocks.len() as u64;
    let blocks = blocks
        .into_iter()
        .enumerate()
        .map(|(n, replicas)| LookupBlock { block_key: key(n), replicas })
        .collect();
    let answer = LookupAnswer { matched: count, complete: count, blocks: Some(blocks), targets: None };
    Prefix::of(answer, &keys, None)
}

fn held_by(holder: &str, blocks: usize) -> Prefix {
    prefix((0..blocks).map(|n| vec![record(n, holder, "host", 1, 1)]).collect())
}

fn place(fleet: &Fleet, tokens: u64, prefix: Option<&Prefix>) -> Vec<Ranked> {
    rank(&Request { tokens, block_tokens: Some(16), prefix }, &fleet.0, 0)
}

fn send(ranked: &Ranked, prefix: &Prefix) -> Option<PrefetchDirective> {
    let ids = DirectiveIds {
        directive: Uuid::nil(),
        request_ref: "r".into(),
        scope_id: ScopeId([3; 16]),
        compat_id: CompatId([2; 32]),
    };
    directive(ranked, prefix, ids, &DirectiveBounds::default())
}

fn order(ranked: &[Ranked]) -> Vec<&str> {
    ranked.iter().map(|r| r.instance().as_str()).collect()
}

#[test]
fn the_cost_is_the_drafts() {
    let fleet = Fleet::new().with("a", 1000.0, &[("h", 1000.0)], 3, 500.0);
    let prefix = held_by("https://h/", 2);
    let ranked = place(&fleet, 40, Some(&prefix));
    let got = &ranked[0].candidate;
    // wait 3 · 500; fetch 10 + 2 · 8000; all 40 tokens 40,000; the 8 unmatched 8,000.
    assert_eq!((got.wait_us, got.fetch_us, got.recompute_us), (Some(1500), Some(16_010), Some(40_000)));
    assert_eq!((got.cost_us, got.load_blocks), (Some(1500 + 16_010 + 8_000), None));
    assert_eq!((ranked[0].load, ranked[0].load_us), (2, Some(16_010)));
}

#[test]
fn where_computing_is_cheaper_nothing_is_loaded() {
    let fleet = Fleet::new().with("a", 1e6, &[("h", 1000.0)], 0, 0.0);
    let prefix = held_by("https://h/", 2);
    let ranked = place(&fleet, 40, Some(&prefix));
    let got = &ranked[0].candidate;
    assert_eq!((got.fetch_us, got.recompute_us, got.cost_us), (Some(16_010), Some(40), Some(40)));
    assert_eq!((ranked[0].load, got.load_blocks), (0, None));
    assert_eq!(send(&ranked[0], &prefix), None);
}

#[test]
fn only_the_first_blocks_are_loaded_where_that_is_cheaper() {
    // The first two blocks come from a fast holder, the third from one slower than computing.
    let fleet = Fleet::new().with("a", 10_000.0, &[("fast", 1e6), ("slow", 1.0)], 0, 0.0);
    let blocks = ["fast", "fast", "slow"]
        .iter()
        .enumerate()
        .map(|(n, h)| vec![record(n, &format!("https://{h}/"), "host", 1, 1)])
        .collect();
    let prefix = prefix(blocks);
    let ranked = place(&fleet, 48, Some(&prefix));
    let got = &ranked[0].candidate;
    assert_eq!((got.fetch_us, got.recompute_us), (Some(8_000_010), Some(4800)));
    // 10 + 2 · 8, and 16 tokens at 100 µs.
    assert_eq!((got.cost_us, got.load_blocks), (Some(26 + 1600), Some(2)));
    let directive = send(&ranked[0], &prefix).unwrap();
    assert_eq!(directive.blocks.iter().map(|b| b.block_key).collect::<Vec<_>>(), [key(0), key(1)]);
}

#[test]
fn members_that_cannot_be_computed_are_absent_and_their_candidates_last() {
    let fleet = Fleet::new().with("a", 0.0, &[("h", 1000.0)], 0, 0.0).with("b", 1.0, &[], 9, 1e6).with(
        "c",
        1000.0,
        &[("h", 1000.0)],
        0,
        0.0,
    );
    let prefix = held_by("https://h/", 1);
    let ranked = place(&fleet, 16, Some(&prefix));
    assert_eq!(order(&ranked), ["https://c/", "https://b/", "https://a/"]);
    let unlinked = &ranked[1].candidate;
    assert_eq!((unlinked.fetch_us, unlinked.cost_us), (None, Some(9_000_000 + 16_000_000)));
    assert_eq!(ranked[1].load, 1, "an unknown link is worth a try");
    let unrated = &ranked[2].candidate;
    assert_eq!((unrated.wait_us, unrated.fetch_us), (Some(0), Some(8010)));
    assert_eq!((unrated.recompute_us, unrated.cost_us, ranked[2].load), (None, None, 1));
}

#[test]
fn without_an_index_everything_is_computed() {
    let fleet = Fleet::new().with("a", 1000.0, &[("h", 1000.0)], 0, 0.0);
    let ranked = place(&fleet, 16, None);
    assert_eq!((ranked[0].candidate.fetch_us, ranked[0].candidate.cost_us), (None, Some(16_000)));
    let nothing = Prefix::default();
    let ranked = place(&fleet, 16, Some(&nothing));
    assert_eq!((ranked[0].candidate.fetch_us, ranked[0].candidate.cost_us), (Some(0), Some(16_000)));
    assert_eq!(send(&ranked[0], &nothing), None);
}

#[test]
fn equal_costs_go_to_the_shortest_queue_then_round() {
    let fleet = Fleet::new().with("a", 1000.0, &[], 1, 0.0).with("b", 1000.0, &[], 0, 0.0).with(
        "c",
        1000.0,
        &[],
        0,
        0.0,
    );
    let request = Request { tokens: 16, block_tokens: None, prefix: None };
    let turn = |n| rank(&request, &fleet.0, n).iter().map(|r| r.instance().to_string()).collect::<Vec<_>>();
    assert_eq!(turn(0), ["https://b/", "https://c/", "https://a/"]);
    assert_eq!(turn(2), ["https://c/", "https://b/", "https://a/"]);
    assert_eq!(turn(3), turn(0));
    assert!(rank(&request, &[], 7).is_empty());
}

#[test]
fn the_owner_of_the_prefix_wins() {
    let fleet = Fleet::new().with("a", 1000.0, &[("b", 1000.0)], 0, 0.0).with("b", 1000.0, &[], 0, 0.0);
    let prefix = held_by("https://b/", 4);
    let ranked = place(&fleet, 64, Some(&prefix));
    assert_eq!(order(&ranked), ["https://b/", "https://a/"]);
    assert_eq!((ranked[0].candidate.fetch_us, ranked[0].candidate.cost_us), (Some(0), Some(0)));
    assert_eq!(send(&ranked[0], &prefix), None, "all is resident");
    let directive = send(&ranked[1], &prefix).unwrap();
    assert_eq!(directive.blocks.len(), 4);
    assert_eq!(directive.blocks[0].sources[0].as_str(), "https://b/");
    // Twice 10 + 4 · 8000 µs is less than the least.
    assert_eq!((directive.deadline_ms, directive.lease_ms), (100, 200));
}

#[test]
fn loading_may_take_half_as_long_as_computing() {
    let deadline = |tokens_per_s: f64| {
        let fleet = Fleet::new().with("a", tokens_per_s, &[("b", 1000.0)], 0, 0.0);
        let prefix = held_by("https://b/", 4);
        send(&place(&fleet, 64, Some(&prefix))[0], &prefix).unwrap().deadline_ms
    };
    assert_eq!(deadline(64.0), 500, "half of the second that 64 tokens take");
    assert_eq!(deadline(1.0), 30_000, "but never beyond the longest");
}

#[test]
fn a_directive_names_http_sources_of_one_computation() {
    let fleet = Fleet::new().with("i", 1.0, &[("a", 100.0), ("b", 100.0), ("c", 100.0)], 0, 0.0);
    let block = vec![
        record(0, "https://a/", "host", 1, 1),
        record(0, "https://b/", "host", 1, 9),
        record(0, "https://c/", "disk", 1, 1),
        record(0, "https://i/", "disk", 1, 1),
        record(0, "moqt://m/x", "host", 1, 1),
    ];
    let prefix = prefix(vec![block, vec![record(1, "moqt://m/x", "host", 1, 1)]]);
    let ranked = place(&fleet, 32, Some(&prefix));
    assert_eq!(ranked[0].candidate.fetch_us, None, "block 1 has no HTTP source");
    assert_eq!(ranked[0].candidate.load_blocks, Some(1));
    let directive = send(&ranked[0], &prefix).unwrap();
    assert_eq!(directive.blocks.len(), 1);
    let sources: Vec<&str> = directive.blocks[0].sources.iter().map(BaseUri::as_str).collect();
    assert_eq!(sources, ["https://a/", "https://c/", "https://i/"]);
}

#[test]
fn a_prefix_ends_where_the_index_answers_nonsense() {
    let block = |n| LookupBlock { block_key: key(n), replicas: vec![record(n, "https://h/", "host", 1, 1)] };
    let of = |blocks: Vec<LookupBlock>, complete| {
        let answer = LookupAnswer { matched: 9, complete, blocks: Some(blocks), targets: None };
        Prefix::of(answer, &[key(0), key(1)], None).blocks.len()
    };
    assert_eq!(of(vec![block(0), block(1)], 2), 2);
    assert_eq!(of(vec![block(0), block(1)], 1), 1);
    assert_eq!(of(vec![block(0), block(1), block(2)], u64::MAX), 2);
    assert_eq!(of(vec![block(1), block(0)], 2), 0);
    assert_eq!(of(vec![LookupBlock { block_key: key(0), replicas: vec![] }, block(1)], 2), 0);
}
