//! The files of a store: made whole or not at all.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{
    Builder, Database, ReadableDatabase as _, ReadableTable as _, StorageBackend as _, WriteTransaction,
};

use super::backend::{FileBackend, Overlay};
use super::{META, ROWS, failed};
use crate::fs::{FileSystem, Lock};
use crate::state::StateError;

/// The file's name.
pub(super) const DATABASE: &str = "state.redb";
/// What the row `format` begins with; the version follows as a u32 in network order.
const MAGIC: &[u8; 8] = b"KVSPSTAT";
const VERSION: u32 = 1;

/// Where a store lies.
#[derive(Debug)]
pub(super) struct Files {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    /// The database.
    path: PathBuf,
    /// A database that is not whole yet.
    aside: PathBuf,
    /// There while what is read from the file need not be what the device has: for a process that starts before
    /// this one could do something about it.
    mark: PathBuf,
    /// A sync of the file failed.
    suspect: Arc<AtomicBool>,
    cache_octets: usize,
}

impl Files {
    pub(super) fn new(fs: Arc<dyn FileSystem>, dir: &Path, cache_octets: usize) -> Self {
        let (path, aside) = (dir.join(DATABASE), dir.join("state.redb.new"));
        let mark = dir.join("SUSPECT");
        Self { fs, dir: dir.to_owned(), path, aside, mark, suspect: Arc::default(), cache_octets }
    }

    /// Whether what is read from the file need not be what the device has.
    pub(super) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::SeqCst)
    }

    /// Remembers beyond this process that the file is suspect, if it is. As long as the memory of the system lasts,
    /// so does the mark: it needs no sync.
    pub(super) fn mark(&self) {
        if self.is_suspect() {
            match self.fs.create_new(&self.mark) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    tracing::error!(%error, "a restart will not know that a sync of the state failed");
                }
                _ => {}
            }
        }
    }

    /// Makes the directory and takes it for this process; there is a database in it afterwards.
    pub(super) fn prepare(&self) -> Result<Box<dyn Lock>, StateError> {
        match self.fs.create_dir(&self.dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        let lock = self.fs.lock(&self.dir.join("LOCK")).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => StateError::InUse,
            _ => error.into(),
        })?;
        match self.fs.octets(&self.path) {
            Ok(_) => {
                // It may have got its name just before the power went.
                self.fs.sync_dir(&self.dir)?;
                self.suspect.store(self.fs.octets(&self.mark).is_ok(), Ordering::SeqCst);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if let Some(parent) = self.dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                    self.fs.sync_dir(parent)?;
                }
                self.create(|transaction| {
                    let format = [&MAGIC[..], &VERSION.to_be_bytes()].concat();
                    transaction
                        .open_table(META)
                        .map_err(failed)?
                        .insert("format", &*format)
                        .map_err(failed)?;
                    transaction.open_table(ROWS).map_err(failed)?;
                    put_term(transaction, 0)
                })?;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(lock)
    }

    /// Opens the database that is there, and verifies it; a copy of it where its file is suspect.
    pub(super) fn open(&self) -> Result<Database, StateError> {
        if !self.is_suspect() {
            let opened = self.open_as_it_is();
            if !self.is_suspect() {
                return opened;
            }
            drop(opened);
            self.mark();
        }
        self.rebuild()
    }

    fn open_as_it_is(&self) -> Result<Database, StateError> {
        let backend = FileBackend { file: self.fs.open_writable(&self.path)?, suspect: self.suspect.clone() };
        if backend.len()? == 0 {
            return Err(StateError::Corrupt("the file is empty"));
        }
        // What a failed commit left in the memory of the system may be what is read now.
        backend.sync_data()?;
        let database = self.builder().create_with_backend(backend).map_err(failed)?;
        check_format(&database)?;
        Ok(database)
    }

    /// Copies the rows of a file that is not to be believed to a new one that takes its place. The old one is not
    /// written to: as long as the new one is not whole, the device has what it had.
    fn rebuild(&self) -> Result<Database, StateError> {
        let overlay = Overlay::new(self.fs.open(&self.path)?)?;
        let old = self.builder().create_with_backend(overlay).map_err(failed)?;
        check_format(&old)?;
        let read = old.begin_read().map_err(failed)?;
        let rebuilt = self.create(|transaction| {
            let mut meta = transaction.open_table(META).map_err(failed)?;
            for row in read.open_table(META).map_err(failed)?.iter().map_err(failed)? {
                let (key, value) = row.map_err(failed)?;
                meta.insert(key.value(), value.value()).map_err(failed)?;
            }
            let mut rows = transaction.open_table(ROWS).map_err(failed)?;
            for row in read.open_table(ROWS).map_err(failed)?.iter().map_err(failed)? {
                let (key, value) = row.map_err(failed)?;
                rows.insert(key.value(), value.value()).map_err(failed)?;
            }
            Ok(())
        })?;
        tracing::warn!("a sync of the state failed: its rows are in a new file now");
        Ok(rebuilt)
    }

    /// Makes a database aside and gives it its name when it is whole and durable.
    fn create(
        &self,
        fill: impl FnOnce(&WriteTransaction) -> Result<(), StateError>,
    ) -> Result<Database, StateError> {
        match self.fs.remove_file(&self.aside) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let backend = FileBackend { file: self.fs.create_new(&self.aside)?, suspect: self.suspect.clone() };
        let database = self.builder().create_with_backend(backend).map_err(failed)?;
        let transaction = database.begin_write().map_err(failed)?;
        fill(&transaction)?;
        transaction.commit().map_err(failed)?;
        self.fs.rename(&self.aside, &self.path)?;
        self.fs.sync_dir(&self.dir)?;
        self.suspect.store(false, Ordering::SeqCst);
        match self.fs.remove_file(&self.mark) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(%error, "the next start copies the state once more than it must");
            }
            _ => {}
        }
        Ok(database)
    }

    fn builder(&self) -> Builder {
        let mut builder = Database::builder();
        builder.set_cache_size(self.cache_octets);
        // Else a file that somebody changed may be a panic later.
        builder.set_check_integrity_on_open(true);
        builder
    }
}

fn check_format(database: &Database) -> Result<(), StateError> {
    let read = database.begin_read().map_err(failed)?;
    let meta = read.open_table(META).map_err(failed)?;
    let format = meta.get("format").map_err(failed)?.ok_or(StateError::Corrupt("the format is missing"))?;
    let version = format.value().strip_prefix(MAGIC).ok_or(StateError::Corrupt("the magic"))?;
    let version: [u8; 4] = version.try_into().map_err(|_| StateError::Corrupt("the version"))?;
    match u32::from_be_bytes(version) {
        VERSION => Ok(()),
        other => Err(StateError::UnknownVersion(other)),
    }
}

/// The term that was taken last.
pub(super) fn term(database: &Database) -> Result<u64, StateError> {
    let read = database.begin_read().map_err(failed)?;
    let meta = read.open_table(META).map_err(failed)?;
    let term = meta.get("term").map_err(failed)?.ok_or(StateError::Corrupt("the term is missing"))?;
    let term: [u8; 8] = term.value().try_into().map_err(|_| StateError::Corrupt("the term"))?;
    Ok(u64::from_be_bytes(term))
}

pub(super) fn put_term(transaction: &WriteTransaction, term: u64) -> Result<(), StateError> {
    let mut meta = transaction.open_table(META).map_err(failed)?;
    meta.insert("term", &term.to_be_bytes()[..]).map_err(failed)?;
    Ok(())
}
