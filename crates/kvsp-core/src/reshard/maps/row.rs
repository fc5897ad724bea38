//! What of a map is on stable storage.

use kvsp_proto::id::{CompatId, ScopeId};
use kvsp_proto::message::{MapId, Shard, TokenRange};
use kvsp_proto::uri::BaseUri;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its identifier.
    pub map: MapId,
    /// The compatibility of the context's K and V.
    pub compat_id: CompatId,
    /// Its scope.
    pub scope_id: ScopeId,
    /// The session whose end is the map's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Uuid>,
    /// The version that holds.
    pub version: u64,
    /// The number of the plan that led to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// Its shards.
    pub shards: Vec<Shard>,
    /// Starts of instances whose memory counts.
    #[serde(default)]
    pub members: Vec<MemberRow>,
    /// Copies that former owners were told to keep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spare: Vec<Spare>,
    /// The highest number of a plan.
    #[serde(default)]
    pub attempts: u64,
    /// A change under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanRow>,
    /// Nobody sees it any more; its members are being told.
    #[serde(default)]
    pub ended: bool,
}

/// A copy beside the shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spare {
    /// Positions.
    pub tokens: TokenRange,
    /// Who keeps it.
    pub instance: BaseUri,
    /// The epoch of its start; 0 where it has not reported.
    pub epoch: u64,
    /// The TTL of its status in ms.
    pub ttl_ms: u64,
}

impl Spare {
    pub(super) fn shard(&self) -> Shard {
        Shard { tokens: self.tokens, instance: self.instance.clone() }
    }
}

/// One start of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRow {
    /// The instance.
    pub instance: BaseUri,
    /// The epoch of its start; 0 where it has not reported.
    pub epoch: u64,
    /// The TTL of its status in ms: after a restart of the controller it has so long to report.
    pub ttl_ms: u64,
}

/// A change of a map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRow {
    /// Its number.
    pub attempt: u64,
    /// The version that it leads to.
    pub to: u64,
    /// The shards of the version before.
    pub former: Vec<Shard>,
    /// The shards of the version that it leads to.
    pub shards: Vec<Shard>,
    /// Who is to hear of it, ordered by URI.
    pub members: Vec<BaseUri>,
    /// ms within which all must have acknowledged.
    pub deadline_ms: u64,
    /// What was decided. It is decided once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
}

/// How a change ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// The next version holds.
    Commit,
    /// The version before holds.
    Abort,
}
