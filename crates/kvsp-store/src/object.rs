//! Blocks in an object store: one that speaks S3, or a local directory. One self-describing object each.
//!
//! A prefix belongs to one holder. Objects are written whole and are there, durable, when the server says so;
//! a holder that was told nothing removes what it may have written before it writes again. What is read back
//! is verified by its layer digests every time; what fails is moved to `quarantine/` and never served.

mod bucket;
mod config;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use kvsp_buffer::Arena;
use kvsp_proto::container::LayerRange;
use kvsp_proto::registry::Tier;
use tokio::sync::{Notify, Semaphore};

use crate::block::{BlockMeta, BlockName, BlockPart, Held, StoredBlock};
use crate::buffers::Buffers;
use crate::disk::format;
use crate::store::{BlockStore, StoreError, StoreFuture};
use crate::verify::{container_of, part_of};
use bucket::{Bucket, Present};
pub use config::ObjectConfig;

/// Requests at work at once.
const MAX_CONCURRENT: usize = 32;

/// Keeps blocks in an object store. Blocks are not cut: [`BlockStore::trim`] answers `false`.
#[derive(Debug)]
pub struct ObjectStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    bucket: Bucket,
    table: Mutex<Table>,
    /// A name ceased to be changing.
    changed: Notify,
    slots: Semaphore,
    /// Where what is read goes.
    buffers: Buffers,
}

#[derive(Debug, Default)]
struct Table {
    blocks: BTreeMap<BlockName, Arc<Present>>,
    /// Names of which the object is being changed; one change of a name at a time.
    changing: BTreeSet<BlockName>,
    /// Objects that a put that failed may have left: gone before the next put begins.
    leftovers: BTreeSet<BlockName>,
}

impl ObjectStore {
    /// Opens a store and finds the blocks that an earlier process left: all objects are listed, and their
    /// heads read.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] for another version, or where another holder has the prefix; I/O.
    pub async fn open(config: ObjectConfig) -> Result<Self, StoreError> {
        let (bucket, found) = Bucket::open(&config).await?;
        let blocks = found.into_iter().map(|found| (found.meta.name, Arc::new(found))).collect();
        let table = Mutex::new(Table { blocks, ..Table::default() });
        let slots = Semaphore::new(MAX_CONCURRENT);
        let (changed, buffers) = (Notify::new(), Buffers::default());
        Ok(Self { inner: Arc::new(Inner { bucket, table, changed, slots, buffers }) })
    }

    /// Objects that were moved aside since the store was opened.
    #[must_use]
    pub fn quarantined(&self) -> u64 {
        self.inner.bucket.quarantined()
    }

