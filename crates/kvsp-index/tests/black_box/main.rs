//! The Index Service as its peers see it: over real sockets, by the texts alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by a panic")]

mod events;
mod lookup;
mod replicas;
mod restart;
mod rights;
mod rows;
mod support;
