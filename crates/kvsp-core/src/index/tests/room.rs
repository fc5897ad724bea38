//! What makes way at which bound.

use super::*;
use crate::index::{ChangeKind, Changes, WhenFull};

fn full(config: IndexConfig) -> Index {
    Index::new(IndexConfig { max_ttl_ms: 100_000, ..config }, [1, 2, 3, 4])
}

/// A record that ends after so many seconds.
fn lasting(block: u8, holder: &str, seconds: u64) -> ReplicaRecord {
    record(block, holder, block, &[("host", 0, 3)], seconds * 1_000)
}

#[test]
fn memory_is_refused_beyond_its_cap_and_given_again() {
    let mut index = full(IndexConfig { max_octets: 60_000, max_changes: 10, ..IndexConfig::default() });
    let mut taken = Vec::new();
    let refused = (0..=255).find_map(|block| {
        let before = index.octets();
        match put(&mut index, &lasting(block, "https://a/", 50), START) {
            Ok(_) => {
                assert!(index.octets() <= 60_000);
                taken.push(index.octets() - before);
                None
            }
            Err(error) => Some(error),
        }
    });
    assert_eq!(refused, Some(IndexError::MemoryFull { max: 60_000 }));
    assert!(taken.len() > 50 && taken.iter().all(|octets| *octets < 4_500), "{taken:?}");
    let records = index.len() as u8;
    assert!(put(&mut index, &lasting(0, "https://a/", 60), START).is_ok(), "a refresh takes nothing");
    let mut other = lasting(0, "https://a/", 60);
    let digests: Vec<Digest> = (0..200).map(|n| Digest([n; 32])).collect();
    other.digest = NamedDigest(replica_digest(&digests));
    other.layer_digests = Some(digests);
    assert_eq!(put(&mut index, &other, START), Err(IndexError::MemoryFull { max: 60_000 }));
    assert_eq!(index.list(COMPAT, SCOPE, key(0), START).len(), 1, "what was there stays");
    index.delete(&name(0, "https://a/", None), START).unwrap();
    assert!(put(&mut index, &lasting(records, "https://a/", 50), START).is_ok());
}

#[test]
fn counted_octets_come_and_go() {
    let mut index = full(IndexConfig { max_changes: 0, ..IndexConfig::default() });
    put(&mut index, &lasting(1, "https://a/", 10), START).unwrap();
    let mut detailed =
        record(2, "https://b/", 2, &[("device", 0, 0), ("host", 1, 2), ("disk", 3, 3)], 10_000);
    detailed.producer = Some("https://p/".into());
    put(&mut index, &detailed, START).unwrap();
    let filled = index.octets();
    for round in 0..50 {
        index.delete(&name(2, "https://b/", None), START).unwrap();
        assert!(index.octets() < filled, "round {round}");
        put(&mut index, &detailed, START).unwrap();
        assert_eq!(index.octets(), filled, "round {round}");
    }
    for (spans, more) in [(&[("host", 0, 3)][..], false), (&[("device", 0, 1), ("host", 2, 3)][..], true)] {
        let before = index.octets();
        put(
            &mut index,
            &ReplicaRecord { producer: None, ..record(2, "https://b/", 2, spans, 10_000) },
            START,
        )
        .unwrap();
        assert_eq!(index.octets() > before, more);
    }
}

#[test]
fn the_record_that_ends_first_makes_way_where_that_is_wanted() {
    let config =
        IndexConfig { max_records: 3, when_full: WhenFull::OldestExpiryFirst, ..IndexConfig::default() };
    let mut index = full(config);
    for (block, seconds) in [(1, 30), (2, 10), (3, 20)] {
        put(&mut index, &lasting(block, "https://a/", seconds), START).unwrap();
    }
    // A refresh moves block 2 to the end.
    put(&mut index, &lasting(2, "https://a/", 90), START).unwrap();
    let told = index.next_change();
    put(&mut index, &lasting(4, "https://b/", 5), START).unwrap();
    assert_eq!((counts(&index, &[3], START), counts(&index, &[4, 1, 2], START)), ((0, 0), (3, 3)));
    let Changes::Events { events, .. } = index.changes_since(told, 9) else { panic!("a gap") };
    let kinds: Vec<_> = events.iter().map(|event| (event.kind, event.key)).collect();
    assert_eq!(kinds, [(ChangeKind::Expire, key(3)), (ChangeKind::Publish, key(4))]);
    put(&mut index, &lasting(5, "https://a/", 40), START).unwrap();
    assert_eq!(counts(&index, &[1, 2, 5], START), (3, 3), "block 4 had 5 s only");
    assert_eq!((index.len(), index.used()), (3, 3));
    assert_eq!(index.expire(START.after_millis(95_000), 100), 3, "all are still on the wheel");
}

#[test]
fn tombstones_that_were_asked_for_do_not_make_way() {
    let config =
        IndexConfig { max_records: 2, when_full: WhenFull::OldestExpiryFirst, ..IndexConfig::default() };
    let mut index = full(config);
    for block in [1, 2] {
        index.delete(&name(block, "https://a/", Some(7)), START).unwrap();
    }
    assert_eq!(put(&mut index, &lasting(3, "https://b/", 9), START), Err(IndexError::Full { max: 2 }));
    assert_eq!(index.expire(START.after_millis(102_000), 100), 0);
    assert_eq!(index.used(), 0);
}

#[test]
fn memory_is_made_by_dropping_what_ends_first() {
    let config = IndexConfig {
        max_octets: 60_000,
        max_changes: 10,
        when_full: WhenFull::OldestExpiryFirst,
        ..IndexConfig::default()
    };
    let mut index = full(config);
    for block in 0..=255 {
        put(&mut index, &lasting(block, "https://a/", 60 + u64::from(block) % 40), START).unwrap();
        assert!(index.octets() <= 60_000);
    }
    assert!(index.len() > 20);
}

#[test]
fn a_scope_keeps_to_its_share() {
    let config = IndexConfig {
        max_octets: 20_000,
        max_scope_percent: Some(25),
        when_full: WhenFull::OldestExpiryFirst,
        ..IndexConfig::default()
    };
    let mut index = full(config);
    let refused = (0..=255).find_map(|block| put(&mut index, &lasting(block, "https://a/", 50), START).err());
    assert_eq!(refused, Some(IndexError::ScopeFull { max: 5_000 }));
    let own = index.len();
    assert!((10..30).contains(&own));
    let other = |block| ReplicaRecord { scope_id: ScopeId([9; 16]), ..lasting(block, "https://b/", 50) };
    for block in 0..own as u8 {
        put(&mut index, &other(block), START).unwrap();
    }
    assert!(put(&mut index, &other(own as u8), START).is_err());
    index.delete_holder(&"https://a/".parse().unwrap(), START);
    put(&mut index, &lasting(1, "https://a/", 50), START).unwrap();
    index.delete_holder(&"https://a/".parse().unwrap(), START);
    index.delete_holder(&"https://b/".parse().unwrap(), START);
    assert!(index.scopes.is_empty());
}
