//! Taking the index out in pieces, and putting it in again (profile sections 5 and 6).

use std::sync::Arc;

use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::id::CompatId;
use kvsp_proto::message::ReplicaName;
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::uri::HolderUri;

use super::replica::ReplicaId;
use super::view::ReplicaView;
use super::{Index, IndexError, Publisher};
use crate::descriptors::DescriptorRefusal;
use crate::time::Time;

/// One thing that the index knows. Times are points on the clock from which [`Index`] is given `now`.
#[derive(Debug, Clone, PartialEq)]
pub enum SnapshotEntry {
    /// A registered descriptor.
    Descriptor {
        /// Its Compatibility ID.
        compat: CompatId,
        /// The descriptor.
        descriptor: Arc<Descriptor>,
    },
    /// A holder and its epoch.
    Holder {
        /// Who.
        holder: HolderUri,
        /// The highest `holder_epoch` seen.
        epoch: u64,
        /// Until when a holder without records is remembered; one with records is remembered longer.
        until: Time,
    },
    /// A record. `ttl_ms` is what remained of it when it was taken out; the deadline decides.
    Record {
        /// The record.
        record: Box<ReplicaRecord>,
        /// When it ends.
        deadline: Time,
    },
    /// The memory of the `seq` of a replica of which there is no record any more.
    Tombstone {
        /// The replica, with the `seq`.
        name: ReplicaName,
        /// Until when it is remembered.
        until: Time,
        /// Whether it makes way where room is needed: `false` after a DELETE with a `seq`.
        yields: bool,
    },
}

/// How far a snapshot has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotCursor(At);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// After the descriptor of this Compatibility ID.
    Descriptor(Option<CompatId>),
    /// At the holder of this number.
    Holder(u32),
    /// At the replica of this number.
    Replica(ReplicaId),
}

/// An entry is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The index would not take it from a holder either.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The descriptor is refused.
    #[error(transparent)]
    Descriptor(#[from] DescriptorRefusal),
}

impl Index {
    /// The next piece of a snapshot, from the beginning with `None`: it looks at no more than `limit`
    /// things (at least one), so that a lock is held shortly, and gives the cursor of the piece after it,
    /// `None` at the end. Descriptors come first, then holders, then records and tombstones.
    ///
    /// What changes between two pieces may be in the snapshot as it was before or after the change, or, if
    /// its record was published anew meanwhile, not at all; the holder's refresh brings it.
    #[must_use]
    pub fn snapshot(
        &self,
        after: Option<SnapshotCursor>,
        limit: usize,
        now: Time,
    ) -> (Vec<SnapshotEntry>, Option<SnapshotCursor>) {
        let limit = limit.max(1);
        match after.map_or(At::Descriptor(None), |SnapshotCursor(at)| at) {
            At::Descriptor(after) => self.descriptors_after(after, limit),
            At::Holder(first) => self.holders_from(first, limit, now),
            At::Replica(first) => self.replicas_from(first, limit, now),
        }
    }

    fn descriptors_after(
        &self,
        after: Option<CompatId>,
        limit: usize,
    ) -> (Vec<SnapshotEntry>, Option<SnapshotCursor>) {
        let found: Vec<SnapshotEntry> = self
            .descriptors
            .after(after)
            .take(limit)
            .map(|(compat, descriptor)| SnapshotEntry::Descriptor {
                compat,
                descriptor: Arc::clone(descriptor),
            })
            .collect();
        let next = match found.last() {
            Some(SnapshotEntry::Descriptor { compat, .. }) if found.len() == limit => {
                At::Descriptor(Some(*compat))
            }
            _ => At::Holder(0),
        };
        (found, Some(SnapshotCursor(next)))
    }

    fn holders_from(
        &self,
        first: u32,
        limit: usize,
        now: Time,
    ) -> (Vec<SnapshotEntry>, Option<SnapshotCursor>) {
        let ids = first..self.holders.end().min(first.saturating_add(clamp(limit)));
        let found = ids.clone().filter_map(|id| {
            let holder = self.holders.get(id)?;
            let until = self.holders.remembered_until(holder, now.after_millis(self.config.max_ttl_ms));
            let epoch = holder.epoch.filter(|_| until > now)?;
            Some(SnapshotEntry::Holder { holder: HolderUri::clone(&holder.uri), epoch, until })
        });
        let next = if ids.end < self.holders.end() { At::Holder(ids.end) } else { At::Replica(0) };
        (found.collect(), Some(SnapshotCursor(next)))
    }

