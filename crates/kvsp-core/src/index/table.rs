//! From a block's key to its number.
//!
//! An open table of numbers and tags; the keys stay in the blocks. It is cut into parts that grow one by
//! one, so that no write waits for all of it to be moved, and moving needs nothing but the tags.

use kvsp_proto::id::BlockKey;

use super::block::{Block, BlockId};
use super::replica::NONE;

/// Parts of the table.
const PARTS: usize = 64;

/// Places of a bucket: one line of the cache.
const PLACES: usize = 8;

/// The tag of a free place.
const FREE: u32 = 0;

/// Keys that are looked for side by side: as many as the memory can serve at once.
pub(super) const BATCH: usize = 128;

/// Blocks, and 32 bits of the hash of each one's key, from which its home bucket follows.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; PLACES],
    blocks: [BlockId; PLACES],
}

const _: () = assert!(size_of::<Bucket>() == 64, "a search reads one line");

/// The blocks by their keys.
#[derive(Debug)]
pub(super) struct Table {
    parts: Box<[Part; PARTS]>,
    /// Buckets of all parts.
    buckets: usize,
    /// Buckets of the largest part.
    largest: usize,
    seed: [u64; 4],
}

/// A part. What finds its home full is in the next bucket that was not, so a search goes on while buckets
/// are full. Behind the homes are buckets for what the last of them pushed on; the very last is never full.
#[derive(Debug, Clone, Default)]
struct Part {
    buckets: Vec<Bucket>,
    /// The first buckets, which are homes.
    homes: usize,
    used: usize,
}

impl Table {
    pub(super) fn new(seed: [u64; 4]) -> Self {
        Self { parts: Box::new(std::array::from_fn(|_| Part::default())), buckets: 0, largest: 0, seed }
    }

    /// Octets of all parts.
    pub(super) const fn octets(&self) -> u64 {
        (self.buckets * size_of::<Bucket>()) as u64
    }

    /// Octets by which one block more lets the table grow at most: half of its largest part.
    pub(super) const fn most_growth(&self) -> u64 {
        ((self.largest / 2 + 3) * size_of::<Bucket>()) as u64
    }

    /// A block of this key.
    pub(super) fn find(&self, blocks: &[Block], space: u32, key: &BlockKey) -> Option<BlockId> {
        let hash = self.hash(space, key);
        self.part(hash).candidates(tag(hash)).find(|&block| is_of(blocks, block, space, key))
    }

    /// Blocks of up to [`BATCH`] keys, [`NONE`] where there is none. Each step is done for all keys before
    /// the next one, so that their ways to memory overlap.
    pub(super) fn find_all(
        &self,
        blocks: &[Block],
        space: u32,
        keys: &[BlockKey],
        found: &mut [BlockId; BATCH],
    ) {
        // The part, the home in it, and the tag. Loops that only wait for memory are kept as short as can
        // be: the shorter, the more of their turns a core has under way.
        let mut homes = [(0_u32, 0_u32, 0_u32); BATCH];
        for (home, key) in homes.iter_mut().zip(keys) {
            let hash = self.hash(space, key);
            *home = (part_of(hash) as u32, self.part(hash).home_of(tag(hash)) as u32, tag(hash));
        }
        let homes = homes.get(..keys.len()).unwrap_or(&homes);
        let bucket = |part: u32, home: u32| self.parts[part as usize % PARTS].buckets.get(home as usize);
        let mut touched = 0;
        for &(part, home, _) in homes {
            touched ^= bucket(part, home).map_or(0, |bucket| bucket.tags[0]);
        }
        std::hint::black_box(touched);
        for (&(part, home, tag), found) in homes.iter().zip(found.iter_mut()) {
            *found = bucket(part, home).map_or(NONE, |bucket| bucket.first(tag));
        }
        let mut touched = 0;
        for &found in found.iter().take(keys.len()) {
            // A block may lie across two lines of the cache.
            touched ^= blocks.get(found as usize).map_or(0, |block| u32::from(block.key.0[0]) ^ block.whole);
        }
        std::hint::black_box(touched);
        for (key, found) in keys.iter().zip(found.iter_mut()) {
            if !is_of(blocks, *found, space, key) {
                // Absent, or pushed out of its home, or with the tag of another.
                *found = self.find(blocks, space, key).unwrap_or(NONE);
            }
        }
    }

