//! Settings of the Index Service.

use std::path::PathBuf;

use kvsp_core::index::{self, IndexConfig};
use kvsp_core::instances::InstancesConfig;
use kvsp_proto::message::Limits;
use serde::Deserialize;

/// What happens to a record for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// It is refused: no holder's records are dropped for another's.
    #[default]
    Refuse,
    /// The record whose TTL ends first makes room for it.
    OldestExpiryFirst,
}

/// Settings of the Index Service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IndexServiceConfig {
    /// Most records and tombstones.
    pub max_records: usize,
    /// Most octets of memory that the index takes; see [`WhenFull`] and `max_scope_percent`.
    pub max_octets: u64,
    /// What happens to a record for which `max_records` or `max_octets` leaves no room.
    pub when_full: WhenFull,
    /// The most of `max_octets`, in percent, that the records of one scope may take.
    pub max_scope_percent: Option<u8>,
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
    /// Changes kept for those who follow the feed; who falls further behind is told to start anew.
    pub max_changes: usize,
    /// Most followers of the feed.
    pub max_subscribers: usize,
    /// ms of silence after which a follower is sent a comment.
    pub event_keep_alive_ms: u64,
    /// ms after which a follower's stream ends, so that its rights are looked at again; it goes on with
    /// another one.
    pub max_event_stream_ms: u64,
    /// Where the index is written down for the next process; `None`: it starts empty each time.
    pub snapshot_path: Option<PathBuf>,
    /// ms from the end of one snapshot to the next.
    pub snapshot_every_ms: u64,
    /// Octets of a snapshot; a larger one is not written.
    pub max_snapshot_octets: u64,
}

impl Default for IndexServiceConfig {
    fn default() -> Self {
        let (index, limits) = (IndexConfig::default(), Limits::default());
        Self {
            max_records: index.max_records,
            max_octets: index.max_octets,
            when_full: WhenFull::default(),
            max_scope_percent: index.max_scope_percent,
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
            max_changes: index.max_changes,
            max_subscribers: 256,
            event_keep_alive_ms: 5_000,
            max_event_stream_ms: 3_600_000,
            snapshot_path: None,
            snapshot_every_ms: 60_000,
            max_snapshot_octets: 16 << 30,
        }
    }
}

impl IndexServiceConfig {
    pub(crate) fn index(&self) -> IndexConfig {
        IndexConfig {
            max_records: self.max_records,
            max_octets: self.max_octets,
            when_full: match self.when_full {
                WhenFull::Refuse => index::WhenFull::Refuse,
                WhenFull::OldestExpiryFirst => index::WhenFull::OldestExpiryFirst,
            },
            max_scope_percent: self.max_scope_percent,
            max_records_per_holder: self.max_records_per_holder,
            max_replicas_per_block: self.max_replicas_per_block,
            max_holders: self.max_holders,
            max_descriptors: self.max_descriptors,
            max_ttl_ms: self.max_ttl_ms,
            max_changes: self.max_changes,
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
