//! Rules of publishing, withdrawing and looking up, one by one.

use kvsp_proto::digest::replica_digest;
use kvsp_proto::id::{BlockKey, CompatId, Digest, NamedDigest, ScopeId};
use kvsp_proto::message::ReplicaName;
use kvsp_proto::record::ReplicaRecord;
use serde_json::json;

use super::{Index, IndexConfig, IndexError, Published, Publisher};
use crate::time::Time;

mod feed;
mod memory;
mod room;

const COMPAT: CompatId = CompatId([7; 32]);
const SCOPE: ScopeId = ScopeId([8; 16]);
const START: Time = Time::from_millis(1_000);

fn index() -> Index {
    Index::new(IndexConfig { max_ttl_ms: 10_000, ..IndexConfig::default() }, [1, 2, 3, 4])
}

fn key(n: u8) -> BlockKey {
    BlockKey([n; 32])
}

/// A record of four layers; `contents` decides the digests.
fn record(block: u8, holder: &str, contents: u8, spans: &[(&str, u32, u32)], ttl_ms: u64) -> ReplicaRecord {
    let digests: Vec<Digest> = (0..4).map(|l| Digest([contents ^ l; 32])).collect();
    let residency: Vec<_> =
        spans.iter().map(|(tier, a, b)| json!({"tier": tier, "layers": [a, b]})).collect();
    ReplicaRecord::from_value(json!({
        "block_key": key(block), "compat_id": COMPAT, "scope_id": SCOPE, "holder": holder, "codec": 1,
        "size": 1000, "digest": NamedDigest(replica_digest(&digests)), "layer_digests": digests,
        "residency": residency, "ttl_ms": ttl_ms
    }))
    .unwrap()
}

fn whole(block: u8, holder: &str) -> ReplicaRecord {
    record(block, holder, block, &[("host", 0, 3)], 5_000)
}

fn name(block: u8, holder: &str, seq: Option<u64>) -> ReplicaName {
    ReplicaName {
        compat_id: COMPAT,
        scope_id: SCOPE,
        block_key: key(block),
        holder: holder.parse().unwrap(),
        seq,
    }
}

fn counts(index: &Index, keys: &[u8], now: Time) -> (usize, usize) {
    let keys: Vec<BlockKey> = keys.iter().map(|&n| key(n)).collect();
    let found = index.lookup(COMPAT, SCOPE, &keys, now);
    assert_eq!(found.blocks().len(), found.matched());
    (found.matched(), found.complete())
}

fn put(index: &mut Index, record: &ReplicaRecord, now: Time) -> Result<Published, IndexError> {
    index.put(record, Publisher::Holder, now)
}

#[test]
fn a_record_is_returned_with_what_remains_of_its_ttl() {
    let mut index = index();
    let mut sent = record(1, "https://b/", 1, &[("host", 2, 3), ("device", 0, 1)], 3_000);
    sent.producer = Some("https://p/".into());
    assert_eq!(put(&mut index, &sent, START), Ok(Published { created: true, ttl_ms: 3_000 }));
    let got = index.get(COMPAT, SCOPE, key(1), &sent.holder, START.after_millis(1_000)).unwrap();
    assert_eq!(got.ttl_ms, 2_000);
    sent.ttl_ms = 2_000;
    assert_eq!(got, sent);
    assert_eq!(put(&mut index, &sent, START), Ok(Published { created: false, ttl_ms: 2_000 }));
    assert_eq!(index.len(), 1);
}

#[test]
fn the_ttl_is_capped_and_ends() {
    let mut index = index();
    let sent = record(1, "https://b/", 1, &[("host", 0, 3)], 99_000);
    assert_eq!(put(&mut index, &sent, START).unwrap().ttl_ms, 10_000);
    let end = START.after_millis(10_000);
    let almost = Time::from_micros(end.as_micros() - 1);
    assert_eq!(counts(&index, &[1], almost), (1, 1));
    assert_eq!(index.list(COMPAT, SCOPE, key(1), almost)[0].ttl_ms, 1, "never 0");
    assert_eq!(counts(&index, &[1], end), (0, 0));
    assert!(index.list(COMPAT, SCOPE, key(1), end).is_empty());
    assert_eq!(index.len(), 1, "not reclaimed yet");
    let due = index.poll_timeout().unwrap();
    assert!(due >= end && due <= end.after_millis(1_100));
    assert_eq!(index.expire(due, 10), 1);
    assert_eq!((index.len(), index.used(), index.poll_timeout()), (0, 0, None));
    assert_eq!(put(&mut index, &sent, due).map(|p| p.created), Ok(true));
}

