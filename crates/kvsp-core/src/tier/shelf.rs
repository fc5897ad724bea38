//! One tier: a byte cap, what lies under it, and reservations for what is on its way.

use std::collections::BTreeMap;

use super::policy::EvictionPolicy;

/// The blocks of one tier under a byte cap. Octets are reserved before they are written, so the cap holds
/// at every moment.
#[derive(Debug)]
pub struct Shelf<K> {
    capacity: u64,
    used: u64,
    reserved: u64,
    blocks: BTreeMap<K, u64>,
    policy: Box<dyn EvictionPolicy<K>>,
}

impl<K: Copy + Ord> Shelf<K> {
    /// An empty tier of `capacity` octets.
    #[must_use]
    pub fn new(capacity: u64, policy: Box<dyn EvictionPolicy<K>>) -> Self {
        Self { capacity, used: 0, reserved: 0, blocks: BTreeMap::new(), policy }
    }

    /// Octets that fit.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Octets of the blocks held, and of those on their way.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used.saturating_add(self.reserved)
    }

    /// Blocks held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether no block is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Octets that can be reserved without anything going.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used())
    }

    /// The blocks in the order in which they should go.
    pub fn order(&self) -> impl Iterator<Item = K> + '_ {
        self.policy.order()
    }

    /// The octets of a block that is held.
    #[must_use]
    pub fn octets(&self, key: &K) -> Option<u64> {
        self.blocks.get(key).copied()
    }

    /// Makes room for `octets` and reserves them. The blocks returned must go before anything is written
    /// in their place; they are off the shelf already. `None`, and no change, where sparing the protected
    /// blocks leaves too little room.
    pub fn reserve(&mut self, octets: u64, protected: impl Fn(&K) -> bool) -> Option<Vec<K>> {
        if octets > self.capacity {
            return None;
        }
        let over = self.used().saturating_add(octets).saturating_sub(self.capacity);
        let mut victims = Vec::new();
        let mut freed = 0_u64;
        if over > 0 {
            for key in self.policy.order().filter(|key| !protected(key)) {
                freed = freed.saturating_add(self.blocks.get(&key).copied().unwrap_or(0));
                victims.push(key);
                if freed >= over {
                    break;
                }
            }
        }
        if freed < over {
            return None;
        }
        for key in &victims {
            self.remove(key);
        }
        self.reserved = self.reserved.saturating_add(octets);
        Some(victims)
    }

    /// A reservation becomes a block.
    pub fn commit(&mut self, key: K, octets: u64) {
        self.cancel(octets);
        self.insert(key, octets);
    }

    /// Octets that are no block's any more, but still there: reserved until they are cancelled.
    pub const fn hold(&mut self, octets: u64) {
        self.reserved = self.reserved.saturating_add(octets);
    }

    /// A reservation is given up.
    pub const fn cancel(&mut self, octets: u64) {
        self.reserved = self.reserved.saturating_sub(octets);
    }

    /// Puts a block on the shelf that was there before this process, whatever the cap.
    pub fn insert(&mut self, key: K, octets: u64) {
        if let Some(before) = self.blocks.insert(key, octets) {
            self.used = self.used.saturating_sub(before);
        }
        self.used = self.used.saturating_add(octets);
        self.policy.insert(key);
    }

    /// A block takes fewer or more octets than before; its place in the order stays.
    pub fn resize(&mut self, key: &K, octets: u64) {
        if let Some(held) = self.blocks.get_mut(key) {
            self.used = self.used.saturating_sub(*held).saturating_add(octets);
            *held = octets;
        }
    }

    /// Takes a block off; its octets, where it was there.
    pub fn remove(&mut self, key: &K) -> Option<u64> {
        let octets = self.blocks.remove(key)?;
        self.used = self.used.saturating_sub(octets);
        self.policy.remove(key);
        Some(octets)
    }

    /// A block is used.
    pub fn touch(&mut self, key: &K) {
        self.policy.touch(key);
    }

    /// The leading blocks of one prefix are used.
    pub fn touch_prefix(&mut self, keys: &[K]) {
        self.policy.touch_prefix(keys);
    }
}

#[cfg(test)]
mod tests {
    use super::super::LeastRecentlyUsed;
    use super::*;

    fn shelf() -> Shelf<u32> {
        let mut shelf = Shelf::new(100, Box::<LeastRecentlyUsed<u32>>::default());
        for key in 1..=4 {
            assert_eq!(shelf.reserve(25, |_| false), Some(vec![]));
            shelf.commit(key, 25);
        }
        shelf
    }

    #[test]
    fn room_is_made_in_order_and_the_protected_are_spared() {
        let mut shelf = shelf();
        assert_eq!(shelf.reserve(30, |key| *key == 1), Some(vec![2, 3]));
        assert_eq!(shelf.used(), 80);
        shelf.commit(9, 30);
        assert_eq!((shelf.used(), shelf.len()), (80, 3));
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let mut shelf = shelf();
        assert_eq!(shelf.reserve(60, |key| *key < 3), None);
        assert_eq!(shelf.reserve(101, |_| false), None);
        assert_eq!(shelf.reserve(u64::MAX, |_| false), None);
        assert_eq!((shelf.used(), shelf.len()), (100, 4));
    }

    #[test]
    fn a_reservation_counts_until_it_is_given_up() {
        let mut shelf = shelf();
        assert_eq!(shelf.reserve(25, |_| false), Some(vec![1]));
        assert_eq!(shelf.reserve(75, |_| false), Some(vec![2, 3, 4]));
        assert_eq!(shelf.reserve(1, |_| false), None);
        shelf.cancel(75);
        assert_eq!(shelf.reserve(75, |_| false), Some(vec![]));
    }
}
