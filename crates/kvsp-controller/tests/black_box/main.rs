//! The Placement Controller as its peers see it: over real sockets, by the texts alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by a panic")]

mod instance;
mod instances;
mod lifecycle;
mod maps;
mod peer;
mod placements;
mod sessions;
mod support;
