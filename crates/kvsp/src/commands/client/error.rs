//! Why a command on services fails, and with which exit status (profile section 10).

use std::io;
use std::path::PathBuf;

use kvsp_client::ClientError;
use kvsp_client::policy::BadEntry;
use kvsp_proto::container::ContainerError;
use kvsp_proto::id::BadIdentifier;
use kvsp_proto::json::JsonError;
use kvsp_proto::record::RecordError;
use kvsp_proto::uri::BaseUri;

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const UNREACHABLE: u8 = 3;
const VERIFICATION: u8 = 4;
/// Exit status of a miss.
pub(super) const MISS: u8 = 5;

/// A command on services failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error("the runtime cannot start: {0}")]
    Runtime(io::Error),
    #[error("no service is named")]
    Unnamed,
    #[error("{0}")]
    Usage(&'static str),
    #[error("--allow: {0}")]
    Allow(#[from] BadEntry),
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot write to stdout: {0}")]
    Stdout(io::Error),
    #[error("{}: {source}", path.display())]
    Container { path: PathBuf, source: ContainerError },
    #[error("{} is not a list of block keys: {source}", path.display())]
    KeysJson { path: PathBuf, source: JsonError },
    #[error("{} is not a list of block keys: {source}", path.display())]
    Keys { path: PathBuf, source: BadIdentifier },
    #[error("{peer}: {source}")]
    Peer { peer: BaseUri, source: ClientError },
    #[error(transparent)]
    Shards(RecordError),
    #[error("{0}")]
    Outcome(String),
    #[error("a miss: {0}")]
    Miss(String),
}

impl CommandError {
    /// The error of a call to `peer`.
    pub(super) fn peer(peer: &BaseUri) -> impl FnOnce(ClientError) -> Self {
        let peer = peer.clone();
        move |source| Self::Peer { peer, source }
    }

    /// The exit status of the profile's section 10.
    pub(super) fn exit_status(&self) -> u8 {
        match self {
            Self::Unnamed | Self::Usage(_) | Self::Allow(_) | Self::Shards(_) => USAGE,
            Self::Container { .. } | Self::Peer { source: ClientError::Verification(_), .. } => VERIFICATION,
            Self::Peer { source, .. } if source.is_unreachable() => UNREACHABLE,
            Self::Miss(_) => MISS,
            _ => FAILED,
        }
    }

    /// Which of several failures is told: what is false before what failed, before what cannot be reached,
    /// before what is merely not there.
    pub(super) fn weight(&self) -> u8 {
        match self.exit_status() {
            VERIFICATION => 3,
            UNREACHABLE => 1,
            MISS => 0,
            _ => 2,
        }
    }
}
