//! The index of replicas (draft sections 6.1 and 6.2, profile section 5) as one machine.
//!
//! A block is 48 octets that a lookup streams through: its key and a summary of its replicas. A replica is
//! 80 octets more and its share of the digests, which replicas of one computation have in common. Replicas
//! of one block form a chain in the order of their holders, those of one holder a ring; a table finds a
//! block by its key. Deadlines are checked on every read, so that reclaiming what has expired
//! ([`Index::expire`]) may lag without being seen.

mod block;
mod changes;
mod config;
mod contents;
mod ending;
mod expiry;
mod holders;
mod link;
mod lookup;
mod pool;
mod replica;
mod room;
mod slab;
mod snapshot;
mod table;
mod texts;
mod view;
mod write;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use changes::{Change, ChangeKind, Changes};
pub use config::{IndexConfig, IndexError, Published, Publisher, WhenFull};
pub use lookup::Lookup;
pub use snapshot::{RestoreError, SnapshotCursor, SnapshotEntry};
pub(crate) use view::covers;
pub use view::{BlockView, ReplicaView};

use std::collections::{BTreeMap, VecDeque};

use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::uri::HolderUri;

use crate::descriptors::{DescriptorRefusal, Descriptors};
use crate::time::Time;
use block::{Block, BlockId};
use changes::Ring;
use contents::ContentsPool;
use expiry::Expiry;
use holders::Holders;
use pool::Pool;
use replica::{Replica, ReplicaId};
use table::Table;
use texts::Texts;

/// The index machine: the records, and the descriptors against which they are checked. Its bounds are hard
/// ([`IndexConfig`]); [`WhenFull`] says who gives way at them.
#[derive(Debug)]
pub struct Index {
    config: IndexConfig,
    descriptors: Descriptors,
    blocks: Vec<Block>,
    replicas: Vec<Replica>,
    /// Free places, the first freed first: what was freed in order is used in order again, and lookups find
    /// a prefix in neighbouring places.
    free_blocks: VecDeque<BlockId>,
    free_replicas: VecDeque<ReplicaId>,
    table: Table,
    contents: ContentsPool,
    /// The (compatibility, scope) pairs in use.
    spaces: Pool<(CompatId, ScopeId)>,
    /// Producers and track namespaces in use.
    texts: Pool<Texts>,
    holders: Holders,
    expiry: Expiry,
    /// Replicas that make way where room is needed, those that began to first; some were filled since.
    yielding: VecDeque<ReplicaId>,
    changes: Ring,
    records: usize,
    /// Octets of texts and of long residencies.
    heap: u64,
    /// Octets of each scope's records, where shares are limited.
    scopes: BTreeMap<ScopeId, u64>,
}

impl Index {
    /// An empty index. `seed` keys the hash table, so that peers cannot choose colliding block keys:
    /// it must be random and secret.
    #[must_use]
    pub fn new(config: IndexConfig, seed: [u64; 4]) -> Self {
        Self {
            descriptors: Descriptors::new(config.max_descriptors),
            blocks: Vec::new(),
            replicas: Vec::new(),
            free_blocks: VecDeque::new(),
            free_replicas: VecDeque::new(),
            table: Table::new(seed),
            contents: ContentsPool::default(),
            spaces: Pool::default(),
            texts: Pool::default(),
            holders: Holders::default(),
            expiry: Expiry::default(),
            yielding: VecDeque::new(),
            changes: Ring::new(config.max_changes),
            records: 0,
            heap: 0,
            scopes: BTreeMap::new(),
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

    /// Records and tombstones held.
    #[must_use]
    pub fn used(&self) -> usize {
        self.replicas.len() - self.free_replicas.len()
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
        let block = self.table.find(&self.blocks, space, &key)?;
        Some(BlockView::new(self, block, self.layers_of(compat), now))
    }

    /// Layers by the descriptor, where it is known.
    fn layers_of(&self, compat: CompatId) -> Option<u32> {
        self.descriptors.get(compat).map(|descriptor| descriptor.layers)
    }

    /// A replica that is not free.
    fn replica(&self, id: ReplicaId) -> Option<&Replica> {
        self.replicas.get(id as usize).filter(|replica| !replica.is_free())
    }

    fn key_of(&self, block: BlockId) -> BlockKey {
        self.blocks.get(block as usize).map_or_else(BlockKey::default, |block| block.key)
    }

    fn space_of(&self, block: BlockId) -> (CompatId, ScopeId) {
        let block = self.blocks.get(block as usize);
        block.and_then(|block| self.spaces.get(block.space)).copied().unwrap_or_default()
    }

    /// The replicas of a block, in the order of their holders.
    fn chain(&self, block: BlockId) -> impl Iterator<Item = (ReplicaId, &Replica)> {
        let at = |id: ReplicaId| self.replicas.get(id as usize).map(|replica| (id, replica));
        let head = self.blocks.get(block as usize).and_then(|block| at(block.head));
        std::iter::successors(head, move |(_, replica)| at(replica.next))
    }
}
