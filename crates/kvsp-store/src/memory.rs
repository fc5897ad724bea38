//! Blocks in host memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvsp_proto::container::LayerRange;
use kvsp_proto::registry::Tier;

use crate::block::{BlockMeta, BlockName, BlockPart, StoredBlock};
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

    /// Stores a block at once.
    ///
    /// # Errors
    /// [`StoreError::Exists`].
    pub fn insert(&self, block: StoredBlock) -> Result<(), StoreError> {
        let mut blocks = self.lock();
        let name = block.meta.name;
        if blocks.contains_key(&name) {
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

    fn lock(&self) -> MutexGuard<'_, BTreeMap<BlockName, StoredBlock>> {
        // Each change is one call on the map, which is whole whoever panicked.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockStore for MemoryStore {
    fn tier(&self) -> Tier {
        Tier::Host
    }

    fn charge(&self, meta: &BlockMeta) -> u64 {
        let layers = meta.layers().count().saturating_mul(LAYER_OCTETS);
        meta.size().saturating_add(layers).saturating_add(OVERHEAD_OCTETS)
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

    fn delete(&self, name: BlockName) -> StoreFuture<'_, bool> {
        Box::pin(async move { Ok(self.remove(&name).is_some()) })
    }

    fn list(&self) -> StoreFuture<'_, Vec<Arc<BlockMeta>>> {
        Box::pin(async { Ok(self.lock().values().map(|block| block.meta.clone()).collect()) })
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
