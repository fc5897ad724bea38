//! The feed of changes, and snapshots, one by one.

use super::*;
use crate::index::{ChangeKind, Changes, SnapshotEntry};

fn told(index: &Index, cursor: u64) -> Vec<(ChangeKind, u8)> {
    match index.changes_since(cursor, 100) {
        Changes::Events { events, .. } => events.iter().map(|event| (event.kind, event.key.0[0])).collect(),
        Changes::Gap { .. } => panic!("a gap"),
    }
}

#[test]
fn changes_are_told_once_and_refreshes_are_not() {
    let mut index = index();
    put(&mut index, &whole(1, "https://a/"), START).unwrap();
    put(&mut index, &ReplicaRecord { seq: Some(1), ttl_ms: 7_000, ..whole(1, "https://a/") }, START).unwrap();
    let mut moved = record(1, "https://a/", 1, &[("disk", 0, 3)], 5_000);
    moved.seq = Some(2);
    put(&mut index, &moved, START).unwrap();
    put(&mut index, &ReplicaRecord { producer: Some("https://p/".into()), ..moved.clone() }, START).unwrap();
    index.delete(&name(1, "https://a/", Some(3)), START).unwrap();
    index.delete(&name(1, "https://a/", Some(4)), START).unwrap();
    index.delete(&name(2, "https://a/", None), START).unwrap();
    use ChangeKind::{Expire, Publish, Withdraw};
    assert_eq!(told(&index, 0), [(Publish, 1), (Publish, 1), (Publish, 1), (Withdraw, 1)]);
    put(&mut index, &whole(2, "https://a/"), START).unwrap();
    put(&mut index, &whole(3, "https://a/"), START).unwrap();
    let late = START.after_millis(5_000);
    put(&mut index, &whole(2, "https://a/"), late).unwrap();
    index.delete(&name(3, "https://a/", None), late).unwrap();
    let more = [(Publish, 2), (Publish, 3), (Expire, 2), (Publish, 2), (Expire, 3)];
    assert_eq!(told(&index, 4), more, "what is past its deadline has expired, whoever finds it");
    index.expire(late.after_millis(8_000), 10);
    assert_eq!(told(&index, 9), [(Expire, 2)]);
    assert_eq!(index.next_change(), 10);
}

#[test]
fn an_end_of_a_holder_is_told_of_each_record() {
    use ChangeKind::{Publish, Withdraw};
    let mut index = index();
    put(&mut index, &whole(1, "https://a/"), START).unwrap();
    put(&mut index, &record(2, "https://a/", 2, &[("device", 0, 1), ("disk", 2, 3)], 5_000), START).unwrap();
    put(&mut index, &record(3, "https://a/", 3, &[("disk", 0, 3)], 5_000), START).unwrap();
    index.drop_volatile(&"https://a/".parse().unwrap(), START);
    let mut after = told(&index, 3);
    after.sort_unstable();
    assert_eq!(after, [(Publish, 2), (Withdraw, 1)]);
    let raised = ReplicaRecord { holder_epoch: Some(4), ..whole(4, "https://a/") };
    put(&mut index, &raised, START).unwrap();
    put(&mut index, &ReplicaRecord { holder_epoch: Some(5), ..raised }, START).unwrap();
    assert_eq!(told(&index, 5), [(Publish, 4), (Withdraw, 4), (Publish, 4)]);
    index.delete_holder(&"https://a/".parse().unwrap(), START);
    let mut after = told(&index, 8);
    after.sort_unstable();
    assert_eq!(after, [(Withdraw, 2), (Withdraw, 3), (Withdraw, 4)]);
}

#[test]
fn a_ring_that_is_full_answers_with_one_gap() {
    let mut index = Index::new(IndexConfig { max_changes: 2, ..IndexConfig::default() }, [0; 4]);
    for block in 1..=4 {
        put(&mut index, &whole(block, "https://a/"), START).unwrap();
    }
    assert_eq!(index.changes_since(0, 9), Changes::Gap { next: 4 });
    assert_eq!(told(&index, 4), []);
    assert_eq!(told(&index, 2).len(), 2);
}

