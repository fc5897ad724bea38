//! Blocks that are being read: kept for a bounded time, so that an answer does not break off in the middle.

use std::collections::{BTreeMap, BTreeSet};

use super::level::{Level, PerLevel};
use crate::time::Time;

/// Names a set of blocks that are being read, until it is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PinId(u64);

#[derive(Debug)]
struct Pinned {
    readers: u32,
    octets: u64,
    level: Level,
}

/// What is pinned, and until when at the latest. All pins together cover a bounded part of each tier, so
/// that slow readers cannot keep a holder from taking blocks.
#[derive(Debug)]
pub(super) struct Pins<K> {
    limits: PerLevel<u64>,
    octets: PerLevel<u64>,
    blocks: BTreeMap<K, Pinned>,
    sets: BTreeMap<PinId, (Time, Vec<K>)>,
    ends: BTreeSet<(Time, PinId)>,
    next: u64,
}

impl<K: Copy + Ord> Pins<K> {
    pub(super) fn new(limits: PerLevel<u64>) -> Self {
        Self {
            limits,
            octets: PerLevel::default(),
            blocks: BTreeMap::new(),
            sets: BTreeMap::new(),
            ends: BTreeSet::new(),
            next: 0,
        }
    }

    pub(super) fn expire(&mut self, now: Time) {
        while let Some(&(until, id)) = self.ends.first() {
            if until > now {
                return;
            }
            self.release(id);
        }
    }

    pub(super) fn covers(&self, key: &K) -> bool {
        self.blocks.contains_key(key)
    }

    /// Pins those of `keys` for which there is room among the pins.
    pub(super) fn pin(&mut self, keys: impl Iterator<Item = (K, Level, u64)>, until: Time) -> PinId {
        let mut kept = Vec::new();
        for (key, level, octets) in keys {
            if let Some(pinned) = self.blocks.get_mut(&key) {
                pinned.readers = pinned.readers.saturating_add(1);
            } else if self.octets[level].saturating_add(octets) <= self.limits[level] {
                self.octets[level] = self.octets[level].saturating_add(octets);
                self.blocks.insert(key, Pinned { readers: 1, octets, level });
            } else {
                continue;
            }
            kept.push(key);
        }
        let id = PinId(self.next);
        // 2^64 reads at 10^9 a second take 580 years.
        self.next = self.next.saturating_add(1);
        self.ends.insert((until, id));
        self.sets.insert(id, (until, kept));
        id
    }

    /// Ends a set; nothing where it ended already.
    pub(super) fn release(&mut self, id: PinId) {
        let Some((until, keys)) = self.sets.remove(&id) else {
            return;
        };
        self.ends.remove(&(until, id));
        for key in keys {
            let Some(pinned) = self.blocks.get_mut(&key) else {
                continue;
            };
            pinned.readers = pinned.readers.saturating_sub(1);
            if pinned.readers == 0 {
                let (level, octets) = (pinned.level, pinned.octets);
                self.octets[level] = self.octets[level].saturating_sub(octets);
                self.blocks.remove(&key);
            }
        }
    }

    /// A block is lost to a fault: whoever reads it finds that out.
    pub(super) fn forget(&mut self, key: &K) {
        if let Some(pinned) = self.blocks.remove(key) {
            self.octets[pinned.level] = self.octets[pinned.level].saturating_sub(pinned.octets);
            for (_, keys) in self.sets.values_mut() {
                keys.retain(|pinned| pinned != key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pins() -> Pins<u32> {
        Pins::new(PerLevel::new(0, 100, 0))
    }

    fn on_disk(keys: &[u32]) -> impl Iterator<Item = (u32, Level, u64)> {
        keys.iter().map(|key| (*key, Level::Disk, 40))
    }

    #[test]
    fn a_block_is_free_after_its_last_reader_or_when_time_is_over() {
        let mut pins = pins();
        let first = pins.pin(on_disk(&[1]), Time::from_millis(10));
        let second = pins.pin(on_disk(&[1, 2]), Time::from_millis(20));
        pins.release(first);
        pins.release(first);
        assert!(pins.covers(&1) && pins.covers(&2));
        pins.expire(Time::from_micros(19_999));
        assert!(pins.covers(&1));
        pins.expire(Time::from_millis(20));
        assert!(!pins.covers(&1) && !pins.covers(&2));
        pins.release(second);
        assert_eq!(pins.octets[Level::Disk], 0);
    }

    #[test]
    fn pins_cover_no_more_than_their_share() {
        let mut pins = pins();
        let all = pins.pin(on_disk(&[1, 2, 3]), Time::from_millis(10));
        assert!(pins.covers(&1) && pins.covers(&2) && !pins.covers(&3));
        pins.forget(&1);
        pins.pin(on_disk(&[3]), Time::from_millis(10));
        assert!(pins.covers(&3) && !pins.covers(&1));
        pins.release(all);
        assert!(pins.covers(&3) && !pins.covers(&2));
    }
}
