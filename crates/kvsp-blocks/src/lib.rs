//! The blocks of a holder or an instance: the block, lease and descriptor resources, the tiers behind them,
//! and the publisher that keeps the index truthful.
//!
//! Where there is a disk tier it is the home of every block: a PUT is acknowledged once its file is durable,
//! and host memory is a cache that a block can leave and stay held. An object store below a disk takes what is
//! cold there; without a disk it is the home. Without either, host memory is. What goes where is decided by
//! [`kvsp_core::tier::Holdings`]; this crate carries it out and reports back.
//!
//! All octets of blocks in memory, held, coming in, brought in from below or still being sent, are buffers of one
//! arena, whose cap is the sum of those of host memory, of the bodies of PUTs, of reads and of what is kept in
//! other codecs. A read for which it has no room waits, and is refused then; no tier reads into other memory.
//! Beside it are only what a few computations of other codecs work on at once, and headers of containers.
//!
//! Leases live in memory, and until when they last at most is kept on disk. What they protected outlives them
//! therefore: after a restart, no block of the earlier process is evicted or deleted before that.
//!
//! Records carry a `seq` that rises over restarts and a `holder_epoch`, the start of the process in ms since
//! the Unix epoch; with a disk tier the highest epoch is kept there, so that a wall clock that was set back
//! changes nothing.

mod background;
mod config;
mod digests;
mod find;
mod ingest;
mod keep;
mod lease_horizon;
mod local;
mod metrics;
mod problems;
mod publish;
mod represent;
mod residency;
mod room;
mod routes;
mod scrub;
mod service;
mod state;
mod tiers;
mod transcode;

pub use config::{BlocksConfig, Demotion, DiskTier, Eviction, ObjectTier, ScopeFloor};
pub use routes::EXTENSIONS;
pub use service::{BlockService, BlocksDeps, PutOutcome, Usage};
pub use tiers::Stores;
