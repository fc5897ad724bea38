//! Blocks on a local disk, one self-describing file each.
//!
//! A file is written aside, synced, and renamed into place, and its directory synced, before a block is
//! there: a crash leaves a whole block or none. A file that is cut at the end of a layer holds the leading
//! layers of its block. What is read back is verified by its layer digests every time; what fails is moved
//! to `quarantine/` and never served.

mod files;
pub(crate) mod format;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use kvsp_buffer::Arena;
use kvsp_proto::container::LayerRange;
use kvsp_proto::registry::Tier;
use tokio::sync::Semaphore;

use crate::block::{BlockMeta, BlockName, BlockPart, Held, StoredBlock};
use crate::fs::{FileSystem, LocalFileSystem};
use crate::store::{BlockStore, StoreError, StoreFuture};
use files::{Files, Present};

/// Files in work at once: enough to keep a disk busy, few enough to bound memory and threads.
const MAX_CONCURRENT: usize = 16;

/// Where and how a [`DiskStore`] keeps its files.
#[derive(Debug, Clone)]
pub struct DiskConfig {
    /// The directory; made where it is missing, and used by one process at a time.
    pub dir: PathBuf,
    /// Octets of rotten files that are kept for a look at them, apart from the cap of the tier.
    pub quarantine_octets: u64,
}

/// Keeps blocks on a local disk.
#[derive(Debug)]
pub struct DiskStore {
    inner: Arc<Inner>,
    slots: Arc<Semaphore>,
}

#[derive(Debug)]
struct Inner {
    files: Files,
    table: Mutex<Table>,
    /// A name ceased to be changing.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    blocks: BTreeMap<BlockName, Arc<Present>>,
    /// Names of which the file is being changed; one change of a name at a time.
    changing: BTreeSet<BlockName>,
    /// Blocks that are gone, but might come back after a crash: their directory could not be synced.
    unsynced: BTreeSet<BlockName>,
}

impl DiskStore {
    /// Opens a store and finds the blocks that an earlier process left: the heads of the files are read
    /// and their lengths checked. Half-written files are deleted, others that are no block moved aside.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] for another version or where another process has the directory; I/O.
    pub async fn open(config: DiskConfig) -> Result<Self, StoreError> {
        Self::open_on(config, Arc::new(LocalFileSystem)).await
    }

    /// The same on a file system of the caller's.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_on(config: DiskConfig, fs: Arc<dyn FileSystem>) -> Result<Self, StoreError> {
        let inner = blocking(move || Inner::open(config, fs)).await?;
        Ok(Self { inner: Arc::new(inner), slots: Arc::new(Semaphore::new(MAX_CONCURRENT)) })
    }

    /// Files that were moved aside since the store was opened.
    #[must_use]
    pub fn quarantined(&self) -> u64 {
        self.inner.files.quarantined()
    }

    /// A number that is higher than every one before in this directory, and at least `at_least`: the start
    /// of the process in ms, made monotonic where the wall clock is not.
    ///
    /// # Errors
    /// I/O.
    pub async fn next_epoch(&self, at_least: u64) -> Result<u64, StoreError> {
        self.run(move |inner| inner.files.next_epoch(at_least)).await
    }

    /// What was told last of the leases on the blocks here; `None` where nothing ever was.
    ///
    /// # Errors
    /// I/O.
    pub async fn leases_note(&self) -> Result<Option<String>, StoreError> {
        self.run(|inner| inner.files.leases_note()).await
    }

    /// Keeps a word on leases for the next process; durable when the future resolves.
    ///
    /// # Errors
    /// I/O; the word before stays.
    pub async fn note_leases(&self, note: String) -> Result<(), StoreError> {
        self.run(move |inner| inner.files.note_leases(&note)).await
    }

    /// Runs `work` on a thread that may block, at most [`MAX_CONCURRENT`] at once.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let slot = self.slots.clone().acquire_owned().await.map_err(|_| StoreError::Stopped)?;
        let inner = self.inner.clone();
        blocking(move || {
            let _slot = slot;
            work(&inner)
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| StoreError::Stopped)?
}

/// A name whose file this thread alone changes, until it is dropped.
struct Changing<'a> {
    inner: &'a Inner,
    name: BlockName,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.inner.lock().changing.remove(&self.name);
        self.inner.changed.notify_all();
    }
}

