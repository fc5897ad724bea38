//! One replica record as the index keeps it: 80 octets, a share of its contents, and of its block.

use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::{Codec, Tier};

use super::block::BlockId;
use crate::time::Time;

/// The number of a replica, or [`NONE`].
pub(super) type ReplicaId = u32;

/// No number: of a replica, a block, contents, a text.
pub(super) const NONE: u32 = u32::MAX;

/// `seq` where the record has none: above every I-JSON integer.
const NO_SEQ: u64 = u64::MAX;

const TOMBSTONE: u8 = 1;
const HAS_EPOCH: u8 = 2;
/// A tombstone that makes way where room is needed.
const YIELDS: u8 = 4;
/// The number is in the queue of those that make way; it may be that of another replica since.
const QUEUED: u8 = 8;

/// What resides in one tier. The rate is NaN where the record gives none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) rate: f64,
    pub(super) layers: LayerSpan,
    pub(super) tier: Tier,
}

impl Held {
    fn of(residency: &Residency) -> Self {
        Self {
            rate: residency.read_mbit_per_s.unwrap_or(f64::NAN),
            layers: residency.layers,
            tier: residency.tier,
        }
    }

    pub(super) fn to_residency(self) -> Residency {
        Residency {
            tier: self.tier,
            layers: self.layers,
            read_mbit_per_s: (!self.rate.is_nan()).then_some(self.rate),
        }
    }

    /// Lost when the process of the holder ends.
    const fn is_volatile(self) -> bool {
        matches!(self.tier, Tier::Device | Tier::Host)
    }
}

/// What the end of a holder's process took of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dropped {
    Nothing,
    Some,
    All,
}

/// The ranges of a residency beyond the first.
type Rest = Option<Box<Vec<Held>>>;

/// A record, a tombstone, or a free place (of no block).
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) deadline: Time,
    seq: u64,
    pub(super) size: u64,
    /// Almost every record has one entry of residency, which is kept here, in three fields because
    /// [`Held`] is padded.
    first_rate: f64,
    rest: Rest,
    first_layers: LayerSpan,
    pub(super) block: BlockId,
    pub(super) holder: u32,
    /// Producer and track namespace.
    pub(super) texts: u32,
    pub(super) contents: u32,
    /// The next replica of the same block.
    pub(super) next: ReplicaId,
    /// Neighbours among the replicas of the same holder.
    pub(super) holder_prev: ReplicaId,
    pub(super) holder_next: ReplicaId,
    pub(super) codec: Codec,
    first_tier: Tier,
    flags: u8,
}

const _: () = assert!(size_of::<Replica>() == 80, "a further replica of a block has 128 octets in all");

impl Replica {
    /// A tombstone of no contents.
    pub(super) const fn tombstone(block: BlockId, holder: u32, seq: u64, deadline: Time) -> Self {
        Self {
            deadline,
            seq,
            size: 0,
            first_rate: f64::NAN,
            rest: None,
            first_layers: LayerSpan(0, 0),
            block,
            holder,
            texts: NONE,
            contents: NONE,
            next: NONE,
            holder_prev: NONE,
            holder_next: NONE,
            codec: Codec::RAW,
            first_tier: Tier::Object,
            flags: TOMBSTONE,
        }
    }

    /// Takes over what a record says itself; links, contents and texts stay.
    pub(super) fn fill(&mut self, record: &ReplicaRecord, deadline: Time) {
        self.size = record.size;
        self.deadline = deadline;
        self.seq = record.seq.unwrap_or(NO_SEQ);
        self.codec = record.codec;
        self.set_held(record.residency.iter().map(Held::of));
        self.flags &= !(TOMBSTONE | HAS_EPOCH | YIELDS);
        if record.holder_epoch.is_some() {
            self.flags |= HAS_EPOCH;
        }
    }

    /// Takes over what does not show of a record that says the same.
    pub(super) fn refresh(&mut self, record: &ReplicaRecord, deadline: Time) {
        self.deadline = deadline;
        self.seq = record.seq.unwrap_or(NO_SEQ);
        self.flags &= !HAS_EPOCH;
        if record.holder_epoch.is_some() {
            self.flags |= HAS_EPOCH;
        }
    }

