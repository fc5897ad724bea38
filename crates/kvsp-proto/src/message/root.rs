//! `GET {base}`: what a service is (profile section 5).

use serde::{Deserialize, Serialize};

/// The limits that a service enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Octets of a JSON body.
    pub max_json_octets: u64,
    /// Octets of a container.
    pub max_container_octets: u64,
    /// Keys of a lookup, a lease or a directive.
    pub max_lookup_keys: u64,
    /// Items of a batch, puts and deletes together.
    pub max_batch_items: u64,
    /// TTL of a record in ms.
    pub max_ttl_ms: u64,
    /// TTL of a lease in ms.
    pub max_lease_ttl_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_json_octets: 32 << 20,
            max_container_octets: 256 << 20,
            max_lookup_keys: 65_536,
            max_batch_items: 10_000,
            max_ttl_ms: 3_600_000,
            max_lease_ttl_ms: 300_000,
        }
    }
}

/// The answer to `GET {base}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRoot {
    /// The profile's version.
    pub kvsp: u32,
    /// `index`, `holder`, `controller`, `instance`, `gateway`.
    pub roles: Vec<String>,
    /// Names of the extensions offered.
    pub extensions: Vec<String>,
    /// The limits.
    pub limits: Limits,
}
