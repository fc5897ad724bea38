//! Publishing and withdrawing.

use std::sync::Arc;

use kvsp_proto::id::Digest;
use kvsp_proto::message::ReplicaName;
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::uri::HolderUri;

use super::slot::{NONE, Slot, SlotId};
use super::snapshot::name_of;
use super::{ChangeKind, Index, IndexConfig, IndexError, Published, Publisher};
use crate::time::Time;

/// Slots looked at to make room for one.
const BUDGET: usize = 256;

impl Index {
    /// Takes a record, or refreshes the one that is there (draft section 6.1). The record's members must
    /// have been checked against the path and the principal's rights.
    ///
    /// A higher `holder_epoch` drops everything published under a lower one, the memory of `seq` among it:
    /// a holder's new start may count from anywhere.
    ///
    /// # Errors
    /// [`IndexError`]; a refused record changes nothing but the time of what had expired anyway.
    pub fn put(&mut self, record: &ReplicaRecord, by: Publisher, now: Time) -> Result<Published, IndexError> {
        let ttl_ms = record.ttl_ms.min(self.config.max_ttl_ms);
        let created = self.put_until(record, by, now.after_millis(ttl_ms), now)?;
        Ok(Published { created, ttl_ms })
    }

    /// Takes a record that ends at `deadline`, or earlier where the longest TTL ends; `true` where there was
    /// no live one.
    pub(super) fn put_until(
        &mut self,
        record: &ReplicaRecord,
        by: Publisher,
        deadline: Time,
        now: Time,
    ) -> Result<bool, IndexError> {
        let deadline = deadline.min(now.after_millis(self.config.max_ttl_ms));
        self.descriptors.check(record)?;
        let max = self.config.max_residency_ranges;
        if record.residency.len() > max {
            return Err(IndexError::TooManyRanges { max });
        }
        self.check_epoch(record, by)?;
        let found = self.find(record);
        let outdates = record.holder_epoch.filter(|_| record.holder_epoch > self.epoch_of(&record.holder));
        if let Some(slot) = found.and_then(|id| self.slot(id))
            && !(outdates.is_some() && (slot.has_epoch() || !slot.is_live(now)))
        {
            check_seq(self.memory_of(slot, now).map(|(seq, _)| seq), record.seq)?;
        }
        if found.is_none() {
            self.make_room(record, now)?;
        }
        if let Some(epoch) = outdates {
            self.raise_epoch(&record.holder, epoch, now.after_millis(self.config.max_ttl_ms), now);
        }
        Ok(match self.find(record) {
            Some(id) => self.refill(id, record, deadline, now),
            None => self.insert(record, deadline, now),
        })
    }

    fn check_epoch(&self, record: &ReplicaRecord, by: Publisher) -> Result<(), IndexError> {
        let Some(epoch) = record.holder_epoch else { return Ok(()) };
        let known = self.epoch_of(&record.holder);
        match known {
            Some(known) if epoch < known => Err(IndexError::StaleEpoch { known }),
            Some(known) if epoch == known => Ok(()),
            _ if by == Publisher::Delegate => Err(IndexError::EpochByDelegate),
            _ => Ok(()),
        }
    }

    pub(super) fn epoch_of(&self, holder: &HolderUri) -> Option<u64> {
        self.holders.get(self.holders.find(holder)?)?.epoch
    }

    /// A new start of a holder: what was published under a lower epoch is gone, and with it the memory of
    /// `seq`. Without records the holder is remembered until `until`.
    pub(super) fn raise_epoch(&mut self, holder: &HolderUri, epoch: u64, until: Time, now: Time) {
        for id in self.slots_of(holder) {
            if self.slot(id).is_some_and(|slot| slot.has_epoch() || !slot.is_live(now)) {
                self.tell_end(id, ChangeKind::Withdraw, now);
                self.remove(id, now);
            }
        }
        let id = self.holders.intern(holder, until);
        if let Some(holder) = self.holders.get_mut(id) {
            holder.epoch = Some(epoch);
        }
    }

    fn make_room(&mut self, record: &ReplicaRecord, now: Time) -> Result<(), IndexError> {
        self.room_for_slot(&record.holder, now)?;
        let max = self.config.max_replicas_per_block;
        let head = self
            .spaces
            .find(&(record.compat_id, record.scope_id))
            .and_then(|space| self.table.find(&self.slots, space, &record.block_key));
        if head.is_some_and(|head| self.chain(head).count() >= max) {
            return Err(IndexError::BlockFull { max });
        }
        Ok(())
    }

