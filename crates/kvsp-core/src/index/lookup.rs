//! Lookup of a prefix.

use kvsp_proto::id::{BlockKey, CompatId, ScopeId};

use super::Index;
use super::block::{BlockId, tick_of};
use super::replica::NONE;
use super::table::BATCH;
use super::view::BlockView;
use crate::time::Time;

/// What a lookup found: the leading blocks with a live replica.
#[derive(Debug, Clone)]
pub struct Lookup<'a> {
    index: &'a Index,
    now: Time,
    layers: Option<u32>,
    blocks: Vec<BlockId>,
    complete: usize,
    /// No block so far was incomplete.
    unbroken: bool,
}

impl Index {
    /// Looks up keys in prefix order and stops at the first without a live replica of this compatibility
    /// and scope (draft section 6.2).
    #[must_use]
    pub fn lookup(&self, compat: CompatId, scope: ScopeId, keys: &[BlockKey], now: Time) -> Lookup<'_> {
        let mut found = Lookup {
            index: self,
            now,
            layers: self.layers_of(compat),
            blocks: Vec::new(),
            complete: 0,
            unbroken: true,
        };
        if let Some(space) = self.spaces.find(&(compat, scope)) {
            found.blocks.reserve(keys.len());
            found.search(space, keys);
        }
        found
    }
}

impl<'a> Lookup<'a> {
    /// Leading keys with at least one live replica.
    #[must_use]
    pub fn matched(&self) -> usize {
        self.blocks.len()
    }

    /// Leading keys of which live replicas of one digest and codec hold every layer together.
    #[must_use]
    pub const fn complete(&self) -> usize {
        self.complete
    }

    /// The matched blocks, in the order of the keys.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = BlockView<'a>> + use<'a, '_> {
        self.blocks.iter().map(|&block| BlockView::new(self.index, block, self.layers, self.now))
    }

    /// A prefix is mostly published in order, so the next key is mostly that of the next block. Where it is
    /// not, the table is asked, for one key at first and for more at once while the guess keeps failing.
    fn search(&mut self, space: u32, keys: &[BlockKey]) {
        let mut batch = 1;
        let mut keys = keys;
        let mut found = [NONE; BATCH];
        while !keys.is_empty() {
            let some = keys.get(..batch).unwrap_or(keys);
            let Index { table, blocks, .. } = self.index;
            match some {
                [key] => found[0] = table.find(blocks, space, key).unwrap_or(NONE),
                _ => table.find_all(blocks, space, some, &mut found),
            }
            for &block in found.iter().take(some.len()) {
                if block == NONE || !self.add(block) {
                    return;
                }
            }
            keys = keys.get(some.len()..).unwrap_or_default();
            // Whether the last one has its neighbour is a way to memory of its own, so it is not asked in
            // vain: not where the two last ones were no neighbours.
            if some.len() > 1 && !self.ends_in_neighbours() {
                batch = (4 * batch).min(BATCH);
                continue;
            }
            let run = self.run(space, keys);
            batch = if run > batch { 1 } else { (4 * batch).min(BATCH) };
            keys = keys.get(run..).unwrap_or_default();
        }
    }

    fn ends_in_neighbours(&self) -> bool {
        matches!(self.blocks.as_slice(), [.., before, last] if before.wrapping_add(1) == *last)
    }

    /// Adds the blocks that follow the last one as long as their keys are the next ones; returns how many.
    fn run(&mut self, space: u32, keys: &[BlockKey]) -> usize {
        let Some(next) = self.blocks.last().map(|&last| last.wrapping_add(1)) else { return 0 };
        let neighbours = self.index.blocks.get(next as usize..).unwrap_or_default();
        let (tick, want) = (tick_of(self.now), self.layers.unwrap_or(1).max(1));
        let before = self.blocks.len();
        for ((key, block), id) in keys.iter().zip(neighbours).zip(next..) {
            if !block.is(space, key) {
                break;
            }
            if block.sure > tick && block.whole >= want && self.unbroken {
                self.complete += 1;
                self.blocks.push(id);
            } else if !self.add(id) {
                break;
            }
        }
        self.blocks.len() - before
    }

    /// Adds a block; `false` where it has no live replica.
    fn add(&mut self, id: BlockId) -> bool {
        let Some(block) = self.index.blocks.get(id as usize) else { return false };
        let view = BlockView::new(self.index, id, self.layers, self.now);
        let sure = block.sure > tick_of(self.now);
        if !sure && view.replicas().next().is_none() {
            return false;
        }
        if self.unbroken {
            let whole = sure && block.whole >= self.layers.unwrap_or(1).max(1);
            self.unbroken = whole || view.is_complete();
            self.complete += usize::from(self.unbroken);
        }
        self.blocks.push(id);
        true
    }
}
