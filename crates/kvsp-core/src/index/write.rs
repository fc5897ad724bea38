//! Publishing.

use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::uri::HolderUri;

use super::block::{BlockId, tick_of};
use super::replica::{NONE, ReplicaId};
use super::snapshot::name_of;
use super::{ChangeKind, Index, IndexError, Published, Publisher, Texts};
use crate::time::Time;

/// What is known at the place of a replica.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spot {
    pub(super) holder: Option<u32>,
    pub(super) block: Option<BlockId>,
    pub(super) replica: Option<ReplicaId>,
}

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
        let mut spot = self.spot_of(record);
        let raises = self.raises(&spot, record, by)?;
        if let Some(replica) = spot.replica.and_then(|id| self.replica(id))
            && !(raises.is_some() && (replica.has_epoch() || !replica.is_live(now)))
        {
            check_seq(self.memory_of(replica, now).map(|(seq, _)| seq), record.seq)?;
        }
        let mut contents = self.contents_of(&spot, record);
        if spot.replica.is_none() || contents.is_none() || raises.is_some() {
            self.make_room(&spot, record, contents.is_some(), now)?;
            if let Some(epoch) = raises {
                self.raise_epoch(&record.holder, epoch, now.after_millis(self.config.max_ttl_ms), now);
            }
            spot = self.spot_of(record);
            contents = self.contents_of(&spot, record);
        }
        let id = spot.replica.unwrap_or_else(|| self.link(&name_of(record), 0, deadline, now));
        Ok(self.refill(id, record, contents, deadline, now))
    }

    /// The epoch to which a record raises its holder's.
    fn raises(&self, spot: &Spot, record: &ReplicaRecord, by: Publisher) -> Result<Option<u64>, IndexError> {
        let Some(epoch) = record.holder_epoch else { return Ok(None) };
        let known = spot.holder.and_then(|id| self.holders.get(id)).and_then(|holder| holder.epoch);
        match known {
            Some(known) if epoch < known => Err(IndexError::StaleEpoch { known }),
            Some(known) if epoch == known => Ok(None),
            _ if by == Publisher::Delegate => Err(IndexError::EpochByDelegate),
            _ => Ok(Some(epoch)),
        }
    }

    pub(super) fn epoch_of(&self, holder: &HolderUri) -> Option<u64> {
        self.holders.get(self.holders.find(holder)?)?.epoch
    }

    /// A new start of a holder: what was published under a lower epoch is gone, and with it the memory of
    /// `seq`. Without records the holder is remembered until `until`.
    pub(super) fn raise_epoch(&mut self, holder: &HolderUri, epoch: u64, until: Time, now: Time) {
        for id in self.replicas_of(holder) {
            if self.replica(id).is_some_and(|replica| replica.has_epoch() || !replica.is_live(now)) {
                self.tell_end(id, ChangeKind::Withdraw, now);
                self.remove(id, now);
            }
        }
        let id = self.holders.intern(holder, until);
        if let Some(holder) = self.holders.get_mut(id) {
            holder.epoch = Some(epoch);
        }
    }

    pub(super) fn spot_of(&self, record: &ReplicaRecord) -> Spot {
        self.spot(record.compat_id, record.scope_id, &record.block_key, &record.holder)
    }

    pub(super) fn spot(&self, compat: CompatId, scope: ScopeId, key: &BlockKey, holder: &HolderUri) -> Spot {
        let space = self.spaces.find(&(compat, scope));
        let block = space.and_then(|space| self.table.find(&self.blocks, space, key));
        let holder = self.holders.find(holder);
        let replica = block.zip(holder).and_then(|(block, holder)| self.find_in(block, holder));
        Spot { holder, block, replica }
    }

    pub(super) fn find(
        &self,
        compat: CompatId,
        scope: ScopeId,
        key: &BlockKey,
        holder: &HolderUri,
    ) -> Option<ReplicaId> {
        self.spot(compat, scope, key, holder).replica
    }

    fn find_in(&self, block: BlockId, holder: u32) -> Option<ReplicaId> {
        self.chain(block).find(|(_, replica)| replica.holder == holder).map(|(id, _)| id)
    }

    /// Contents that are there already, of the replica itself or of another one of the block.
    fn contents_of(&self, spot: &Spot, record: &ReplicaRecord) -> Option<u32> {
        let layers = record.layer_digests.as_ref().map(Vec::len);
        let same = |contents: u32| self.contents.is(contents, record.digest.0, layers).then_some(contents);
        let own = spot.replica.and_then(|id| self.replica(id)).and_then(|replica| same(replica.contents));
        own.or_else(|| self.chain(spot.block?).find_map(|(_, replica)| same(replica.contents)))
    }

    /// Gives a replica that is there what a record says; `true` where it was no live record.
    fn refill(
        &mut self,
        id: ReplicaId,
        record: &ReplicaRecord,
        contents: Option<u32>,
        deadline: Time,
        now: Time,
    ) -> bool {
        // What has expired unseen is told of before what follows it.
        if self.replica(id).is_some_and(|replica| !replica.is_live(now)) {
            self.tell_end(id, ChangeKind::Expire, now);
        }
        let changed = self.set_contents(id, record, contents) | self.set_texts(id, record);
        let Some(replica) = self.replicas.get_mut(id as usize) else { return false };
        let (created, was_tombstone) = (!replica.is_live(now), replica.is_tombstone());
        let (before, yielded, holder, block) =
            (replica.deadline, replica.yields(), replica.holder, replica.block);
        let same = !created && !changed && replica.says(record);
        let (alone, heap) = (replica.next == NONE, replica.heap_octets());
        if same {
            replica.refresh(record, deadline);
        } else {
            replica.fill(record, deadline);
        }
        self.heap = self.heap + replica.heap_octets() - heap;
        self.records += usize::from(was_tombstone);
        self.count_yielding(holder, yielded, false);
        self.expiry.requeue(id, deadline, before);
        match self.blocks.get_mut(block as usize) {
            // The only record of its block, and it says what it said.
            Some(summary) if same && alone && summary.head == id => summary.sure = tick_of(deadline),
            _ => self.sum_up(block),
        }
        if !same {
            self.note(ChangeKind::Publish, id);
        }
        created
    }

    /// Gives a replica its contents; `true` where they are others than before.
    fn set_contents(&mut self, id: ReplicaId, record: &ReplicaRecord, known: Option<u32>) -> bool {
        let Some(replica) = self.replica(id) else { return false };
        let (before, block) = (replica.contents, replica.block);
        if known == Some(before) {
            return false;
        }
        let layers = record.layer_digests.as_deref();
        let contents = match known {
            Some(known) => {
                self.contents.take(known);
                known
            }
            None => {
                self.charge(block, super::contents::ContentsPool::cost(layers.map(<[_]>::len)));
                self.contents.add(record.digest.0, layers)
            }
        };
        if let Some(replica) = self.replicas.get_mut(id as usize) {
            replica.contents = contents;
        }
        self.release_contents(before, block);
        true
    }

    /// Gives a replica its texts; `true` where they are others than before.
    fn set_texts(&mut self, id: ReplicaId, record: &ReplicaRecord) -> bool {
        let Some(before) = self.replica(id).map(|replica| replica.texts) else { return false };
        let said = (record.producer.as_deref(), record.moqt_namespace.as_deref());
        let known = self.texts.get(before).map_or((None, None), Texts::parts);
        if known == said {
            return false;
        }
        let texts = if said == (None, None) { NONE } else { self.take_texts(said) };
        if let Some(replica) = self.replicas.get_mut(id as usize) {
            replica.texts = texts;
        }
        self.release_texts(before);
        true
    }
}

/// Once a `seq` is known for a replica, what comes without one or with a lower one is stale.
pub(super) fn check_seq(known: Option<u64>, seq: Option<u64>) -> Result<(), IndexError> {
    match known {
        Some(known) if seq.is_none_or(|seq| seq < known) => Err(IndexError::StaleSeq { known }),
        _ => Ok(()),
    }
}
