//! A streamed answer whose instance is struck in the middle, as its client sees it, and what happens meanwhile:
//! for the demo's second act and for `kvsp bench failover`.

mod events;
mod stream;
mod strike;

use kvsp_client::ClientError;

pub(crate) use stream::{Event, Heard, Question, Stream, listen};
pub(crate) use strike::{Stage, Strike, Struck};

use super::fleet::FleetError;

/// Why a failover could not be watched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FailoverError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error("the gateway answered {status}: {body}")]
    Gateway { status: u16, body: String },
    #[error("an answer cannot be read: {0}")]
    Answer(String),
    #[error("the gateway made no session for the request")]
    NoSession,
    #[error("the answer ended before its instance was struck, or without need of another")]
    TooLate,
    #[error("the session failed: {0}")]
    Failed(String),
}