impl Inner {
    fn open(config: DiskConfig, fs: Arc<dyn FileSystem>) -> Result<Self, StoreError> {
        let (files, found) = Files::open(config, fs)?;
        let blocks = found.into_iter().map(|found| (found.meta.name, Arc::new(found))).collect();
        let table = Mutex::new(Table { blocks, ..Table::default() });
        Ok(Self { files, table, changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Each change is one call on a map, which is whole whoever panicked.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no one else changes the file of that name.
    fn change(&self, name: BlockName) -> Changing<'_> {
        let free = |table: &mut Table| table.changing.contains(&name);
        let table = self.changed.wait_while(self.lock(), free);
        table.unwrap_or_else(PoisonError::into_inner).changing.insert(name);
        Changing { inner: self, name }
    }

    fn find(&self, name: &BlockName) -> Option<Arc<Present>> {
        self.lock().blocks.get(name).cloned()
    }

    fn set(&self, meta: &Arc<BlockMeta>, layers: u32) {
        let present = Arc::new(Present { meta: meta.clone(), layers });
        let mut table = self.lock();
        table.blocks.insert(meta.name, present);
        table.unsynced.remove(&meta.name);
    }

    fn put(&self, block: &StoredBlock) -> Result<(), StoreError> {
        let name = block.meta.name;
        let _changing = self.change(name);
        match self.find(&name) {
            None => self.files.write(block)?,
            Some(present) if block.extends(&present.meta, present.layers) => {
                if let Err((error, longer)) = self.files.extend(block, present.layers) {
                    if longer {
                        // Not durable, but what the file is now.
                        self.set(&block.meta, block.layers());
                    }
                    return Err(error.into());
                }
            }
            Some(_) => return Err(StoreError::Exists),
        }
        self.set(&block.meta, block.layers());
        Ok(())
    }

    fn get(&self, name: &BlockName) -> Result<Option<StoredBlock>, StoreError> {
        self.read(
            name,
            |_| true,
            |present| {
                let container = self.files.read(present)?;
                Ok(StoredBlock { meta: present.meta.clone(), container })
            },
        )
    }

    fn part(&self, name: &BlockName, range: LayerRange) -> Result<Option<BlockPart>, StoreError> {
        self.read(
            name,
            |present| LayerRange::from_count(0, present.layers).is_some_and(|held| held.covers(range)),
            |present| self.files.read_part(&present.meta, range),
        )
    }

    /// Reads a file that has what is wanted, again where it was changed meanwhile; what is rotten goes aside.
    fn read<T>(
        &self,
        name: &BlockName,
        wanted: impl Fn(&Present) -> bool,
        read: impl Fn(&Present) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        while let Some(present) = self.find(name).filter(|present| wanted(present)) {
            let why = match read(&present) {
                Err(StoreError::Rotten(why)) => why,
                found => return found.map(Some),
            };
            let _changing = self.change(*name);
            if self.find(name).is_some_and(|now| Arc::ptr_eq(&now, &present)) {
                self.files.quarantine(name);
                self.lock().blocks.remove(name);
                return Err(StoreError::Rotten(why));
            }
        }
        Ok(None)
    }

    fn trim(&self, name: &BlockName, layers: u32) -> Result<bool, StoreError> {
        if layers == 0 {
            return self.delete(name);
        }
        let _changing = self.change(*name);
        let Some(before) = self.find(name) else {
            return Ok(false);
        };
        let layers = layers.min(before.layers);
        if layers < before.layers {
            // Before the file is cut: a reader that comes upon its end looks here again.
            self.set(&before.meta, layers);
        }
        // Also where nothing is to be cut: an earlier call may have failed to make its cut durable.
        match self.files.trim(&before.meta, layers) {
            Ok(()) => Ok(true),
            Err((error, cut)) => {
                if !cut {
                    self.lock().blocks.insert(*name, before);
                }
                Err(error.into())
            }
        }
    }

    fn delete(&self, name: &BlockName) -> Result<bool, StoreError> {
        let _changing = self.change(*name);
        if self.find(name).is_some() {
            self.files.remove(name)?;
            let mut table = self.lock();
            table.blocks.remove(name);
            table.unsynced.insert(*name);
        } else if !self.lock().unsynced.contains(name) {
            return Ok(false);
        }
        self.files.sync_removal(name)?;
        Ok(self.lock().unsynced.remove(name))
    }

    fn list(&self) -> Vec<Held> {
        let held = |present: &Arc<Present>| Held {
            meta: present.meta.clone(),
            layers: present.layers,
            octets: format::file_octets(&present.meta, present.layers),
        };
        self.lock().blocks.values().map(held).collect()
    }
}

impl BlockStore for DiskStore {
    fn tier(&self) -> Tier {
        Tier::Disk
    }

    fn use_buffers(&self, arena: Arena) {
        self.inner.files.use_buffers(arena);
    }

    fn charge(&self, meta: &BlockMeta, layers: u32) -> u64 {
        format::file_octets(meta, layers)
    }

    fn put(&self, block: StoredBlock) -> StoreFuture<'_, ()> {
        Box::pin(self.run(move |inner| inner.put(&block)))
    }

    fn get(&self, name: BlockName) -> StoreFuture<'_, Option<StoredBlock>> {
        Box::pin(self.run(move |inner| inner.get(&name)))
    }

    fn part(&self, name: BlockName, range: LayerRange) -> StoreFuture<'_, Option<BlockPart>> {
        Box::pin(self.run(move |inner| inner.part(&name, range)))
    }

    fn trim(&self, name: BlockName, layers: u32) -> StoreFuture<'_, bool> {
        Box::pin(self.run(move |inner| inner.trim(&name, layers)))
    }

    fn delete(&self, name: BlockName) -> StoreFuture<'_, bool> {
        Box::pin(self.run(move |inner| inner.delete(&name)))
    }

    fn list(&self) -> StoreFuture<'_, Vec<Held>> {
        Box::pin(async { Ok(self.inner.list()) })
    }
}

#[cfg(test)]
mod tests;
