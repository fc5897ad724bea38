//! Every eviction policy names the blocks it has, each once, and no other.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use kvsp_core::tier::{EvictionPolicy, LeastRecentlyUsed, Shelf, TinyLfu};
use proptest::prelude::{any, prop, proptest};

const KEYS: u8 = 40;

fn policies() -> [Box<dyn EvictionPolicy<u8>>; 2] {
    [Box::<LeastRecentlyUsed<u8>>::default(), Box::<TinyLfu<u8>>::default()]
}

fn order(policy: &dyn EvictionPolicy<u8>) -> Vec<u8> {
    policy.order().collect()
}

proptest! {
    #[test]
    fn a_policy_names_what_it_has(ops in prop::collection::vec(any::<(u8, u8, u8)>(), 0..400)) {
        for mut policy in policies() {
            let mut held = BTreeSet::new();
            for (kind, a, b) in &ops {
                let key = a % KEYS;
                match kind % 8 {
                    0..=2 => {
                        policy.insert(key);
                        held.insert(key);
                    }
                    3 | 4 => policy.touch(&key),
                    5 => policy.touch_prefix(&(key..key + b % 6).collect::<Vec<_>>()),
                    6 => {
                        policy.remove(&key);
                        held.remove(&key);
                    }
                    _ => {
                        let first = policy.order().next();
                        assert_eq!(first.is_some(), !held.is_empty());
                        first.iter().for_each(|key| {
                            policy.remove(key);
                            assert!(held.remove(key), "{key} is not held");
                        });
                    }
                }
                let named = order(policy.as_ref());
                assert_eq!(named.len(), held.len(), "{policy:?}");
                assert_eq!(named.into_iter().collect::<BTreeSet<_>>(), held);
            }
        }
    }

    #[test]
    fn the_tail_of_a_prefix_goes_first(
        uses in prop::collection::vec(0..KEYS, 0..200),
        prefix in prop::collection::vec(0..KEYS, 1..20),
    ) {
        let mut seen = BTreeSet::new();
        let prefix: Vec<u8> = prefix.into_iter().filter(|key| seen.insert(*key)).collect();
        for mut policy in policies() {
            (0..KEYS).for_each(|key| policy.insert(key));
            uses.iter().for_each(|key| policy.touch(key));
            policy.touch_prefix(&prefix);
            let mut left = order(policy.as_ref());
            left.retain(|key| prefix.contains(key));
            left.reverse();
            assert_eq!(left, prefix);
        }
    }

    #[test]
    fn a_shelf_stays_within_its_cap(
        blocks in prop::collection::vec((any::<u16>(), 1_u64..40), 0..300),
        spared in any::<u16>(),
    ) {
        let mut shelf: Shelf<u16> = Shelf::new(100, Box::<TinyLfu<u16>>::default());
        for (key, octets) in blocks {
            if shelf.octets(&key).is_some() {
                shelf.touch(&key);
            } else if let Some(victims) = shelf.reserve(octets, |key| *key == spared) {
                assert!(victims.iter().all(|key| *key != spared && shelf.octets(key).is_none()));
                shelf.commit(key, octets);
            }
            assert!(shelf.used() <= 100);
        }
    }
}
