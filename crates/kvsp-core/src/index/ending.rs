//! How records end, and what is remembered of them.
//!
//! The `seq` of a record that ended, however it did, is remembered for the longest TTL, so that a delayed
//! PUT does not bring back what is gone. A holder that deletes with a `seq` has asked for that memory, and
//! it counts against the holder's quota. What else is remembered makes way where room is needed, the
//! oldest first, and counts against the bounds of the whole index alone.

use kvsp_proto::message::ReplicaName;
use kvsp_proto::uri::HolderUri;

use super::slot::{Dropped, NONE, Slot, SlotId};
use super::write::check_seq;
use super::{ChangeKind, Index, IndexError};
use crate::time::Time;

impl Index {
    /// Withdraws a record; `true` where there was a live one. Idempotent. With a `seq`, a tombstone
    /// refuses older records of this replica for the longest TTL.
    ///
    /// # Errors
    /// [`IndexError::StaleSeq`] and, where a tombstone finds no room, the `Full` ones.
    pub fn delete(&mut self, name: &ReplicaName, now: Time) -> Result<bool, IndexError> {
        let until = now.after_millis(self.config.max_ttl_ms);
        let Some(id) = self.find_name(name) else {
            if let Some(seq) = name.seq {
                self.entomb(name, seq, until, false, now)?;
            }
            return Ok(false);
        };
        let Some(slot) = self.slot(id) else { return Ok(false) };
        check_seq(self.memory_of(slot, now).map(|(seq, _)| seq), name.seq)?;
        let was_live = slot.is_live(now);
        match name.seq {
            Some(seq) => {
                self.tell_end(id, ChangeKind::Withdraw, now);
                self.bury(id, seq, until, false);
            }
            None => self.end(id, ChangeKind::Withdraw, now),
        }
        Ok(was_live)
    }

    /// Withdraws all records of a holder and returns how many.
    pub fn delete_holder(&mut self, holder: &HolderUri, now: Time) -> usize {
        let before = self.records;
        for id in self.slots_of(holder) {
            if self.slot(id).is_some_and(|slot| !slot.is_tombstone()) {
                self.end(id, ChangeKind::Withdraw, now);
            }
        }
        before - self.records
    }

    /// The holder's process has ended (a status with a higher epoch says so): what it held in `device` or
    /// `host` is gone. Returns the records that were dropped whole.
    pub fn drop_volatile(&mut self, holder: &HolderUri, now: Time) -> usize {
        let before = self.records;
        for id in self.slots_of(holder) {
            let Some(slot) = self.slots.get_mut(id as usize).filter(|slot| slot.is_live(now)) else {
                continue;
            };
            match slot.drop_volatile() {
                Dropped::Nothing => {}
                Dropped::Some => self.note(ChangeKind::Publish, id),
                Dropped::All => self.end(id, ChangeKind::Withdraw, now),
            }
        }
        before - self.records
    }

    /// Ends a record, live or past its deadline: readers of the feed are told, and its `seq` is remembered.
    /// A tombstone is forgotten.
    pub(super) fn end(&mut self, id: SlotId, kind: ChangeKind, now: Time) {
        self.tell_end(id, kind, now);
        let Some(slot) = self.slot(id) else { return };
        let ended = slot.deadline.min(now);
        let until = ended.after_millis(self.config.max_ttl_ms);
        match slot.seq().filter(|_| !slot.is_tombstone() && until > now) {
            Some(seq) => self.bury(id, seq, until, true),
            None => self.remove(id, now),
        }
    }

    /// Tells of the end of a record, unless the slot is none. What is past its deadline has expired,
    /// whatever ends it now.
    pub(super) fn tell_end(&mut self, id: SlotId, kind: ChangeKind, now: Time) {
        let Some(slot) = self.slot(id).filter(|slot| !slot.is_tombstone()) else { return };
        let kind = if slot.is_live(now) { kind } else { ChangeKind::Expire };
        self.note(kind, id);
    }

    /// The `seq` that is known of the replica in a slot, and until when.
    pub(super) fn memory_of(&self, slot: &Slot, now: Time) -> Option<(u64, Time)> {
        let until = if slot.is_tombstone() {
            slot.deadline
        } else {
            slot.deadline.after_millis(self.config.max_ttl_ms)
        };
        slot.seq().filter(|_| until > now).map(|seq| (seq, until))
    }

    /// Makes a slot, record or tombstone, a tombstone.
    fn bury(&mut self, id: SlotId, seq: u64, until: Time, yields: bool) {
        let Some(slot) = self.slots.get_mut(id as usize) else { return };
        let (before, was_record, yielded, holder) =
            (slot.deadline, !slot.is_tombstone(), slot.yields(), slot.holder);
        slot.bury(seq, until, yields);
        let texts =
            [std::mem::replace(&mut slot.producer, NONE), std::mem::replace(&mut slot.namespace, NONE)];
        texts.into_iter().for_each(|text| self.texts.release(text));
        self.records -= usize::from(was_record);
        self.count_yielding(holder, yielded, yields);
        if yields {
            self.queue_yielding(id);
        }
        self.expiry.queue(id, until, Some(before));
    }

    /// A tombstone of a replica that has no slot.
    pub(super) fn entomb(
        &mut self,
        name: &ReplicaName,
        seq: u64,
        until: Time,
        yields: bool,
        now: Time,
    ) -> Result<(), IndexError> {
        self.room_for_slot(&name.holder, now)?;
        let id = self.link(name, seq, until, now);
        if yields && let Some(slot) = self.slots.get_mut(id as usize) {
            slot.set_yields(true);
            let holder = slot.holder;
            self.count_yielding(holder, false, true);
            self.queue_yielding(id);
        }
        Ok(())
    }

    fn queue_yielding(&mut self, id: SlotId) {
        if self.slots.get_mut(id as usize).is_some_and(|slot| !slot.set_queued(true)) {
            self.yielding.push_back(id);
        }
    }

    /// Keeps the count of a holder's slots that make way.
    pub(super) fn count_yielding(&mut self, holder: u32, before: bool, after: bool) {
        if let Some(owner) = self.holders.get_mut(holder) {
            owner.yielding = owner.yielding + usize::from(after) - usize::from(before);
        }
    }

    /// Forgets the oldest memory that makes way; `false` where there is none.
    pub(super) fn yield_one(&mut self, now: Time) -> bool {
        while let Some(id) = self.yielding.pop_front() {
            let Some(slot) = self.slots.get_mut(id as usize) else { continue };
            slot.set_queued(false);
            if slot.yields() {
                self.remove(id, now);
                return true;
            }
        }
        false
    }
}
