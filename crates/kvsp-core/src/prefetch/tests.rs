use kvsp_proto::digest::replica_digest;
use kvsp_proto::id::{CompatId, Digest, NamedDigest, ScopeId};
use kvsp_proto::message::{DirectiveBlock, LayerOrder};
use kvsp_proto::record::{LayerSpan, Residency};
use kvsp_proto::registry::{Codec, Tier};
use uuid::Uuid;

use super::*;

fn uri(n: u8) -> BaseUri {
    format!("http://h{n}/").parse().unwrap()
}

fn key(n: u8) -> BlockKey {
    BlockKey([n; 32])
}

/// A record of block `n` at holder `h`, of computation `c`.
fn record(n: u8, h: u8, c: u8) -> Arc<ReplicaRecord> {
    let digests = vec![Digest([c; 32]), Digest([c + 1; 32])];
    Arc::new(ReplicaRecord {
        block_key: key(n),
        compat_id: CompatId([0; 32]),
        scope_id: ScopeId([0; 16]),
        holder: uri(h).into(),
        codec: Codec::RAW,
        size: 100,
        digest: NamedDigest(replica_digest(&digests)),
        layer_digests: Some(digests),
        residency: vec![Residency { tier: Tier::Host, layers: LayerSpan(0, 1), read_mbit_per_s: None }],
        ttl_ms: 1000,
        seq: None,
        holder_epoch: None,
        producer: None,
        moqt_namespace: None,
    })
}

fn directive(blocks: &[(u8, &[u8])]) -> Directive {
    let body = PrefetchDirective {
        directive: Uuid::from_u128(1),
        request_ref: None,
        scope_id: ScopeId([0; 16]),
        compat_id: CompatId([0; 32]),
        blocks: blocks
            .iter()
            .map(|(n, sources)| DirectiveBlock {
                block_key: key(*n),
                sources: sources.iter().map(|h| uri(*h)).collect(),
            })
            .collect(),
        layer_order: LayerOrder::Ascending,
        deadline_ms: 50,
        lease_ms: 100,
    };
    Directive::new(body, |k| *k == key(9), Time::from_millis(1))
}

fn indices(fetch: &Fetch) -> Vec<usize> {
    fetch.blocks.iter().map(|b| b.index).collect()
}

#[test]
fn blocks_of_one_source_are_fetched_together_and_held_ones_not_at_all() {
    let mut d = directive(&[(1, &[1]), (9, &[1]), (2, &[1]), (3, &[2])]);
    assert_eq!(d.wanted().len(), 3);
    for (i, n, h) in [(0, 1, 1), (2, 2, 1), (3, 3, 2)] {
        d.recorded(i, &[record(n, h, 7)]);
    }
    assert_eq!(indices(&d.poll_fetch().unwrap()), [0, 2]);
    assert_eq!(indices(&d.poll_fetch().unwrap()), [3]);
    assert!(d.poll_fetch().is_none());
    assert_eq!(d.status().state, DirectiveState::Pending);
    for i in [0, 2, 3] {
        d.block_loaded(i);
    }
    assert_eq!(d.status().state, DirectiveState::Complete);
    assert_eq!(d.status().loaded, [key(1), key(9), key(2), key(3)]);
}

#[test]
fn a_source_without_a_record_is_not_used() {
    let mut d = directive(&[(1, &[1, 2])]);
    d.recorded(0, &[record(1, 3, 7)]);
    assert!(d.poll_fetch().is_none());
    let status = d.status();
    assert_eq!(status.state, DirectiveState::Failed);
    assert_eq!(status.failed, [FailedBlock { block_key: key(1), reason: FailureReason::NoRecord }]);
}

#[test]
fn the_next_source_goes_on_at_the_missing_layer_of_the_same_computation() {
    let mut d = directive(&[(1, &[1, 2, 3])]);
    d.recorded(0, &[record(1, 1, 7), record(1, 2, 50), record(1, 3, 7)]);
    assert_eq!(d.poll_fetch().unwrap().source, uri(1));
    d.layer_loaded(0, 0);
    assert_eq!(d.source_failed(0, FailureReason::Unreachable), None);
    let fetch = d.poll_fetch().unwrap();
    assert_eq!((fetch.source, fetch.blocks[0].from_layer), (uri(3), 1), "holder 2 has another computation");
    assert_eq!(d.source_failed(0, FailureReason::DigestMismatch), Some(FailureReason::DigestMismatch));
    assert_eq!(d.status().state, DirectiveState::Failed);
}

#[test]
fn before_any_layer_another_computation_will_do() {
    let mut d = directive(&[(1, &[1, 2])]);
    d.recorded(0, &[record(1, 1, 7), record(1, 2, 50)]);
    d.poll_fetch().unwrap();
    d.source_failed(0, FailureReason::NotFound);
    assert_eq!(d.poll_fetch().unwrap().source, uri(2));
}

#[test]
fn a_deadline_makes_it_partial_whatever_was_loaded() {
    let mut d = directive(&[(1, &[1]), (2, &[1])]);
    d.recorded(0, &[record(1, 1, 7)]);
    d.recorded(1, &[record(2, 1, 7)]);
    d.poll_fetch().unwrap();
    assert_eq!(d.deadline(), Time::from_millis(51));
    assert_eq!(d.stop(FailureReason::Deadline), [0, 1]);
    d.block_loaded(0);
    assert_eq!(d.source_failed(1, FailureReason::Unreachable), None, "already given up");
    let status = d.status();
    assert_eq!(status.state, DirectiveState::Partial);
    assert!(status.loaded.is_empty());
    assert!(d.stop(FailureReason::Cancelled).is_empty(), "an ended directive stays as it ended");
}

#[test]
fn the_table_is_idempotent_and_bounded() {
    let body = directive(&[(1, &[1])]).body().clone();
    let mut table = DirectiveTable::new(2);
    assert_eq!(table.admit(&body), Ok(Admission::New));
    assert_eq!(table.insert(body.clone(), 'a'), None);
    assert_eq!(table.admit(&body), Ok(Admission::Known('a')));
    let other = PrefetchDirective { deadline_ms: 51, ..body.clone() };
    assert_eq!(table.admit(&other), Err(DirectiveConflict(body.directive)));
    let next = |n| PrefetchDirective { directive: Uuid::from_u128(n), ..body.clone() };
    assert_eq!(table.insert(next(2), 'b'), None);
    assert_eq!(table.insert(next(3), 'c'), Some('a'));
    assert_eq!(table.get(&body.directive), None);
}
