//! The files of a store: made whole or not at all.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{Builder, Database, ReadableDatabase as _, ReadableTable as _, WriteTransaction};

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
    cache_octets: usize,
}

/// A database, and whether its file is to be believed.
pub(super) struct Opened {
    pub(super) database: Database,
    suspect: Arc<AtomicBool>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("suspect", &self.suspect).finish_non_exhaustive()
    }
}

impl Opened {
    /// Whether a sync of it failed.
    pub(super) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::SeqCst)
    }
}

impl Files {
    pub(super) fn new(fs: Arc<dyn FileSystem>, dir: &Path, cache_octets: usize) -> Self {
        let (path, aside) = (dir.join(DATABASE), dir.join("state.redb.new"));
        Self { fs, dir: dir.to_owned(), path, aside, cache_octets }
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
            // It may have got its name just before the power went.
            Ok(_) => self.fs.sync_dir(&self.dir)?,
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

    /// Opens the database that is there, and verifies it.
    pub(super) fn open(&self) -> Result<Opened, StateError> {
        let file = self.fs.open_writable(&self.path)?;
        if file.octets()? == 0 {
            return Err(StateError::Corrupt("the file is empty"));
        }
        // What a failed commit left in the memory of the system may be what is read now.
        let suspect = Arc::new(AtomicBool::new(false));
        let opened = match file.sync() {
            Ok(()) => self.builder().create_with_backend(FileBackend { file, suspect: suspect.clone() }),
            Err(_) => return self.rebuild(),
        };
        match opened {
            Ok(database) => {
                check_format(&database)?;
                Ok(Opened { database, suspect })
            }
            Err(_) if suspect.load(Ordering::SeqCst) => self.rebuild(),
            Err(error) => Err(failed(error)),
        }
    }

    /// Copies the rows of a file that is not to be believed to a new one that takes its place. The old one is not
    /// written to: as long as the new one is not whole, the device has what it had.
    pub(super) fn rebuild(&self) -> Result<Opened, StateError> {
        let overlay = Overlay::new(self.fs.open(&self.path)?)?;
        let old = self.builder().create_with_backend(overlay).map_err(failed)?;
        check_format(&old)?;
        let read = old.begin_read().map_err(failed)?;
        self.create(|transaction| {
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
        })
    }

    /// Makes a database aside and gives it its name when it is whole and durable.
    fn create(
        &self,
        fill: impl FnOnce(&WriteTransaction) -> Result<(), StateError>,
    ) -> Result<Opened, StateError> {
        match self.fs.remove_file(&self.aside) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let suspect = Arc::new(AtomicBool::new(false));
        let file = self.fs.create_new(&self.aside)?;
        let backend = FileBackend { file, suspect: suspect.clone() };
        let database = self.builder().create_with_backend(backend).map_err(failed)?;
        let transaction = database.begin_write().map_err(failed)?;
        fill(&transaction)?;
        transaction.commit().map_err(failed)?;
        self.fs.rename(&self.aside, &self.path)?;
        self.fs.sync_dir(&self.dir)?;
        Ok(Opened { database, suspect })
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
