//! What a holder holds: its tiers and its leases in one machine, so that an eviction and a lease can
//! never pass each other.
//!
//! The *home* of a new block is the disk where there is one, else the object store, else host memory; it
//! arrives there whole. Host memory above another home is a cache: it holds leading layers, because computing
//! begins with layer 0, and a cold block loses its tail half first and then the rest. An object store below a
//! disk is its overflow: cold blocks are copied there in good time, and one that is whole there may lose its
//! file, or the tail of it, when the disk needs room. A block that is visible is whole at its home or in the
//! overflow, always; where it can stay whole in neither it is evicted.
//!
//! Octets are reserved before they are written and stay charged until what freed them is reported done, so
//! that no cap is overrun at any moment. What is to be done is handed out as [`Cut`]s.

mod change;
mod entry;
mod lend;
mod moves;
mod room;

use std::collections::{BTreeMap, BTreeSet};

use kvsp_proto::id::ScopeId;

use super::floors::{Floors, FloorsExceed, ScopeFloors};
use super::level::{Level, PerLevel};
use super::pins::Pins;
use super::policy::EvictionPolicy;
use super::shelf::Shelf;
use crate::lease::{LeaseLimits, Leases};
use crate::time::Time;
use entry::{Entry, Stage};

pub use lend::LeaseOf;

/// A block as the tiers count it.
pub trait Block: std::fmt::Debug {
    /// The scope whose floor it counts for.
    fn scope(&self) -> ScopeId;
    /// Its layers, at least one.
    fn layers(&self) -> u32;
    /// The octets that its leading `layers` layers take in a tier, headers included. More layers never take
    /// less.
    fn octets(&self, level: Level, layers: u32) -> u64;
}

/// Octets to free: the leading `layers` layers stay in the tier, and where that is 0 nothing does. Reported
/// back by [`Holdings::cut_done`] or [`Holdings::cut_failed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cut<K> {
    /// The block.
    pub key: K,
    /// The tier.
    pub level: Level,
    /// Leading layers that stay there.
    pub layers: u32,
}

/// What becomes of other blocks where room is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room<K> {
    /// Blocks that are gone: not served any more, and withdrawn before their octets are freed.
    pub evicted: Vec<K>,
    /// Blocks that stay, of which some tier holds less than before.
    pub changed: Vec<K>,
    /// Octets to free before anything is written in their place.
    pub cuts: Vec<Cut<K>>,
}

impl<K> Default for Room<K> {
    fn default() -> Self {
        Self { evicted: Vec::new(), changed: Vec::new(), cuts: Vec::new() }
    }
}

impl<K> Room<K> {
    /// Takes up what became of others elsewhere.
    pub fn append(&mut self, mut more: Self) {
        self.evicted.append(&mut more.evicted);
        self.changed.append(&mut more.changed);
        self.cuts.append(&mut more.cuts);
    }

    /// Whether nothing has to happen.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.evicted.is_empty() && self.changed.is_empty() && self.cuts.is_empty()
    }
}

/// A block is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// It is held already (`kvsp-block-exists`).
    #[error("the block is held already")]
    Exists,
    /// It is on its way in or out: ask again when that is done.
    #[error("the block is on its way")]
    Busy,
    /// An earlier block of that name is withdrawn, but a device refuses to delete it.
    #[error("an earlier block of that name could not be deleted yet")]
    Stuck,
    /// No eviction can make room (`kvsp-storage-full`).
    #[error("no eviction can make room")]
    Full,
}

/// A block was taken off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removed<K> {
    /// It was here; the cuts free its octets.
    Was(Vec<Cut<K>>),
    /// It was not here.
    Absent,
    /// It is under lease and stays (`kvsp-block-leased`).
    Leased,
    /// It is on its way somewhere: ask again when that is done.
    Busy,
}

/// What one tier of a holder is.
#[derive(Debug)]
pub struct TierSettings<K> {
    /// Octets that it holds at most.
    pub octets: u64,
    /// What goes first.
    pub policy: Box<dyn EvictionPolicy<K>>,
}

/// When cold blocks of a disk are copied to the object store below it: once more of the disk than `high` is
/// used, until all but `low` of it could be freed without losing a block. In thousandths of the cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// Copying begins above.
    pub high: u64,
    /// Copying ends at or below.
    pub low: u64,
    /// Copies under way at once.
    pub copies: usize,
}

impl Default for Watermarks {
    fn default() -> Self {
        Self { high: 850, low: 700, copies: 4 }
    }
}

/// What a [`Holdings`] is made of.
#[derive(Debug)]
pub struct HoldingsConfig<K> {
    /// The tiers there are; without any, nothing is ever admitted.
    pub tiers: PerLevel<Option<TierSettings<K>>>,
    /// Limits of leases. All together they cover at most half of each tier, whatever is said here.
    pub leases: LeaseLimits,
    /// What scopes keep.
    pub floors: ScopeFloors,
    /// When cold blocks are copied.
    pub watermarks: Watermarks,
}

