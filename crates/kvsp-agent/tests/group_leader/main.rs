//! Contexts split over three instances of the tiny model, led by one of them, under a controller that does what the
//! test has it do: over real sockets (draft section 6.9, profile section 8).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by a panic")]

mod answers;
mod desk;
mod inputs;
mod losses;
mod oracle;
mod reshards;
#[allow(dead_code, reason = "these tests need a part of what those of single instances do")]
#[path = "../instance/support.rs"]
mod support;
mod team;
