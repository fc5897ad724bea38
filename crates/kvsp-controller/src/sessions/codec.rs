//! Sessions as rows of the state store.
//!
//! A key is the table's octet, the session's 16 octets, and the number of the row in the table as 4 octets in network
//! order. A value is one octet, the version of its form, and the form: JSON, or tokens of 4 octets in network order.
//! A checkpoint writes the progress and the last segment of tokens, a few hundred octets however long the prompt is.

mod restore;
mod rows;

#[cfg(test)]
mod tests;

pub(crate) use restore::{RestoreError, Restored, restore};
pub(crate) use rows::{HeadRows, rows};

use bytes::Bytes;
use uuid::Uuid;

/// The version of every form of this module.
const VERSION: u8 = 1;

/// Octets of a head in one row: well below what a store takes. The keys of a long prompt take several.
const CHUNK_OCTETS: usize = 256 << 10;

/// What a row holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Table {
    /// [`kvsp_core::session::Head`] as JSON, in chunks.
    Head = 1,
    /// [`kvsp_core::session::Progress`] as JSON, one row.
    Progress = 2,
    /// Output tokens, a segment a row.
    Tokens = 3,
}

impl Table {
    const ALL: [Self; 3] = [Self::Head, Self::Progress, Self::Tokens];

    fn key(self, session: Uuid, row: u32) -> Bytes {
        let mut key = [self as u8; 21];
        key[1..17].copy_from_slice(session.as_bytes());
        key[17..].copy_from_slice(&row.to_be_bytes());
        Bytes::copy_from_slice(&key)
    }
}
