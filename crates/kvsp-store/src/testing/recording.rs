//! A file system in memory that remembers every change, and what was synced after it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::power_loss::{Loss, survivors};
use super::tree::{Id, Node, Tree};
use crate::fs::{Entry, FileSystem, Lock, OpenFile};

/// One change, or one sync.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Dir {
        parent: Id,
        name: OsString,
        id: Id,
    },
    File {
        parent: Id,
        name: OsString,
        id: Id,
    },
    Write {
        id: Id,
        offset: usize,
        octets: Vec<u8>,
    },
    Length {
        id: Id,
        octets: usize,
    },
    Rename {
        from: (Id, OsString),
        to: (Id, OsString),
        id: Id,
    },
    Remove {
        parent: Id,
        name: OsString,
        id: Id,
    },
    SyncFile {
        id: Id,
    },
    SyncDir {
        id: Id,
    },
    /// A sync of a file that failed: what it should have written is never written again.
    LostSync {
        id: Id,
    },
}

#[derive(Debug, Default)]
struct State {
    /// As a process sees it.
    tree: Tree,
    /// As it was, all durable, before the first step.
    start: Tree,
    steps: Vec<Step>,
    next_id: Id,
    locked: BTreeSet<Id>,
    /// Syncs asked for, ignored ones included.
    syncs: Vec<PathBuf>,
    ignored_sync: Option<usize>,
    ignored_path: Option<PathBuf>,
    failed_syncs: Range<usize>,
    /// Steps left before the process is taken to be killed.
    steps_left: Option<usize>,
}

/// Remembers every change that is made to it, so that what a loss of power leaves can be had at every step.
/// Clones are one file system.
#[derive(Debug, Clone, Default)]
pub struct RecordingFileSystem {
    state: Arc<Mutex<State>>,
}

impl RecordingFileSystem {
    /// An empty file system.
    #[must_use]
    pub fn new() -> Self {
        let fs = Self::default();
        fs.lock_state().next_id = 1;
        fs
    }

