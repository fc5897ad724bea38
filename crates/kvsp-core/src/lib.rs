//! The KVSP decisions as state machines without I/O: index, leases, tiers, prefetch, cost, placement and
//! sessions.
//!
//! Time is an argument, never read; nothing here locks, spawns, sleeps or touches a socket.

pub mod descriptors;
pub mod estimate;
pub mod index;
pub mod instances;
pub mod lease;
pub mod placement;
pub mod prefetch;
pub mod reshard;
pub mod session;
pub mod tier;
pub mod time;