    /// Room for one slot more of a holder. Expired slots go first, then memory that makes way.
    pub(super) fn room_for_slot(&mut self, holder: &HolderUri, now: Time) -> Result<(), IndexError> {
        self.room_for_holder(holder, now)?;
        self.has_room(holder).or_else(|_| {
            self.expire(now, BUDGET);
            self.has_room(holder).or_else(|error| {
                if matches!(error, IndexError::Full { .. }) && self.yield_one(now) {
                    self.has_room(holder)
                } else {
                    Err(error)
                }
            })
        })
    }

    fn has_room(&self, holder: &HolderUri) -> Result<(), IndexError> {
        let IndexConfig { max_records, max_records_per_holder, .. } = self.config;
        let known = self.holders.find(holder).and_then(|id| self.holders.get(id));
        if known.is_some_and(|known| known.slots - known.yielding >= max_records_per_holder) {
            return Err(IndexError::HolderFull { max: max_records_per_holder });
        }
        if self.used() >= max_records {
            return Err(IndexError::Full { max: max_records });
        }
        Ok(())
    }

    /// Room for a holder, unless it is known.
    pub(super) fn room_for_holder(&mut self, holder: &HolderUri, now: Time) -> Result<(), IndexError> {
        let max = self.config.max_holders;
        let full = |index: &Self| index.holders.find(holder).is_none() && index.holders.len() >= max;
        if full(self) {
            self.expire(now, BUDGET);
        }
        if full(self) { Err(IndexError::HoldersFull { max }) } else { Ok(()) }
    }

    pub(super) fn find(&self, record: &ReplicaRecord) -> Option<SlotId> {
        let space = self.spaces.find(&(record.compat_id, record.scope_id))?;
        let head = self.table.find(&self.slots, space, &record.block_key)?;
        self.find_in(head, &record.holder)
    }

    pub(super) fn find_name(&self, name: &ReplicaName) -> Option<SlotId> {
        let space = self.spaces.find(&(name.compat_id, name.scope_id))?;
        let head = self.table.find(&self.slots, space, &name.block_key)?;
        self.find_in(head, &name.holder)
    }

    fn find_in(&self, head: SlotId, holder: &HolderUri) -> Option<SlotId> {
        let holder = self.holders.find(holder)?;
        self.chain(head).find(|(_, slot)| slot.holder == holder).map(|(id, _)| id)
    }

    /// Gives a slot that is there new contents; `true` where it was no live record.
    fn refill(&mut self, id: SlotId, record: &ReplicaRecord, deadline: Time, now: Time) -> bool {
        let digests = self.shared_digests(Some(id), record);
        let producer = record.producer.as_deref().map_or(NONE, |text| self.texts.take(&text.into()));
        let namespace = record.moqt_namespace.as_deref().map_or(NONE, |text| self.texts.take(&text.into()));
        // What has expired unseen is told of before what follows it.
        if self.slot(id).is_some_and(|slot| !slot.is_live(now)) {
            self.tell_end(id, ChangeKind::Expire, now);
        }
        let Some(slot) = self.slots.get_mut(id as usize) else { return false };
        let (created, was_tombstone, before) = (!slot.is_live(now), slot.is_tombstone(), slot.deadline);
        let (yielded, holder) = (slot.yields(), slot.holder);
        let texts = (slot.producer, slot.namespace);
        let same = !created && texts == (producer, namespace) && slot.says(record);
        slot.fill(record, digests, deadline);
        (slot.producer, slot.namespace) = (producer, namespace);
        self.texts.release(texts.0);
        self.texts.release(texts.1);
        self.records += usize::from(was_tombstone);
        self.count_yielding(holder, yielded, false);
        self.expiry.queue(id, deadline, Some(before));
        if !same {
            self.note(ChangeKind::Publish, id);
        }
        created
    }

    fn insert(&mut self, record: &ReplicaRecord, deadline: Time, now: Time) -> bool {
        let id = self.link(&name_of(record), 0, deadline, now);
        self.refill(id, record, deadline, now)
    }

    /// A new slot, a tombstone as yet, in the chain of its block and the ring of its holder.
    pub(super) fn link(&mut self, name: &ReplicaName, seq: u64, deadline: Time, now: Time) -> SlotId {
        let space = self.spaces.take(&(name.compat_id, name.scope_id));
        let holder = self.holders.intern(&name.holder, now.after_millis(self.config.max_ttl_ms));
        let slot = Slot::tombstone(space, holder, name.block_key, seq, deadline);
        let id = match self.free.pop() {
            Some(id) => {
                if let Some(free) = self.slots.get_mut(id as usize) {
                    let queued = free.set_queued(false);
                    *free = slot;
                    free.set_queued(queued);
                }
                id
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as SlotId
            }
        };
        self.join_chain(id, space, name);
        self.join_holder(id, holder);
        self.expiry.queue(id, deadline, None);
        id
    }

