//! SHA-256 and HMAC-SHA-256 for KV blocks.
//!
//! - [`sha256`], [`sha256_parts`], [`Sha256`]: one message.
//! - [`Sweep`]: a whole message and each of its segments in one pass, as `Repr-Digest` and layer digests of a
//!   container want them.
//! - [`HmacKey`]: the key taken in once, then many messages, two at a time where there are two.
//!
//! On x86-64 with SHA extensions, found when the program runs, two streams are hashed with their rounds
//! interleaved. Elsewhere, and as the oracle of the tests, the `sha2` crate does the work.

mod constants;
mod hmac;
mod kernel;
mod sha256;
mod stream;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use hmac::{Hmac, HmacKey, HmacMessage};
pub use sha256::{Sha256, Sweep, sha256, sha256_parts};
