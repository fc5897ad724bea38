//! The gateway's sessions over real sockets: a controller and instances of the tests' own making, which lose
//! streams, repeat themselves, wake up late or go away when they are told to.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by a panic")]

mod clients;
mod controller;
mod ends;
mod failover;
mod instance;
mod random;
mod restart;
mod start;
mod support;