    /// Runs a change to its end, even where the caller goes away.
    async fn run<T, F>(&self, change: impl FnOnce(Arc<Inner>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        tokio::spawn(change(self.inner.clone())).await.map_err(|_| StoreError::Stopped)?
    }
}

/// A name whose object this task alone changes, until it is dropped.
struct Changing<'a> {
    inner: &'a Inner,
    name: BlockName,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.inner.lock().changing.remove(&self.name);
        self.inner.changed.notify_waiters();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Each change is one call on a map, which is whole whoever panicked.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no one else changes the object of that name.
    async fn change(&self, name: BlockName) -> Changing<'_> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            if self.lock().changing.insert(name) {
                return Changing { inner: self, name };
            }
            changed.await;
        }
    }

    async fn slot(&self) -> Result<tokio::sync::SemaphorePermit<'_>, StoreError> {
        self.slots.acquire().await.map_err(|_| StoreError::Stopped)
    }

    fn find(&self, name: &BlockName) -> Option<Arc<Present>> {
        self.lock().blocks.get(name).cloned()
    }

    async fn put(&self, block: &StoredBlock) -> Result<(), StoreError> {
        let name = block.meta.name;
        let _changing = self.change(name).await;
        let grows = match self.find(&name) {
            None => false,
            Some(present) if block.extends(&present.meta, present.layers) => true,
            Some(_) => return Err(StoreError::Exists),
        };
        let _slot = self.slot().await?;
        self.clear_leftovers().await?;
        if let Err(error) = self.bucket.write(block, grows).await {
            // Where the block grew, either object is the block, and the next start finds which.
            if !grows && self.bucket.delete(&name).await.is_err() {
                self.lock().leftovers.insert(name);
            }
            return Err(error);
        }
        let present = Arc::new(Present { meta: block.meta.clone(), layers: block.layers() });
        self.lock().blocks.insert(name, present);
        Ok(())
    }

    /// While something cannot be removed nothing is written, so the set stays as small as the puts that fail
    /// at once are few.
    async fn clear_leftovers(&self) -> Result<(), StoreError> {
        loop {
            let Some(name) = self.lock().leftovers.pop_first() else {
                return Ok(());
            };
            if let Err(error) = self.bucket.delete(&name).await {
                self.lock().leftovers.insert(name);
                return Err(error);
            }
        }
    }

    async fn get(&self, name: &BlockName) -> Result<Option<StoredBlock>, StoreError> {
        while let Some(present) = self.find(name) {
            match self.read_all(&present).await {
                Err(StoreError::Rotten(why)) if self.set_aside(&present).await => {
                    return Err(StoreError::Rotten(why));
                }
                // Changed meanwhile: look again.
                Err(StoreError::Rotten(_)) => {}
                found => return found.map(Some),
            }
        }
        Ok(None)
    }

    async fn part(&self, name: &BlockName, range: LayerRange) -> Result<Option<BlockPart>, StoreError> {
        while let Some(present) = self.find(name) {
            let held = LayerRange::from_count(0, present.layers);
            if !held.is_some_and(|held| held.covers(range)) {
                break;
            }
            match self.read_part(&present.meta, range).await {
                Err(StoreError::Rotten(why)) if self.set_aside(&present).await => {
                    return Err(StoreError::Rotten(why));
                }
                Err(StoreError::Rotten(_)) => {}
                found => return found.map(Some),
            }
        }
        Ok(None)
    }

    async fn read_all(&self, present: &Present) -> Result<StoredBlock, StoreError> {
        let _slot = self.slot().await?;
        let (meta, layers) = (present.meta.clone(), present.layers);
        let whole = layers == meta.layer_count();
        let from = if whole { format::preface_octets(&meta) } else { format::head_octets(&meta) } as u64;
        let before = if whole {
            Vec::new()
        } else {
            let header = LayerRange::from_count(0, layers).and_then(|range| meta.header_of(range));
            header.ok_or(StoreError::Rotten("it has no layers"))?.encode()
        };
        let octets = self.read(&meta.name, from..format::file_octets(&meta, layers), &before).await?;
        verified(octets.len(), move || {
            let container = container_of(&meta, layers, octets)?;
            Ok(StoredBlock { meta, container })
        })
        .await
    }

    async fn read_part(&self, meta: &Arc<BlockMeta>, range: LayerRange) -> Result<BlockPart, StoreError> {
        let _slot = self.slot().await?;
        let from = format::file_octets(meta, range.first());
        let to = format::file_octets(meta, range.last().saturating_add(1));
        let octets = self.read(&meta.name, from..to, &[]).await?;
        let meta = meta.clone();
        verified(octets.len(), move || part_of(&meta, range, octets)).await
    }

    /// Octets of a block's object, behind others that are given, in a page-aligned buffer.
    async fn read(&self, name: &BlockName, range: Range<u64>, before: &[u8]) -> Result<Bytes, StoreError> {
        let octets = usize::try_from(range.end.saturating_sub(range.start)).ok();
        let octets = octets.and_then(|octets| octets.checked_add(before.len()));
        let mut buffer = self.buffers.take(octets.ok_or(StoreError::Rotten("it does not fit"))?)?;
        buffer[..before.len()].copy_from_slice(before);
        Ok(self.bucket.read(name, range, buffer, before.len()).await?.freeze())
    }

    /// Moves a rotten object aside, unless it was changed since it was read.
    async fn set_aside(&self, present: &Arc<Present>) -> bool {
        let name = present.meta.name;
        let _changing = self.change(name).await;
        let same = self.find(&name).is_some_and(|now| Arc::ptr_eq(&now, present));
        if same {
            self.lock().blocks.remove(&name);
            self.bucket.quarantine(&name, format::file_octets(&present.meta, present.layers)).await;
        }
        same
    }

    async fn delete(&self, name: &BlockName) -> Result<bool, StoreError> {
        let _changing = self.change(*name).await;
        if self.find(name).is_none() {
            return Ok(false);
        }
        let _slot = self.slot().await?;
        self.bucket.delete(name).await?;
        Ok(self.lock().blocks.remove(name).is_some())
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

/// Octets that are hashed without another thread.
const HASHED_AT_ONCE: usize = 64 << 10;

/// Hashes away from the threads that serve requests where it is not quick.
async fn verified<T: Send + 'static>(
    octets: usize,
    verify: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    if octets <= HASHED_AT_ONCE {
        return verify();
    }
    tokio::task::spawn_blocking(verify).await.map_err(|_| StoreError::Stopped)?
}

impl BlockStore for ObjectStore {
    fn tier(&self) -> Tier {
        Tier::Object
    }

    fn use_buffers(&self, arena: Arena) {
        self.inner.buffers.set(arena);
    }

    fn charge(&self, meta: &BlockMeta, layers: u32) -> u64 {
        format::file_octets(meta, layers)
    }

    fn put(&self, block: StoredBlock) -> StoreFuture<'_, ()> {
        Box::pin(self.run(|inner| async move { inner.put(&block).await }))
    }

    fn get(&self, name: BlockName) -> StoreFuture<'_, Option<StoredBlock>> {
        Box::pin(self.run(move |inner| async move { inner.get(&name).await }))
    }

    fn part(&self, name: BlockName, range: LayerRange) -> StoreFuture<'_, Option<BlockPart>> {
        Box::pin(self.run(move |inner| async move { inner.part(&name, range).await }))
    }

    fn trim(&self, name: BlockName, layers: u32) -> StoreFuture<'_, bool> {
        Box::pin(async move { if layers == 0 { self.delete(name).await } else { Ok(false) } })
    }

    fn delete(&self, name: BlockName) -> StoreFuture<'_, bool> {
        Box::pin(self.run(move |inner| async move { inner.delete(&name).await }))
    }

    fn list(&self) -> StoreFuture<'_, Vec<Held>> {
        Box::pin(async { Ok(self.inner.list()) })
    }
}

#[cfg(test)]
mod tests;