    fn replicas_from(
        &self,
        first: ReplicaId,
        limit: usize,
        now: Time,
    ) -> (Vec<SnapshotEntry>, Option<SnapshotCursor>) {
        let end = self.replicas.len() as ReplicaId;
        let ids = first..end.min(first.saturating_add(clamp(limit)));
        let found = ids.clone().filter_map(|id| self.entry_of(id, now)).collect();
        (found, (ids.end < end).then_some(SnapshotCursor(At::Replica(ids.end))))
    }

    fn entry_of(&self, id: ReplicaId, now: Time) -> Option<SnapshotEntry> {
        let replica = self.replica(id)?;
        let owner = self.holders.get(replica.holder)?;
        if replica.is_live(now) {
            let record = Box::new(ReplicaView::new(self, replica, owner, now).to_record(true));
            return Some(SnapshotEntry::Record { record, deadline: replica.deadline });
        }
        let (seq, until) = self.memory_of(replica, now)?;
        let (compat_id, scope_id) = self.space_of(replica.block);
        let holder = HolderUri::clone(&owner.uri);
        let name = ReplicaName {
            compat_id,
            scope_id,
            block_key: self.key_of(replica.block),
            holder,
            seq: Some(seq),
        };
        Some(SnapshotEntry::Tombstone { name, until, yields: !replica.is_tombstone() || replica.yields() })
    }

    /// Puts an entry of a snapshot in again; `true` where it says something still. What has ended is left
    /// out, what came to this index since its start is newer and stays, and nothing lasts longer than it
    /// would have. A restored record is a [`ChangeKind::Publish`](super::ChangeKind::Publish).
    ///
    /// # Errors
    /// [`RestoreError`]: over a limit, or against a descriptor that came before it.
    pub fn restore(&mut self, entry: SnapshotEntry, now: Time) -> Result<bool, RestoreError> {
        match entry {
            SnapshotEntry::Descriptor { compat, descriptor } => {
                Ok(self.register(compat, Descriptor::clone(&descriptor))?)
            }
            SnapshotEntry::Holder { holder, epoch, until } => self.restore_holder(&holder, epoch, until, now),
            SnapshotEntry::Record { record, deadline } => self.restore_record(&record, deadline, now),
            SnapshotEntry::Tombstone { name, until, yields } => {
                self.restore_tombstone(&name, until, yields, now)
            }
        }
    }

    fn restore_holder(
        &mut self,
        uri: &HolderUri,
        epoch: u64,
        until: Time,
        now: Time,
    ) -> Result<bool, RestoreError> {
        if until <= now || self.epoch_of(uri) >= Some(epoch) {
            return Ok(false);
        }
        self.room_for_holder(uri, now)?;
        let until = until.min(now.after_millis(self.config.max_ttl_ms));
        self.raise_epoch(uri, epoch, until, now);
        Ok(true)
    }

    fn restore_record(
        &mut self,
        record: &ReplicaRecord,
        deadline: Time,
        now: Time,
    ) -> Result<bool, RestoreError> {
        if record.holder_epoch.is_some_and(|epoch| self.epoch_of(&record.holder) > Some(epoch)) {
            return Ok(false);
        }
        if deadline <= now {
            let Some(seq) = record.seq else { return Ok(false) };
            let until = deadline.after_millis(self.config.max_ttl_ms);
            let name = ReplicaName { seq: Some(seq), ..name_of(record) };
            return self.restore_tombstone(&name, until, true, now);
        }
        if self.find(record.compat_id, record.scope_id, &record.block_key, &record.holder).is_some() {
            return Ok(false);
        }
        self.put_until(record, Publisher::Holder, deadline, now)?;
        Ok(true)
    }

    fn restore_tombstone(
        &mut self,
        name: &ReplicaName,
        until: Time,
        yields: bool,
        now: Time,
    ) -> Result<bool, RestoreError> {
        let Some(seq) = name.seq.filter(|_| until > now) else { return Ok(false) };
        if self.find(name.compat_id, name.scope_id, &name.block_key, &name.holder).is_some() {
            return Ok(false);
        }
        let until = until.min(now.after_millis(self.config.max_ttl_ms));
        self.entomb(name, seq, until, yields, now)?;
        Ok(true)
    }
}

/// The name of a record's replica, without its `seq`.
pub(super) fn name_of(record: &ReplicaRecord) -> ReplicaName {
    ReplicaName {
        compat_id: record.compat_id,
        scope_id: record.scope_id,
        block_key: record.block_key,
        holder: record.holder.clone(),
        seq: None,
    }
}

fn clamp(limit: usize) -> u32 {
    u32::try_from(limit).unwrap_or(u32::MAX)
}
