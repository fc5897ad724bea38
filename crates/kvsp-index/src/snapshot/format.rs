//! The octets of a snapshot, version 1. Integers are in network byte order; texts have their length first.
//!
//! The head: 8 octets of magic, u32 version, 16 octets of boot id (zero: none), u64 µs since that boot, u64
//! incarnation of the feed, u64 number of the feed's next change, u8 1 where they were a process's last
//! words. Then entries in the frames of [`super::stream`], each beginning with its kind.

use std::sync::Arc;

use kvsp_core::index::SnapshotEntry;
use kvsp_core::time::Time;
use kvsp_net::clock::{BootTime, Clock};
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::id::{BlockKey, CompatId, Digest, NamedDigest, ScopeId};
use kvsp_proto::message::ReplicaName;
use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::{Codec, Tier};
use kvsp_proto::uri::HolderUri;
use uuid::Uuid;

use super::SnapshotError;

const MAGIC: [u8; 8] = *b"KVSPIDX\n";
const VERSION: u32 = 1;

const DESCRIPTOR: u8 = 1;
const HOLDER: u8 = 2;
const RECORD: u8 = 3;
const TOMBSTONE: u8 = 4;

/// What a snapshot says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// When it was begun; boot zero where the machine has no such clock.
    pub(crate) taken: BootTime,
    /// The feed's incarnation.
    pub(crate) incarnation: u64,
    /// The number of the feed's next change.
    pub(crate) next_change: u64,
    /// Whether nothing was changed afterwards.
    pub(crate) last_words: bool,
}

impl Head {
    pub(super) const OCTETS: usize = 8 + 4 + 16 + 8 + 8 + 8 + 1;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::OCTETS);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(self.taken.boot.as_bytes());
        put_time(&mut out, self.taken.since);
        out.extend_from_slice(&self.incarnation.to_be_bytes());
        out.extend_from_slice(&self.next_change.to_be_bytes());
        out.push(u8::from(self.last_words));
        out
    }

    pub(super) fn decode(octets: &[u8]) -> Result<Self, SnapshotError> {
        let mut cut = Cut(octets);
        if cut.array() != Some(MAGIC) {
            return Err(SnapshotError::Foreign);
        }
        match cut.u32() {
            Some(VERSION) => {}
            Some(other) => return Err(SnapshotError::Version(other)),
            None => return Err(SnapshotError::Foreign),
        }
        let mut head = || -> Option<Self> {
            let boot = Uuid::from_bytes(cut.array()?);
            Some(Self {
                taken: BootTime { boot, since: Time::from_micros(cut.u64()?) },
                incarnation: cut.u64()?,
                next_change: cut.u64()?,
                last_words: cut.flag()?,
            })
        };
        head().ok_or(SnapshotError::Damaged("its head does not add up"))
    }
}

/// One moment on the process's clock and on the boot-time clock: turns times of the one into the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shift {
    /// The moment on the process's clock.
    pub(crate) now: Time,
    /// The same on the boot-time clock.
    pub(crate) since_boot: Time,
}

impl Shift {
    /// The present of a clock, and the boot that it is of.
    pub(crate) fn of(clock: &dyn Clock) -> (Self, Uuid) {
        let now = clock.now();
        let boot = clock.boot_time();
        let since_boot = boot.map_or(now, |boot| boot.since);
        (Self { now, since_boot }, boot.map_or_else(Uuid::nil, |boot| boot.boot))
    }

    fn to_boot(self, time: Time) -> Time {
        moved(time, self.now, self.since_boot)
    }

    fn of_boot(self, time: Time) -> Time {
        moved(time, self.since_boot, self.now)
    }
}

/// The time that is as far from `to` as `time` is from `from`.
fn moved(time: Time, from: Time, to: Time) -> Time {
    let micros = i128::from(time.as_micros()) - i128::from(from.as_micros()) + i128::from(to.as_micros());
    Time::from_micros(u64::try_from(micros.max(0)).unwrap_or(u64::MAX))
}

/// Appends an entry.
pub(super) fn encode(entry: &SnapshotEntry, shift: &Shift, out: &mut Vec<u8>) {
    match entry {
        SnapshotEntry::Descriptor { compat, descriptor } => {
            out.push(DESCRIPTOR);
            out.extend_from_slice(&compat.0);
            put_text(out, &descriptor.json().to_string());
        }
        SnapshotEntry::Holder { holder, epoch, until } => {
            out.push(HOLDER);
            put_text(out, holder.as_str());
            out.extend_from_slice(&epoch.to_be_bytes());
            put_time(out, shift.to_boot(*until));
        }
        SnapshotEntry::Record { record, deadline } => {
            out.push(RECORD);
            put_time(out, shift.to_boot(*deadline));
            put_record(out, record);
        }
        SnapshotEntry::Tombstone { name, until, yields } => {
            out.push(TOMBSTONE);
            put_time(out, shift.to_boot(*until));
            out.push(u8::from(*yields));
            out.extend_from_slice(&name.compat_id.0);
            out.extend_from_slice(&name.scope_id.0);
            out.extend_from_slice(&name.block_key.0);
            put_text(out, name.holder.as_str());
            put_option(out, name.seq);
        }
    }
}

