//! An instance with the tiny model among real and hostile peers, over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by a panic")]

mod directives;
mod exact;
mod hanging;
mod leases;
mod liars;
mod sessions;
mod sleep;
mod start;
mod states;
mod support;
