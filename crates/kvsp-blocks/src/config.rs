//! What an operator decides about blocks.

use std::path::PathBuf;

use kvsp_core::tier::{EvictionPolicy, LeastRecentlyUsed, TinyLfu};
use kvsp_proto::message::Limits;
use kvsp_proto::uri::BaseUri;
use kvsp_store::BlockName;
use serde::Deserialize;

/// Settings of a [`BlockService`](crate::BlockService).
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BlocksConfig {
    /// Octets of host memory for blocks; 0 for none.
    pub host_octets: u64,
    /// Megabits per second at which host memory is read, for the records; absent where it does not matter.
    pub host_read_mbit_per_s: Option<f64>,
    /// The disk tier; absent for none. Where there is one it is the home of every block, and host memory a
    /// cache of it.
    pub disk: Option<DiskTier>,
    /// Which block goes first where room is needed, in every tier.
    pub eviction: Eviction,
    /// The Index Service to publish to; absent to publish nowhere.
    pub index: Option<BaseUri>,
    /// TTL asked for replica records, in ms.
    pub replica_ttl_ms: u64,
    /// Octets of distinct blocks that one principal may have under lease; absent for a quarter of the home
    /// tier.
    pub lease_quota_octets: Option<u64>,
    /// Leases that one principal may have at once.
    pub max_leases: usize,
    /// Octets of the bodies of PUTs in flight, all together.
    pub ingest_octets: u64,
    /// How long a PUT waits for room among the bodies in flight, in ms.
    pub ingest_wait_ms: u64,
    /// Descriptors that may be registered.
    pub max_descriptors: usize,
    /// Most layers of a container.
    pub max_layers: u32,
    /// What the root document states.
    pub limits: Limits,
}

/// Settings of the disk tier.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskTier {
    /// The directory; one process at a time uses it.
    pub dir: PathBuf,
    /// Octets of files; a sixteenth of them is set aside for rotten files.
    pub octets: u64,
    /// Megabits per second at which it is read, for the records.
    #[serde(default)]
    pub read_mbit_per_s: Option<f64>,
}

/// Which block goes first where room is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// The one that was not used for longest.
    Lru,
    /// By recency and frequency, so that blocks that are used once do not drive out the others. The default,
    /// because on every recorded trace that `kvsp replay` was tried on it has at least the hits of the other.
    #[default]
    TinyLfu,
}

impl Eviction {
    /// A policy for one tier.
    pub(crate) fn policy(self) -> Box<dyn EvictionPolicy<BlockName>> {
        match self {
            Self::Lru => Box::<LeastRecentlyUsed<BlockName>>::default(),
            Self::TinyLfu => Box::<TinyLfu<BlockName>>::default(),
        }
    }
}

impl Default for BlocksConfig {
    fn default() -> Self {
        Self {
            host_octets: 4 << 30,
            host_read_mbit_per_s: None,
            disk: None,
            eviction: Eviction::default(),
            index: None,
            replica_ttl_ms: 600_000,
            lease_quota_octets: None,
            max_leases: 10_000,
            ingest_octets: 1 << 30,
            ingest_wait_ms: 5_000,
            max_descriptors: 1024,
            max_layers: 4096,
            limits: Limits::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eviction(text: &str) -> Option<Eviction> {
        serde_json::from_str::<BlocksConfig>(text).ok().map(|config| config.eviction)
    }

    #[test]
    fn the_policy_is_chosen_by_name() {
        assert_eq!(eviction("{}"), Some(Eviction::TinyLfu));
        assert_eq!(eviction(r#"{"eviction": "lru"}"#), Some(Eviction::Lru));
        assert_eq!(eviction(r#"{"eviction": "tiny-lfu"}"#), Some(Eviction::TinyLfu));
        assert_eq!(eviction(r#"{"eviction": "random"}"#), None);
    }
}
