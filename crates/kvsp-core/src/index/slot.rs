//! One record as the index keeps it: 160 octets and its share of the layer digests.

use std::sync::Arc;

use kvsp_proto::id::{BlockKey, Digest};
use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::{Codec, Tier};

use crate::time::Time;

/// The index of a slot, or [`NONE`].
pub(super) type SlotId = u32;

/// No slot.
pub(super) const NONE: SlotId = SlotId::MAX;

/// `seq` where the record has none: above every I-JSON integer.
const NO_SEQ: u64 = u64::MAX;

const HEAD: u8 = 1;
const TOMBSTONE: u8 = 2;
const HAS_EPOCH: u8 = 4;
/// A tombstone that makes way where room is needed.
const YIELDS: u8 = 8;
/// The slot is in the queue of those that make way; it may have been filled since.
const QUEUED: u8 = 16;

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
    pub(super) const fn is_volatile(self) -> bool {
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

/// A record, a tombstone, or a free slot (neither head nor in any chain).
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: BlockKey,
    pub(super) digest: Digest,
    pub(super) layer_digests: Option<Arc<[Digest]>>,
    pub(super) size: u64,
    pub(super) deadline: Time,
    seq: u64,
    /// Almost every record has one entry of residency, which is kept here, in three fields because
    /// [`Held`] is padded.
    first_rate: f64,
    first_layers: LayerSpan,
    first_tier: Tier,
    #[allow(clippy::box_collection, reason = "one word in the slot instead of three, and rarely there")]
    rest: Option<Box<Vec<Held>>>,
    pub(super) space: u32,
    pub(super) holder: u32,
    pub(super) producer: u32,
    pub(super) namespace: u32,
    /// The next replica of the same block.
    pub(super) next: SlotId,
    /// Neighbours among the slots of the same holder.
    pub(super) holder_prev: SlotId,
    pub(super) holder_next: SlotId,
    pub(super) codec: Codec,
    flags: u8,
}

const _: () = assert!(size_of::<Slot>() <= 160, "a replica has 1,250 octets, 1,056 of them layer digests");

impl Slot {
    /// A slot with the contents of no record: a tombstone.
    pub(super) fn tombstone(space: u32, holder: u32, key: BlockKey, seq: u64, deadline: Time) -> Self {
        Self {
            key,
            digest: Digest([0; 32]),
            layer_digests: None,
            size: 0,
            deadline,
            seq,
            first_rate: f64::NAN,
            first_layers: LayerSpan(0, 0),
            first_tier: Tier::Object,
            rest: None,
            space,
            holder,
            producer: NONE,
            namespace: NONE,
            next: NONE,
            holder_prev: NONE,
            holder_next: NONE,
            codec: Codec::RAW,
            flags: TOMBSTONE,
        }
    }

    /// Takes over a record's contents; the links stay.
    pub(super) fn fill(&mut self, record: &ReplicaRecord, digests: Option<Arc<[Digest]>>, deadline: Time) {
        self.digest = record.digest.0;
        self.layer_digests = digests;
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

    /// Becomes a tombstone that remembers `seq` until `deadline`; the links stay.
    pub(super) fn bury(&mut self, seq: u64, deadline: Time, yields: bool) {
        self.layer_digests = None;
        self.rest = None;
        self.seq = seq;
        self.deadline = deadline;
        self.flags = self.flags & !(HAS_EPOCH | YIELDS) | TOMBSTONE;
        self.set_yields(yields);
    }

    /// Becomes free.
    pub(super) fn clear(&mut self) {
        self.layer_digests = None;
        self.rest = None;
        self.flags = self.flags & QUEUED | TOMBSTONE;
        self.next = NONE;
        self.holder = NONE;
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

    /// Whether a reader sees the same in this record as in `record`, but for the texts.
    pub(super) fn says(&self, record: &ReplicaRecord) -> bool {
        let digests = self.layer_digests.as_deref();
        self.digest == record.digest.0
            && digests.map(<[_]>::len) == record.layer_digests.as_ref().map(Vec::len)
            && self.size == record.size
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

    /// The `seq` known.
    pub(super) fn seq(&self) -> Option<u64> {
        (self.seq != NO_SEQ).then_some(self.seq)
    }

    pub(super) const fn is_head(&self) -> bool {
        self.flags & HEAD != 0
    }

    pub(super) const fn set_head(&mut self, head: bool) {
        self.flags = if head { self.flags | HEAD } else { self.flags & !HEAD };
    }

    pub(super) const fn is_free(&self) -> bool {
        self.holder == NONE
    }

    pub(super) const fn yields(&self) -> bool {
        self.flags & YIELDS != 0
    }

    pub(super) const fn set_yields(&mut self, yields: bool) {
        self.flags = if yields { self.flags | YIELDS } else { self.flags & !YIELDS };
    }

    /// Marks the slot as queued, or not; tells whether it was.
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
