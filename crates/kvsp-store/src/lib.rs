//! Block stores behind one trait: host memory and a local disk, with one public conformance suite that
//! every backend passes.
//!
//! A store keeps what it is told to keep. What is kept, and what goes when room is needed, is decided by
//! `kvsp-core`.
//!
//! Beside them, in [`state`]: small rows that a controller must not lose.

mod block;
mod buffers;
pub mod conformance;
pub mod disk;
pub mod fs;
mod memory;
mod object;
pub mod state;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod verify;

pub use block::{BlockMeta, BlockName, BlockPart, Held, StoredBlock};
pub use disk::{DiskConfig, DiskStore};
pub use memory::MemoryStore;
pub use object::{ObjectConfig, ObjectStore};
pub use store::{BlockStore, StoreError, StoreFuture};
