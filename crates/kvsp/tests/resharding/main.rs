//! Contexts that are split over real processes, which are killed in the middle of a change of the split or answer too
//! late: no range is lost, and the text is the one that nothing interrupted.
//!
//! `KVSP_RESHARD_KILLS` sets how many processes are killed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by a panic")]

mod aborts;
mod cast;
mod group;
mod kills;
mod late;
mod octets;
mod oracle;
mod policy;
mod relay;
#[allow(dead_code, reason = "each suite uses its part")]
#[path = "../sessions/stream.rs"]
mod stream;
#[path = "../fleet/support.rs"]
mod support;
