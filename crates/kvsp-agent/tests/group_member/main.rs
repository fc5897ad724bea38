//! An instance as a member of maps: what it holds, loads, gives back and refuses, over real sockets (draft section
//! 6.9, profile section 8).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by a panic")]

mod asking;
mod decisions;
mod fetching;
mod refusals;
mod sources;
#[allow(dead_code, reason = "these tests need a part of what those of single instances do")]
#[path = "../instance/support.rs"]
mod support;
mod team;
