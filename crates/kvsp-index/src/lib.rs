//! The KVSP Index Service: a router and a driver around [`kvsp_core::index`] (profile section 5).
//!
//! Decisions of this service that the profile leaves open: a record beyond a limit (of the service, of
//! its holder or of its block) is refused with 507 `kvsp-storage-full`, because a live record of another
//! is never dropped for it; a `seq` in a query that is no unsigned integer is 400 `kvsp-bad-identifier`;
//! the answer to a status is the state that it reports, because states are for the controller to decide.
//!
//! Beside the profile it offers the extension `events`, a feed of its changes, and it goes on after a restart
//! from a snapshot, where [`IndexServiceConfig::snapshot_path`] says where that lies.

mod config;
mod feed;
mod metrics;
mod persist;
mod routes;
mod service;
mod snapshot;

pub use config::{IndexServiceConfig, WhenFull};
pub use service::{Deps, IndexService, serve};
