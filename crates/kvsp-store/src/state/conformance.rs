//! What every [`StateStore`] must do, as one suite that a backend's tests call.
//!
//! Panics where the store does not conform; meant for tests alone.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    MAX_CHANGES, MAX_KEY_OCTETS, MAX_STORED_OCTETS, MAX_VALUE_OCTETS, RowChange, StateError, StateStore,
};

/// What stores are opened on, and where rows stay when they are dropped.
pub trait Medium {
    /// The store.
    type Store: StateStore;

    /// Opens a store on the rows that are there.
    ///
    /// # Errors
    /// [`StateError::InUse`] where another is open and the medium allows but one.
    fn open(&self) -> Result<Self::Store, StateError>;
}

/// Rows by key.
pub type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// All rows with a prefix; panics where they are not in the order of keys.
///
/// # Errors
/// As the scan's.
pub fn rows(store: &impl StateStore, prefix: &[u8]) -> Result<Rows, StateError> {
    let mut found = Rows::new();
    store.scan(prefix, &mut |key, value| {
        assert!(key.starts_with(prefix));
        assert!(found.last_key_value().is_none_or(|(last, _)| &last[..] < key), "out of order");
        found.insert(key.to_vec(), value.to_vec());
        Ok(())
    })?;
    Ok(found)
}

/// What changes leave of rows.
pub fn apply(rows: &mut Rows, changes: &[RowChange]) {
    for change in changes {
        match &change.value {
            Some(value) => drop(rows.insert(change.key.to_vec(), value.to_vec())),
            None => drop(rows.remove(&change.key[..])),
        }
    }
}

/// Runs the whole suite, each check on an empty medium of its own.
pub fn run<M: Medium>(empty: impl Fn() -> M) {
    keeps_what_it_is_given(&empty());
    scans_by_prefix_in_order(&empty().open().unwrap());
    takes_many_rows_at_once(&empty().open().unwrap());
    refuses_what_is_no_row(&empty().open().unwrap());
    ends_a_scan_that_fails(&empty().open().unwrap());
    commits_while_it_is_scanned(&empty().open().unwrap());
    takes_commits_of_many_threads(&empty());
    raises_its_term(&empty());
    fences_an_older_handle(&empty());
}

fn set(key: &[u8], value: &[u8]) -> RowChange {
    RowChange::set(key.to_vec(), value.to_vec())
}

fn remove(key: &[u8]) -> RowChange {
    RowChange::remove(key.to_vec())
}

fn keeps_what_it_is_given(medium: &impl Medium) {
    let mut expected = Rows::new();
    let store = medium.open().unwrap();
    assert_eq!(rows(&store, b"").unwrap(), expected);
    let lists = [
        vec![],
        vec![set(b"a", b"1"), set(b"b", b""), set(&[1; MAX_KEY_OCTETS], &[2; MAX_VALUE_OCTETS])],
        vec![set(b"a", b"2"), remove(b"b"), remove(b"not there")],
        // In their order: the last of a key stays.
        vec![set(b"c", b"1"), remove(b"c"), remove(b"a"), set(b"a", b"3"), set(b"d", b"1"), set(b"d", b"2")],
    ];
    for list in lists {
        store.commit(&list).unwrap();
        apply(&mut expected, &list);
        assert_eq!(rows(&store, b"").unwrap(), expected);
    }
    drop(store);
    for _ in 0..2 {
        assert_eq!(rows(&medium.open().unwrap(), b"").unwrap(), expected);
    }
}

fn scans_by_prefix_in_order(store: &impl StateStore) {
    let keys: [&[u8]; 9] = [
        b"\x01",
        b"\x01\x00",
        b"\x01\xff",
        b"\x01\xff\xff",
        b"\x01\xff\xff\x00",
        b"\x02",
        b"\xff",
        b"\xff\xff",
        b"\xffa",
    ];
    let list: Vec<_> = keys.iter().rev().map(|key| set(key, key)).collect();
    store.commit(&list).unwrap();
    let prefixes = [
        b"",
        b"\x01".as_slice(),
        b"\x01\xff",
        b"\x01\xff\xff",
        b"\x02",
        b"\x03",
        b"\xff",
        b"\xff\xff",
        b"\x01\xff\xff\x00\x00",
    ];
    for prefix in prefixes {
        let found: Vec<_> = rows(store, prefix).unwrap().into_keys().collect();
        let mut expected: Vec<_> =
            keys.iter().filter(|key| key.starts_with(prefix)).map(|key| key.to_vec()).collect();
        expected.sort_unstable();
        assert_eq!(found, expected, "{prefix:?}");
    }
}