#[test]
fn a_refresh_outlives_the_first_deadline() {
    let mut index = index();
    put(&mut index, &whole(1, "https://a/"), START).unwrap();
    let later = START.after_millis(4_000);
    assert!(!put(&mut index, &whole(1, "https://a/"), later).unwrap().created);
    assert_eq!(index.expire(START.after_millis(8_000), 10), 0);
    assert_eq!(counts(&index, &[1], START.after_millis(8_000)), (1, 1));
    assert_eq!(index.expire(START.after_millis(11_000), 10), 1);
}

#[test]
fn a_shorter_ttl_is_reclaimed_early() {
    let mut index = index();
    put(&mut index, &record(1, "https://a/", 1, &[("host", 0, 3)], 9_000), START).unwrap();
    put(&mut index, &record(1, "https://a/", 1, &[("host", 0, 3)], 100), START).unwrap();
    assert_eq!(index.expire(START.after_millis(2_100), 10), 1);
    assert_eq!(index.expire(START.after_millis(99_000), 10), 0);
}

#[test]
fn lookup_stops_at_the_first_miss() {
    let mut index = index();
    for block in [1, 2, 4] {
        put(&mut index, &whole(block, "https://a/"), START).unwrap();
    }
    assert_eq!(counts(&index, &[1, 2, 3, 4], START), (2, 2));
    assert_eq!(counts(&index, &[4, 1, 2], START), (3, 3));
    assert_eq!(counts(&index, &[], START), (0, 0));
    let other = index.lookup(COMPAT, ScopeId([9; 16]), &[key(1)], START);
    assert_eq!(other.matched(), 0, "of another scope");
    let other = index.lookup(CompatId([9; 32]), SCOPE, &[key(1)], START);
    assert_eq!(other.matched(), 0, "of another compatibility");
}

#[test]
fn complete_never_combines_different_computations() {
    let mut index = index();
    put(&mut index, &record(1, "https://a/", 1, &[("host", 0, 1)], 5_000), START).unwrap();
    assert_eq!(counts(&index, &[1], START), (1, 0), "half of the layers");
    put(&mut index, &record(1, "https://b/", 2, &[("host", 2, 3)], 5_000), START).unwrap();
    assert_eq!(counts(&index, &[1], START), (1, 0), "the other half is of another computation");
    let mut transcoded = record(1, "https://c/", 1, &[("host", 2, 3)], 5_000);
    transcoded.codec = kvsp_proto::registry::Codec::SPLIT_ZSTD;
    put(&mut index, &transcoded, START).unwrap();
    assert_eq!(counts(&index, &[1], START), (1, 0), "the other half is of another codec");
    put(&mut index, &record(1, "https://d/", 1, &[("disk", 3, 3), ("device", 2, 2)], 5_000), START).unwrap();
    assert_eq!(counts(&index, &[1], START), (1, 1));
}

#[test]
fn complete_is_a_prefix_of_matched() {
    let mut index = index();
    put(&mut index, &whole(1, "https://a/"), START).unwrap();
    put(&mut index, &record(2, "https://a/", 2, &[("host", 1, 3)], 5_000), START).unwrap();
    put(&mut index, &whole(3, "https://a/"), START).unwrap();
    assert_eq!(counts(&index, &[1, 2, 3], START), (3, 1));
}

#[test]
fn every_layer_without_digests_is_up_to_the_highest_resident() {
    let mut index = index();
    let mut bare = record(1, "https://a/", 1, &[("host", 0, 1)], 5_000);
    bare.layer_digests = None;
    put(&mut index, &bare, START).unwrap();
    assert_eq!(counts(&index, &[1], START), (1, 1));
    put(&mut index, &record(1, "https://b/", 1, &[("host", 2, 2)], 5_000), START).unwrap();
    assert_eq!(counts(&index, &[1], START), (1, 0), "a list of four layers is known now");
}

