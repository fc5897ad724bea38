//! Rows in a file, by way of the embedded database `redb`.
//!
//! One commit costs one sync: `redb` writes changed pages aside, and tells a commit that is whole from one that is not
//! by checksums. Checksums do not withstand somebody who chooses the octets and takes the power at will; below
//! [`Sealed`](super::Sealed) nobody chooses them.
//!
//! What a device does after an error decides how the store goes on. After a failed write the file is opened again, and
//! what was committed last is looked up. After a failed *sync* the system may show octets that never reach the device,
//! and counts them as written: nothing of that file is built upon any more, its rows are copied to a new one.

mod backend;
mod files;

use std::fmt;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::redb::{Database, ReadableDatabase as _, TableDefinition};

use super::{EachRow, RowChange, StateError, StateStore, check_changes};
use crate::fs::{FileSystem, LocalFileSystem, Lock};
use files::Files;

const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");

/// How a [`RedbState`] uses the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedbConfig {
    /// Memory for pages, read and changed, in octets.
    pub cache_octets: usize,
}

impl Default for RedbConfig {
    fn default() -> Self {
        Self { cache_octets: 64 << 20 }
    }
}

/// Rows in one file of a directory that belongs to one process.
///
/// After a crash the next open reads the whole file once, and verifies every page.
pub struct RedbState {
    files: Files,
    term: u64,
    /// None while the device fails.
    database: Mutex<Option<Database>>,
    /// The last commit failed: told once.
    failing: AtomicBool,
    _lock: Box<dyn Lock>,
}

impl fmt::Debug for RedbState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbState")
            .field("files", &self.files)
            .field("term", &self.term)
            .finish_non_exhaustive()
    }
}

impl RedbState {
    /// Opens the store in a directory of the machine, and makes both where they are not there; nobody else may look
    /// into a directory made here.
    ///
    /// # Errors
    /// [`StateError::InUse`], [`StateError::UnknownVersion`], and as [`StateStore::commit`].
    pub fn open(dir: &Path, config: RedbConfig) -> Result<Self, StateError> {
        Self::make_dir(dir)?;
        Self::open_on(Arc::new(LocalFileSystem), dir, config)
    }

    /// As [`RedbState::open`], on any file system; the directory's parent is there.
    ///
    /// # Errors
    /// As [`RedbState::open`].
    pub fn open_on(fs: Arc<dyn FileSystem>, dir: &Path, config: RedbConfig) -> Result<Self, StateError> {
        let files = Files::new(fs, dir, config.cache_octets);
        let lock = files.prepare()?;
        let mut database = files.open()?;
        let mut term = take_term(&database);
        if term.is_err() && files.is_suspect() {
            drop(database);
            files.mark();
            database = files.open()?;
            term = take_term(&database);
        }
        let (database, failing) = (Mutex::new(Some(database)), AtomicBool::new(false));
        Ok(Self { files, term: term?, database, failing, _lock: lock })
    }

    /// Makes a directory that only its owner looks into.
    pub(super) fn make_dir(dir: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)
    }

    /// Whether there are rows in a directory.
    pub(super) fn is_in(dir: &Path) -> io::Result<bool> {
        dir.join(files::DATABASE).try_exists()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Database>> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The database, opened again where the device failed before.
    fn usable<'a>(&self, slot: &'a mut Option<Database>) -> Result<&'a Database, StateError> {
        match slot {
            Some(database) => Ok(database),
            None => {
                let database = self.files.open()?;
                let current = files::term(&database)?;
                if current != self.term {
                    return Err(StateError::Fenced { term: self.term, current });
                }
                Ok(slot.insert(database))
            }
        }
    }

    /// Commits, and finds out what became of it where that failed.
    fn commit_or_look(&self, changes: &[RowChange]) -> Result<(), StateError> {
        let mut slot = self.lock();
        let Err(error) = write(self.usable(&mut slot)?, changes) else {
            return Ok(());
        };
        *slot = None;
        self.files.mark();
        // Its last octets may have arrived before the error did. Only what is there decides.
        match self.usable(&mut slot) {
            Ok(database) if holds(database, changes).unwrap_or(false) => Ok(()),
            _ => Err(error),
        }
    }
}

impl StateStore for RedbState {
    fn term(&self) -> u64 {
        self.term
    }

    fn commit(&self, changes: &[RowChange]) -> Result<(), StateError> {
        check_changes(changes)?;
        let committed = self.commit_or_look(changes);
        let failed = committed.is_err();
        if self.failing.swap(failed, Ordering::Relaxed) != failed {
            match &committed {
                Ok(()) => tracing::info!("the state is committed again"),
                Err(error) => tracing::warn!(%error, "commits of the state fail"),
            }
        }
        committed
    }

    fn scan(&self, prefix: &[u8], each: &mut EachRow<'_>) -> Result<(), StateError> {
        let transaction = {
            let mut slot = self.lock();
            self.usable(&mut slot)?.begin_read().map_err(failed)?
        };
        let rows = transaction.open_table(ROWS).map_err(failed)?;
        for row in rows.range(prefix..).map_err(failed)? {
            let (key, value) = row.map_err(failed)?;
            if !key.value().starts_with(prefix) {
                break;
            }
            each(key.value(), value.value())?;
        }
        Ok(())
    }
}

/// Makes the next term durable.
fn take_term(database: &Database) -> Result<u64, StateError> {
    let term = files::term(database)?.checked_add(1).ok_or(StateError::Corrupt("the term"))?;
    let transaction = database.begin_write().map_err(failed)?;
    files::put_term(&transaction, term)?;
    transaction.commit().map_err(failed)?;
    Ok(term)
}

fn write(database: &Database, changes: &[RowChange]) -> Result<(), StateError> {
    let transaction = database.begin_write().map_err(failed)?;
    {
        let mut rows = transaction.open_table(ROWS).map_err(failed)?;
        for change in changes {
            match &change.value {
                Some(value) => drop(rows.insert(&*change.key, &**value).map_err(failed)?),
                None => drop(rows.remove(&*change.key).map_err(failed)?),
            }
        }
    }
    transaction.commit().map_err(failed)
}

/// Whether the rows are as these changes leave them.
fn holds(database: &Database, changes: &[RowChange]) -> Result<bool, StateError> {
    let last: std::collections::BTreeMap<_, _> =
        changes.iter().map(|change| (&change.key, change.value.as_deref())).collect();
    let rows = database.begin_read().map_err(failed)?.open_table(ROWS).map_err(failed)?;
    for (key, value) in last {
        if rows.get(&**key).map_err(failed)?.as_ref().map(::redb::AccessGuard::value) != value {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What the database says, in our words.
fn failed(error: impl Into<::redb::Error>) -> StateError {
    use ::redb::Error;
    match error.into() {
        Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            StateError::Corrupt("the file is not a database")
        }
        Error::Io(error) => error.into(),
        Error::UpgradeRequired(version) => StateError::UnknownVersion(version.into()),
        error @ (Error::PreviousIo | Error::DatabaseClosed | Error::LockPoisoned(_)) => {
            io::Error::other(error).into()
        }
        error => {
            tracing::error!(%error, "the state is corrupt");
            StateError::Corrupt("the database")
        }
    }
}
