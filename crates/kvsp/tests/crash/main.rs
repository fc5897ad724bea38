//! The program killed with SIGKILL under load, and started again on what it left.
//!
//! `KVSP_CRASH_KILLS` sets how often a holder is killed, `KVSP_CRASH_BLOCKS` how many blocks a restart finds.

#![allow(clippy::unwrap_used, clippy::panic)]

mod filesystem;
mod hammer;
mod holder;
mod index;
mod start;
mod support;
