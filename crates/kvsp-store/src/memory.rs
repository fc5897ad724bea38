//! Blocks in host memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvsp_proto::container::LayerRange;
use kvsp_proto::registry::Tier;

use crate::block::{BlockMeta, BlockName, BlockPart, Held, StoredBlock};
use crate::store::{BlockStore, StoreError, StoreFuture};

/// Octets charged for the tables around a block: names, counts, pointers.
const OVERHEAD_OCTETS: u64 = 512;

/// Octets charged for each layer: its digest and its entry in the tables.
const LAYER_OCTETS: u64 = 64;

/// Keeps blocks in host memory, sharing the octets with whoever reads them.
#[derive(Debug, Default)]
pub struct MemoryStore {
    blocks: Mutex<BTreeMap<BlockName, StoredBlock>>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Stores a block at once; more layers of a block that is there take the place of fewer.
    ///
    /// # Errors
    /// [`StoreError::Exists`].
    pub fn insert(&self, block: StoredBlock) -> Result<(), StoreError> {
        let mut blocks = self.lock();
        let name = block.meta.name;
        if blocks.get(&name).is_some_and(|held| !block.extends(&held.meta, held.layers())) {
            return Err(StoreError::Exists);
        }
        blocks.insert(name, block);
        Ok(())
    }

    /// A block, at once.
    #[must_use]
    pub fn find(&self, name: &BlockName) -> Option<StoredBlock> {
        self.lock().get(name).cloned()
    }

    /// Removes a block at once.
    pub fn remove(&self, name: &BlockName) -> Option<StoredBlock> {
        self.lock().remove(name)
    }

    /// Keeps no more than the `layers` leading layers of a block, at once; whether it was there. They are
    /// copied, so that the octets of the others are free when their last reader has gone.
    pub fn cut(&self, name: &BlockName, layers: u32) -> bool {
        let Some(block) = self.find(name) else {
            return false;
        };
        // Copied without the lock; what took the block's place meanwhile stays.
        let shorter = block.leading(layers);
        let mut blocks = self.lock();
        let same = |held: &StoredBlock| held.container.bytes().as_ptr() == block.container.bytes().as_ptr();
        if blocks.get(name).is_some_and(same) {
            match shorter {
                Some(shorter) => blocks.insert(*name, shorter),
                None => blocks.remove(name),
            };
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<BlockName, StoredBlock>> {
        // Each change is one call on the map, which is whole whoever panicked.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockStore for MemoryStore {
    fn tier(&self) -> Tier {
        Tier::Host
    }

    fn charge(&self, meta: &BlockMeta, layers: u32) -> u64 {
        // The tables are those of the whole block, however little is held of it.
        let tables = meta.layers().count().saturating_mul(LAYER_OCTETS);
        meta.container_octets(layers).saturating_add(tables).saturating_add(OVERHEAD_OCTETS)
    }

    fn put(&self, block: StoredBlock) -> StoreFuture<'_, ()> {
        Box::pin(async { self.insert(block) })
    }

    fn get(&self, name: BlockName) -> StoreFuture<'_, Option<StoredBlock>> {
        Box::pin(async move { Ok(self.find(&name)) })
    }

    fn part(&self, name: BlockName, range: LayerRange) -> StoreFuture<'_, Option<BlockPart>> {
        Box::pin(async move { Ok(self.find(&name).and_then(|block| block.part(range))) })
    }

    fn trim(&self, name: BlockName, layers: u32) -> StoreFuture<'_, bool> {
        Box::pin(async move { Ok(self.cut(&name, layers)) })
    }

    fn delete(&self, name: BlockName) -> StoreFuture<'_, bool> {
        Box::pin(async move { Ok(self.remove(&name).is_some()) })
    }

    fn list(&self) -> StoreFuture<'_, Vec<Held>> {
        let held = |block: &StoredBlock| Held {
            meta: block.meta.clone(),
            layers: block.layers(),
            octets: self.charge(&block.meta, block.layers()),
        };
        Box::pin(async move { Ok(self.lock().values().map(held).collect()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn memory_conforms() {
        crate::conformance::run(|| async { MemoryStore::new() }).await;
    }
}