#[test]
fn replicas_are_ordered_by_holder_and_share_digests() {
    let mut index = index();
    for holder in ["https://m/", "https://a/", "https://z/", "https://c/"] {
        put(&mut index, &whole(1, holder), START).unwrap();
    }
    let holders = |index: &Index| -> Vec<String> {
        index.list(COMPAT, SCOPE, key(1), START).iter().map(|r| r.holder.to_string()).collect()
    };
    assert_eq!(holders(&index), ["https://a/", "https://c/", "https://m/", "https://z/"]);
    assert_eq!(index.contents.len(), 1);
    for (gone, left) in [("https://a/", 3), ("https://m/", 2), ("https://z/", 1), ("https://c/", 0)] {
        assert_eq!(index.delete(&name(1, gone, None), START), Ok(true));
        assert_eq!(index.delete(&name(1, gone, None), START), Ok(false));
        assert_eq!(holders(&index).len(), left);
    }
    assert_eq!((index.used(), index.spaces.len(), index.texts.len()), (0, 0, 0));
}

#[test]
fn seq_orders_the_records_of_a_replica() {
    let mut index = index();
    let with = |seq| ReplicaRecord { seq, ..whole(1, "https://a/") };
    let stale = Err(IndexError::StaleSeq { known: 5 });
    put(&mut index, &with(None), START).unwrap();
    put(&mut index, &with(Some(5)), START).unwrap();
    assert!(put(&mut index, &with(Some(5)), START).is_ok(), "a refresh");
    assert_eq!(put(&mut index, &with(Some(4)), START), stale);
    assert_eq!(put(&mut index, &with(None), START), stale);
    assert_eq!(index.delete(&name(1, "https://a/", None), START).map(drop), stale.map(drop));
    assert_eq!(index.delete(&name(1, "https://a/", Some(4)), START).map(drop), stale.map(drop));
    assert_eq!(index.get(COMPAT, SCOPE, key(1), &with(None).holder, START).unwrap().seq, Some(5));
}

#[test]
fn a_tombstone_remembers_seq_for_the_longest_ttl() {
    let mut index = index();
    let with = |seq| ReplicaRecord { seq, ..whole(1, "https://a/") };
    assert_eq!(index.delete(&name(1, "https://a/", Some(7)), START), Ok(false), "it came first");
    assert_eq!((index.len(), index.used()), (0, 1));
    assert_eq!(put(&mut index, &with(Some(6)), START), Err(IndexError::StaleSeq { known: 7 }));
    assert_eq!(put(&mut index, &with(None), START), Err(IndexError::StaleSeq { known: 7 }));
    assert!(put(&mut index, &with(Some(8)), START).unwrap().created);
    assert_eq!(index.delete(&name(1, "https://a/", Some(9)), START), Ok(true));
    assert_eq!(counts(&index, &[1], START), (0, 0));
    let almost = START.after_millis(9_999);
    assert_eq!(put(&mut index, &with(Some(8)), almost), Err(IndexError::StaleSeq { known: 9 }));
    assert!(put(&mut index, &with(Some(1)), START.after_millis(10_000)).unwrap().created);
    assert_eq!((index.len(), index.used()), (1, 1));
}

#[test]
fn a_higher_holder_epoch_drops_what_is_older() {
    let mut index = index();
    let with = |block, epoch, seq| ReplicaRecord { holder_epoch: epoch, seq, ..whole(block, "https://a/") };
    put(&mut index, &with(1, None, None), START).unwrap();
    put(&mut index, &with(2, Some(3), Some(9)), START).unwrap();
    put(&mut index, &whole(2, "https://b/"), START).unwrap();
    assert_eq!(
        index.put(&with(3, Some(4), None), Publisher::Delegate, START),
        Err(IndexError::EpochByDelegate)
    );
    assert!(index.put(&with(3, Some(3), None), Publisher::Delegate, START).is_ok());
    assert_eq!(index.len(), 4);
    put(&mut index, &with(4, Some(4), None), START).unwrap();
    assert_eq!(index.len(), 3, "blocks 2 and 3 of that holder are gone");
    assert_eq!(put(&mut index, &with(1, Some(3), None), START), Err(IndexError::StaleEpoch { known: 4 }));
    assert!(put(&mut index, &with(2, Some(4), Some(1)), START).unwrap().created, "seq counts anew");
    assert_eq!(
        index.get(COMPAT, SCOPE, key(2), &with(2, None, None).holder, START).unwrap().holder_epoch,
        Some(4)
    );
    assert_eq!(index.delete_holder(&"https://a/".parse().unwrap(), START), 3);
    assert_eq!(
        put(&mut index, &with(1, Some(3), None), START.after_millis(9_000)),
        Err(IndexError::StaleEpoch { known: 4 }),
        "the epoch outlives the records"
    );
    // The seq of block 2 is remembered for 10 s, and the holder for 10 s after that.
    index.expire(START.after_millis(12_000), 100);
    assert!(put(&mut index, &with(1, Some(3), None), START.after_millis(20_000)).is_err());
    index.expire(START.after_millis(22_000), 100);
    assert!(put(&mut index, &with(1, Some(3), None), START.after_millis(22_000)).is_ok());
}

