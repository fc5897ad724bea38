//! The records of draft section 4.4. Unknown members are ignored.

mod checkpoint;
mod replica;
mod status;

pub use checkpoint::{SamplerState, SessionCheckpoint};
pub use replica::{LayerSpan, MAX_LAYERS, ReplicaRecord, Residency};
pub use status::{InstanceState, InstanceStatus, Link, MAX_LINKS};

use crate::json::JsonError;
use crate::problem::{Problem, ProblemType};

/// Why a JSON text is not a valid record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not I-JSON, a member missing or of the wrong type, or a malformed identifier.
    #[error(transparent)]
    Json(JsonError),
    /// Well-formed, but false; the text names the member.
    #[error("{0}")]
    Invalid(String),
}

impl From<JsonError> for RecordError {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::Unregistered(what) => Self::Invalid(what),
            error => Self::Json(error),
        }
    }
}

impl RecordError {
    fn invalid(text: impl Into<String>) -> Self {
        Self::Invalid(text.into())
    }

    /// The problem of this error, `invalid` standing for what is well-formed but false.
    #[must_use]
    pub fn into_problem(self, invalid: ProblemType) -> Problem {
        match self {
            Self::Json(error) => error.into(),
            Self::Invalid(detail) => Problem::new(invalid, detail),
        }
    }
}
