//! The trait of all block stores.

use std::fmt;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::Pin;

use kvsp_buffer::Arena;
use kvsp_proto::container::LayerRange;
use kvsp_proto::registry::Tier;

use crate::block::{BlockMeta, BlockName, BlockPart, Held, StoredBlock};

/// A store does not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A block of that name is there, with as many layers or of other contents.
    #[error("the block is there already")]
    Exists,
    /// What was read is not what was written. The block is moved aside already and will not be served.
    #[error("the block is rotten: {0}")]
    Rotten(&'static str),
    /// The place is not a store of this version, or another process has it.
    #[error("not a usable store: {0}")]
    Unusable(String),
    /// The device failed, or is full ([`StoreError::is_full`]).
    #[error("I/O: {0}")]
    Io(#[from] io::Error),
    /// The memory for what is read has no room ([`BlockStore::use_buffers`]); nothing is wrong with the block.
    #[error("there is no memory for what is to be read")]
    NoMemory,
    /// The store's own task was cancelled, at the end of the process.
    #[error("the store has stopped")]
    Stopped,
}

impl StoreError {
    /// Whether the device has no room: an answer of 507, not of 500.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded];
        matches!(self, Self::Io(error) if full.contains(&error.kind()))
    }
}

/// What a method of a [`BlockStore`] returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Keeps blocks by name, each whole or with its leading layers alone. A future that is dropped may still
/// have its effect. A method that failed may be called again.
pub trait BlockStore: Send + Sync + fmt::Debug + 'static {
    /// The tier that its blocks are in.
    fn tier(&self) -> Tier;

    /// From now on the octets of blocks that are read go into buffers of `arena`, where they count and can stay
    /// as they are in a [`MemoryStore`](crate::MemoryStore). A read for which it has no room is refused with
    /// [`StoreError::NoMemory`]. Before this is called they count nowhere. Only the first call counts; a store
    /// that keeps blocks in memory has no need of it.
    fn use_buffers(&self, _arena: Arena) {}

    /// Octets that the `layers` leading layers of a block take here, headers included.
    fn charge(&self, meta: &BlockMeta, layers: u32) -> u64;

    /// Stores the leading layers of a block, or all; they are there, and durable where the tier is, when the
    /// future resolves, and not visible before. A failure leaves what was before. More layers of a block
    /// that is there take the place of fewer in one step; while they are written both take room.
    fn put(&self, block: StoredBlock) -> StoreFuture<'_, ()>;

    /// All that is held of a block, verified by its layer digests where the medium can rot.
    fn get(&self, name: BlockName) -> StoreFuture<'_, Option<StoredBlock>>;

    /// Some layers of a block, verified likewise; `None` where they are not all held.
    fn part(&self, name: BlockName, range: LayerRange) -> StoreFuture<'_, Option<BlockPart>>;

    /// Keeps no more than the `layers` leading layers of a block; whether it was there. Durable where the
    /// tier is, when the future resolves; a crash leaves what was before or after. 0 deletes. Answers
    /// `false` and changes nothing where the tier keeps blocks whole only.
    fn trim(&self, name: BlockName, layers: u32) -> StoreFuture<'_, bool>;

    /// Deletes a block; whether it was there. It does not come back after a crash.
    fn delete(&self, name: BlockName) -> StoreFuture<'_, bool>;

    /// Every block that is there, ordered by name.
    fn list(&self) -> StoreFuture<'_, Vec<Held>>;
}
