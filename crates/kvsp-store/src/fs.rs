//! What a [`DiskStore`](crate::DiskStore) asks of a file system, as a trait: so that a test can lose what was
//! not synced, fail an operation, or be slow, without a hook in the store.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Directories and files by path. Calls block; every method may fail as the device does.
pub trait FileSystem: fmt::Debug + Send + Sync + 'static {
    /// Makes a directory, whose parent is there.
    ///
    /// # Errors
    /// `AlreadyExists`; I/O.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// What is in a directory, ordered by path.
    ///
    /// # Errors
    /// I/O.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>>;

    /// The length of a file in octets.
    ///
    /// # Errors
    /// `NotFound`; I/O.
    fn octets(&self, path: &Path) -> io::Result<u64>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// `NotFound`; `InvalidData` for what is no plain file; I/O.
    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// As [`FileSystem::open`].
    fn open_writable(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;

    /// Makes a file that is not there, for reading and writing.
    ///
    /// # Errors
    /// `AlreadyExists`; I/O.
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;

    /// Gives a file another name, in place of a file that has it.
    ///
    /// # Errors
    /// `NotFound`; I/O.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound`; I/O.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable: those made, given and removed so far.
    ///
    /// # Errors
    /// I/O.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Takes a file for this process, making it where it is not there; given back when dropped.
    ///
    /// # Errors
    /// `WouldBlock` where another has it; I/O.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>>;
}

/// A file that is open.
pub trait OpenFile: fmt::Debug + Send + Sync {
    /// Its length in octets.
    ///
    /// # Errors
    /// I/O.
    fn octets(&self) -> io::Result<u64>;

    /// Fills a buffer from `offset` on.
    ///
    /// # Errors
    /// `UnexpectedEof`; I/O.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes octets at `offset`, all of them.
    ///
    /// # Errors
    /// `StorageFull`; I/O.
    fn write_all_at(&self, octets: &[u8], offset: u64) -> io::Result<()>;

    /// Cuts the file to a length.
    ///
    /// # Errors
    /// I/O.
    fn truncate(&self, octets: u64) -> io::Result<()>;

    /// Makes its octets and its length durable; not its name, see [`FileSystem::sync_dir`].
    ///
    /// # Errors
    /// I/O.
    fn sync(&self) -> io::Result<()>;
}

/// A lock that is held until it is dropped.
pub trait Lock: fmt::Debug + Send + Sync {}

/// What is in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its path: that of the directory, and its name.
    pub path: PathBuf,
    /// Whether it is a file, itself and not as a link.
    pub is_file: bool,
}

/// The file system of the machine. Nothing is mapped: a failing disk is an error, not a signal.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalFileSystem;

impl FileSystem for LocalFileSystem {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let entry = |found: io::Result<fs::DirEntry>| {
            let found = found?;
            Ok(Entry { path: found.path(), is_file: found.file_type()?.is_file() })
        };
        let mut entries = fs::read_dir(path)?.map(entry).collect::<io::Result<Vec<_>>>()?;
        entries.sort_unstable();
        Ok(entries)
    }

    fn octets(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::symlink_metadata(path)?.len())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        open_file(OpenOptions::new().read(true), path)
    }

    fn open_writable(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        open_file(OpenOptions::new().read(true).write(true), path)
    }

    fn create_new(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(File::create_new(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        file.try_lock()?;
        Ok(Box::new(LocalLock { _file: file }))
    }
}

/// A plain file, and at once: a pipe or a device of that name, which somebody laid there, would keep a reader
/// for ever, and a link would lead it elsewhere.
fn open_file(options: &mut OpenOptions, path: &Path) -> io::Result<Box<dyn OpenFile>> {
    let other = || io::Error::new(io::ErrorKind::InvalidData, "not a plain file");
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path).map_err(|error| {
        let is_other = matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO | libc::EISDIR));
        if is_other { other() } else { error }
    })?;
    if file.metadata()?.is_file() { Ok(Box::new(file)) } else { Err(other()) }
}

/// The lock goes with the last handle of the file.
#[derive(Debug)]
struct LocalLock {
    _file: File,
}

impl Lock for LocalLock {}

impl OpenFile for File {
    fn octets(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buffer, offset)
    }

    fn write_all_at(&self, octets: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, octets, offset)
    }

    fn truncate(&self, octets: u64) -> io::Result<()> {
        self.set_len(octets)
    }

    fn sync(&self) -> io::Result<()> {
        // Octets and length; times are of no use to anyone.
        self.sync_data()
    }
}