    /// Steps so far: each may be the last before a loss of power.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.lock_state().steps.len()
    }

    /// The file system as it may be when power was lost after the first `steps` steps.
    #[must_use]
    pub fn after_power_loss(&self, steps: usize, loss: Loss) -> Self {
        let state = self.lock_state();
        let steps = state.steps.get(..steps).unwrap_or(&state.steps);
        let tree = survivors(&state.start, steps, loss);
        let state = State { start: tree.clone(), tree, next_id: state.next_id, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// From now on the sync with that number, counted from 0 over all, does nothing.
    pub fn ignore_sync(&self, number: usize) {
        self.lock_state().ignored_sync = Some(number);
    }

    /// From now on the syncs with those numbers, counted from 0 over all, fail where they are of a file. What they
    /// should have written is still seen, but no later sync makes it durable unless it is written again, as on systems
    /// that count it as written.
    pub fn fail_syncs(&self, numbers: Range<usize>) {
        self.lock_state().failed_syncs = numbers;
    }

    /// From now on no sync of that path does anything.
    pub fn ignore_syncs_of(&self, path: &Path) {
        self.lock_state().ignored_path = Some(path.to_owned());
    }

    /// What was synced so far, or should have been, in order.
    #[must_use]
    pub fn syncs(&self) -> Vec<PathBuf> {
        self.lock_state().syncs.clone()
    }

    /// Lets so many more steps happen; then every call fails, as if the process had been killed.
    pub fn kill_after(&self, steps: usize) {
        self.lock_state().steps_left = Some(steps);
    }

    /// The next process begins: nothing was lost that the last one wrote, but its locks.
    pub fn restart(&self) {
        let mut state = self.lock_state();
        state.steps_left = None;
        state.locked.clear();
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> io::Result<T>) -> io::Result<T> {
        let state = self.lock_state();
        state.check_alive()?;
        read(&state)
    }

    fn open_at(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let id = self.read(|state| {
            let id = state.tree.find(path)?;
            state.tree.file(id).map(|_| id)
        })?;
        Ok(Box::new(RecordedFile { fs: self.clone(), id, path: path.to_owned() }))
    }
}

impl State {
    fn check_alive(&self) -> io::Result<()> {
        if self.steps_left == Some(0) { Err(io::Error::other("killed")) } else { Ok(()) }
    }

    fn push(&mut self, step: Step) -> io::Result<()> {
        self.check_alive()?;
        self.steps_left = self.steps_left.map(|left| left - 1);
        apply(&mut self.tree, &step);
        self.steps.push(step);
        Ok(())
    }

    fn sync(&mut self, path: &Path, step: Step) -> io::Result<()> {
        self.check_alive()?;
        let number = self.syncs.len();
        self.syncs.push(path.to_owned());
        if let Step::SyncFile { id } = step
            && self.failed_syncs.contains(&number)
        {
            self.push(Step::LostSync { id })?;
            return Err(io::Error::other("the device failed"));
        }
        let ignored = self.ignored_sync == Some(number) || self.ignored_path.as_deref() == Some(path);
        if ignored { Ok(()) } else { self.push(step) }
    }

    fn fresh(&mut self, parent: Id, name: &std::ffi::OsStr) -> io::Result<Id> {
        if self.tree.dir(parent)?.contains_key(name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.next_id += 1;
        Ok(self.next_id)
    }
}

/// Makes a change at once, as a process sees it.
pub(super) fn apply(tree: &mut Tree, step: &Step) {
    match step {
        Step::Dir { parent, name, id } => {
            tree.make(*id, Node::Dir(Default::default()));
            tree.link(*parent, name, *id);
        }
        Step::File { parent, name, id } => {
            tree.make(*id, Node::File(Vec::new()));
            tree.link(*parent, name, *id);
        }
        Step::Write { id, offset, octets } => tree.write(*id, octets, *offset),
        Step::Length { id, octets } => tree.set_length(*id, *octets),
        Step::Rename { from, to, id } => {
            tree.unlink(from.0, &from.1, *id);
            tree.link(to.0, &to.1, *id);
        }
        Step::Remove { parent, name, id } => tree.unlink(*parent, name, *id),
        Step::SyncFile { .. } | Step::SyncDir { .. } | Step::LostSync { .. } => {}
    }
}

impl FileSystem for RecordingFileSystem {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        let (parent, name) = state.tree.place(path)?;
        let id = state.fresh(parent, name)?;
        state.push(Step::Dir { parent, name: name.to_owned(), id })
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.read(|state| {
            let names = state.tree.dir(state.tree.find(path)?)?;
            let entry = |(name, id): (_, &Id)| Entry {
                path: path.join::<&OsString>(name),
                is_file: state.tree.file(*id).is_ok(),
            };
            Ok(names.iter().map(entry).collect())
        })
    }

    fn octets(&self, path: &Path) -> io::Result<u64> {
        self.read(|state| Ok(state.tree.file(state.tree.find(path)?)?.len() as u64))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.open_at(path)
    }

    fn open_writable(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        self.open_at(path)
    }

    fn create_new(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        {
            let mut state = self.lock_state();
            let (parent, name) = state.tree.place(path)?;
            let id = state.fresh(parent, name)?;
            state.push(Step::File { parent, name: name.to_owned(), id })?;
        }
        self.open_at(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        let id = state.tree.find(from)?;
        let (from, to) = (state.tree.place(from)?, state.tree.place(to)?);
        state.push(Step::Rename { from: (from.0, from.1.to_owned()), to: (to.0, to.1.to_owned()), id })
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        let id = state.tree.find(path)?;
        state.tree.file(id)?;
        let (parent, name) = state.tree.place(path)?;
        state.push(Step::Remove { parent, name: name.to_owned(), id })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        let id = state.tree.find(path)?;
        state.tree.dir(id)?;
        state.sync(path, Step::SyncDir { id })
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        match self.create_new(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let mut state = self.lock_state();
        let id = state.tree.find(path)?;
        if !state.locked.insert(id) {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(RecordedLock { fs: self.clone(), id }))
    }
}

#[derive(Debug)]
struct RecordedLock {
    fs: RecordingFileSystem,
    id: Id,
}

impl Lock for RecordedLock {}

impl Drop for RecordedLock {
    fn drop(&mut self) {
        self.fs.lock_state().locked.remove(&self.id);
    }
}

#[derive(Debug)]
struct RecordedFile {
    fs: RecordingFileSystem,
    id: Id,
    path: PathBuf,
}

impl OpenFile for RecordedFile {
    fn octets(&self) -> io::Result<u64> {
        self.fs.read(|state| Ok(state.tree.file(self.id)?.len() as u64))
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.fs.read(|state| {
            let from = usize::try_from(offset).map_err(|_| ErrorKind::UnexpectedEof)?;
            let octets = state.tree.file(self.id)?.get(from..).and_then(|rest| rest.get(..buffer.len()));
            buffer.copy_from_slice(octets.ok_or(ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn write_all_at(&self, octets: &[u8], offset: u64) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(|_| ErrorKind::FileTooLarge)?;
        self.fs.lock_state().push(Step::Write { id: self.id, offset, octets: octets.to_vec() })
    }

    fn truncate(&self, octets: u64) -> io::Result<()> {
        let octets = usize::try_from(octets).map_err(|_| ErrorKind::FileTooLarge)?;
        self.fs.lock_state().push(Step::Length { id: self.id, octets })
    }

    fn sync(&self) -> io::Result<()> {
        self.fs.lock_state().sync(&self.path, Step::SyncFile { id: self.id })
    }
}
