//! Buffers for KV blocks: page-aligned, counted against a hard cap, and reused without a page fault.
//!
//! An [`Arena`] hands out [`PageBuffer`]s of at most its cap together. A buffer is filled, then
//! [frozen](PageBuffer::freeze) into [`Bytes`](bytes::Bytes) without copying; what it occupies is counted until
//! the last of those goes. Buffers from 128 KiB are mappings of their own, from 2 MiB on with huge pages where the system gives
//! them. A freed mapping is kept for the next buffer of its size, and given back to the system before a buffer
//! is refused: whatever sizes come and go, the system has lent at most the cap, and a buffer that fits beside
//! those in use is there. Nothing is ever cut into pieces, so nothing fragments.

mod arena;
mod page_buffer;
mod region;

pub use arena::Arena;
pub use page_buffer::PageBuffer;

/// What a buffer of `octets` counts against the cap of an [`Arena`]: whole pages, below one page whole lines of
/// 64 octets. `u64::MAX` for what no address space has.
#[must_use]
pub fn footprint(octets: usize) -> u64 {
    region::occupied(octets).map_or(u64::MAX, |octets| octets as u64)
}
