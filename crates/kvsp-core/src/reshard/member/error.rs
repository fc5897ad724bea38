//! Why a member refuses, and the problem type of each reason.

use kvsp_proto::problem::{Problem, ProblemType};

/// A message on a map is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// No such map here (`kvsp-map-unknown`).
    #[error("no such map here")]
    Unknown,
    /// Another version holds here, or what it leads to has been decided otherwise (`kvsp-reshard-conflict`).
    #[error("version {version} holds here, and the message does not follow from it")]
    Conflict {
        /// The version.
        version: u64,
    },
    /// The leader's epoch is over (`kvsp-stale-epoch`).
    #[error("a leader of epoch {known} has opened the context")]
    StaleEpoch {
        /// The highest epoch seen.
        known: u64,
    },
    /// The ranges are not ours in that version (`kvsp-invalid-shard-map`).
    #[error("the ranges are not those of this instance in that version")]
    Invalid,
    /// As many maps as there may be (`kvsp-overloaded`).
    #[error("the instance takes part in as many maps as it may")]
    Full,
}

impl From<MemberError> for Problem {
    fn from(error: MemberError) -> Self {
        let detail = error.to_string();
        match error {
            MemberError::Unknown => Self::new(ProblemType::MapUnknown, detail),
            MemberError::Conflict { version } => {
                Self::new(ProblemType::ReshardConflict, detail).with("version", version)
            }
            MemberError::StaleEpoch { known } => {
                Self::new(ProblemType::StaleEpoch, detail).with("epoch", known)
            }
            MemberError::Invalid => Self::new(ProblemType::InvalidShardMap, detail),
            MemberError::Full => Self::new(ProblemType::Overloaded, detail).retry_after(1),
        }
    }
}
