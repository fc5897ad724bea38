//! What is remembered of records that ended.

use super::*;

fn with(block: u8, seq: Option<u64>) -> ReplicaRecord {
    ReplicaRecord { seq, ..whole(block, "https://a/") }
}

#[test]
fn an_expired_record_leaves_its_seq_for_the_longest_ttl() {
    let mut index = index();
    put(&mut index, &with(1, Some(5)), START).unwrap();
    let end = START.after_millis(5_000);
    for (reclaim, seq, at) in [(false, Some(4), 5_000), (true, None, 8_000), (true, Some(4), 14_999)] {
        let now = START.after_millis(at);
        if reclaim {
            index.expire(now, 10);
            assert_eq!((index.len(), index.used()), (0, 1));
        }
        assert_eq!(put(&mut index, &with(1, seq), now), Err(IndexError::StaleSeq { known: 5 }));
        assert_eq!(index.delete(&name(1, "https://a/", seq), now), Err(IndexError::StaleSeq { known: 5 }));
    }
    assert!(put(&mut index, &with(1, Some(5)), end.after_millis(9_999)).unwrap().created, "an equal seq");
}

#[test]
fn the_memory_of_an_expired_record_ends() {
    for reclaim in [false, true] {
        let mut index = index();
        put(&mut index, &with(1, Some(5)), START).unwrap();
        if reclaim {
            index.expire(START.after_millis(8_000), 10);
        }
        assert!(put(&mut index, &with(1, None), START.after_millis(15_000)).unwrap().created);
    }
}

#[test]
fn a_withdrawn_holder_leaves_the_seqs_of_its_records() {
    let mut index = index();
    put(&mut index, &with(1, Some(5)), START).unwrap();
    put(&mut index, &with(2, None), START).unwrap();
    assert_eq!(index.delete_holder(&"https://a/".parse().unwrap(), START), 2);
    assert_eq!((index.len(), index.used()), (0, 1));
    assert_eq!(put(&mut index, &with(1, Some(4)), START), Err(IndexError::StaleSeq { known: 5 }));
    assert!(put(&mut index, &with(2, None), START).unwrap().created);
    assert!(put(&mut index, &with(1, Some(5)), START).unwrap().created);
}

#[test]
fn memory_makes_way_but_a_tombstone_that_was_asked_for_does_not() {
    let config = IndexConfig {
        max_records: 3,
        max_records_per_holder: 2,
        max_ttl_ms: 10_000,
        ..IndexConfig::default()
    };
    let mut index = Index::new(config, [0; 4]);
    put(&mut index, &with(1, Some(1)), START).unwrap();
    put(&mut index, &with(2, Some(2)), START).unwrap();
    index.delete_holder(&"https://a/".parse().unwrap(), START);
    put(&mut index, &with(3, Some(3)), START).unwrap();
    put(&mut index, &with(4, Some(4)), START).unwrap();
    assert_eq!(index.used(), 3, "block 1 was forgotten to make room, and the quota counts records");
    assert!(put(&mut index, &whole(5, "https://b/"), START).is_ok(), "block 2 as well");
    assert_eq!(put(&mut index, &whole(6, "https://b/"), START), Err(IndexError::Full { max: 3 }));
    index.delete(&name(4, "https://a/", Some(9)), START).unwrap();
    assert_eq!(put(&mut index, &whole(6, "https://b/"), START), Err(IndexError::Full { max: 3 }));
    assert_eq!(put(&mut index, &with(7, None), START), Err(IndexError::HolderFull { max: 2 }));
    assert_eq!(put(&mut index, &with(4, Some(8)), START), Err(IndexError::StaleSeq { known: 9 }));
}

#[test]
fn memory_that_became_a_record_again_does_not_make_way() {
    let config = IndexConfig { max_records: 2, max_ttl_ms: 10_000, ..IndexConfig::default() };
    let mut index = Index::new(config, [0; 4]);
    put(&mut index, &with(1, Some(1)), START).unwrap();
    put(&mut index, &with(2, Some(2)), START).unwrap();
    index.delete_holder(&"https://a/".parse().unwrap(), START);
    put(&mut index, &with(1, Some(1)), START).unwrap();
    assert!(put(&mut index, &with(3, None), START).is_ok());
    assert_eq!(counts(&index, &[1, 3], START), (2, 2));
    assert!(put(&mut index, &with(2, None), START).is_err(), "nothing is left that makes way");
}
