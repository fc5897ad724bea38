//! Which page of the engine's pool holds what: free, computed, shared, arriving, or kept for reuse.
//!
//! Pure bookkeeping, owned by the engine thread. A page has references (sequences, loaders, exports, pins);
//! one without references stays for reuse when it has a key, and the least recently used of those goes
//! first. A slot names a page *and* its generation, so a write that arrives late for a page that was given
//! to somebody else is refused instead of corrupting it.

use std::collections::{BTreeMap, HashMap};

use kvsp_engine::PageId;
use kvsp_proto::id::{BlockKey, ScopeId};

/// A block within its scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ScopedKey {
    pub(crate) scope: ScopeId,
    pub(crate) key: BlockKey,
}

/// A page as it was given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) page: PageId,
    generation: u32,
}

/// A block whose layers came into or left the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceChange {
    pub(crate) block: ScopedKey,
    pub(crate) resident: bool,
}

#[derive(Debug, Clone, Default)]
struct Page {
    refs: u32,
    generation: u32,
    key: Option<ScopedKey>,
    /// Layers that hold this block's values, from 0 up.
    layers_ready: usize,
    /// A loader holds one of the references.
    loading: bool,
    /// Loading ended without all layers.
    broken: bool,
    /// Its place in the order of reuse, while unreferenced and keyed.
    stamp: Option<u64>,
}

/// The pool.
#[derive(Debug)]
pub(crate) struct PageTable {
    layers: usize,
    pages: Vec<Page>,
    free: Vec<PageId>,
    by_key: HashMap<ScopedKey, PageId>,
    idle: BTreeMap<u64, PageId>,
    clock: u64,
    changes: Vec<DeviceChange>,
}

impl PageTable {
    pub(crate) fn new(pages: usize, layers: usize) -> Self {
        let count = u32::try_from(pages).unwrap_or(u32::MAX);
        Self {
            layers,
            pages: vec![Page::default(); count as usize],
            free: (0..count).rev().map(PageId).collect(),
            by_key: HashMap::new(),
            idle: BTreeMap::new(),
            clock: 0,
            changes: Vec::new(),
        }
    }

    fn page(&self, id: PageId) -> &Page {
        &self.pages[id.0 as usize]
    }

    fn page_mut(&mut self, id: PageId) -> &mut Page {
        &mut self.pages[id.0 as usize]
    }

    /// Pages of the pool.
    pub(crate) fn capacity(&self) -> usize {
        self.pages.len()
    }

