//! Sessions outlive their instances (draft section 6.8, profile section 7): three machines, one for each party.
//!
//! [`Sessions`] is the controller's: epochs, checkpoints, failover. [`Output`] is the instance's: when to
//! checkpoint and what may be released. [`Delivery`] is the front end's: every index once and in order.

mod controller;
mod delivery;
mod output;

pub use controller::{
    Change, CheckpointHead, Choice, Conflict, Effect, Head, Invalid, NewSession, Outcome, Place, Probe,
    Progress, ResumeOutcome, SEGMENT_TOKENS, SessionError, Sessions, SessionsConfig, Stored, Ticket, Verdict,
};
pub use delivery::{Delivery, Mismatch, Taken};
pub use output::{Due, Finish, Output, OutputConfig, Refusal};
