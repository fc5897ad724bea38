//! Bounds: what a record may take, what makes way for it, and what memory is in use.

use kvsp_proto::id::ScopeId;
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::uri::HolderUri;

use super::block::Block;
use super::contents::ContentsPool;
use super::expiry::Expiry;
use super::replica::{Replica, ReplicaId};
use super::write::Spot;
use super::{ChangeKind, Index, IndexConfig, IndexError, WhenFull};
use crate::time::Time;

/// Entries looked at to make room for one record.
const BUDGET: usize = 256;

/// Entries of the wheel looked at to find the record that ends first.
const LOOKS: usize = 4096;

/// What a replica takes by itself.
pub(super) const REPLICA_OCTETS: u64 = size_of::<Replica>() as u64 + Expiry::OCTETS;

impl Index {
    /// Octets of memory in use: records, tombstones, holders and the feed of changes. Places of freed
    /// records count, because they stay; descriptors do not, they have a bound of their own.
    #[must_use]
    pub fn octets(&self) -> u64 {
        let free = self.free_blocks.len() + self.free_replicas.len() + self.yielding.len();
        let places =
            self.blocks.len() * size_of::<Block>() + self.replicas.len() * size_of::<Replica>() + free * 4;
        places as u64
            + self.table.octets()
            + self.expiry.octets()
            + self.contents.octets()
            + self.holders.octets()
            + self.changes.octets()
            + self.heap
    }

    /// Room for a record at its spot: for the replica, unless it is there, and for new contents.
    pub(super) fn make_room(
        &mut self,
        spot: &Spot,
        record: &ReplicaRecord,
        shares: bool,
        now: Time,
    ) -> Result<(), IndexError> {
        let contents = (!shares).then(|| ContentsPool::cost(record.layer_digests.as_ref().map(Vec::len)));
        self.room_for_replica(spot, record.scope_id, &record.holder, contents, now)?;
        let max = self.config.max_replicas_per_block;
        if spot.replica.is_none()
            && spot.block.is_some_and(|block| self.chain(block).take(max).count() >= max)
        {
            return Err(IndexError::BlockFull { max });
        }
        Ok(())
    }

    /// Room for a replica, unless it is there, and for contents of so many octets. What makes way, in this
    /// order: what has expired; memory of `seq` that yields; where [`WhenFull`] has it so, what ends first.
    pub(super) fn room_for_replica(
        &mut self,
        spot: &Spot,
        scope: ScopeId,
        holder: &HolderUri,
        contents: Option<u64>,
        now: Time,
    ) -> Result<(), IndexError> {
        if spot.holder.is_none() {
            self.room_for_holder(holder, now)?;
        }
        let is_new = spot.replica.is_none();
        let Err(error) = self.has_room(spot, scope, is_new, contents) else { return Ok(()) };
        self.expire(now, BUDGET);
        let mut left = self.has_room(spot, scope, is_new, contents);
        for _ in 0..BUDGET {
            if !matches!(left, Err(IndexError::Full { .. } | IndexError::MemoryFull { .. })) {
                return left;
            }
            let made = self.yield_one(now)
                || (self.config.when_full == WhenFull::OldestExpiryFirst
                    && self.evict_one(spot.replica, now));
            if !made {
                break;
            }
            left = self.has_room(spot, scope, is_new, contents);
        }
        left.map_err(|_| error)
    }

    fn has_room(
        &self,
        spot: &Spot,
        scope: ScopeId,
        is_new: bool,
        contents: Option<u64>,
    ) -> Result<(), IndexError> {
        let IndexConfig { max_records, max_records_per_holder, max_octets, .. } = self.config;
        let known = spot.holder.and_then(|id| self.holders.get(id));
        if is_new && known.is_some_and(|known| known.slots - known.yielding >= max_records_per_holder) {
            return Err(IndexError::HolderFull { max: max_records_per_holder });
        }
        let own = contents.unwrap_or(0);
        if let Some(max) = self.scope_share()
            && self.scopes.get(&scope).copied().unwrap_or(0) + own + if is_new { REPLICA_OCTETS } else { 0 }
                > max
        {
            return Err(IndexError::ScopeFull { max });
        }
        if is_new && self.used() >= max_records {
            return Err(IndexError::Full { max: max_records });
        }
        let replica = if is_new && self.free_replicas.is_empty() { REPLICA_OCTETS } else { 0 };
        let block = match spot.block {
            None if is_new => {
                let place = if self.free_blocks.is_empty() { size_of::<Block>() as u64 } else { 0 };
                place + self.table.most_growth()
            }
            _ => 0,
        };
        let more = own + replica + block;
        if more > 0 && self.octets() + more > max_octets {
            return Err(IndexError::MemoryFull { max: max_octets });
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

    /// Drops the record that ends first, or nearly, and not `but`; `false` where none was found.
    fn evict_one(&mut self, but: Option<ReplicaId>, now: Time) -> bool {
        let mut passed = Vec::new();
        let mut first: Option<(Time, ReplicaId)> = None;
        for _ in 0..LOOKS {
            let Some((tick, id)) = self.expiry.pop(u32::MAX) else { break };
            let Some(replica) = self.replica(id) else { continue };
            passed.push((id, replica.deadline));
            if replica.is_tombstone() || Some(id) == but {
                continue;
            }
            first = first.into_iter().chain([(replica.deadline, id)]).min();
            // Entries come in the order of ticks, so nothing ends before one that is due in its own.
            if Expiry::is_due(replica.deadline, tick) {
                break;
            }
        }
        for (id, deadline) in passed {
            self.expiry.queue(id, deadline);
        }
        let Some((_, id)) = first else { return false };
        self.tell_end(id, ChangeKind::Expire, now);
        self.remove(id, now);
        true
    }

    fn scope_share(&self) -> Option<u64> {
        let percent = self.config.max_scope_percent?;
        Some((u128::from(self.config.max_octets) * u128::from(percent) / 100) as u64)
    }

    /// Counts octets for the scope of a block, where shares are limited.
    pub(super) fn charge(&mut self, block: u32, octets: u64) {
        if self.config.max_scope_percent.is_some() {
            let (_, scope) = self.space_of(block);
            *self.scopes.entry(scope).or_default() += octets;
        }
    }

    pub(super) fn discharge(&mut self, block: u32, octets: u64) {
        if self.config.max_scope_percent.is_none() {
            return;
        }
        let (_, scope) = self.space_of(block);
        if let Some(used) = self.scopes.get_mut(&scope) {
            *used -= octets;
            if *used == 0 {
                self.scopes.remove(&scope);
            }
        }
    }
}
