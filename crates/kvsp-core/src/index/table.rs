//! From a block to the head of its chain.

use hashbrown::HashTable;
use kvsp_proto::id::BlockKey;

use super::slot::{Slot, SlotId};

/// A hash table of slot numbers; the keys stay in the slots.
#[derive(Debug)]
pub(super) struct Table {
    heads: HashTable<SlotId>,
    seed: [u64; 4],
}

impl Table {
    pub(super) const fn new(seed: [u64; 4]) -> Self {
        Self { heads: HashTable::new(), seed }
    }

    /// The head of a block's chain.
    pub(super) fn find(&self, slots: &[Slot], space: u32, key: &BlockKey) -> Option<SlotId> {
        self.heads.find(hash(self.seed, space, key), |&head| is_of(slots, head, space, key)).copied()
    }

    /// Makes a slot the head of its block's chain.
    pub(super) fn set(&mut self, slots: &mut [Slot], head: SlotId) {
        let Some((space, key)) = slots.get_mut(head as usize).map(|slot| {
            slot.set_head(true);
            (slot.space, slot.key)
        }) else {
            return;
        };
        let hash_of_key = hash(self.seed, space, &key);
        if let Some(old) = self.heads.find_mut(hash_of_key, |&old| is_of(slots, old, space, &key)) {
            let old = std::mem::replace(old, head);
            if old != head
                && let Some(slot) = slots.get_mut(old as usize)
            {
                slot.set_head(false);
            }
            return;
        }
        let seed = self.seed;
        self.heads.insert_unique(hash_of_key, head, |&other| {
            slots.get(other as usize).map_or(0, |slot| hash(seed, slot.space, &slot.key))
        });
    }

    /// Forgets a block.
    pub(super) fn remove(&mut self, slots: &[Slot], space: u32, key: &BlockKey) {
        if let Ok(entry) =
            self.heads.find_entry(hash(self.seed, space, key), |&head| is_of(slots, head, space, key))
        {
            entry.remove();
        }
    }
}

fn is_of(slots: &[Slot], head: SlotId, space: u32, key: &BlockKey) -> bool {
    slots.get(head as usize).is_some_and(|slot| slot.space == space && slot.key == *key)
}

/// A block key is the output of an HMAC, so hashing it again would be waste; but a peer may publish
/// any 32 octets, so the words are mixed under a secret seed.
fn hash(seed: [u64; 4], space: u32, key: &BlockKey) -> u64 {
    let mut words = [0_u64; 4];
    for (word, octets) in words.iter_mut().zip(key.0.chunks_exact(8)) {
        *word = octets.iter().fold(0, |word, &octet| word << 8 | u64::from(octet));
    }
    let low = fold(words[0] ^ seed[0], words[1] ^ seed[1]);
    let high = fold(words[2] ^ seed[2], words[3] ^ seed[3]);
    fold(low ^ seed[3].rotate_left(17) ^ u64::from(space), high ^ seed[1].rotate_left(31))
}

const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    (product as u64) ^ (product >> 64) as u64
}
