//! The trait of all block stores.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use kvsp_proto::container::LayerRange;
use kvsp_proto::registry::Tier;

use crate::block::{BlockMeta, BlockName, BlockPart, StoredBlock};

/// A store does not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A block of that name is there, or being written.
    #[error("the block is there already")]
    Exists,
    /// What was read is not what was written. The block is moved aside already and will not be served.
    #[error("the block is rotten: {0}")]
    Rotten(&'static str),
    /// The directory is not a store of this version, or another process has it.
    #[error("not a usable store: {0}")]
    Unusable(String),
    /// The device failed.
    #[error("I/O: {0}")]
    Io(#[from] std::io::Error),
    /// The store's own task was cancelled, at the end of the process.
    #[error("the store has stopped")]
    Stopped,
}

/// What a method of a [`BlockStore`] returns.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Keeps blocks by name. A future that is dropped may still have its effect.
pub trait BlockStore: Send + Sync + fmt::Debug + 'static {
    /// The tier that its blocks are in.
    fn tier(&self) -> Tier;

    /// Octets that a block takes here, headers included.
    fn charge(&self, meta: &BlockMeta) -> u64;

    /// Stores a block; it is there, and durable where the tier is, when the future resolves, and not
    /// visible before. A failure leaves nothing.
    fn put(&self, block: StoredBlock) -> StoreFuture<'_, ()>;

    /// A whole block, verified by its layer digests where the medium can rot.
    fn get(&self, name: BlockName) -> StoreFuture<'_, Option<StoredBlock>>;

    /// Some layers of a block, verified likewise; `None` where the block is not there or lacks them.
    fn part(&self, name: BlockName, range: LayerRange) -> StoreFuture<'_, Option<BlockPart>>;

    /// Deletes a block; whether it was there.
    fn delete(&self, name: BlockName) -> StoreFuture<'_, bool>;

    /// Every block that is there, ordered by name.
    fn list(&self) -> StoreFuture<'_, Vec<Arc<BlockMeta>>>;
}
