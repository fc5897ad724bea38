//! One context: which pages are kept for which positions, and what they hold.

use std::collections::BTreeMap;
use std::ops::Range;

use kvsp_core::reshard::Ranges;
use kvsp_engine::{PageId, PageRun};

use super::super::pages::PageTable;
use super::{ContextError, Keeper};

/// Pure bookkeeping. A page is there for each block in which a position is kept.
#[derive(Debug)]
pub(super) struct Context {
    block_tokens: u64,
    member: Ranges,
    leader: Ranges,
    pages: BTreeMap<u64, PageId>,
    /// One set a layer; all of it kept.
    held: Vec<Ranges>,
}

impl Context {
    pub(super) fn new(layers: usize, block_tokens: usize) -> Self {
        Self {
            block_tokens: (block_tokens as u64).max(1),
            member: Ranges::new(),
            leader: Ranges::new(),
            pages: BTreeMap::new(),
            held: vec![Ranges::new(); layers],
        }
    }

    const fn kept_for(&mut self, keeper: Keeper) -> &mut Ranges {
        match keeper {
            Keeper::Member => &mut self.member,
            Keeper::Leader => &mut self.leader,
        }
    }

    /// Keep positions: all of them or none.
    pub(super) fn reserve(
        &mut self,
        keeper: Keeper,
        ranges: &Ranges,
        pages: &mut PageTable,
    ) -> Result<(), ContextError> {
        let count: u64 = ranges.iter().map(|range| self.blocks(&range)).map(|b| b.end - b.start).sum();
        // Before the blocks are gone through: two of the ranges share at most one.
        if count > (pages.capacity() as u64).saturating_add(ranges.len() as u64) {
            return Err(ContextError::NoRoom);
        }
        let mut taken = Vec::new();
        let block_tokens = self.block_tokens;
        for block in ranges.iter().flat_map(|range| blocks(&range, block_tokens)) {
            if self.pages.contains_key(&block) {
                continue;
            }
            match pages.allocate() {
                Some(page) => {
                    self.pages.insert(block, page);
                    taken.push(block);
                }
                None => {
                    let taken = taken.iter().filter_map(|block| self.pages.remove(block));
                    taken.for_each(|page| pages.release(page));
                    return Err(ContextError::NoRoom);
                }
            }
        }
        self.kept_for(keeper).extend(ranges.iter());
        Ok(())
    }

    /// Keep positions, or all, no longer for one keeper.
    pub(super) fn free(&mut self, keeper: Keeper, ranges: Option<&Ranges>, pages: &mut PageTable) {
        let kept = self.kept_for(keeper);
        let given_up = ranges.map_or_else(|| kept.clone(), |ranges| kept.intersection(ranges));
        *kept = kept.difference(&given_up);
        let gone = given_up.difference(&self.kept());
        for held in &mut self.held {
            *held = held.difference(&gone);
        }
        let block_tokens = self.block_tokens;
        for block in gone.iter().flat_map(|range| blocks(&range, block_tokens)) {
            let positions = block * block_tokens..(block + 1).saturating_mul(block_tokens);
            let in_use = self.member.intersects(&positions) || self.leader.intersects(&positions);
            if !in_use && let Some(page) = self.pages.remove(&block) {
                pages.release(page);
            }
        }
    }

    /// Give all pages back.
    pub(super) fn clear(&mut self, pages: &mut PageTable) {
        self.free(Keeper::Member, None, pages);
        self.free(Keeper::Leader, None, pages);
    }

    fn kept(&self) -> Ranges {
        self.member.union(&self.leader)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    pub(super) fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// Tokens that are kept, and those of them that are held in all layers.
    pub(super) fn tokens(&self) -> (u64, u64) {
        (self.kept().tokens(), self.held_in_all().tokens())
    }

    /// Whether all positions of a range are kept.
    pub(super) fn keeps(&self, range: &Range<u64>) -> bool {
        self.member.covers(range) || self.leader.covers(range) || self.kept().covers(range)
    }

    /// Whether all positions of a range are held in a layer.
    pub(super) fn holds(&self, layer: usize, range: &Range<u64>) -> bool {
        self.held.get(layer).is_some_and(|held| held.covers(range))
    }

    pub(super) fn held_in_all(&self) -> Ranges {
        let (first, rest) = self.held.split_first().map_or((Ranges::new(), &[][..]), |(f, r)| (f.clone(), r));
        rest.iter().fold(first, |all, held| all.intersection(held))
    }

    /// K and V of these positions are in their pages, in one layer.
    pub(super) fn mark(&mut self, layer: usize, range: Range<u64>) {
        if let Some(held) = self.held.get_mut(layer) {
            held.insert(range);
        }
    }

    /// What lay at these positions lies there no more.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        self.held.iter_mut().for_each(|held| held.remove(range.clone()));
    }

    fn blocks(&self, range: &Range<u64>) -> Range<u64> {
        blocks(range, self.block_tokens)
    }

