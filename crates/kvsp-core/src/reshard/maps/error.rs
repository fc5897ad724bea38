//! Why a request on a map is refused, and the problem type of each reason.

use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::uri::BaseUri;

/// A request on a map is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// No such map (`kvsp-map-unknown`).
    #[error("no such map, or it has ended")]
    Unknown,
    /// The shards are no split of the map's range (`kvsp-invalid-shard-map`).
    #[error("the shards are no split of the map's tokens")]
    Invalid,
    /// It exists, with other shards (`kvsp-reshard-conflict`).
    #[error("the map exists, at version {version}, and is another one")]
    Exists {
        /// The version that holds.
        version: u64,
    },
    /// Another version holds than the one to begin from (`kvsp-reshard-conflict`).
    #[error("version {version} holds")]
    Version {
        /// The version that holds.
        version: u64,
    },
    /// A change is under way (`kvsp-reshard-conflict`).
    #[error("a change to version {to} is under way")]
    Pending {
        /// The version that it leads to.
        to: u64,
    },
    /// An instance of the split has failed (`kvsp-instance-not-active`).
    #[error("{instance} has failed")]
    Failed {
        /// The instance.
        instance: BaseUri,
    },
    /// No room for it (`kvsp-overloaded`).
    #[error("the controller holds as many maps as it may")]
    Full,
}

impl From<MapError> for Problem {
    fn from(error: MapError) -> Self {
        let detail = error.to_string();
        match error {
            MapError::Unknown => Self::new(ProblemType::MapUnknown, detail),
            MapError::Invalid => Self::new(ProblemType::InvalidShardMap, detail),
            MapError::Exists { version } | MapError::Version { version } => {
                Self::new(ProblemType::ReshardConflict, detail).with("version", version)
            }
            MapError::Pending { to } => Self::new(ProblemType::ReshardConflict, detail).with("to", to),
            MapError::Failed { .. } => Self::new(ProblemType::InstanceNotActive, detail),
            MapError::Full => Self::new(ProblemType::Overloaded, detail).retry_after(1),
        }
    }
}
