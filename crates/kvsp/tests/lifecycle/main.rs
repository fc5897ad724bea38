//! Instances that drain, sleep and wake, and that are started when there is need of them: real processes and the
//! operator's commands, while answers go on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends by a panic")]

#[allow(dead_code, reason = "each suite uses its part")]
#[path = "../resharding/cast.rs"]
mod cast;
mod command;
mod epochs;
#[allow(dead_code, reason = "each suite uses its part")]
#[path = "../resharding/relay.rs"]
mod relay;
mod rolling;
mod sleep;
mod start;
#[allow(dead_code, reason = "each suite uses its part")]
#[path = "../sessions/stream.rs"]
mod stream;
#[path = "../fleet/support.rs"]
mod support;
