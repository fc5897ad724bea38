//! A file system that asks before each operation.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::fs::{Entry, FileSystem, Lock, OpenFile};

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Looks at names, lengths or octets, opens or locks.
    Look,
    /// Makes a directory or a file, writes octets, or gives a file a name: may need room.
    Grow,
    /// Cuts or removes a file.
    Shrink,
    /// Makes durable.
    Sync,
}

/// What is asked before each operation.
pub trait Before: fmt::Debug + Send + Sync + 'static {
    /// May take its time, or refuse.
    ///
    /// # Errors
    /// The operation then fails so, and is not carried out.
    fn before(&self, operation: Operation) -> io::Result<()>;
}

/// Another file system behind a question. Clones share who is asked. A write that is refused leaves the first half of its octets, as
/// one on a full disk does.
#[derive(Debug)]
pub struct Asking<B> {
    inner: Arc<dyn FileSystem>,
    pub(super) asked: Arc<B>,
}

impl<B> Clone for Asking<B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), asked: self.asked.clone() }
    }
}

impl<B: Before + Default> Asking<B> {
    /// Nothing is refused or delayed yet.
    #[must_use]
    pub fn new(inner: Arc<dyn FileSystem>) -> Self {
        Self { inner, asked: Arc::default() }
    }
}

impl<B: Before> Asking<B> {
    fn file(&self, inner: Box<dyn OpenFile>) -> Box<dyn OpenFile> {
        Box::new(AskingFile { inner, asked: self.asked.clone() })
    }
}

impl<B: Before> FileSystem for Asking<B> {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.asked.before(Operation::Grow)?;
        self.inner.create_dir(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.asked.before(Operation::Look)?;
        self.inner.read_dir(path)
    }

    fn octets(&self, path: &Path) -> io::Result<u64> {
        self.asked.before(Operation::Look)?;
        self.inner.octets(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.asked.before(Operation::Look)?;
        Ok(self.file(self.inner.open(path)?))
    }

    fn open_writable(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.asked.before(Operation::Look)?;
        Ok(self.file(self.inner.open_writable(path)?))
    }

    fn create_new(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.asked.before(Operation::Grow)?;
        Ok(self.file(self.inner.create_new(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.asked.before(Operation::Grow)?;
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.asked.before(Operation::Shrink)?;
        self.inner.remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.asked.before(Operation::Sync)?;
        self.inner.sync_dir(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        self.asked.before(Operation::Look)?;
        self.inner.lock(path)
    }
}

#[derive(Debug)]
struct AskingFile<B> {
    inner: Box<dyn OpenFile>,
    asked: Arc<B>,
}

impl<B: Before> OpenFile for AskingFile<B> {
    fn octets(&self) -> io::Result<u64> {
        self.asked.before(Operation::Look)?;
        self.inner.octets()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.asked.before(Operation::Look)?;
        self.inner.read_exact_at(buffer, offset)
    }

    fn write_all_at(&self, octets: &[u8], offset: u64) -> io::Result<()> {
        let refused = self.asked.before(Operation::Grow);
        let done = if refused.is_ok() { octets.len() } else { octets.len() / 2 };
        self.inner.write_all_at(&octets[..done], offset)?;
        refused
    }

    fn truncate(&self, octets: u64) -> io::Result<()> {
        self.asked.before(Operation::Shrink)?;
        self.inner.truncate(octets)
    }

    fn sync(&self) -> io::Result<()> {
        self.asked.before(Operation::Sync)?;
        self.inner.sync()
    }
}
