//! Why a measurement could not be made.

use kvsp_client::ClientError;

use crate::commands::failover::FailoverError;
use crate::commands::fleet::{ChangeError, FleetError};

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum BenchError {
    #[error("{what}: {source}")]
    Io { what: &'static str, source: std::io::Error },
    #[error("{what}: {source}")]
    System { what: &'static str, source: nix::Error },
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the generated block is not a container: {0}")]
    Container(#[from] kvsp_proto::container::Malformed),
    #[error("{0} ended before it should")]
    Ended(&'static str),
    #[error("{0}: the two ways do not agree")]
    Differ(&'static str),
    #[error("{what} answered status {status}: {text}")]
    Status { what: &'static str, status: u16, text: String },
    #[error("{0} answered what cannot be read")]
    Answer(&'static str),
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error(transparent)]
    Failover(#[from] FailoverError),
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error("{0} did not come to be what it should in time")]
    Late(&'static str),
    #[error("no memory for a buffer")]
    Memory,
}

impl BenchError {
    /// For `map_err` of what the standard library does.
    pub(super) fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// For `map_err` of system calls.
    pub(super) fn system(what: &'static str) -> impl FnOnce(nix::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
