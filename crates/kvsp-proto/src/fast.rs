//! Hand-made paths for the few JSON texts that an index reads and writes by the hundred thousand: records,
//! batches, lookups and their answers.
//!
//! A reader here accepts only what it understands wholly: members of the known names and types, plain
//! ASCII strings without escapes, small integers. On anything else it answers `None` and the text goes
//! through [`crate::json`], which alone refuses. A writer produces the octets that serde_json would.
//! `tests.rs` holds both to serde_json on generated input.

pub(crate) mod hex;
mod lookup;
mod reader;
mod record;
mod uri;
pub mod write;

#[cfg(test)]
mod tests;

pub(crate) use lookup::lookup_request;
pub use record::{Batch, batch};
pub(crate) use record::{HolderHint, record};
pub(crate) use uri::is_plainly_normal;
