//! Blocks on a local disk, one self-describing file each.
//!
//! A file is written aside, synced, and renamed into place, and its directory synced, before a block is
//! there: a crash leaves a whole block or none. What is read back is verified by its layer digests every
//! time; what fails is moved to `quarantine/` and never served.

mod files;
mod format;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use kvsp_proto::container::LayerRange;
use kvsp_proto::registry::Tier;
use tokio::sync::Semaphore;

use crate::block::{BlockMeta, BlockName, BlockPart, StoredBlock};
use crate::store::{BlockStore, StoreError, StoreFuture};
use files::Files;

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
    /// `None` while a block is being written.
    blocks: Mutex<BTreeMap<BlockName, Option<Arc<BlockMeta>>>>,
}

impl DiskStore {
    /// Opens a store and finds the blocks that an earlier process left: the heads of the files are read
    /// and their lengths checked. Half-written files are deleted, others that are no block moved aside.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] for another version or where another process has the directory; I/O.
    pub async fn open(config: DiskConfig) -> Result<Self, StoreError> {
        let inner = blocking(move || {
            let (files, found) = Files::open(config)?;
            let blocks = found.into_iter().map(|meta| (meta.name, Some(meta))).collect();
            Ok(Inner { files, blocks: Mutex::new(blocks) })
        })
        .await?;
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

impl Inner {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<BlockName, Option<Arc<BlockMeta>>>> {
        // Each change is one call on the map, which is whole whoever panicked.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, block: &StoredBlock) -> Result<(), StoreError> {
        let name = block.meta.name;
        {
            let mut blocks = self.lock();
            if blocks.contains_key(&name) {
                return Err(StoreError::Exists);
            }
            blocks.insert(name, None);
        }
        let written = self.files.write(&block.meta, block.container.bytes());
        let mut blocks = self.lock();
        match written {
            Ok(()) => {
                blocks.insert(name, Some(block.meta.clone()));
                Ok(())
            }
            Err(error) => {
                blocks.remove(&name);
                Err(error.into())
            }
        }
    }

    fn find(&self, name: &BlockName) -> Option<Arc<BlockMeta>> {
        self.lock().get(name).cloned().flatten()
    }

    fn get(&self, name: &BlockName) -> Result<Option<StoredBlock>, StoreError> {
        let Some(meta) = self.find(name) else {
            return Ok(None);
        };
        let container = self.files.read(&meta).map_err(|error| self.failed(&meta, error))?;
        Ok(container.map(|container| StoredBlock { meta, container }))
    }

    fn part(&self, name: &BlockName, range: LayerRange) -> Result<Option<BlockPart>, StoreError> {
        let Some(meta) = self.find(name).filter(|meta| meta.layers().covers(range)) else {
            return Ok(None);
        };
        self.files.read_part(&meta, range).map_err(|error| self.failed(&meta, error))
    }

    /// A read failed: what is rotten goes aside.
    fn failed(&self, meta: &Arc<BlockMeta>, error: StoreError) -> StoreError {
        if matches!(error, StoreError::Rotten(_)) {
            let mut blocks = self.lock();
            // Another read may have been here first, and the name been written anew since.
            if blocks.get(&meta.name).is_some_and(|m| m.as_ref().is_some_and(|m| Arc::ptr_eq(m, meta))) {
                self.files.quarantine(&meta.name);
                blocks.remove(&meta.name);
            }
        }
        error
    }

    fn delete(&self, name: &BlockName) -> Result<bool, StoreError> {
        if self.find(name).is_none() {
            return Ok(false);
        }
        self.files.delete(name)?;
        Ok(self.lock().remove(name).is_some())
    }
}

impl BlockStore for DiskStore {
    fn tier(&self) -> Tier {
        Tier::Disk
    }

    fn charge(&self, meta: &BlockMeta) -> u64 {
        meta.size().saturating_add(format::head_octets(meta) as u64)
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

    fn delete(&self, name: BlockName) -> StoreFuture<'_, bool> {
        Box::pin(self.run(move |inner| inner.delete(&name)))
    }

    fn list(&self) -> StoreFuture<'_, Vec<Arc<BlockMeta>>> {
        Box::pin(async { Ok(self.inner.lock().values().flatten().cloned().collect()) })
    }
}

/// Reads into memory that is used once.
fn buffer(octets: u64) -> Result<Vec<u8>, StoreError> {
    usize::try_from(octets).map(|octets| vec![0; octets]).map_err(|_| StoreError::Rotten("it does not fit"))
}

/// Takes over a buffer without copying it.
fn shared(octets: Vec<u8>) -> Bytes {
    Bytes::from(octets)
}

#[cfg(test)]
mod tests;
