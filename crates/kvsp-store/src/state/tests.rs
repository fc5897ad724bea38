//! Tests of every backend, of what is left without power, and of devices that fail.

mod failures;
mod group;
mod power;
mod script;
mod sealed;

use std::path::{Path, PathBuf};

use super::conformance::{self, Medium};
use super::{MemoryState, RedbConfig, RedbState, StateError};

struct InMemory(MemoryState);

impl Medium for InMemory {
    type Store = MemoryState;

    fn open(&self) -> Result<MemoryState, StateError> {
        Ok(self.0.reopen())
    }
}

struct InDirectory(tempfile::TempDir);

impl InDirectory {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("state")
    }
}

impl Medium for InDirectory {
    type Store = RedbState;

    fn open(&self) -> Result<RedbState, StateError> {
        RedbState::open(&self.path(), RedbConfig::default())
    }
}

#[test]
fn memory_conforms() {
    conformance::run(|| InMemory(MemoryState::new()));
}

#[test]
fn redb_conforms() {
    conformance::run(InDirectory::new);
}

fn open(dir: &Path) -> Result<RedbState, StateError> {
    RedbState::open(dir, RedbConfig::default())
}

#[test]
fn a_directory_made_here_is_nobody_elses() {
    use std::os::unix::fs::PermissionsExt as _;
    let medium = InDirectory::new();
    drop(medium.open().unwrap());
    assert_eq!(medium.path().metadata().unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn what_is_no_store_is_refused() {
    let medium = InDirectory::new();
    drop(medium.open().unwrap());
    let file = medium.path().join("state.redb");
    let good = std::fs::read(&file).unwrap();
    for bad in [
        vec![],
        vec![0; 4096],
        b"something else".to_vec(),
        vec![0xff; 100_000],
        good[..good.len() / 2].to_vec(),
    ] {
        std::fs::write(&file, &bad).unwrap();
        let refused = medium.open().unwrap_err();
        assert!(matches!(refused, StateError::Corrupt(_)), "{refused:?}");
        assert_eq!(std::fs::read(&file).unwrap(), bad, "it was written to");
    }
    std::fs::write(&file, good).unwrap();
    medium.open().unwrap();
}

#[test]
fn an_unknown_version_is_refused() {
    let medium = InDirectory::new();
    drop(medium.open().unwrap());
    for (format, version) in [
        (&b"KVSPSTAT\0\0\0\x02"[..], Some(2)),
        (b"KVSPSTAT\xff\0\0\0", Some(0xff00_0000)),
        (b"KVSPSTAT", None),
        (b"OTHERONE\0\0\0\x01", None),
    ] {
        let database = ::redb::Database::open(medium.path().join("state.redb")).unwrap();
        let write = database.begin_write().unwrap();
        let meta = ::redb::TableDefinition::<&str, &[u8]>::new("meta");
        write.open_table(meta).unwrap().insert("format", format).unwrap();
        write.commit().unwrap();
        drop(database);
        let refused = open(&medium.path()).unwrap_err();
        match version {
            Some(version) => {
                assert!(matches!(refused, StateError::UnknownVersion(found) if found == version));
            }
            None => assert!(matches!(refused, StateError::Corrupt(_))),
        }
    }
}