    fn join_chain(&mut self, id: SlotId, space: u32, name: &ReplicaName) {
        let head = self.table.find(&self.slots, space, &name.block_key);
        let mut before = NONE;
        let mut after = NONE;
        if let Some(head) = head {
            for (at, slot) in self.chain(head) {
                if self.holders.get(slot.holder).is_some_and(|other| *other.uri > name.holder) {
                    after = at;
                    break;
                }
                before = at;
            }
        }
        if let Some(slot) = self.slots.get_mut(id as usize) {
            slot.next = after;
        }
        match self.slots.get_mut(before as usize) {
            Some(slot) => slot.next = id,
            None => self.table.set(&mut self.slots, id),
        }
    }

    fn join_holder(&mut self, id: SlotId, holder: u32) {
        let Some(owner) = self.holders.get_mut(holder) else { return };
        owner.slots += 1;
        let second = std::mem::replace(&mut owner.first, id);
        if let Some(slot) = self.slots.get_mut(second as usize) {
            slot.holder_prev = id;
        }
        if let Some(slot) = self.slots.get_mut(id as usize) {
            slot.holder_next = second;
        }
    }

    /// Frees a slot, record or tombstone.
    pub(super) fn remove(&mut self, id: SlotId, now: Time) {
        let Some(slot) = self.slots.get(id as usize).filter(|slot| !slot.is_free()) else { return };
        self.records -= usize::from(!slot.is_tombstone());
        let (producer, namespace, space) = (slot.producer, slot.namespace, slot.space);
        let (holder, yielded) = (slot.holder, slot.yields());
        self.count_yielding(holder, yielded, false);
        self.texts.release(producer);
        self.texts.release(namespace);
        self.leave_chain(id);
        self.leave_holder(id, now);
        self.spaces.release(space);
        if let Some(slot) = self.slots.get_mut(id as usize) {
            slot.clear();
        }
        self.free.push(id);
    }

    fn leave_chain(&mut self, id: SlotId) {
        let Some((space, key, next)) = self.slot(id).map(|slot| (slot.space, slot.key, slot.next)) else {
            return;
        };
        let Some(head) = self.table.find(&self.slots, space, &key) else { return };
        if head == id {
            if next == NONE {
                self.table.remove(&self.slots, space, &key);
            } else {
                self.table.set(&mut self.slots, next);
            }
            return;
        }
        let before = self.chain(head).find(|(_, slot)| slot.next == id).map(|(before, _)| before);
        if let Some(slot) = before.and_then(|before| self.slots.get_mut(before as usize)) {
            slot.next = next;
        }
    }

    fn leave_holder(&mut self, id: SlotId, now: Time) {
        let Some((holder, prev, next)) =
            self.slot(id).map(|slot| (slot.holder, slot.holder_prev, slot.holder_next))
        else {
            return;
        };
        if let Some(slot) = self.slots.get_mut(prev as usize) {
            slot.holder_next = next;
        }
        if let Some(slot) = self.slots.get_mut(next as usize) {
            slot.holder_prev = prev;
        }
        let Some(owner) = self.holders.get_mut(holder) else { return };
        owner.slots -= 1;
        if prev == NONE {
            owner.first = next;
        }
        if owner.slots == 0 {
            self.holders.rest(holder, now.after_millis(self.config.max_ttl_ms));
        }
    }

    pub(super) fn slots_of(&self, holder: &HolderUri) -> Vec<SlotId> {
        let first = self.holders.find(holder).and_then(|id| self.holders.get(id)).map_or(NONE, |h| h.first);
        std::iter::successors((first != NONE).then_some(first), |&id| {
            self.slot(id).map(|slot| slot.holder_next).filter(|&next| next != NONE)
        })
        .collect()
    }

    /// The record's layer digests, shared with any replica of the same contents. A replica digest is the
    /// digest of its list (which reading a record verified), so equal digests mean equal lists.
    fn shared_digests(&self, own: Option<SlotId>, record: &ReplicaRecord) -> Option<Arc<[Digest]>> {
        let list = record.layer_digests.as_ref()?;
        let same = |slot: &Slot| {
            slot.layer_digests
                .clone()
                .filter(|kept| slot.digest == record.digest.0 && kept.len() == list.len())
        };
        let own = own.and_then(|id| self.slot(id)).and_then(same);
        own.or_else(|| {
            let space = self.spaces.find(&(record.compat_id, record.scope_id))?;
            let head = self.table.find(&self.slots, space, &record.block_key)?;
            self.chain(head).find_map(|(_, slot)| same(slot))
        })
        .or_else(|| Some(list.as_slice().into()))
    }
}

/// Once a `seq` is known for a replica, what comes without one or with a lower one is stale.
pub(super) fn check_seq(known: Option<u64>, seq: Option<u64>) -> Result<(), IndexError> {
    match known {
        Some(known) if seq.is_none_or(|seq| seq < known) => Err(IndexError::StaleSeq { known }),
        _ => Ok(()),
    }
}
