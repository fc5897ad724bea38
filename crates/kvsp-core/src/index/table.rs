//! From a block's key to its number.
//!
//! An open table of numbers and tags; the keys stay in the blocks. It is cut into parts that grow one by
//! one, so that no write waits for all of it to be moved, and moving needs nothing but the tags.

use kvsp_proto::id::BlockKey;

use super::block::{Block, BlockId};
use super::replica::NONE;

/// Parts of the table.
const PARTS: usize = 64;

/// Places of a part at first.
const SMALLEST: usize = 8;

/// Keys that are looked for side by side: as many as the memory can serve at once.
pub(super) const BATCH: usize = 32;

/// A place: the block, and 32 bits of its key's hash from which its home follows. Free without a block.
#[derive(Debug, Clone, Copy)]
struct Place {
    tag: u32,
    block: BlockId,
}

impl Place {
    const FREE: Self = Self { tag: 0, block: NONE };
}

/// The blocks by their keys.
#[derive(Debug)]
pub(super) struct Table {
    parts: Box<[Part; PARTS]>,
    /// Places of all parts.
    places: usize,
    seed: [u64; 4],
}

/// A part: linear probing from a place that is proportional to the tag.
#[derive(Debug, Clone, Default)]
struct Part {
    places: Vec<Place>,
    used: usize,
}

impl Table {
    pub(super) fn new(seed: [u64; 4]) -> Self {
        Self { parts: Box::new(std::array::from_fn(|_| Part::default())), places: 0, seed }
    }

    /// Octets of all parts.
    pub(super) fn octets(&self) -> u64 {
        (self.places * size_of::<Place>()) as u64
    }

    /// A block of this key.
    pub(super) fn find(&self, blocks: &[Block], space: u32, key: &BlockKey) -> Option<BlockId> {
        let hash = hash(self.seed, space, key);
        let part = self.part(hash);
        part.candidates(tag(hash)).find(|&block| is_of(blocks, block, space, key))
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
        let mut hashes = [0; BATCH];
        for (hash_of_key, key) in hashes.iter_mut().zip(keys) {
            *hash_of_key = hash(self.seed, space, key);
        }
        let hashes = hashes.get(..keys.len()).unwrap_or(&hashes);
        let mut touched = 0_u32;
        for &hash in hashes {
            touched ^= self.part(hash).first(tag(hash));
        }
        std::hint::black_box(touched);
        let mut touched = 0_u32;
        for (&hash, found) in hashes.iter().zip(found.iter_mut()) {
            *found = self.part(hash).candidates(tag(hash)).next().unwrap_or(NONE);
            // A block may lie across two lines of the cache.
            touched ^= blocks.get(*found as usize).map_or(0, |block| u32::from(block.key.0[0]) ^ block.whole);
        }
        std::hint::black_box(touched);
        for ((key, &hash), found) in keys.iter().zip(hashes).zip(found.iter_mut()) {
            if *found != NONE && !is_of(blocks, *found, space, key) {
                let mut others = self.part(hash).candidates(tag(hash));
                *found = others.find(|&block| is_of(blocks, block, space, key)).unwrap_or(NONE);
            }
        }
    }

    /// Adds a block that is not in the table.
    pub(super) fn insert(&mut self, space: u32, key: &BlockKey, block: BlockId) {
        let hash = hash(self.seed, space, key);
        if let Some(part) = self.parts.get_mut(part_of(hash)) {
            let before = part.places.len();
            part.insert(Place { tag: tag(hash), block });
            self.places += part.places.len() - before;
        }
    }

    /// Removes a block.
    pub(super) fn remove(&mut self, space: u32, key: &BlockKey, block: BlockId) {
        let hash = hash(self.seed, space, key);
        if let Some(part) = self.parts.get_mut(part_of(hash)) {
            part.remove(tag(hash), block);
        }
    }

    fn part(&self, hash: u64) -> &Part {
        // Six bits are below the number of parts.
        &self.parts[part_of(hash)]
    }
}

impl Part {
    fn home(&self, tag: u32) -> usize {
        home(tag, self.places.len())
    }

