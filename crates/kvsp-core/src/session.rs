//! Sessions outlive their instances (draft section 6.8, profile section 7): three machines, one for each party.
//!
//! The controller's machine has epochs, checkpoints and failover. [`Output`] is the instance's: when to
//! checkpoint and what may be released. [`Delivery`] is the front end's: every index once and in order.

mod controller;
mod delivery;
mod output;

pub use controller::{
    Change, CheckpointHead, Choice, Conflict, Effect, Head, Invalid, NewSession, Outcome, Place, Probe,
    Progress, ResumeOutcome, SEGMENT_TOKENS, SessionError, SessionsConfig, Stored, Ticket, Verdict,
};
pub use delivery::{Delivery, Mismatch, Taken};
pub use output::{Due, Finish, Output, OutputConfig, Refusal};
