//! Blocks in host memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvsp_buffer::{Arena, footprint};
use kvsp_proto::container::{Container, LayerRange};
use kvsp_proto::registry::Tier;

use crate::block::{BlockMeta, BlockName, BlockPart, Held, StoredBlock};
use crate::disk::format::LIMITS;
use crate::store::{BlockStore, StoreError, StoreFuture};

/// Octets charged for the tables around a block: names, counts, pointers.
const OVERHEAD_OCTETS: u64 = 512;

/// Octets charged for each layer: its digest and its entry in the tables.
const LAYER_OCTETS: u64 = 64;

/// Keeps blocks in host memory, sharing the octets with whoever gave them and whoever reads them: a block
/// that came in a buffer of an [`Arena`] stays in it.
#[derive(Debug)]
pub struct MemoryStore {
    arena: Arena,
    blocks: Mutex<BTreeMap<BlockName, StoredBlock>>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::on(Arena::new(u64::MAX))
    }
}

impl MemoryStore {
    /// An empty store whose own copies count against no cap.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store that takes the buffers of its own copies, those of blocks that are cut, from `arena`.
    #[must_use]
    pub const fn on(arena: Arena) -> Self {
        Self { arena, blocks: Mutex::new(BTreeMap::new()) }
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

    /// Keeps no more than the `layers` leading layers of a block, at once. They are copied into a buffer of
    /// their own, so that the others are free when their last reader has gone. Whether it was there; `false`
    /// and no change also where the arena has no room for the copy.
    pub fn cut(&self, name: &BlockName, layers: u32) -> bool {
        let Some(block) = self.find(name) else {
            return false;
        };
        if layers >= block.layers() {
            return true;
        }
        // Copied without the lock; what took the block's place meanwhile stays.
        let shorter = match LayerRange::from_count(0, layers) {
            None => None,
            Some(range) => match self.copy(&block, range) {
                None => return false,
                shorter => shorter,
            },
        };
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

    fn copy(&self, block: &StoredBlock, range: LayerRange) -> Option<StoredBlock> {
        let slice = block.container.slice(range)?;
        let mut buffer = self.arena.take(usize::try_from(slice.size()).ok()?)?;
        let (head, data) = buffer.split_at_mut_checked(slice.head.len())?;
        head.copy_from_slice(&slice.head);
        data.copy_from_slice(&slice.data);
        let container = Container::parse(buffer.freeze(), &LIMITS).ok()?;
        Some(StoredBlock { meta: block.meta.clone(), container })
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
        let octets = usize::try_from(meta.container_octets(layers)).map_or(u64::MAX, footprint);
        octets.saturating_add(tables).saturating_add(OVERHEAD_OCTETS)
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
    use crate::conformance::sample;

    #[tokio::test]
    async fn memory_conforms() {
        crate::conformance::run(|| async { MemoryStore::new() }).await;
        crate::conformance::run(|| async { MemoryStore::on(Arena::new(1 << 20)) }).await;
    }

    /// A block whose octets are a buffer of `arena`, as one that came over the network.
    fn arrived(arena: &Arena, seed: u8, octets: usize) -> Option<StoredBlock> {
        let mut block = sample(seed, 4, octets);
        let held = arena.copy_of(block.container.bytes())?;
        block.container = Container::parse(held, &LIMITS).unwrap();
        Some(block)
    }

    #[test]
    fn a_block_stays_in_the_buffer_it_came_in_until_it_is_cut() {
        let arena = Arena::new(1 << 20);
        let store = MemoryStore::on(arena.clone());
        let block = arrived(&arena, 1, 20_000).unwrap();
        let (name, at) = (block.meta.name, block.container.bytes().as_ptr());
        let whole = footprint(block.container.bytes().len());
        store.insert(block).unwrap();
        assert_eq!(arena.used(), whole);
        let reader = store.find(&name).unwrap();
        assert_eq!(reader.container.bytes().as_ptr(), at);
        assert!(store.cut(&name, 2));
        let half = footprint(store.find(&name).unwrap().container.bytes().len());
        assert_eq!(arena.used(), whole + half);
        // The octets of a reader stay until it has gone.
        assert_eq!(reader.container.layer_digests(), reader.meta.layer_digests);
        drop(reader);
        assert_eq!(arena.used(), half);
        assert!(store.cut(&name, 0));
        assert_eq!(arena.used(), 0);
    }

    #[test]
    fn a_cut_without_room_for_the_copy_changes_nothing() {
        let octets = sample(1, 4, 20_000).container.bytes().len();
        let arena = Arena::new(footprint(octets));
        let store = MemoryStore::on(arena.clone());
        let block = arrived(&arena, 1, 20_000).unwrap();
        store.insert(block.clone()).unwrap();
        assert!(!store.cut(&block.meta.name, 2));
        assert_eq!(store.find(&block.meta.name).unwrap().container.bytes(), block.container.bytes());
        assert!(store.cut(&block.meta.name, 0));
    }

    /// Sizes come and go for as long as there are cuts: the arena never has more than its cap, a block that
    /// fits beside those in use is taken, and in the end nothing is left.
    #[test]
    fn a_long_churn_creeps_nowhere() {
        let wanted = std::env::var("KVSP_SOAK_OPS").ok().and_then(|text| text.parse::<u64>().ok());
        let capacity = 8 << 20;
        let arena = Arena::new(capacity);
        let store = MemoryStore::on(arena.clone());
        let mut drawn = 1_u64;
        let mut below = move |bound: u64| {
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (drawn >> 33) % bound
        };
        let sizes = [100, 3000, 17_000, 40_000, 150_000];
        let whole: Vec<_> = sizes.iter().map(|octets| sample(1, 4, *octets)).collect();
        let mut names = std::collections::VecDeque::new();
        for round in 0..wanted.unwrap_or(3000) {
            let kind = &whole[below(sizes.len() as u64) as usize];
            let octets = kind.container.bytes();
            let held = loop {
                if let Some(held) = arena.copy_of(octets) {
                    break held;
                }
                // What does not fit is because of what is in use, and of nothing else.
                assert!(arena.used() + footprint(octets.len()) > capacity);
                let oldest: BlockName = names.pop_front().unwrap();
                assert!(store.remove(&oldest).is_some());
            };
            let mut meta = kind.meta.as_ref().clone();
            meta.name.key.0[..8].copy_from_slice(&round.to_be_bytes());
            names.push_back(meta.name);
            let container = Container::parse(held, &LIMITS).unwrap();
            store.insert(StoredBlock { meta: meta.into(), container }).unwrap();
            if below(2) == 0 {
                store.cut(&names[below(names.len() as u64) as usize], 1 + below(3) as u32);
            }
            assert!(arena.mapped() <= capacity);
        }
        let blocks: Vec<_> = names.iter().filter_map(|name| store.find(name)).collect();
        let held: u64 = blocks.iter().map(|block| footprint(block.container.bytes().len())).sum();
        assert_eq!(arena.used(), held);
        for block in blocks {
            let digests = block.container.layer_digests();
            assert_eq!(digests, block.meta.layer_digests[..digests.len()]);
        }
        for name in names {
            store.remove(&name);
        }
        assert_eq!(arena.used(), 0);
    }
}
