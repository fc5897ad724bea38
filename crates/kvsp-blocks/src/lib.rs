//! The blocks of a holder or an instance: the block, lease and descriptor resources, the tiers behind them,
//! and the publisher that keeps the index truthful.
//!
//! Where there is a disk tier it is the home of every block: a PUT is acknowledged once its file is durable,
//! and host memory is a cache that a block can leave and stay held. Without one, host memory is the home.
//!
//! Leases live in memory. What they protected outlives them all the same: after a restart, no block of the
//! earlier process is evicted until the longest TTL of a lease has passed.
//!
//! Records carry a `seq` that rises over restarts and a `holder_epoch`, the start of the process in ms since
//! the Unix epoch; with a disk tier the highest epoch is kept there, so that a wall clock that was set back
//! changes nothing.

mod config;
mod digests;
mod ingest;
mod local;
mod metrics;
mod problems;
mod publish;
mod represent;
mod routes;
mod service;
mod state;

pub use config::{BlocksConfig, DiskTier, Eviction};
pub use routes::EXTENSIONS;
pub use service::{BlockService, BlocksDeps, PutOutcome, Usage};
