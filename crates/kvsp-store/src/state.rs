//! Small rows that must outlive the process: what a controller has promised, under one trait, with one public
//! conformance suite that every backend passes.
//!
//! A commit is atomic, and durable when it returns. Who may write is told by a *fencing term*: every open takes a
//! higher one, durably, and a handle of an older term writes no more.

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod group;
mod key;
mod memory;
mod redb;
mod sealed;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use bytes::Bytes;

pub use group::{GroupBounds, GroupCommit, GroupCounts, GroupThread};
pub use key::{KeyError, MASTER_KEY_OCTETS, MasterKey};
pub use memory::MemoryState;
pub use redb::{RedbConfig, RedbState};
pub use sealed::{Sealed, open_sealed};

/// The longest key in octets.
pub const MAX_KEY_OCTETS: usize = 256;
/// The longest value in octets.
pub const MAX_VALUE_OCTETS: usize = 1 << 20;
/// The longest value that a backend takes: what a wrapper adds has room.
const MAX_STORED_OCTETS: usize = MAX_VALUE_OCTETS + 64;
/// The most rows that one commit changes.
pub const MAX_CHANGES: usize = 1 << 16;

/// One row set or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    /// 1 to [`MAX_KEY_OCTETS`] octets, of which the first, the table, is not 0: that table belongs to wrappers
    /// such as [`Sealed`].
    pub key: Bytes,
    /// At most [`MAX_VALUE_OCTETS`]; `None` removes the row, whether or not it is there.
    pub value: Option<Bytes>,
}

impl RowChange {
    /// Sets a row.
    #[must_use]
    pub fn set(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { key: key.into(), value: Some(value.into()) }
    }

    /// Removes a row.
    #[must_use]
    pub fn remove(key: impl Into<Bytes>) -> Self {
        Self { key: key.into(), value: None }
    }

    /// Octets of key and value together.
    #[must_use]
    pub fn octets(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// A state store does not do what it was asked for. Nothing of a commit that failed is there.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StateError {
    /// The store was opened again, elsewhere or later: this handle of an older term writes no more.
    #[error("fenced: term {term} has ended, the store is at {current}")]
    Fenced {
        /// The handle's term.
        term: u64,
        /// The store's.
        current: u64,
    },
    /// The device has no room. The store goes on by itself once there is some.
    #[error("there is no room for the state")]
    Full,
    /// The device failed. The next call tries again.
    #[error("I/O: {0}")]
    Io(#[source] Arc<io::Error>),
    /// What was read is not what was written.
    #[error("the state is corrupt: {0}")]
    Corrupt(&'static str),
    /// A key or value that is empty, too long or reserved, or too many in one commit; nothing was tried.
    #[error("not a row that the store takes: {0}")]
    BadRow(&'static str),
    /// Another handle, of this process or another one, has the store open.
    #[error("the state is in use by another process")]
    InUse,
    /// The store was written by a version that this one does not know.
    #[error("the state has format version {0}, which is not known here")]
    UnknownVersion(u32),
    /// The store was sealed with another key than this one.
    #[error("the state was sealed with another key: give that one, or remove the state with it")]
    WrongKey,
    /// There are rows that nobody sealed.
    #[error("there is state in the clear: remove it, or go on without a key")]
    NotSealed,
    /// The key file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The thread that commits has ended.
    #[error("the store has stopped")]
    Stopped,
}

impl From<io::Error> for StateError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Io(Arc::new(error)),
        }
    }
}

/// What [`StateStore::scan`] calls with the key and the value of each row.
pub type EachRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), StateError> + 'a;

/// Keeps rows by key. Methods block: an async caller goes through [`GroupCommit`].
pub trait StateStore: Send + Sync + 'static {
    /// The fencing term that this handle took when it was opened; higher than every one before.
    fn term(&self) -> u64;

    /// Makes all changes, in their order, or none; they are durable on return. A later change of a key wins over an
    /// earlier one.
    ///
    /// # Errors
    /// [`StateError`]. Nothing of a commit that failed is ever seen, but for [`StateError::Io`] where the device
    /// fails again while the store finds out: then all of it may be there after the next open, or none.
    fn commit(&self, changes: &[RowChange]) -> Result<(), StateError>;

    /// Calls `each` with every row whose key begins with `prefix`, in the order of keys. What is committed meanwhile
    /// may or may not be seen, each commit whole or not at all.
    ///
    /// # Errors
    /// What `each` returns ends the scan; else [`StateError`].
    fn scan(&self, prefix: &[u8], each: &mut EachRow<'_>) -> Result<(), StateError>;
}

impl<S: StateStore + ?Sized> StateStore for Arc<S> {
    fn term(&self) -> u64 {
        (**self).term()
    }

    fn commit(&self, changes: &[RowChange]) -> Result<(), StateError> {
        (**self).commit(changes)
    }

    fn scan(&self, prefix: &[u8], each: &mut EachRow<'_>) -> Result<(), StateError> {
        (**self).scan(prefix, each)
    }
}

/// Whether a store takes these changes at all.
fn check_changes(changes: &[RowChange]) -> Result<(), StateError> {
    if changes.len() > MAX_CHANGES {
        return Err(StateError::BadRow("too many changes"));
    }
    for change in changes {
        if change.key.is_empty() {
            return Err(StateError::BadRow("an empty key"));
        }
        if change.key.len() > MAX_KEY_OCTETS {
            return Err(StateError::BadRow("the key is too long"));
        }
        if change.value.as_ref().is_some_and(|value| value.len() > MAX_STORED_OCTETS) {
            return Err(StateError::BadRow("the value is too long"));
        }
    }
    Ok(())
}