    /// The block at the home of a tag, whatever it is.
    fn first(&self, tag: u32) -> BlockId {
        self.places.get(self.home(tag)).map_or(NONE, |place| place.block)
    }

    /// The blocks of a tag: almost always one at most.
    fn candidates(&self, tag: u32) -> impl Iterator<Item = BlockId> {
        let (before, after) = self.places.split_at(self.home(tag).min(self.places.len()));
        after
            .iter()
            .chain(before)
            .take_while(|place| place.block != NONE)
            .filter(move |place| place.tag == tag)
            .map(|place| place.block)
    }

    fn insert(&mut self, place: Place) {
        // At four fifths a search takes three places on average, and a line of the cache has eight.
        if (self.used + 1) * 5 > self.places.len() * 4 {
            let grown = (self.places.len() + self.places.len() / 2).max(SMALLEST);
            let old = std::mem::replace(&mut self.places, vec![Place::FREE; grown]);
            for place in old.into_iter().filter(|place| place.block != NONE) {
                self.settle(place);
            }
        }
        self.used += 1;
        self.settle(place);
    }

    fn settle(&mut self, place: Place) {
        let (before, after) = {
            let home = self.home(place.tag).min(self.places.len());
            self.places.split_at_mut(home)
        };
        if let Some(free) = after.iter_mut().chain(before).find(|other| other.block == NONE) {
            *free = place;
        }
    }

    /// Removes a block, and moves up what it kept from its home.
    fn remove(&mut self, tag: u32, block: BlockId) {
        let len = self.places.len();
        let home = self.home(tag);
        let Some(mut gap) = (0..len)
            .map(|step| (home + step) % len)
            .take_while(|&at| self.places[at].block != NONE)
            .find(|&at| self.places[at].block == block)
        else {
            return;
        };
        self.used -= 1;
        let mut at = gap;
        loop {
            at = (at + 1) % len;
            let place = self.places[at];
            // The gap may take what is at least as far from its home as from the gap.
            let from_home = (at + len - home_or(place, len)) % len;
            if place.block == NONE || at == gap {
                break;
            }
            if from_home >= (at + len - gap) % len {
                self.places[gap] = place;
                gap = at;
            }
        }
        self.places[gap] = Place::FREE;
    }
}

fn home_or(place: Place, len: usize) -> usize {
    home(place.tag, len)
}

fn home(tag: u32, len: usize) -> usize {
    ((u64::from(tag) * len as u64) >> 32) as usize
}

const fn part_of(hash: u64) -> usize {
    hash as usize % PARTS
}

const fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

fn is_of(blocks: &[Block], block: BlockId, space: u32, key: &BlockKey) -> bool {
    blocks.get(block as usize).is_some_and(|block| block.space == space && block.key == *key)
}

/// A block key is the output of an HMAC, so hashing it again would be waste; but a peer may publish
/// any 32 octets, so the words are mixed under a secret seed.
fn hash(seed: [u64; 4], space: u32, key: &BlockKey) -> u64 {
    let mut words = [0_u64; 4];
    for (word, octets) in words.iter_mut().zip(key.0.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*octets);
    }
    let low = fold(words[0] ^ seed[0], words[1] ^ seed[1]);
    let high = fold(words[2] ^ seed[2], words[3] ^ seed[3]);
    fold(low ^ seed[3].rotate_left(17) ^ u64::from(space), high ^ seed[1].rotate_left(31))
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
        for block in 0..4_000_u32 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let tag = if state & 64 == 0 { u32::MAX - (state >> 24) } else { state >> 20 };
            part.insert(Place { tag, block });
            map.insert(block, tag);
            if state & 384 != 0 {
                let gone = map.keys().nth(state as usize % map.len()).copied().unwrap();
                part.remove(map.remove(&gone).unwrap(), gone);
                part.remove(tag, NONE - 1);
            }
            assert_eq!(part.used, map.len());
        }
        assert!(map.len() > 500);
        for (block, tag) in map {
            assert!(part.candidates(tag).any(|found| found == block));
        }
    }
}
