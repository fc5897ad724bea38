//! What goes wrong around a holder: an index that is away, a device that is full, and clocks.

#![allow(clippy::unwrap_used, clippy::panic)]

mod away;
mod clock;
#[path = "../crash/filesystem.rs"]
mod filesystem;
mod full;
#[path = "../crash/support.rs"]
mod support;