    /// Becomes a tombstone that remembers `seq` until `deadline`; links, contents and texts stay.
    pub(super) fn bury(&mut self, seq: u64, deadline: Time, yields: bool) {
        self.rest = None;
        self.seq = seq;
        self.deadline = deadline;
        self.flags = self.flags & QUEUED | TOMBSTONE;
        self.set_yields(yields);
    }

    /// Becomes free.
    pub(super) fn clear(&mut self) {
        self.rest = None;
        self.flags = self.flags & QUEUED | TOMBSTONE;
        self.next = NONE;
        self.block = NONE;
    }

    /// Drops what only the holder's process held.
    pub(super) fn drop_volatile(&mut self) -> Dropped {
        if !self.held().any(Held::is_volatile) {
            return Dropped::Nothing;
        }
        let kept: Vec<Held> = self.held().filter(|held| !held.is_volatile()).collect();
        if kept.is_empty() {
            return Dropped::All;
        }
        self.set_held(kept.into_iter());
        Dropped::Some
    }

    /// Whether a reader sees the same in this record as in `record`, but for contents and texts.
    pub(super) fn says(&self, record: &ReplicaRecord) -> bool {
        self.size == record.size
            && self.codec == record.codec
            && self.held().map(Held::to_residency).eq(record.residency.iter().cloned())
    }

    fn set_held(&mut self, mut held: impl Iterator<Item = Held>) {
        // A record has at least one entry: `ReplicaRecord` checks it.
        if let Some(first) = held.next() {
            self.first_rate = first.rate;
            self.first_layers = first.layers;
            self.first_tier = first.tier;
        }
        let rest: Vec<Held> = held.collect();
        self.rest = (!rest.is_empty()).then(|| Box::new(rest));
    }

    /// What resides where.
    pub(super) fn held(&self) -> impl Iterator<Item = Held> {
        let first = Held { rate: self.first_rate, layers: self.first_layers, tier: self.first_tier };
        std::iter::once(first).chain(self.rest.iter().flat_map(|rest| rest.iter().copied()))
    }

    /// The only range of layers that is held, where it is one.
    pub(super) const fn only_span(&self) -> Option<LayerSpan> {
        if self.rest.is_some() { None } else { Some(self.first_layers) }
    }

    /// One more than the highest layer held.
    pub(super) fn end(&self) -> u32 {
        let rest = self.rest.iter().flat_map(|rest| rest.iter()).map(|held| held.layers.1);
        rest.fold(self.first_layers.1, u32::max).saturating_add(1)
    }

    /// Octets outside of this struct.
    pub(super) fn heap_octets(&self) -> u64 {
        self.rest.as_ref().map_or(0, |rest| (rest.len() * size_of::<Held>() + 48) as u64)
    }

    /// The `seq` known.
    pub(super) fn seq(&self) -> Option<u64> {
        (self.seq != NO_SEQ).then_some(self.seq)
    }

    pub(super) const fn is_free(&self) -> bool {
        self.block == NONE
    }

    pub(super) const fn yields(&self) -> bool {
        self.flags & YIELDS != 0
    }

    pub(super) const fn set_yields(&mut self, yields: bool) {
        self.flags = if yields { self.flags | YIELDS } else { self.flags & !YIELDS };
    }

    /// Marks the number as queued, or not; tells whether it was.
    pub(super) const fn set_queued(&mut self, queued: bool) -> bool {
        let before = self.flags & QUEUED != 0;
        self.flags = if queued { self.flags | QUEUED } else { self.flags & !QUEUED };
        before
    }

    pub(super) const fn has_epoch(&self) -> bool {
        self.flags & HAS_EPOCH != 0
    }

    pub(super) const fn is_tombstone(&self) -> bool {
        self.flags & TOMBSTONE != 0
    }

    /// Whether it is a record that lookups see.
    pub(super) fn is_live(&self, now: Time) -> bool {
        !self.is_tombstone() && self.deadline > now
    }
}
