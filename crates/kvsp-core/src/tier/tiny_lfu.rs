//! Eviction by recency and frequency, so that blocks that are used once do not drive out those that are
//! used again and again.

mod sketch;

use std::collections::BTreeMap;
use std::hash::Hash;

use super::policy::EvictionPolicy;
use sketch::FrequencySketch;

/// Uses that count beyond the first one: a block that was hot once must be able to go.
const MOST_REUSES: u64 = 4;
/// Blocks from which the sketch is laid out, so that a tier that has just begun to fill does not age it.
const FEWEST_BLOCKS: u64 = 1024;

/// Every use of a block is one tick; a block goes when it was not used for longest, but each use beyond the
/// first one, up to four, lets it count as used later by three quarters of the blocks held. A scan therefore
/// passes through below the blocks that are used repeatedly, and these go too once they are not used any
/// more. Uses are counted in a sketch of four-bit counters that ages, and that remembers a block for a while
/// after it went (as in TinyLFU).
///
/// The usual frame of TinyLFU is left out on purpose: a small window before a main area into which only
/// blocks enter that beat the one to go. Prompts of a conversation come back after as many other blocks as a
/// tier holds, so a block needs its time there before its frequency says anything, and on recorded
/// conversations that frame had a quarter fewer hits than [`LeastRecentlyUsed`](super::LeastRecentlyUsed).
#[derive(Debug)]
pub struct TinyLfu<K> {
    uses: BTreeMap<K, Use>,
    order: BTreeMap<(u64, u64), K>,
    sketch: FrequencySketch,
    ticks: u64,
}

#[derive(Debug, Clone, Copy)]
struct Use {
    /// The tick as which the last use counts.
    rank: u64,
    /// The tick of the last use.
    at: u64,
    /// The tick of the last use that the sketch was told.
    counted: u64,
}

impl<K> Default for TinyLfu<K> {
    fn default() -> Self {
        Self {
            uses: BTreeMap::new(),
            order: BTreeMap::new(),
            sketch: FrequencySketch::new(FEWEST_BLOCKS),
            ticks: 0,
        }
    }
}

impl<K: Copy + Ord + Hash> TinyLfu<K> {
    fn held(&self) -> u64 {
        u64::try_from(self.uses.len()).unwrap_or(u64::MAX)
    }

    /// A block is used, and goes no earlier than one of rank `floor`; its rank.
    fn used(&mut self, key: K, floor: u64) -> u64 {
        // 2^64 uses at 10^9 a second take 580 years.
        self.ticks = self.ticks.saturating_add(1);
        let before = self.uses.get(&key).copied();
        let counted = before.map(|before| before.counted).filter(|counted| !self.is_new_use(*counted));
        if counted.is_none() {
            self.sketch.count(&key);
        }
        let reuses = u64::from(self.sketch.estimate(&key)).saturating_sub(1).min(MOST_REUSES);
        let bonus = self.held().saturating_mul(reuses * 3) / 4;
        let rank = self.ticks.saturating_add(bonus).max(floor);
        let now = Use { rank, at: self.ticks, counted: counted.unwrap_or(self.ticks) };
        if let Some(before) = before {
            self.order.remove(&(before.rank, before.at));
        }
        self.uses.insert(key, now);
        self.order.insert((rank, now.at), key);
        rank
    }

    /// A lease, a stream and the retrievals under them are one use of a block, not three.
    fn is_new_use(&self, counted: u64) -> bool {
        self.ticks.saturating_sub(counted) > self.held() / 64
    }
}

impl<K: Copy + Ord + Hash + Send + std::fmt::Debug> EvictionPolicy<K> for TinyLfu<K> {
    fn insert(&mut self, key: K) {
        self.used(key, 0);
        self.sketch.fit(self.held());
    }

    fn touch(&mut self, key: &K) {
        if self.uses.contains_key(key) {
            self.used(*key, 0);
        }
    }

    fn remove(&mut self, key: &K) {
        if let Some(last) = self.uses.remove(key) {
            self.order.remove(&(last.rank, last.at));
        }
    }

    fn order(&self) -> Box<dyn Iterator<Item = K> + '_> {
        Box::new(self.order.values().copied())
    }

    /// From the tail to the head no rank falls, whatever the counters say of a single block.
    fn touch_prefix(&mut self, keys: &[K]) {
        let mut floor = 0;
        for key in keys.iter().rev() {
            if self.uses.contains_key(key) {
                floor = self.used(*key, floor);
            }
        }
    }
}

#[cfg(test)]
mod tests;
