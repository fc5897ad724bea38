//! The controller's side.

mod api;
mod change;
mod config;
mod error;

pub use api::{Choice, Effect, NewSession, Outcome, Place, Probe, ResumeOutcome, Verdict};
pub use change::{Change, CheckpointHead, Head, Progress, SEGMENT_TOKENS, Stored, Ticket};
pub use config::SessionsConfig;
pub use error::{Conflict, Invalid, SessionError};
