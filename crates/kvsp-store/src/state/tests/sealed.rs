//! Rows at rest and the key that they are sealed with.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::script::{losses, open};
use super::{InDirectory, InMemory};
use crate::state::conformance::{self, Medium, Rows, rows};
use crate::state::{
    KeyError, MasterKey, MemoryState, RedbConfig, RedbState, RowChange, Sealed, StateError, StateStore,
    open_sealed,
};
use crate::testing::RecordingFileSystem;

/// Another medium, sealed.
struct UnderSeal<M>(M, MasterKey);

impl<M: Medium> Medium for UnderSeal<M> {
    type Store = Sealed<M::Store>;

    fn open(&self) -> Result<Sealed<M::Store>, StateError> {
        Sealed::new(self.0.open()?, self.1.clone())
    }
}

fn key() -> MasterKey {
    MasterKey::generate().unwrap()
}

#[test]
fn sealed_memory_conforms() {
    conformance::run(|| UnderSeal(InMemory(MemoryState::new()), key()));
}

#[test]
fn sealed_redb_conforms() {
    conformance::run(|| UnderSeal(InDirectory::new(), key()));
}

const SECRET: &[u8] = b"a token that nobody else is to read";

fn set(key: &[u8], value: &[u8]) -> RowChange {
    RowChange::set(key.to_vec(), value.to_vec())
}

#[test]
fn nothing_on_the_disk_tells_a_value() {
    let holds = |dir: &Path, needle: &[u8]| {
        let files = fs::read_dir(dir).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap());
        files.into_iter().any(|octets| octets.windows(needle.len()).any(|window| window == needle))
    };
    let medium = InDirectory::new();
    let path = medium.path();
    let sealed = open_sealed(&path, None, RedbConfig::default()).unwrap();
    sealed.commit(&[set(b"\x01the key of a row", SECRET)]).unwrap();
    drop(sealed);
    assert!(holds(&path, b"the key of a row"));
    assert!(!holds(&path, SECRET));
    let clear = InDirectory::new();
    clear.open().unwrap().commit(&[set(b"\x01", SECRET)]).unwrap();
    assert!(holds(&clear.path(), SECRET), "the search finds nothing");
}

#[test]
fn what_was_changed_or_moved_is_refused() {
    let memory = MemoryState::new();
    let master = key();
    let sealed = Sealed::new(memory.reopen(), master.clone()).unwrap();
    sealed.commit(&[set(b"\x01a", SECRET), set(b"\x01b", SECRET)]).unwrap();
    let inside = rows(&memory, b"\x01").unwrap();
    let (first, second) = (&inside[b"\x01a".as_slice()], &inside[b"\x01b".as_slice()]);
    assert_ne!(first, second);
    let read = |value: &[u8]| {
        let raw = memory.reopen();
        raw.commit(&[set(b"\x01a", value)]).unwrap();
        rows(&Sealed::new(raw, master.clone()).unwrap(), b"\x01a")
    };
    assert_eq!(read(first).unwrap(), Rows::from([(b"\x01a".to_vec(), SECRET.to_vec())]));
    assert!(matches!(read(second), Err(StateError::Corrupt(_))), "another row's");
    for at in 0..first.len() {
        let mut changed = first.clone();
        changed[at] ^= 1;
        let refused = read(&changed);
        match at {
            0 => assert!(matches!(refused, Err(StateError::UnknownVersion(0)))),
            _ => assert!(matches!(refused, Err(StateError::Corrupt(_))), "octet {at}: {refused:?}"),
        }
        assert!(read(&first[..at]).is_err(), "the first {at} octets");
    }
    let elsewhere = MemoryState::new();
    let other = Sealed::new(elsewhere.reopen(), master.clone()).unwrap();
    other.commit(&[set(b"\x01a", SECRET)]).unwrap();
    let theirs = rows(&elsewhere, b"\x01").unwrap();
    assert!(matches!(read(&theirs[b"\x01a".as_slice()]), Err(StateError::Corrupt(_))), "another store's");
    assert!(read(first).is_ok());
}

#[test]
fn no_two_values_are_sealed_alike() {
    let memory = MemoryState::new();
    let master = key();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let sealed = Sealed::new(memory.reopen(), master.clone()).unwrap();
        for _ in 0..3 {
            sealed.commit(&[set(b"\x01a", SECRET)]).unwrap();
            let octets = rows(&memory, b"\x01").unwrap().remove(b"\x01a".as_slice()).unwrap();
            assert_eq!(octets.len(), SECRET.len() + 41);
            assert!(seen.insert(octets));
        }
    }
}