    /// Adds a block that is not in the table.
    pub(super) fn insert(&mut self, space: u32, key: &BlockKey, block: BlockId) {
        let hash = self.hash(space, key);
        if let Some(part) = self.parts.get_mut(part_of(hash)) {
            let before = part.buckets.len();
            part.insert(tag(hash), block);
            self.buckets += part.buckets.len() - before;
            self.largest = self.largest.max(part.buckets.len());
        }
    }

    /// Removes a block.
    pub(super) fn remove(&mut self, space: u32, key: &BlockKey, block: BlockId) {
        let hash = self.hash(space, key);
        if let Some(part) = self.parts.get_mut(part_of(hash)) {
            part.remove(tag(hash), block);
        }
    }

    fn part(&self, hash: u64) -> &Part {
        // A remainder of the number of parts is below it.
        &self.parts[part_of(hash)]
    }

    /// A block key is the output of an HMAC, so hashing it again would be waste; but a peer may publish
    /// any 32 octets, so the words are mixed under a secret seed.
    fn hash(&self, space: u32, key: &BlockKey) -> u64 {
        let seed = self.seed;
        let mut words = [0_u64; 4];
        for (word, octets) in words.iter_mut().zip(key.0.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*octets);
        }
        let low = fold(words[0] ^ seed[0], words[1] ^ seed[1]);
        let high = fold(words[2] ^ seed[2], words[3] ^ seed[3]);
        fold(low ^ seed[3].rotate_left(17) ^ u64::from(space), high ^ seed[1].rotate_left(31))
    }
}

impl Bucket {
    const EMPTY: Self = Self { tags: [FREE; PLACES], blocks: [NONE; PLACES] };

    /// A bit for each place of this tag.
    fn places(&self, tag: u32) -> u32 {
        self.tags.iter().zip(0..).fold(0, |mask, (&other, at)| mask | u32::from(other == tag) << at)
    }

    /// The block in the first place of this tag.
    fn first(&self, tag: u32) -> BlockId {
        self.blocks.get(self.places(tag).trailing_zeros() as usize).copied().unwrap_or(NONE)
    }

    fn is_full(&self) -> bool {
        self.places(FREE) == 0
    }

    fn put(&mut self, tag: u32, block: BlockId) -> bool {
        let free = self.places(FREE).trailing_zeros() as usize;
        let Some((place, number)) = self.tags.get_mut(free).zip(self.blocks.get_mut(free)) else {
            return false;
        };
        (*place, *number) = (tag, block);
        true
    }

    fn entries(&self) -> impl Iterator<Item = (u32, BlockId)> {
        self.tags.into_iter().zip(self.blocks).filter(|(tag, _)| *tag != FREE)
    }
}

