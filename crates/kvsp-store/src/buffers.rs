//! Where what is read goes.

use std::sync::OnceLock;

use kvsp_buffer::{Arena, PageBuffer};

use crate::store::StoreError;

/// Page-aligned buffers of the arena that was given, and no others; before one is given, of no arena.
#[derive(Debug, Default)]
pub(crate) struct Buffers(OnceLock<Arena>);

impl Buffers {
    /// Only the first call counts.
    pub(crate) fn set(&self, arena: Arena) {
        let _ = self.0.set(arena);
    }

    /// A buffer of `octets`.
    ///
    /// # Errors
    /// [`StoreError::NoMemory`].
    pub(crate) fn take(&self, octets: usize) -> Result<PageBuffer, StoreError> {
        let taken = match self.0.get() {
            Some(arena) => arena.take(octets),
            None => PageBuffer::unpooled(octets),
        };
        taken.ok_or(StoreError::NoMemory)
    }
}