#[test]
fn a_store_keeps_to_its_key() {
    let memory = MemoryState::new();
    let right = key();
    Sealed::new(memory.reopen(), right.clone()).unwrap().commit(&[set(b"\x01a", SECRET)]).unwrap();
    assert!(matches!(Sealed::new(memory.reopen(), key()), Err(StateError::WrongKey)));
    let sealed = Sealed::new(memory.reopen(), right.clone()).unwrap();
    assert_eq!(rows(&sealed, b"").unwrap().len(), 1);
    let clear = MemoryState::new();
    clear.commit(&[set(b"\x01a", b"in the clear")]).unwrap();
    assert!(matches!(Sealed::new(clear, key()), Err(StateError::NotSealed)));
    let marker = rows(&memory, b"\0").unwrap();
    let (name, value) = marker.first_key_value().unwrap();
    let mut later = value.clone();
    later[11] = 2;
    let raw = memory.reopen();
    raw.commit(&[set(name, &later)]).unwrap();
    assert!(matches!(Sealed::new(raw, right), Err(StateError::UnknownVersion(2))));
}

#[test]
fn the_first_table_is_not_the_callers() {
    let sealed = Sealed::new(MemoryState::new(), key()).unwrap();
    for change in [set(b"\0", b""), set(b"\0sealed", b""), RowChange::remove(b"\0sealed".as_slice())] {
        assert!(matches!(sealed.commit(&[change]), Err(StateError::BadRow(_))));
    }
    assert!(rows(&sealed, b"").unwrap().is_empty());
    assert!(rows(&sealed, b"\0").unwrap().is_empty());
}

#[test]
fn a_loss_of_power_while_it_is_sealed_leaves_it_usable() {
    let fs = RecordingFileSystem::new();
    let master = key();
    let sealed = Sealed::new(open(fs.clone()).unwrap(), master.clone()).unwrap();
    sealed.commit(&[set(b"\x01a", SECRET)]).unwrap();
    let acknowledged = fs.steps();
    for steps in 0..=acknowledged {
        for loss in losses(steps) {
            let left = Sealed::new(open(fs.after_power_loss(steps, loss)).unwrap(), master.clone()).unwrap();
            let found = rows(&left, b"").unwrap();
            assert!(found.len() == 1 || steps < acknowledged);
            assert!(found.values().all(|value| value == SECRET));
        }
    }
}

#[test]
fn a_key_file_is_made_once_and_for_its_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    assert!(matches!(MasterKey::read(&path), Err(KeyError::Missing)));
    let made: Vec<_> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..8).map(|_| scope.spawn(|| MasterKey::create(&path))).collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).collect()
    });
    assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1);
    assert!(made.iter().all(|made| matches!(made, Ok(_) | Err(KeyError::Exists))), "{made:?}");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "something was left beside it");
    let octets = fs::read(&path).unwrap();
    assert_eq!(octets.len(), 32);
    assert_eq!(MasterKey::read(&path).unwrap().octets()[..], octets);
    assert_eq!(format!("{:?}", MasterKey::read(&path).unwrap()), "MasterKey(..)");
}

#[test]
fn a_key_file_that_is_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let write = |octets: usize, mode: u32| {
        fs::write(&path, vec![7; octets]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        MasterKey::read(&path)
    };
    for mode in [0o644, 0o640, 0o604, 0o620, 0o660, 0o601] {
        assert!(matches!(write(32, mode), Err(KeyError::Exposed { mode: found }) if found == mode));
    }
    for octets in [0, 31, 33, 64] {
        assert!(matches!(write(octets, 0o600), Err(KeyError::Length(found)) if found == octets as u64));
    }
    write(32, 0o600).unwrap();
    write(32, 0o400).unwrap();
    let inner = dir.path().join("directory");
    fs::create_dir(&inner).unwrap();
    fs::set_permissions(&inner, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(matches!(MasterKey::read(&inner), Err(KeyError::Length(_))));
}

#[test]
fn a_sealed_directory_is_opened_with_its_key_alone() {
    let medium = InDirectory::new();
    let path = medium.path();
    let open = |key: Option<&Path>| open_sealed(&path, key, RedbConfig::default());
    open(None).unwrap().commit(&[set(b"\x01a", SECRET)]).unwrap();
    let reads = |sealed: Sealed<RedbState>| {
        rows(&sealed, b"").unwrap() == Rows::from([(b"\x01a".to_vec(), SECRET.to_vec())])
    };
    assert!(reads(open(None).unwrap()));
    let moved = medium.0.path().join("moved");
    fs::rename(path.join("key"), &moved).unwrap();
    // No other is made in its place.
    for _ in 0..2 {
        assert!(matches!(open(None), Err(StateError::Key(KeyError::Missing))));
    }
    assert!(reads(open(Some(&moved)).unwrap()));
    let other = medium.0.path().join("other");
    assert!(matches!(open(Some(&other)), Err(StateError::Key(KeyError::Missing))));
    MasterKey::create(&other).unwrap();
    assert!(matches!(open(Some(&other)), Err(StateError::WrongKey)));
    assert!(reads(open(Some(&moved)).unwrap()));
}