/// The blocks of a holder, by tier, with their leases.
#[derive(Debug)]
pub struct Holdings<K, B> {
    shelves: PerLevel<Option<Shelf<K>>>,
    blocks: BTreeMap<K, Entry<K, B>>,
    visible: usize,
    leases: Leases<K>,
    pins: Pins<K>,
    floors: Floors,
    watermarks: Watermarks,
    /// Octets on disk of blocks that are whole in the object store too.
    covered: u64,
    demoting: bool,
    /// Copies under way, and the octets on disk that each will cover.
    copies: BTreeMap<K, u64>,
    /// Cuts to make later, most because a device refused them, and when.
    refused: BTreeSet<(Time, Cut<K>)>,
    /// Blocks of an earlier process, whose leases are not known: neither evicted nor deleted until the last
    /// of them can have ended.
    adopted: BTreeSet<K>,
    adopted_until: Time,
}

impl<K: Copy + Ord + std::fmt::Debug + 'static, B: Block> Holdings<K, B> {
    /// Nothing held.
    ///
    /// # Errors
    /// The floors do not fit in the home tier.
    pub fn new(config: HoldingsConfig<K>) -> Result<Self, FloorsExceed> {
        let caps = PerLevel::from_fn(|level| config.tiers[level].as_ref().map_or(0, |tier| tier.octets));
        let PerLevelTiers { shelves } = PerLevelTiers::of(config.tiers);
        let home = home_of(&shelves).map_or(0, |level| caps[level]);
        config.floors.check(home)?;
        let part = |n: u64| PerLevel::from_fn(|level| caps[level] / n);
        Ok(Self {
            shelves,
            blocks: BTreeMap::new(),
            visible: 0,
            leases: Leases::new(config.leases, part(2)),
            pins: Pins::new(part(4)),
            floors: Floors::new(config.floors, home, caps),
            watermarks: config.watermarks,
            covered: 0,
            demoting: false,
            copies: BTreeMap::new(),
            refused: BTreeSet::new(),
            adopted: BTreeSet::new(),
            adopted_until: Time::default(),
        })
    }

    /// Octets used, on their way included, and the cap of a tier; zeros where there is none.
    #[must_use]
    pub fn octets(&self, level: Level) -> (u64, u64) {
        self.shelves[level].as_ref().map_or((0, 0), |shelf| (shelf.used(), shelf.capacity()))
    }

    /// Octets of the disk that could not be freed without losing a block.
    #[must_use]
    pub fn disk_only_octets(&self) -> u64 {
        self.octets(Level::Disk).0.saturating_sub(self.covered)
    }

    /// Blocks that are visible.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.visible
    }

    /// Whether no block is visible.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.visible == 0
    }

    /// The tier in which new blocks arrive.
    #[must_use]
    pub fn home(&self) -> Option<Level> {
        home_of(&self.shelves)
    }

    /// The leases.
    #[must_use]
    pub const fn leases(&self) -> &Leases<K> {
        &self.leases
    }

    /// Octets of one scope in a tier, those on their way left out.
    #[must_use]
    pub fn scope_octets(&self, level: Level, scope: ScopeId) -> u64 {
        self.floors.used(level, scope)
    }

    /// The octets below which no other scope takes this one in a tier.
    #[must_use]
    pub fn floor(&self, level: Level, scope: ScopeId) -> u64 {
        self.floors.floor(level, scope)
    }

    /// A block that is visible.
    #[must_use]
    pub fn block(&self, key: &K) -> Option<&B> {
        self.here(key).map(|entry| &entry.block)
    }

    /// How many leading layers of a block each tier holds; `None` where it is not visible.
    #[must_use]
    pub fn residency(&self, key: &K) -> Option<PerLevel<u32>> {
        self.here(key).map(|entry| entry.held)
    }

    /// The visible blocks after `key`, in the order of their keys.
    pub fn after(&self, key: Option<&K>) -> impl Iterator<Item = &K> {
        let from = key.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let range = self.blocks.range((from, std::ops::Bound::Unbounded));
        range.filter(|(_, entry)| entry.stage == Stage::Here).map(|(key, _)| key)
    }

    fn here(&self, key: &K) -> Option<&Entry<K, B>> {
        self.blocks.get(key).filter(|entry| entry.stage == Stage::Here)
    }

    /// Ends leases and pins whose time has come. Every decision does that by itself; this is for the
    /// counters.
    pub fn expire(&mut self, now: Time) {
        self.leases.expire(now);
        self.pins.expire(now);
        if now >= self.adopted_until {
            self.adopted.clear();
        }
    }

    /// A block is used.
    pub fn touch(&mut self, key: &K) {
        self.touch_prefix(std::slice::from_ref(key));
    }

    /// The leading blocks of one prefix are used.
    pub fn touch_prefix(&mut self, keys: &[K]) {
        for level in Level::ALL {
            if let Some(shelf) = &mut self.shelves[level] {
                shelf.touch_prefix(keys);
            }
        }
        for key in keys {
            if let Some(entry) = self.blocks.get_mut(key) {
                entry.cold_copy = false;
            }
        }
    }
}

struct PerLevelTiers<K> {
    shelves: PerLevel<Option<Shelf<K>>>,
}

impl<K: Copy + Ord> PerLevelTiers<K> {
    fn of(mut tiers: PerLevel<Option<TierSettings<K>>>) -> Self {
        let shelves =
            PerLevel::from_fn(|level| tiers[level].take().map(|tier| Shelf::new(tier.octets, tier.policy)));
        Self { shelves }
    }
}

fn home_of<K>(shelves: &PerLevel<Option<Shelf<K>>>) -> Option<Level> {
    [Level::Disk, Level::Object, Level::Host].into_iter().find(|level| shelves[*level].is_some())
}

#[cfg(test)]
mod tests;
