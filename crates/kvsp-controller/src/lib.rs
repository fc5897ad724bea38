//! The KVSP Placement Controller: a router and a driver around [`kvsp_core::placement`] and
//! [`kvsp_core::instances`] (draft sections 6.3 to 6.5, profile sections 5 and 6).
//!
//! Decisions of this service that the profile leaves open:
//! - There are no sessions yet. A placement with `"session": true` is placed like any other and its answer
//!   has no member `session`: a caller sees that it got none. `continuation` is checked for its size only.
//! - `PUT instances/{uri64}/state` answers 200 with the state ordered, also where the instance cannot be
//!   reached: it hears of the order with the answer to its next status. A failed instance takes no order
//!   (409 `kvsp-instance-not-active`).
//! - A block's tokens come from the descriptor registered here or, failing that, at the index; else they are
//!   the largest number that `block_keys` allows, which is exact for a prompt of whole blocks.
//! - An instance whose status lists `compat_ids` (an extension) is a candidate for these only.

mod config;
mod knowledge;
mod metrics;
mod place;
mod routes;
mod service;

pub use config::ControllerConfig;
pub use service::{ControllerService, Deps, serve};