    /// The pages of a range, which is not empty; `None` where one is not there.
    pub(super) fn run(&self, range: &Range<u64>) -> Option<PageRun> {
        let blocks = self.blocks(range);
        let pages = blocks.clone().map(|block| self.pages.get(&block).copied()).collect::<Option<_>>()?;
        Some(PageRun { first: usize::try_from(blocks.start).ok()?, pages })
    }

    /// The pages of a range with the slots of each and where they are in the range, in tokens.
    pub(super) fn slots(&self, range: &Range<u64>) -> Option<Vec<(PageId, Range<usize>, usize)>> {
        let part = |block: u64| {
            let first = block * self.block_tokens;
            let from = range.start.max(first);
            let to = range.end.min(first + self.block_tokens);
            let slots = (from - first) as usize..(to - first) as usize;
            Some((*self.pages.get(&block)?, slots, usize::try_from(from - range.start).ok()?))
        };
        self.blocks(range).map(part).collect()
    }
}

/// The blocks that a range touches.
const fn blocks(range: &Range<u64>, block_tokens: u64) -> Range<u64> {
    range.start / block_tokens..range.end.div_ceil(block_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: usize = 2;

    fn set(ranges: &[(u64, u64)]) -> Ranges {
        ranges.iter().map(|&(a, b)| a..b).collect()
    }

    fn reserved(table: &mut PageTable, ranges: &[(u64, u64)]) -> Context {
        let mut context = Context::new(LAYERS, 4);
        context.reserve(Keeper::Member, &set(ranges), table).unwrap();
        context
    }

    #[test]
    fn a_page_serves_the_ranges_that_meet_in_it() {
        let mut table = PageTable::new(8, LAYERS);
        let mut context = reserved(&mut table, &[(0, 5), (6, 9)]);
        assert_eq!(table.available(), 5, "blocks 0, 1 and 2");
        context.free(Keeper::Member, Some(&set(&[(0, 5)])), &mut table);
        assert_eq!(table.available(), 6, "block 1 still has 6 and 7");
        assert!(context.keeps(&(6..9)) && !context.keeps(&(5..9)));
        context.free(Keeper::Member, None, &mut table);
        assert!(context.is_empty() && table.available() == 8);
    }

    #[test]
    fn all_is_reserved_or_nothing() {
        let mut table = PageTable::new(4, LAYERS);
        let mut context = reserved(&mut table, &[(0, 4)]);
        for too_much in [&[(4, 8), (100, 112)][..], &[(0, 17)], &[(0, u64::MAX)]] {
            let refused = context.reserve(Keeper::Member, &set(too_much), &mut table);
            assert_eq!(refused, Err(ContextError::NoRoom));
            assert_eq!((table.available(), context.keeps(&(4..5))), (3, false));
        }
        context.reserve(Keeper::Member, &set(&[(0, 16)]), &mut table).unwrap();
        context.reserve(Keeper::Member, &set(&[(0, 16)]), &mut table).unwrap();
        assert_eq!(table.available(), 0);
    }

    #[test]
    fn what_the_leader_keeps_stays_where_the_member_lets_go() {
        let mut table = PageTable::new(8, LAYERS);
        let mut context = reserved(&mut table, &[(0, 8)]);
        context.reserve(Keeper::Leader, &set(&[(6, 10)]), &mut table).unwrap();
        (0..LAYERS).for_each(|layer| context.mark(layer, 0..10));
        context.free(Keeper::Member, Some(&set(&[(0, 8)])), &mut table);
        assert_eq!(context.held_in_all(), set(&[(6, 10)]));
        assert_eq!(table.available(), 6);
        context.free(Keeper::Leader, Some(&set(&[(0, 100)])), &mut table);
        assert!(context.is_empty() && table.available() == 8 && context.held_in_all().is_empty());
    }

    #[test]
    fn held_in_all_layers_or_in_one() {
        let mut table = PageTable::new(8, LAYERS);
        let mut context = reserved(&mut table, &[(0, 16)]);
        context.mark(0, 0..16);
        context.mark(1, 3..9);
        assert!(context.holds(0, &(0..16)) && !context.holds(1, &(2..4)));
        assert!(!context.holds(LAYERS, &(0..0)));
        assert_eq!(context.held_in_all(), set(&[(3, 9)]));
        context.forget(&(5..u64::MAX));
        assert_eq!(context.held_in_all(), set(&[(3, 5)]));
        assert_eq!(context.tokens(), (16, 2));
    }

    #[test]
    fn slots_at_odd_boundaries() {
        let mut table = PageTable::new(8, LAYERS);
        let context = reserved(&mut table, &[(3, 9)]);
        let run = context.run(&(3..9)).unwrap();
        assert_eq!((run.first, run.pages.len()), (0, 3));
        let slots: Vec<_> = context.slots(&(3..9)).unwrap().into_iter().map(|(_, s, at)| (s, at)).collect();
        assert_eq!(slots, [(3..4, 0), (0..4, 1), (0..1, 5)]);
        assert!(context.run(&(3..13)).is_none() && context.slots(&(12..13)).is_none());
    }
}