fn put_record(out: &mut Vec<u8>, record: &ReplicaRecord) {
    out.extend_from_slice(&record.compat_id.0);
    out.extend_from_slice(&record.scope_id.0);
    out.extend_from_slice(&record.block_key.0);
    put_text(out, record.holder.as_str());
    out.extend_from_slice(&record.codec.number().to_be_bytes());
    out.extend_from_slice(&record.size.to_be_bytes());
    out.extend_from_slice(&record.digest.0.0);
    let digests = record.layer_digests.as_deref().unwrap_or_default();
    put_count(out, digests.len());
    digests.iter().for_each(|digest| out.extend_from_slice(&digest.0));
    put_count(out, record.residency.len());
    for held in &record.residency {
        let tier = Tier::ALL.iter().position(|tier| *tier == held.tier).unwrap_or_default();
        out.push(u8::try_from(tier).unwrap_or(u8::MAX));
        out.extend_from_slice(&held.layers.0.to_be_bytes());
        out.extend_from_slice(&held.layers.1.to_be_bytes());
        put_option(out, held.read_mbit_per_s.map(f64::to_bits));
    }
    out.extend_from_slice(&record.ttl_ms.to_be_bytes());
    put_option(out, record.seq);
    put_option(out, record.holder_epoch);
    for text in [&record.producer, &record.moqt_namespace] {
        out.push(u8::from(text.is_some()));
        put_text(out, text.as_deref().unwrap_or_default());
    }
}

fn put_time(out: &mut Vec<u8>, time: Time) {
    out.extend_from_slice(&time.as_micros().to_be_bytes());
}

/// Counts and lengths are bounded by the limits of bodies, far below 2^32.
fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_count(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn put_option(out: &mut Vec<u8>, value: Option<u64>) {
    out.push(u8::from(value.is_some()));
    out.extend_from_slice(&value.unwrap_or_default().to_be_bytes());
}

/// Reads entries; neighbours mostly have one holder, whose URI is parsed once.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    holder: Option<HolderUri>,
}

impl Decoder {
    /// The entry of a frame; `None` where it is none.
    pub(super) fn decode(&mut self, frame: &[u8], shift: &Shift) -> Option<SnapshotEntry> {
        let mut cut = Cut(frame);
        let entry = match cut.u8()? {
            DESCRIPTOR => {
                let compat = CompatId(cut.array()?);
                let descriptor = Arc::new(Descriptor::from_json(cut.text()?.as_bytes()).ok()?);
                SnapshotEntry::Descriptor { compat, descriptor }
            }
            HOLDER => SnapshotEntry::Holder {
                holder: self.holder(&mut cut)?,
                epoch: cut.u64()?,
                until: shift.of_boot(cut.time()?),
            },
            RECORD => SnapshotEntry::Record {
                deadline: shift.of_boot(cut.time()?),
                record: Box::new(self.record(&mut cut)?),
            },
            TOMBSTONE => {
                let (until, yields) = (shift.of_boot(cut.time()?), cut.flag()?);
                let (compat_id, scope_id) = (CompatId(cut.array()?), ScopeId(cut.array()?));
                let block_key = BlockKey(cut.array()?);
                let (holder, seq) = (self.holder(&mut cut)?, cut.option()?);
                let name = ReplicaName { compat_id, scope_id, block_key, holder, seq };
                SnapshotEntry::Tombstone { name, until, yields }
            }
            _ => return None,
        };
        cut.0.is_empty().then_some(entry)
    }

    fn holder(&mut self, cut: &mut Cut<'_>) -> Option<HolderUri> {
        let text = cut.text()?;
        if self.holder.as_ref().is_none_or(|known| known.as_str() != text) {
            self.holder = Some(text.parse().ok()?);
        }
        self.holder.clone()
    }

    fn record(&mut self, cut: &mut Cut<'_>) -> Option<ReplicaRecord> {
        let (compat_id, scope_id) = (CompatId(cut.array()?), ScopeId(cut.array()?));
        let (block_key, holder) = (BlockKey(cut.array()?), self.holder(cut)?);
        let (codec, size) = (Codec::new(cut.u16()?)?, cut.u64()?);
        let digest = NamedDigest(Digest(cut.array()?));
        let layer_digests: Vec<Digest> = cut.list(|cut| cut.array().map(Digest))?;
        let residency = cut.list(|cut| {
            let tier = *Tier::ALL.get(usize::from(cut.u8()?))?;
            let layers = LayerSpan(cut.u32()?, cut.u32()?);
            Some(Residency { tier, layers, read_mbit_per_s: cut.option()?.map(f64::from_bits) })
        })?;
        Some(ReplicaRecord {
            block_key,
            compat_id,
            scope_id,
            holder,
            codec,
            size,
            digest,
            layer_digests: (!layer_digests.is_empty()).then_some(layer_digests),
            residency,
            ttl_ms: cut.u64()?,
            seq: cut.option()?,
            holder_epoch: cut.option()?,
            producer: cut.optional_text()?,
            moqt_namespace: cut.optional_text()?,
        })
    }
}

/// What is left of a frame.
struct Cut<'a>(&'a [u8]);

impl<'a> Cut<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[octet]| octet)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn time(&mut self) -> Option<Time> {
        self.u64().map(Time::from_micros)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn option(&mut self) -> Option<Option<u64>> {
        let (some, value) = (self.flag()?, self.u64()?);
        Some(some.then_some(value))
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = self.u32()? as usize;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }

    fn optional_text(&mut self) -> Option<Option<String>> {
        let (some, text) = (self.flag()?, self.text()?);
        Some(some.then(|| text.to_owned()))
    }

    /// A list of items that take at least 16 octets each: no count makes room for more than there is.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()? as usize;
        let mut items = Vec::with_capacity(count.min(self.0.len() / 16));
        for _ in 0..count {
            items.push(item(self)?);
        }
        Some(items)
    }
}
