//! What every KVSP service shares and none decides: listener, principals, limits, problem responses,
//! graceful stop, metrics, telemetry, clock and randomness.
//!
//! A service binds ([`service::Service::bind`]), so that it knows its own base URI; builds an
//! [`axum::Router`] of handlers; and serves it ([`service::Bound::serve`]). A handler takes, in this order,
//! the [`auth::Caller`], the path ([`extract::PathOf`]) and the unread body ([`extract::RequestBody`]),
//! authorises on the path before it reads the body, and answers `Result<Response, Failure>`: that is the
//! order of checks of the profile's section 3.

pub mod auth;
pub mod clock;
pub mod extract;
mod inbound;
pub mod metrics;
pub mod principal;
pub mod random;
pub mod reply;
pub mod service;
pub mod telemetry;

pub use auth::Caller;
pub use reply::Failure;
