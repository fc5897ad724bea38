//! Lease bodies (draft section 6.6, profile section 5).

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::id::{BlockKey, CompatId, ScopeId};

/// `POST {h}leases`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// The compatibility of the blocks.
    pub compat_id: CompatId,
    /// Their scope.
    pub scope_id: ScopeId,
    /// The blocks.
    pub block_keys: Vec<BlockKey>,
    /// The TTL asked for, in ms.
    pub ttl_ms: u64,
}

/// `PUT {h}leases/{id}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewRequest {
    /// The TTL asked for, in ms from now.
    pub ttl_ms: u64,
}

/// The answer to the creation, renewal and reading of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAnswer {
    /// The lease.
    pub lease: Uuid,
    /// The TTL granted, or what remains of it, in ms.
    pub ttl_ms: u64,
    /// The blocks that the lease covers.
    #[serde(default)]
    pub block_keys: Vec<BlockKey>,
    /// The blocks asked for that are not held.
    #[serde(default)]
    pub missing: Vec<BlockKey>,
}
