//! The index of replicas (draft sections 6.1 and 6.2, profile section 5) as one machine.
//!
//! A record takes one slot of fixed size plus its layer digests, which records of equal contents share.
//! Slots of one block form a chain in the order of their holders, slots of one holder a ring; a hash
//! table finds the chain of a block. Deadlines are checked on every read, so that reclaiming what has
//! expired ([`Index::expire`]) may lag without being seen.

mod changes;
mod config;
mod ending;
mod expiry;
mod holders;
mod lookup;
mod pool;
mod slot;
mod snapshot;
mod table;
mod view;
mod write;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use changes::{Change, ChangeKind, Changes};
pub use config::{IndexConfig, IndexError, Published, Publisher};
pub use lookup::Lookup;
pub use snapshot::{RestoreError, SnapshotCursor, SnapshotEntry};
pub(crate) use view::covers;
pub use view::{BlockView, ReplicaView};

use std::collections::VecDeque;

use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::uri::HolderUri;

use crate::descriptors::{DescriptorRefusal, Descriptors};
use crate::time::Time;
use changes::Ring;
use expiry::Expiry;
use holders::Holders;
use pool::Pool;
use slot::{NONE, Slot, SlotId};
use table::Table;

/// The index machine: the records, and the descriptors against which they are checked.
///
/// Its hard cap on records ([`IndexConfig::max_records`]) is kept by refusal, not by eviction: an index
/// that dropped live records would turn hits of one holder into misses of another.
#[derive(Debug)]
pub struct Index {
    config: IndexConfig,
    descriptors: Descriptors,
    slots: Vec<Slot>,
    /// Free slots, the last freed first.
    free: Vec<SlotId>,
    table: Table,
    /// The (compatibility, scope) pairs in use.
    spaces: Pool<(CompatId, ScopeId)>,
    /// Producers and track namespaces in use.
    texts: Pool<Box<str>>,
    holders: Holders,
    expiry: Expiry,
    /// Slots that make way where room is needed, those that began to first; some were filled since.
    yielding: VecDeque<SlotId>,
    changes: Ring,
    records: usize,
}

impl Index {
    /// An empty index. `seed` keys the hash table, so that peers cannot choose colliding block keys:
    /// it must be random and secret.
    #[must_use]
    pub fn new(config: IndexConfig, seed: [u64; 4]) -> Self {
        Self {
            descriptors: Descriptors::new(config.max_descriptors),
            slots: Vec::new(),
            free: Vec::new(),
            table: Table::new(seed),
            spaces: Pool::default(),
            texts: Pool::default(),
            holders: Holders::default(),
            expiry: Expiry::default(),
            yielding: VecDeque::new(),
            changes: Ring::new(config.max_changes),
            records: 0,
            config,
        }
    }

    /// Records held, expired ones that were not reclaimed yet among them, tombstones not.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.records
    }

    /// Whether no record is held.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Slots in use: records and tombstones.
    #[must_use]
    pub fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Registers a descriptor; `true` where it is new. Records that are there already stay.
    ///
    /// # Errors
    /// [`DescriptorRefusal`].
    pub fn register(&mut self, compat: CompatId, descriptor: Descriptor) -> Result<bool, DescriptorRefusal> {
        self.descriptors.register(compat, descriptor)
    }

    /// The registered descriptors.
    #[must_use]
    pub const fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// One live record, with its remaining TTL.
    #[must_use]
    pub fn get(
        &self,
        compat: CompatId,
        scope: ScopeId,
        key: BlockKey,
        holder: &HolderUri,
        now: Time,
    ) -> Option<ReplicaRecord> {
        let block = self.block(compat, scope, key, now)?;
        let holder = self.holders.find(holder)?;
        block.replicas().find(|replica| replica.is_of(holder)).map(|replica| replica.to_record(true))
    }

    /// The live records of one block, ordered by holder, with their remaining TTLs.
    #[must_use]
    pub fn list(&self, compat: CompatId, scope: ScopeId, key: BlockKey, now: Time) -> Vec<ReplicaRecord> {
        self.block(compat, scope, key, now)
            .map_or_else(Vec::new, |block| block.replicas().map(|replica| replica.to_record(true)).collect())
    }

    fn block(&self, compat: CompatId, scope: ScopeId, key: BlockKey, now: Time) -> Option<BlockView<'_>> {
        let space = self.spaces.find(&(compat, scope))?;
        let head = self.table.find(&self.slots, space, &key)?;
        Some(BlockView::new(self, head, self.layers_of(compat), now))
    }

    /// Layers by the descriptor, where it is known.
    fn layers_of(&self, compat: CompatId) -> Option<u32> {
        self.descriptors.get(compat).map(|descriptor| descriptor.layers)
    }

    fn slot(&self, id: SlotId) -> Option<&Slot> {
        self.slots.get(id as usize)
    }

    /// The slots of a chain, in the order of their holders.
    fn chain(&self, head: SlotId) -> impl Iterator<Item = (SlotId, &Slot)> {
        std::iter::successors(self.slot(head).map(|slot| (head, slot)), |(_, slot)| {
            if slot.next == NONE { None } else { self.slot(slot.next).map(|next| (slot.next, next)) }
        })
    }
}
