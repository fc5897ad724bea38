//! The `kvsp` program as its users have it: processes, signals, the command line, and the OpenAI API.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by a panic")]

mod demo;
mod failures;
mod gateway;
mod openai;
mod serve;
mod support;
