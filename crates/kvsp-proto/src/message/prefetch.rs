//! Prefetch directives (draft section 6.5).

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::id::{BlockKey, CompatId, ScopeId};
use crate::uri::BaseUri;

/// The order in which layers are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayerOrder {
    /// From layer 0 up.
    #[default]
    Ascending,
}

/// One block to load and where from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectiveBlock {
    /// The block.
    pub block_key: BlockKey,
    /// Holders to try, in order.
    pub sources: Vec<BaseUri>,
}

/// `POST {ii}prefetch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefetchDirective {
    /// The directive.
    #[serde(deserialize_with = "crate::id::uuid")]
    pub directive: Uuid,
    /// Ties the directive to a request.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::json::present")]
    pub request_ref: Option<String>,
    /// The scope of the keys.
    pub scope_id: ScopeId,
    /// The compatibility of the blocks.
    pub compat_id: CompatId,
    /// The blocks in prefix order.
    pub blocks: Vec<DirectiveBlock>,
    /// The order of layers.
    #[serde(default)]
    pub layer_order: LayerOrder,
    /// ms after which loading stops and the directive is `partial`.
    pub deadline_ms: u64,
    /// TTL of the leases at the sources, in ms.
    pub lease_ms: u64,
}

/// How far a directive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DirectiveState {
    /// Loading goes on.
    Pending,
    /// Ended with some blocks loaded.
    Partial,
    /// All blocks are loaded.
    Complete,
    /// Ended with no block loaded.
    Failed,
}

/// Why a block was not loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureReason {
    /// The index has no record of a source.
    NoRecord,
    /// No source holds it.
    NotFound,
    /// No source could be reached in time.
    Unreachable,
    /// Octets did not match their digests.
    DigestMismatch,
    /// The container contradicts the instance's descriptor.
    ContainerMismatch,
    /// The deadline passed first.
    Deadline,
    /// The directive was cancelled.
    Cancelled,
    /// The instance has no room.
    StorageFull,
    /// Policy forbids every source.
    SourceForbidden,
}

/// A block that was not loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedBlock {
    /// The block.
    pub block_key: BlockKey,
    /// Why.
    pub reason: FailureReason,
}

/// `GET` of a directive's status resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectiveStatus {
    /// The directive.
    pub directive: Uuid,
    /// How far it is.
    pub state: DirectiveState,
    /// Blocks loaded, in prefix order.
    pub loaded: Vec<BlockKey>,
    /// Blocks not loaded, in prefix order.
    pub failed: Vec<FailedBlock>,
}
