//! Which block goes first.

use std::collections::BTreeMap;

/// Orders the blocks of one tier for eviction.
///
/// Deterministic: the same calls in the same order give the same victims.
pub trait EvictionPolicy<K>: Send + std::fmt::Debug {
    /// A block came in; it is used now.
    fn insert(&mut self, key: K);
    /// A block is used.
    fn touch(&mut self, key: &K);
    /// A block went.
    fn remove(&mut self, key: &K);
    /// The blocks in the order in which they should go.
    fn order(&self) -> Box<dyn Iterator<Item = K> + '_>;
    /// The leading blocks of one prefix are used. A block without the blocks before it is worth nothing,
    /// so the tail of a prefix should go before its head.
    fn touch_prefix(&mut self, keys: &[K]) {
        for key in keys.iter().rev() {
            self.touch(key);
        }
    }
}

/// The block that was not used for longest goes first.
#[derive(Debug)]
pub struct LeastRecentlyUsed<K> {
    stamps: BTreeMap<K, u64>,
    order: BTreeMap<u64, K>,
    next: u64,
}

impl<K> Default for LeastRecentlyUsed<K> {
    fn default() -> Self {
        Self { stamps: BTreeMap::new(), order: BTreeMap::new(), next: 0 }
    }
}

impl<K: Copy + Ord + Send + std::fmt::Debug> EvictionPolicy<K> for LeastRecentlyUsed<K> {
    fn insert(&mut self, key: K) {
        if let Some(stamp) = self.stamps.insert(key, self.next) {
            self.order.remove(&stamp);
        }
        self.order.insert(self.next, key);
        // 2^64 uses at 10^9 a second take 580 years.
        self.next = self.next.saturating_add(1);
    }

    fn touch(&mut self, key: &K) {
        if self.stamps.contains_key(key) {
            self.insert(*key);
        }
    }

    fn remove(&mut self, key: &K) {
        if let Some(stamp) = self.stamps.remove(key) {
            self.order.remove(&stamp);
        }
    }

    fn order(&self) -> Box<dyn Iterator<Item = K> + '_> {
        Box::new(self.order.values().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(policy: &LeastRecentlyUsed<u32>) -> Vec<u32> {
        policy.order().collect()
    }

    #[test]
    fn use_moves_a_block_to_the_end() {
        let mut policy = LeastRecentlyUsed::default();
        for key in 1..=4 {
            policy.insert(key);
        }
        policy.touch(&2);
        policy.remove(&3);
        policy.touch(&3);
        assert_eq!(order(&policy), [1, 4, 2]);
    }

    #[test]
    fn the_tail_of_a_prefix_goes_before_its_head() {
        let mut policy = LeastRecentlyUsed::default();
        for key in 1..=4 {
            policy.insert(key);
        }
        policy.touch_prefix(&[1, 2, 3]);
        assert_eq!(order(&policy), [4, 3, 2, 1]);
    }
}