fn entries(index: &Index, now: Time) -> Vec<SnapshotEntry> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let (entries, next) = index.snapshot(after, 2, now);
        assert!(entries.len() <= 2);
        all.extend(entries);
        if next.is_none() {
            return all;
        }
        after = next;
    }
}

/// A record with an epoch, one past its deadline, and a tombstone.
fn filled() -> Index {
    let mut index = index();
    put(&mut index, &ReplicaRecord { holder_epoch: Some(3), ..whole(1, "https://a/") }, START).unwrap();
    let short = record(2, "https://b/", 2, &[("host", 0, 3)], 1_000);
    put(&mut index, &ReplicaRecord { seq: Some(5), ..short }, START).unwrap();
    index.delete(&name(3, "https://b/", Some(6)), START).unwrap();
    index
}

#[test]
fn what_was_stopped_goes_on_as_it_was() {
    let old = filled();
    let now = START.after_millis(2_000);
    let mut index = index();
    for entry in entries(&old, START) {
        index.restore(entry, now).unwrap();
    }
    assert_eq!(index.list(COMPAT, SCOPE, key(1), now), old.list(COMPAT, SCOPE, key(1), now));
    assert_eq!(counts(&index, &[1], START.after_millis(4_999)), (1, 1));
    assert_eq!(counts(&index, &[1], START.after_millis(5_000)), (0, 0), "the first deadline");
    assert_eq!(counts(&index, &[2], now), (0, 0), "it ended meanwhile");
    let with = |block, seq| ReplicaRecord { seq, ..whole(block, "https://b/") };
    assert_eq!(put(&mut index, &with(2, Some(4)), now), Err(IndexError::StaleSeq { known: 5 }));
    assert_eq!(put(&mut index, &with(3, Some(5)), now), Err(IndexError::StaleSeq { known: 6 }));
    let older = ReplicaRecord { holder_epoch: Some(2), ..whole(4, "https://a/") };
    assert_eq!(put(&mut index, &older, now), Err(IndexError::StaleEpoch { known: 3 }));
    index.expire(START.after_millis(60_000), 100);
    index.expire(START.after_millis(60_000), 100);
    assert_eq!(index.used(), 0);
}

#[test]
fn what_has_ended_is_left_out() {
    let old = filled();
    let taken = entries(&old, START);
    let end = START.after_millis(60_000);
    let mut index = index();
    for entry in taken {
        assert_eq!(index.restore(entry, end), Ok(false));
    }
    assert_eq!((index.used(), index.next_change()), (0, 0));
    let late = entries(&old, end);
    assert!(matches!(late.as_slice(), [SnapshotEntry::Holder { epoch: 3, .. }]), "its slot is not reclaimed");
}

#[test]
fn what_came_since_the_start_is_newer() {
    let taken = entries(&filled(), START);
    let mut index = index();
    let now = START.after_millis(100);
    let newer = ReplicaRecord { holder_epoch: Some(4), size: 7, ..whole(1, "https://a/") };
    put(&mut index, &newer, now).unwrap();
    put(&mut index, &whole(3, "https://b/"), now).unwrap();
    for entry in taken {
        index.restore(entry, now).unwrap();
    }
    let list = index.list(COMPAT, SCOPE, key(1), now);
    assert_eq!((list.len(), list[0].size, list[0].holder_epoch), (1, 7, Some(4)));
    assert_eq!(counts(&index, &[2, 3], now), (2, 2));
}

#[test]
fn a_restored_record_is_held_to_the_longest_ttl_and_the_limits() {
    let mut index = Index::new(
        IndexConfig { max_ttl_ms: 1_000, max_records: 1, max_holders: 1, ..IndexConfig::default() },
        [0; 4],
    );
    let results: Vec<bool> =
        entries(&filled(), START).into_iter().map(|entry| index.restore(entry, START).is_ok()).collect();
    assert_eq!(results, [true, true, false, false]);
    assert_eq!(counts(&index, &[1], START.after_millis(1_000)), (0, 0));
}