#[test]
fn an_ended_process_takes_device_and_host_along() {
    let mut index = index();
    put(&mut index, &whole(1, "https://a/"), START).unwrap();
    put(&mut index, &record(2, "https://a/", 2, &[("device", 0, 1), ("disk", 2, 3)], 5_000), START).unwrap();
    put(&mut index, &record(3, "https://a/", 3, &[("disk", 0, 3)], 5_000), START).unwrap();
    put(&mut index, &whole(1, "https://b/"), START).unwrap();
    assert_eq!(index.drop_volatile(&"https://a/".parse().unwrap(), START), 1);
    assert_eq!(index.list(COMPAT, SCOPE, key(1), START).len(), 1);
    assert_eq!(counts(&index, &[2, 3], START), (2, 0));
    let rest = &index.list(COMPAT, SCOPE, key(2), START)[0].residency;
    assert_eq!(serde_json::to_value(rest).unwrap(), json!([{"tier": "disk", "layers": [2, 3]}]));
}

#[test]
fn limits_refuse_and_expiry_makes_room() {
    let config = IndexConfig {
        max_records: 3,
        max_records_per_holder: 2,
        max_replicas_per_block: 2,
        max_holders: 3,
        ..IndexConfig::default()
    };
    let mut index = Index::new(config, [0; 4]);
    let mut tombstone = name(9, "https://a/", Some(1));
    put(&mut index, &whole(1, "https://a/"), START).unwrap();
    index.delete(&tombstone, START).unwrap();
    assert_eq!(put(&mut index, &whole(2, "https://a/"), START), Err(IndexError::HolderFull { max: 2 }));
    tombstone.block_key = key(3);
    assert_eq!(index.delete(&tombstone, START), Err(IndexError::HolderFull { max: 2 }));
    assert!(put(&mut index, &whole(1, "https://a/"), START).is_ok(), "a refresh needs no room");
    put(&mut index, &whole(1, "https://b/"), START).unwrap();
    assert_eq!(put(&mut index, &whole(2, "https://b/"), START), Err(IndexError::Full { max: 3 }));
    index.delete(&name(1, "https://b/", None), START).unwrap();
    put(&mut index, &whole(1, "https://c/"), START).unwrap();
    assert_eq!(put(&mut index, &whole(1, "https://d/"), START), Err(IndexError::HoldersFull { max: 3 }));
    index.delete(&name(9, "https://a/", Some(2)), START).unwrap();
    let later = START.after_millis(7_000);
    assert!(put(&mut index, &whole(5, "https://b/"), later).is_ok(), "block 1 expired");
}

#[test]
fn a_block_has_at_most_so_many_replicas() {
    let mut index = Index::new(IndexConfig { max_replicas_per_block: 2, ..IndexConfig::default() }, [0; 4]);
    put(&mut index, &whole(1, "https://a/"), START).unwrap();
    put(&mut index, &whole(1, "https://b/"), START).unwrap();
    assert_eq!(put(&mut index, &whole(1, "https://c/"), START), Err(IndexError::BlockFull { max: 2 }));
    assert!(put(&mut index, &whole(1, "https://b/"), START).is_ok());
}

#[test]
fn coming_and_going_keeps_the_queue_short() {
    let mut index = index();
    for _ in 0..5_000 {
        put(&mut index, &whole(1, "https://a/"), START).unwrap();
        index.delete(&name(1, "https://a/", None), START).unwrap();
        index.expire(START, 1);
    }
    assert_eq!((index.replicas.len(), index.used()), (1, 0));
    assert_eq!(index.expire(START.after_millis(60_000), 10_000), 0);
    assert_eq!(index.poll_timeout(), None);
}