    /// Pages that could be had now.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Take a page with one reference and no key, evicting the least recently used idle one if need be.
    pub(crate) fn allocate(&mut self) -> Option<PageId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                let (_, id) = self.idle.pop_first()?;
                self.forget_key(id);
                id
            }
        };
        let page = self.page_mut(id);
        *page = Page { refs: 1, generation: page.generation.wrapping_add(1), ..Page::default() };
        Some(id)
    }

    fn forget_key(&mut self, id: PageId) {
        let layers = self.layers;
        let page = self.page_mut(id);
        let whole = page.layers_ready == layers;
        if let Some(block) = page.key.take() {
            self.by_key.remove(&block);
            if whole {
                self.changes.push(DeviceChange { block, resident: false });
            }
        }
    }

    /// The page of a block, arriving or whole.
    pub(crate) fn find(&self, block: &ScopedKey) -> Option<PageId> {
        self.by_key.get(block).copied()
    }

    /// One more reference.
    pub(crate) fn retain(&mut self, id: PageId) {
        let page = self.page_mut(id);
        page.refs += 1;
        if let Some(stamp) = page.stamp.take() {
            self.idle.remove(&stamp);
        }
    }

    /// One reference less; the last one frees the page, or keeps it for reuse when it has a key.
    pub(crate) fn release(&mut self, id: PageId) {
        let layers = self.layers;
        let page = self.page_mut(id);
        page.refs = page.refs.saturating_sub(1);
        if page.refs > 0 {
            return;
        }
        if page.key.is_some() && page.layers_ready == layers {
            self.clock += 1;
            let stamp = self.clock;
            self.page_mut(id).stamp = Some(stamp);
            self.idle.insert(stamp, id);
        } else {
            self.forget_key(id);
            self.free.push(id);
        }
    }

    /// Release the pages of a sequence: the tail first, so that it is evicted before the head, without
    /// which it is of no use.
    pub(crate) fn release_all(&mut self, pages: &[PageId]) {
        for &id in pages.iter().rev() {
            self.release(id);
        }
    }

    /// Name a page whose layers were all computed. False where another page has the block already.
    pub(crate) fn publish(&mut self, id: PageId, block: ScopedKey) -> bool {
        if self.by_key.contains_key(&block) {
            return false;
        }
        let layers = self.layers;
        let page = self.page_mut(id);
        page.key = Some(block);
        page.layers_ready = layers;
        self.by_key.insert(block, id);
        self.changes.push(DeviceChange { block, resident: true });
        true
    }

    /// Take a page for a block that will arrive layer by layer; the loader holds the one reference.
    pub(crate) fn begin_load(&mut self, block: ScopedKey) -> Option<Slot> {
        if self.by_key.contains_key(&block) {
            return None;
        }
        let id = self.allocate()?;
        self.by_key.insert(block, id);
        let page = self.page_mut(id);
        page.key = Some(block);
        page.loading = true;
        Some(Slot { page: id, generation: page.generation })
    }

    /// Whether a slot still takes this layer: the page is its own, and the layer is the next one.
    pub(crate) fn takes(&self, slot: Slot, layer: usize) -> bool {
        let page = self.page(slot.page);
        page.generation == slot.generation && !page.broken && page.layers_ready == layer
    }

    /// The next layer of a slot is in the pool.
    pub(crate) fn layer_ready(&mut self, slot: Slot) {
        let layers = self.layers;
        let page = self.page_mut(slot.page);
        page.layers_ready += 1;
        if page.layers_ready == layers
            && let Some(block) = page.key
        {
            self.changes.push(DeviceChange { block, resident: true });
        }
    }

    /// The loader is done with a slot; saying so again changes nothing. Where layers are missing the page is broken: nobody finds it any
    /// more, and sequences that wait for it recompute.
    pub(crate) fn end_load(&mut self, slot: Slot) {
        let layers = self.layers;
        let page = self.page_mut(slot.page);
        if page.generation != slot.generation || !page.loading {
            return;
        }
        page.loading = false;
        if page.layers_ready < layers {
            page.broken = true;
            self.forget_key(slot.page);
        }
        self.release(slot.page);
    }

    /// Layers of a page that can be read.
    pub(crate) fn layers_ready(&self, id: PageId) -> usize {
        self.page(id).layers_ready
    }

    /// Whether loading of a page ended without all layers.
    pub(crate) fn is_broken(&self, id: PageId) -> bool {
        self.page(id).broken
    }

    /// What came into and left the pool since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<DeviceChange> {
        std::mem::take(&mut self.changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: usize = 2;

    fn block(n: u8) -> ScopedKey {
        ScopedKey { scope: ScopeId([0; 16]), key: BlockKey([n; 32]) }
    }

    fn computed(table: &mut PageTable, n: u8) -> PageId {
        let id = table.allocate().unwrap();
        assert!(table.publish(id, block(n)));
        id
    }

    #[test]
    fn the_tail_of_a_prefix_is_evicted_before_its_head() {
        let mut table = PageTable::new(3, LAYERS);
        let pages: Vec<PageId> = (0..3).map(|n| computed(&mut table, n)).collect();
        assert!(table.allocate().is_none(), "all are referenced");
        table.release_all(&pages);
        table.take_changes();
        table.allocate().unwrap();
        assert_eq!(table.take_changes(), [DeviceChange { block: block(2), resident: false }]);
        assert!(table.find(&block(0)).is_some() && table.find(&block(1)).is_some());
    }

    #[test]
    fn a_page_in_use_is_not_evicted_and_one_without_a_key_is_free_at_once() {
        let mut table = PageTable::new(2, LAYERS);
        let a = computed(&mut table, 1);
        table.release(a);
        table.retain(a);
        let b = table.allocate().unwrap();
        assert!(table.allocate().is_none());
        table.release(b);
        assert_eq!(table.available(), 1);
        assert_eq!(table.allocate(), Some(b));
    }

    #[test]
    fn a_late_write_for_a_reused_page_is_refused() {
        let mut table = PageTable::new(1, LAYERS);
        let slot = table.begin_load(block(1)).unwrap();
        assert!(table.takes(slot, 0) && !table.takes(slot, 1));
        table.layer_ready(slot);
        table.end_load(slot);
        assert_eq!(table.find(&block(1)), None, "half a block is never found");
        let again = table.begin_load(block(2)).unwrap();
        assert_eq!(again.page, slot.page);
        assert!(!table.takes(slot, 0) && !table.takes(slot, 1));
        table.end_load(slot);
        assert!(table.takes(again, 0), "the late end of the old slot changes nothing");
    }

    #[test]
    fn waiting_sequences_see_that_a_page_broke() {
        let mut table = PageTable::new(1, LAYERS);
        let slot = table.begin_load(block(1)).unwrap();
        table.retain(slot.page);
        table.end_load(slot);
        assert!(table.is_broken(slot.page));
        table.release(slot.page);
        assert_eq!(table.available(), 1);
    }

    #[test]
    fn a_block_that_arrived_whole_is_found_and_told() {
        let mut table = PageTable::new(2, LAYERS);
        let slot = table.begin_load(block(1)).unwrap();
        assert!(table.begin_load(block(1)).is_none(), "one load at a time");
        table.layer_ready(slot);
        assert!(table.take_changes().is_empty());
        table.layer_ready(slot);
        table.end_load(slot);
        table.end_load(slot);
        assert_eq!(
            table.available(),
            2,
            "the end of a load gives up one reference, however often it is told"
        );
        assert_eq!(table.take_changes(), [DeviceChange { block: block(1), resident: true }]);
        assert_eq!(table.find(&block(1)), Some(slot.page));
        let twin = table.allocate().unwrap();
        assert!(!table.publish(twin, block(1)), "the first page keeps the name");
    }
}
