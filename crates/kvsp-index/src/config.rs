//! Settings of the Index Service.

use kvsp_core::index::IndexConfig;
use kvsp_core::instances::InstancesConfig;
use kvsp_proto::message::Limits;
use serde::Deserialize;

/// Settings of the Index Service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IndexServiceConfig {
    /// Most records and tombstones.
    pub max_records: usize,
    /// Most records and tombstones of one holder.
    pub max_records_per_holder: usize,
    /// Most replicas of one block.
    pub max_replicas_per_block: usize,
    /// Most holders.
    pub max_holders: usize,
    /// Most descriptors.
    pub max_descriptors: usize,
    /// Most instances whose statuses are kept.
    pub max_instances: usize,
    /// The longest TTL granted, in ms.
    pub max_ttl_ms: u64,
    /// Octets of a JSON body.
    pub max_json_octets: u64,
    /// Keys of a lookup.
    pub max_lookup_keys: usize,
    /// Targets of a lookup.
    pub max_lookup_targets: usize,
    /// Items of a batch, puts and deletes together.
    pub max_batch_items: usize,
    /// Octets of a lookup's answer, roughly; a larger one is refused, so that few keys cannot ask for much.
    pub max_answer_octets: u64,
}

impl Default for IndexServiceConfig {
    fn default() -> Self {
        let (index, limits) = (IndexConfig::default(), Limits::default());
        Self {
            max_records: index.max_records,
            max_records_per_holder: index.max_records_per_holder,
            max_replicas_per_block: index.max_replicas_per_block,
            max_holders: index.max_holders,
            max_descriptors: index.max_descriptors,
            max_instances: InstancesConfig::default().max_instances,
            max_ttl_ms: index.max_ttl_ms,
            max_json_octets: limits.max_json_octets,
            max_lookup_keys: 65_536,
            max_lookup_targets: 1024,
            max_batch_items: 10_000,
            max_answer_octets: 512 << 20,
        }
    }
}

impl IndexServiceConfig {
    pub(crate) fn index(&self) -> IndexConfig {
        IndexConfig {
            max_records: self.max_records,
            max_records_per_holder: self.max_records_per_holder,
            max_replicas_per_block: self.max_replicas_per_block,
            max_holders: self.max_holders,
            max_descriptors: self.max_descriptors,
            max_ttl_ms: self.max_ttl_ms,
            ..IndexConfig::default()
        }
    }

    pub(crate) fn instances(&self) -> InstancesConfig {
        InstancesConfig {
            max_instances: self.max_instances,
            max_ttl_ms: self.max_ttl_ms,
            ..InstancesConfig::default()
        }
    }

    /// The limits that the service tells of itself.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            max_json_octets: self.max_json_octets,
            max_lookup_keys: self.max_lookup_keys as u64,
            max_batch_items: self.max_batch_items as u64,
            max_ttl_ms: self.max_ttl_ms,
            ..Limits::default()
        }
    }
}
