//! What the tests of KVSP share: generators of descriptors, keys, containers and records, a hostile holder,
//! and services run for the length of a test. Everything is deterministic in its seed.
//!
//! What cannot be made fails the test by a panic; no other crate than a test depends on this one.
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

pub mod generate;
pub mod hostile;
pub mod run;

pub use generate::{Geometry, Prefix};
pub use hostile::{Behaviour, Hostile};
pub use run::{Running, TestService};
