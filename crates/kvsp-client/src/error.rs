//! Why a call failed.

use kvsp_proto::problem::{Problem, ProblemType};

use crate::policy::Denied;
use crate::verify::VerifyError;

/// A call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The peer answered with an error.
    #[error(transparent)]
    Problem(Problem),
    /// The peer could not be reached, or the connection broke before the answer was whole.
    #[error("{host} cannot be reached: {source}")]
    Unreachable {
        /// Host and port.
        host: String,
        /// What happened.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer did not come in time, or stopped coming.
    #[error("{host} did not answer in time")]
    Timeout {
        /// Host and port.
        host: String,
    },
    /// The answer is larger than this client takes.
    #[error("the answer is over the limit of {max} octets")]
    TooLarge {
        /// The limit in octets.
        max: u64,
    },
    /// A block is not what its digests, its record or the request say.
    #[error("verification failed: {0}")]
    Verification(#[from] VerifyError),
    /// The destination policy forbids the URI, or the address that its host resolves to.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The URI is `https`, which this client does not speak yet.
    #[error("{host} asks for https, which is not supported yet")]
    Https {
        /// Host and port.
        host: String,
    },
    /// The holder is a `moqt` publisher, which HTTP does not reach.
    #[error("the holder is not reached by HTTP")]
    NotHttp,
    /// The answer breaks the protocol.
    #[error("the answer breaks the protocol: {0}")]
    Protocol(String),
}

impl ClientError {
    /// Whether the peer answered 404: a cache miss, where a block was asked for (draft section 6.1).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Problem(problem) if problem.status() == 404)
    }

    /// The registered type of the problem that the peer answered.
    #[must_use]
    pub const fn problem_type(&self) -> Option<ProblemType> {
        match self {
            Self::Problem(problem) => problem.problem_type(),
            _ => None,
        }
    }

    /// Whether no answer came: the peer may have acted or not.
    #[must_use]
    pub const fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. })
    }

    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol(what.into())
    }
}