impl Part {
    /// The number of the bucket in which a tag belongs.
    fn home_of(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.homes as u64) >> 32) as usize
    }

    /// The blocks of a tag: almost always one at most.
    fn candidates(&self, tag: u32) -> impl Iterator<Item = BlockId> {
        let mut buckets = self.buckets.get(self.home_of(tag)..).unwrap_or_default().iter();
        let mut go_on = true;
        let reached = std::iter::from_fn(move || {
            let bucket = buckets.next().filter(|_| go_on)?;
            go_on = bucket.is_full();
            Some(bucket)
        });
        reached.flat_map(move |bucket| {
            bucket.entries().filter(move |(other, _)| *other == tag).map(|(_, block)| block)
        })
    }

    fn insert(&mut self, tag: u32, block: BlockId) {
        // Beyond four fifths too many would be pushed out of their homes.
        if (self.used + 1) * 5 > self.homes * PLACES * 4 {
            self.homes = (self.homes + self.homes / 2).max(2);
            let old = std::mem::replace(&mut self.buckets, vec![Bucket::EMPTY; self.homes + 1]);
            for (tag, block) in old.iter().flat_map(Bucket::entries) {
                self.settle(tag, block);
            }
        }
        self.used += 1;
        self.settle(tag, block);
    }

    /// Puts a block where it belongs.
    fn settle(&mut self, tag: u32, block: BlockId) {
        let home = self.home_of(tag);
        let mut reached = self.buckets.get_mut(home..).unwrap_or_default().iter_mut();
        reached.any(|bucket| bucket.put(tag, block));
        if self.buckets.last().is_some_and(Bucket::is_full) {
            self.buckets.push(Bucket::EMPTY);
        }
    }

    /// Removes a block, and lets move up what its bucket had pushed on.
    fn remove(&mut self, tag: u32, block: BlockId) {
        let Some((mut gap, place)) = (self.home_of(tag)..self.buckets.len()).find_map(|at| {
            let place = self.buckets.get(at)?.blocks.iter().position(|&other| other == block)?;
            Some((at, place))
        }) else {
            return;
        };
        self.used -= 1;
        let mut place = place;
        loop {
            let was_full = self.buckets.get(gap).is_some_and(Bucket::is_full);
            self.set(gap, place, FREE, NONE);
            if !was_full {
                return;
            }
            let Some((from, from_place, tag, block)) = self.pushed_over(gap) else { return };
            self.set(gap, place, tag, block);
            (gap, place) = (from, from_place);
        }
    }

    /// An entry beyond a bucket whose home is in the bucket or before it.
    fn pushed_over(&self, gap: usize) -> Option<(usize, usize, u32, BlockId)> {
        for (bucket, at) in self.buckets.get(gap + 1..)?.iter().zip(gap + 1..) {
            let mut entries = bucket.tags.iter().zip(&bucket.blocks).zip(0..);
            let found = entries.find(|((tag, _), _)| **tag != FREE && self.home_of(**tag) <= gap);
            if let Some(((&tag, &block), place)) = found {
                return Some((at, place, tag, block));
            }
            if !bucket.is_full() {
                return None;
            }
        }
        None
    }

    fn set(&mut self, bucket: usize, place: usize, tag: u32, block: BlockId) {
        let Some(bucket) = self.buckets.get_mut(bucket) else { return };
        if let Some((old_tag, old_block)) = bucket.tags.get_mut(place).zip(bucket.blocks.get_mut(place)) {
            (*old_tag, *old_block) = (tag, block);
        }
    }
}

const fn part_of(hash: u64) -> usize {
    hash as usize % PARTS
}

/// Never that of a free place.
const fn tag(hash: u64) -> u32 {
    let tag = (hash >> 32) as u32;
    if tag == FREE { 1 } else { tag }
}

fn is_of(blocks: &[Block], block: BlockId, space: u32, key: &BlockKey) -> bool {
    blocks.get(block as usize).is_some_and(|block| block.is(space, key))
}

const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A part whose tags crowd at both ends, against a map.
    #[test]
    fn a_part_does_what_a_map_does() {
        let mut part = Part::default();
        let mut map: BTreeMap<BlockId, u32> = BTreeMap::new();
        let mut state = 7_u32;
        for block in 0..6_000_u32 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let tag = match state >> 29 {
                0 => u32::MAX - (state >> 20 & 0xff),
                1 => 1 + (state >> 20 & 0xff),
                2 => 1 << 31 | state >> 20 & 3,
                _ => state | 1,
            };
            part.insert(tag, block);
            map.insert(block, tag);
            if state & 384 != 0 {
                let gone = map.keys().nth((state >> 9) as usize % map.len()).copied().unwrap();
                part.remove(map.remove(&gone).unwrap(), gone);
                part.remove(tag, NONE - 1);
            }
            assert_eq!(part.used, map.len());
            if block % 50 == 0 {
                assert!(map.iter().all(|(&block, &tag)| part.candidates(tag).any(|found| found == block)));
            }
        }
        assert!(map.len() > 500 && part.buckets.len() < map.len());
        while let Some((block, tag)) = map.pop_first() {
            part.remove(tag, block);
            assert!(map.iter().all(|(&block, &tag)| part.candidates(tag).any(|found| found == block)));
        }
        assert!(part.buckets.iter().all(|bucket| bucket.entries().next().is_none()));
    }
}