/// As many as the longest session has, and at once.
fn takes_many_rows_at_once(store: &impl StateStore) {
    let key = |at: u32| [b"\x02session".as_slice(), &at.to_be_bytes()].concat();
    store.commit(&[set(b"\x02sessio", b"before"), set(b"\x02sessioo", b"after")]).unwrap();
    let list: Vec<_> = (0..5000).map(|at| set(&key(at), &[7; 256])).collect();
    store.commit(&list).unwrap();
    assert_eq!(rows(store, b"\x02session").unwrap().len(), 5000);
    let list: Vec<_> = (0..5000).map(|at| remove(&key(at))).collect();
    store.commit(&list).unwrap();
    assert_eq!(rows(store, b"").unwrap().len(), 2);
}

fn refuses_what_is_no_row(store: &impl StateStore) {
    store.commit(&[set(b"there", b"1")]).unwrap();
    let before = rows(store, b"").unwrap();
    let bad = [
        set(b"", b"1"),
        remove(b""),
        set(&[1; MAX_KEY_OCTETS + 1], b"1"),
        remove(&[1; MAX_KEY_OCTETS + 1]),
        RowChange::set(b"a".as_slice(), vec![0; MAX_STORED_OCTETS + 1]),
    ];
    for bad in bad {
        let list = [set(b"there", b"2"), bad];
        assert!(matches!(store.commit(&list), Err(StateError::BadRow(_))), "{:?}", list[1].key);
    }
    let many = vec![set(b"a", b"1"); MAX_CHANGES + 1];
    assert!(matches!(store.commit(&many), Err(StateError::BadRow(_))));
    assert_eq!(rows(store, b"").unwrap(), before);
    store.commit(&[set(b"there", b"3")]).unwrap();
}

fn ends_a_scan_that_fails(store: &impl StateStore) {
    store.commit(&[set(b"a", b"1"), set(b"b", b"2")]).unwrap();
    let mut seen = 0;
    let ended = store.scan(b"", &mut |_, _| {
        seen += 1;
        Err(StateError::Corrupt("the caller's"))
    });
    assert!(matches!(ended, Err(StateError::Corrupt("the caller's"))));
    assert_eq!(seen, 1);
    assert_eq!(rows(store, b"").unwrap().len(), 2);
}

/// Neither waits for the other, and the commit is seen whole or not at all.
fn commits_while_it_is_scanned(store: &impl StateStore) {
    let list = |value: &[u8]| -> Vec<_> {
        (0..3000_u16).map(|at| set(&[&[1], &at.to_be_bytes()[..]].concat(), value)).collect()
    };
    store.commit(&list(b"old")).unwrap();
    let mut seen = BTreeMap::new();
    store
        .scan(b"", &mut |_, value| {
            if seen.is_empty() {
                store.commit(&list(b"new"))?;
            }
            *seen.entry(value.to_vec()).or_insert(0) += 1;
            Ok(())
        })
        .unwrap();
    assert!(
        seen == BTreeMap::from([(b"old".to_vec(), 3000)])
            || seen == BTreeMap::from([(b"new".to_vec(), 3000)])
    );
}

fn takes_commits_of_many_threads(medium: &impl Medium) {
    let store = Arc::new(medium.open().unwrap());
    let threads = (1..=4_u8).map(|thread| {
        let store = store.clone();
        std::thread::spawn(move || {
            for at in 0..20_u8 {
                store.commit(&[set(&[thread, at], &[at]), set(&[100, thread], &[at])]).unwrap();
            }
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.join().unwrap();
    }
    let found = rows(store.as_ref(), b"").unwrap();
    assert_eq!(found.len(), 84);
    assert!((1..=4).all(|thread| found[&vec![100, thread]] == [19]));
}

fn raises_its_term(medium: &impl Medium) {
    let mut last = 0;
    for _ in 0..5 {
        let term = medium.open().unwrap().term();
        assert!(term > last, "{term} after {last}");
        last = term;
    }
}

/// As far as there can be two: a medium with a lock does not open the second.
fn fences_an_older_handle(medium: &impl Medium) {
    let older = medium.open().unwrap();
    older.commit(&[set(b"a", b"older")]).unwrap();
    match medium.open() {
        Ok(newer) => {
            let refused = older.commit(&[set(b"a", b"late"), set(b"b", b"late")]);
            let (term, current) = (older.term(), newer.term());
            assert!(
                matches!(refused, Err(StateError::Fenced { term: t, current: c }) if t == term && c == current),
                "{refused:?}"
            );
            assert_eq!(rows(&newer, b"").unwrap(), Rows::from([(b"a".to_vec(), b"older".to_vec())]));
            newer.commit(&[set(b"a", b"newer")]).unwrap();
            assert!(older.commit(&[]).is_err());
            assert_eq!(rows(&newer, b"").unwrap(), Rows::from([(b"a".to_vec(), b"newer".to_vec())]));
        }
        Err(StateError::InUse) => {
            older.commit(&[set(b"a", b"still")]).unwrap();
            let term = older.term();
            drop(older);
            assert!(medium.open().unwrap().term() > term);
        }
        Err(error) => panic!("{error}"),
    }
}
