//! The Index Service's bodies (draft sections 6.1 and 6.2, profile section 5).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fast;
use crate::id::{BlockKey, CompatId, ScopeId};
use crate::json::{self, JsonError};
use crate::problem::BatchItem;
use crate::record::ReplicaRecord;
use crate::uri::{BaseUri, HolderUri};

/// How much of the records a lookup answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Detail {
    /// Whole records.
    #[default]
    Full,
    /// Records without `layer_digests`.
    Location,
    /// No `blocks`.
    None,
}

/// `POST {is}lookup`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LookupRequest {
    /// The scope of the keys.
    pub scope_id: ScopeId,
    /// The compatibility asked for.
    pub compat_id: CompatId,
    /// Block keys in prefix order.
    pub block_keys: Vec<BlockKey>,
    /// Instances for which estimates are wanted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<BaseUri>,
    /// How much to answer.
    #[serde(default)]
    pub detail: Detail,
    /// Tokens of a block, for `recompute_us` where no descriptor is registered.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::json::present")]
    pub block_tokens: Option<u32>,
}

impl LookupRequest {
    /// Reads a request from I-JSON.
    ///
    /// # Errors
    /// Every [`JsonError`].
    pub fn from_json(body: &[u8]) -> Result<Self, JsonError> {
        fast::lookup_request(body).map_or_else(|| json::from_slice(body), Ok)
    }
}

/// The replicas of one matched block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LookupBlock {
    /// The block.
    pub block_key: BlockKey,
    /// Its live replicas, ordered by holder.
    pub replicas: Vec<Arc<ReplicaRecord>>,
}

/// Estimates for one target; a member that cannot be computed is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetEstimate {
    /// The instance.
    pub instance: BaseUri,
    /// µs to make the complete blocks resident there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch_us: Option<u64>,
    /// µs to prefill the same tokens there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recompute_us: Option<u64>,
}

/// The answer to a lookup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LookupAnswer {
    /// Leading keys with at least one live replica.
    pub matched: u64,
    /// Leading keys whose live replicas of one digest and codec hold every layer together.
    pub complete: u64,
    /// The matched blocks, unless `detail` is `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<Vec<LookupBlock>>,
    /// One estimate a target, where targets were given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<Vec<TargetEstimate>>,
}

/// `GET {is}replicas/{compat}/{scope}/{block_key}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplicaList {
    /// Live replicas, ordered by holder.
    pub replicas: Vec<Arc<ReplicaRecord>>,
}

/// The answer to a PUT of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TtlAnswer {
    /// The TTL granted, in ms.
    pub ttl_ms: u64,
}

/// Names one replica in a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaName {
    /// Its compatibility.
    pub compat_id: CompatId,
    /// Its scope.
    pub scope_id: ScopeId,
    /// Its block.
    pub block_key: BlockKey,
    /// Its holder.
    pub holder: HolderUri,
    /// Orders the withdrawal among the replica's records.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::json::present")]
    pub seq: Option<u64>,
}

/// `POST {is}replicas`; items are judged one by one, so they stay JSON values here.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct BatchRequest {
    /// Replica Records.
    #[serde(default)]
    pub put: Vec<Value>,
    /// [`ReplicaName`]s.
    #[serde(default)]
    pub delete: Vec<Value>,
}

/// The answer to a batch, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchAnswer {
    /// One item a record.
    pub put: Vec<BatchItem>,
    /// One item a name.
    pub delete: Vec<BatchItem>,
}
