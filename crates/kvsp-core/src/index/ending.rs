//! How records end, and what is remembered of them.
//!
//! The `seq` of a record that ended, however it did, is remembered for the longest TTL, so that a delayed
//! PUT does not bring back what is gone. A holder that deletes with a `seq` has asked for that memory, and
//! it counts against the holder's quota. What else is remembered makes way where room is needed, the
//! oldest first, and counts against the bounds of the whole index alone.

use kvsp_proto::message::ReplicaName;
use kvsp_proto::uri::HolderUri;

use super::replica::{Dropped, Replica, ReplicaId};
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
        let Some(id) = self.find(name.compat_id, name.scope_id, &name.block_key, &name.holder) else {
            if let Some(seq) = name.seq {
                self.entomb(name, seq, until, false, now)?;
            }
            return Ok(false);
        };
        let Some(replica) = self.replica(id) else { return Ok(false) };
        check_seq(self.memory_of(replica, now).map(|(seq, _)| seq), name.seq)?;
        let was_live = replica.is_live(now);
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
        for id in self.replicas_of(holder) {
            if self.replica(id).is_some_and(|replica| !replica.is_tombstone()) {
                self.end(id, ChangeKind::Withdraw, now);
            }
        }
        before - self.records
    }

    /// The holder's process has ended (a status with a higher epoch says so): what it held in `device` or
    /// `host` is gone. Returns the records that were dropped whole.
    pub fn drop_volatile(&mut self, holder: &HolderUri, now: Time) -> usize {
        let before = self.records;
        for id in self.replicas_of(holder) {
            let Some(replica) = self.replicas.get_mut(id as usize).filter(|replica| replica.is_live(now))
            else {
                continue;
            };
            match replica.drop_volatile() {
                Dropped::Nothing => {}
                Dropped::Some => {
                    let block = replica.block;
                    self.sum_up(block);
                    self.note(ChangeKind::Publish, id);
                }
                Dropped::All => self.end(id, ChangeKind::Withdraw, now),
            }
        }
        before - self.records
    }

    /// Ends a record, live or past its deadline: readers of the feed are told, and its `seq` is remembered.
    /// A tombstone is forgotten.
    pub(super) fn end(&mut self, id: ReplicaId, kind: ChangeKind, now: Time) {
        self.tell_end(id, kind, now);
        let Some(replica) = self.replica(id) else { return };
        let ended = replica.deadline.min(now);
        let until = ended.after_millis(self.config.max_ttl_ms);
        match replica.seq().filter(|_| !replica.is_tombstone() && until > now) {
            Some(seq) => self.bury(id, seq, until, true),
            None => self.remove(id, now),
        }
    }

    /// Tells of the end of a record, unless the slot is none. What is past its deadline has expired,
    /// whatever ends it now.
    pub(super) fn tell_end(&mut self, id: ReplicaId, kind: ChangeKind, now: Time) {
        let Some(replica) = self.replica(id).filter(|replica| !replica.is_tombstone()) else { return };
        let kind = if replica.is_live(now) { kind } else { ChangeKind::Expire };
        self.note(kind, id);
    }

    /// The `seq` that is known of the replica in mind, and until when.
    pub(super) fn memory_of(&self, replica: &Replica, now: Time) -> Option<(u64, Time)> {
        let until = if replica.is_tombstone() {
            replica.deadline
        } else {
            replica.deadline.after_millis(self.config.max_ttl_ms)
        };
        replica.seq().filter(|_| until > now).map(|seq| (seq, until))
    }

    /// Makes a record or a tombstone a tombstone.
    fn bury(&mut self, id: ReplicaId, seq: u64, until: Time, yields: bool) {
        self.let_go(id);
        let Some(replica) = self.replicas.get_mut(id as usize) else { return };
        let (before, yielded) = (replica.deadline, replica.yields());
        let (holder, block) = (replica.holder, replica.block);
        replica.bury(seq, until, yields);
        self.count_yielding(holder, yielded, yields);
        if yields {
            self.queue_yielding(id);
        }
        self.expiry.requeue(id, until, before);
        self.sum_up(block);
    }

    /// A tombstone of a replica of which nothing is known.
    pub(super) fn entomb(
        &mut self,
        name: &ReplicaName,
        seq: u64,
        until: Time,
        yields: bool,
        now: Time,
    ) -> Result<(), IndexError> {
        let spot = self.spot(name.compat_id, name.scope_id, &name.block_key, &name.holder);
        self.room_for_replica(&spot, name.scope_id, &name.holder, None, now)?;
        let id = self.link(name, seq, until, now);
        if yields && let Some(replica) = self.replicas.get_mut(id as usize) {
            replica.set_yields(true);
            let holder = replica.holder;
            self.count_yielding(holder, false, true);
            self.queue_yielding(id);
        }
        Ok(())
    }

    fn queue_yielding(&mut self, id: ReplicaId) {
        if self.replicas.get_mut(id as usize).is_some_and(|replica| !replica.set_queued(true)) {
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
            let Some(replica) = self.replicas.get_mut(id as usize) else { continue };
            replica.set_queued(false);
            if replica.yields() {
                self.remove(id, now);
                return true;
            }
        }
        false
    }
}
