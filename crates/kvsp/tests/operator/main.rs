//! What an operator does with a fleet that runs: drain, sleep, wake, look, and split contexts anew.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by a panic")]

mod cast;
mod drain;
mod maps;
mod sleep;
#[path = "../sessions/stream.rs"]
#[allow(dead_code, reason = "another suite uses the rest")]
mod stream;
#[path = "../fleet/support.rs"]
mod support;
