//! Sessions that outlive what serves them: real processes are killed, stopped, cut off and started again in the
//! middle of an answer, and the client's text is, token by token, the one that nothing interrupted.
//!
//! `KVSP_SESSION_KILLS` sets how many instances are killed at checkpoints, and as many between them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by a panic")]

mod answers;
mod cast;
mod command;
mod controller;
mod gateway;
mod instance;
mod lost;
mod relay;
mod stopped;
mod stream;
#[path = "../fleet/support.rs"]
mod support;
