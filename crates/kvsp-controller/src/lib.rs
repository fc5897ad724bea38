//! The KVSP Placement Controller: a router and a driver around [`kvsp_core::placement`],
//! [`kvsp_core::instances`] and [`kvsp_core::session`] (draft sections 6.3 to 6.5 and 6.8, profile sections 5 to 7).
//!
//! Decisions of this service that the profile leaves open:
//! - A session that cannot be recorded, for want of room in memory or on the device, is 503 `kvsp-overloaded` with
//!   `Retry-After`, and so is a checkpoint: nothing has changed, and the sender tries again.
//! - A checkpoint from a former instance of a session is 409 `kvsp-stale-epoch`, not 403: that is what it has to learn.
//! - `after_epoch` without `wait_ms` is answered at once; a `wait_ms` above 30,000 is cut to it.
//! - `PUT instances/{uri64}/state` answers 200 with the state ordered, also where the instance cannot be
//!   reached: it hears of the order with the answer to its next status. A failed instance takes no order
//!   (409 `kvsp-instance-not-active`).
//! - A block's tokens come from the descriptor registered here or, failing that, at the index; else they are
//!   the largest number that `block_keys` allows, which is exact for a prompt of whole blocks.
//! - An instance whose status lists `compat_ids` (an extension) is a candidate for these only.

mod config;
mod knowledge;
mod lifecycle;
mod maps;
mod metrics;
mod place;
mod routes;
mod service;
mod sessions;
mod tables;

pub use config::{ControllerConfig, GroupSettings, SessionSettings, StartSettings};
pub use service::{Deps, serve};
pub use sessions::StateOpenError;
