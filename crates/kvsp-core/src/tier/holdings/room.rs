//! Which blocks go where room is needed.

use kvsp_proto::id::ScopeId;

use super::super::level::{Level, PerLevel};
use super::entry::{Entry, Stage};
use super::{Block, Holdings};
use crate::time::Time;

/// Blocks looked at before one is evicted though others, less cold, could give octets and stay.
const WINDOW: usize = 256;

/// For whom room is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand<K> {
    pub(super) level: Level,
    /// The block that needs it.
    pub(super) own: Option<K>,
    pub(super) scope: Option<ScopeId>,
    /// Blocks looked at, at most.
    pub(super) walk: usize,
}

/// What a block can give in a tier.
#[derive(Debug, Clone, Copy)]
enum Offer {
    /// Its octets there, but the block is gone then.
    Last(u64),
    /// It stays without.
    Spare(Spare),
}

/// What a block can give in a tier and stay.
#[derive(Debug, Clone, Copy)]
struct Spare {
    octets: u64,
    /// Layers that stay where the tail half is enough, and its octets.
    half: Option<(u32, u64)>,
}

/// Layers of a block that stay in a tier.
pub(super) type Victim<K> = (K, u32);

impl<K: Copy + Ord + std::fmt::Debug + 'static, B: Block> Holdings<K, B> {
    /// Victims that give at least `short` octets; `None` where sparing what is protected leaves too little.
    /// What can give octets and stay does so before anything is evicted.
    pub(super) fn choose(&self, demand: Demand<K>, short: u64, now: Time) -> Option<Vec<Victim<K>>> {
        let shelf = self.shelves[demand.level].as_ref()?;
        let mut tally = self.floors.tally(demand.scope);
        let (mut cut, mut given) = (Vec::new(), 0_u64);
        let (mut evicted, mut evictable) = (Vec::new(), 0_u64);
        for (walked, key) in shelf.order().take(demand.walk).enumerate() {
            if given >= short || (walked >= WINDOW && given.saturating_add(evictable) >= short) {
                break;
            }
            let Some((entry, offer)) = self.offer(demand, key, now) else {
                continue;
            };
            let scope = entry.block.scope();
            match offer {
                Offer::Last(octets) => {
                    let needed = given.saturating_add(evictable) < short;
                    if needed && tally.take(scope, &self.everywhere(&key)) {
                        evicted.push((key, octets));
                        evictable = evictable.saturating_add(octets);
                    }
                }
                Offer::Spare(spare) => {
                    let take = |octets| tally.take(scope, &only(demand.level, octets));
                    if let Some((layers, octets)) = accept(spare, short - given, take) {
                        cut.push((key, layers));
                        given = given.saturating_add(octets);
                    }
                }
            }
        }
        for (key, octets) in evicted {
            if given >= short {
                break;
            }
            cut.push((key, 0));
            given = given.saturating_add(octets);
        }
        (given >= short).then_some(cut)
    }

    fn everywhere(&self, key: &K) -> PerLevel<u64> {
        PerLevel::from_fn(|level| self.shelves[level].as_ref().and_then(|s| s.octets(key)).unwrap_or(0))
    }

    /// What a block can give without breaking a promise.
    fn offer(&self, demand: Demand<K>, key: K, now: Time) -> Option<(&Entry<K, B>, Offer)> {
        let level = demand.level;
        let entry = self.blocks.get(&key).filter(|entry| entry.stage == Stage::Here)?;
        if demand.own == Some(key) || entry.moves[level].is_some() {
            return None;
        }
        let octets = self.shelves[level].as_ref()?.octets(&key)?;
        let home = self.home()?;
        let spare = Spare { octets, half: half(entry, level, octets) };
        if level != home && level == Level::Host {
            return Some((entry, Offer::Spare(spare)));
        }
        let elsewhere = self.stays_without(&key, level);
        if elsewhere && level == Level::Object {
            // A copy that waits for its turn is worth more than one of a block that is hot again.
            return (!entry.cold_copy).then_some((entry, Offer::Spare(Spare { half: None, ..spare })));
        }
        if self.leases.covers(&key) || self.pins.covers(&key) {
            return None;
        }
        if elsewhere {
            return Some((entry, Offer::Spare(spare)));
        }
        if self.may_be_leased(&key, now) {
            return None;
        }
        (!entry.is_arriving_somewhere()).then_some((entry, Offer::Last(octets)))
    }
}

/// The tail half of a block that is there in full or nearly so.
fn half<K: Copy, B: Block>(entry: &Entry<K, B>, level: Level, octets: u64) -> Option<(u32, u64)> {
    let keep = entry.block.layers() / 2;
    let freed = octets.saturating_sub(entry.block.octets(level, keep.max(1)));
    (keep > 0 && entry.held[level] > keep && freed > 0).then_some((keep, freed))
}

/// Layers that stay and octets given, where the floors allow that.
fn accept(spare: Spare, short: u64, mut take: impl FnMut(u64) -> bool) -> Option<(u32, u64)> {
    if let Some((layers, octets)) = spare.half.filter(|(_, octets)| *octets >= short) {
        return take(octets).then_some((layers, octets));
    }
    if take(spare.octets) {
        return Some((0, spare.octets));
    }
    spare.half.filter(|(_, octets)| take(*octets))
}

fn only(level: Level, octets: u64) -> PerLevel<u64> {
    PerLevel::from_fn(|l| if l == level { octets } else { 0 })
}
