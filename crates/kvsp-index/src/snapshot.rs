//! What the index knows, written down for the next process (profile sections 5 and 6).
//!
//! One file, written aside, synced and renamed, so that there is always the last whole one or none. Its
//! deadlines are of the machine's boot-time clock: the next process goes on with what is left of them. A
//! file that is damaged or of another version is set aside and never read in part.

mod format;
mod stream;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvsp_core::index::SnapshotEntry;
use kvsp_store::fs::{FileSystem, Lock};

pub(crate) use format::{Head, Shift};
use stream::{Reader, Writer};

/// Why a snapshot was not written, or not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    /// The file system failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It would be larger than allowed.
    #[error("it would be over the limit of {max} octets")]
    TooLarge {
        /// The limit.
        max: u64,
    },
    /// It does not begin as a snapshot does.
    #[error("it is no snapshot of an index")]
    Foreign,
    /// Its format is of another version.
    #[error("its format is of version {0}, which is not known here")]
    Version(u32),
    /// Its octets are not those that were written.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

/// Where snapshots lie.
#[derive(Debug)]
pub(crate) struct Snapshots {
    files: Arc<dyn FileSystem>,
    path: PathBuf,
    max_octets: u64,
    /// No other process writes there.
    _lock: Box<dyn Lock>,
}

impl Snapshots {
    /// Takes a path for this process.
    ///
    /// # Errors
    /// `WouldBlock` where another process has it; I/O.
    pub(crate) fn open(files: Arc<dyn FileSystem>, path: &Path, max_octets: u64) -> io::Result<Self> {
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            make_dirs(files.as_ref(), parent)?;
        }
        let lock = files.lock(&beside(path, ".lock"))?;
        let snapshots = Self { files, path: path.to_owned(), max_octets, _lock: lock };
        // What an earlier process did not finish.
        snapshots.remove(&beside(path, ".new"))?;
        Ok(snapshots)
    }

    /// Writes a snapshot in place of the last one. `next` gives one piece of entries after the other, dated
    /// as they were taken, until it gives `None`. Answers the octets written.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] and [`SnapshotError::TooLarge`]; then the last snapshot is still there, and
    /// nothing else.
    pub(crate) fn write(
        &self,
        head: &Head,
        next: impl FnMut() -> Option<(Vec<SnapshotEntry>, Shift)>,
    ) -> Result<u64, SnapshotError> {
        let aside = beside(&self.path, ".new");
        let written = self.write_aside(&aside, head, next).and_then(|octets| {
            self.files.rename(&aside, &self.path)?;
            self.sync_dir()?;
            Ok(octets)
        });
        if written.is_err()
            && let Err(error) = self.remove(&aside)
        {
            tracing::warn!(%error, "a snapshot that was not finished could not be removed");
        }
        written
    }

    fn write_aside(
        &self,
        aside: &Path,
        head: &Head,
        mut next: impl FnMut() -> Option<(Vec<SnapshotEntry>, Shift)>,
    ) -> Result<u64, SnapshotError> {
        let file = self.files.create_new(aside)?;
        let mut writer = Writer::new(file.as_ref(), self.max_octets);
        writer.put(&head.encode())?;
        let mut frame = Vec::new();
        while let Some((entries, shift)) = next() {
            for entry in &entries {
                frame.clear();
                format::encode(entry, &shift, &mut frame);
                writer.frame(&frame)?;
            }
        }
        let octets = writer.finish()?;
        file.sync()?;
        Ok(octets)
    }

    /// Reads the last snapshot and answers its head; `None` where there is none. `take` is given each of its
    /// entries, with the times of `shift`.
    ///
    /// # Errors
    /// [`SnapshotError`]; then what `take` was given is not to be relied on.
    pub(crate) fn read(
        &self,
        shift: &Shift,
        mut take: impl FnMut(&Head, SnapshotEntry),
    ) -> Result<Option<Head>, SnapshotError> {
        let file = match self.files.open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut reader = Reader::new(file.as_ref())?;
        let head = Head::decode(reader.take(Head::OCTETS).map_err(|_| SnapshotError::Foreign)?)?;
        let mut decoder = format::Decoder::default();
        while let Some(frame) = reader.frame()? {
            let entry = decoder.decode(frame, shift);
            take(&head, entry.ok_or(SnapshotError::Damaged("an entry does not add up"))?);
        }
        Ok(Some(head))
    }

    /// Gives a snapshot that could not be read another name, so that it is neither read again nor lost.
    pub(crate) fn set_aside(&self) -> io::Result<PathBuf> {
        let to = beside(&self.path, ".set-aside");
        self.files.rename(&self.path, &to)?;
        self.sync_dir()?;
        Ok(to)
    }

    /// Where the snapshot lies.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match self.files.remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.files.sync_dir(above(&self.path))
    }
}

/// The path with more at the end of its name.
fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(more);
    name.into()
}

/// Makes a directory with those above it, durably.
fn make_dirs(files: &dyn FileSystem, path: &Path) -> io::Result<()> {
    match files.create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).ok_or(error)?;
            make_dirs(files, parent)?;
            files.create_dir(path)?;
        }
        made => made?,
    }
    files.sync_dir(above(path))
}

/// The directory in which a path lies.
fn above(path: &Path) -> &Path {
    path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
