//! Bounds of the index, and why it refuses.

use kvsp_proto::problem::{Problem, ProblemType};

use crate::descriptors::GeometryError;

/// Bounds of an [`Index`](super::Index).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexConfig {
    /// Most records and tombstones together.
    pub max_records: usize,
    /// Most records and tombstones of one holder; memory of `seq` that makes way for records is not counted.
    pub max_records_per_holder: usize,
    /// Most records of one block; the chain of a block is walked on every write to it.
    pub max_replicas_per_block: usize,
    /// Most ranges in the `residency` of a record.
    pub max_residency_ranges: usize,
    /// Most holders, those without records whose epoch is still remembered among them.
    pub max_holders: usize,
    /// Most descriptors.
    pub max_descriptors: usize,
    /// The longest TTL granted, in ms; also how long the `seq` of a record that ended, or the epoch of a
    /// holder without records, is remembered.
    pub max_ttl_ms: u64,
    /// Changes kept for readers of the feed.
    pub max_changes: usize,
    /// Most octets of memory in use ([`Index::octets`](super::Index::octets)).
    pub max_octets: u64,
    /// What happens to a record for which `max_records` or `max_octets` leaves no room.
    pub when_full: WhenFull,
    /// The most of `max_octets`, in percent, that the records of one scope may take; what goes beyond is
    /// refused, whatever `when_full` says, so that a scope does not displace the records of others.
    pub max_scope_percent: Option<u8>,
}

/// What happens where the index is full. Expired records and memory of `seq` that yields go first always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// The new record is refused: an index that dropped live records would turn hits of one holder into
    /// misses of another.
    #[default]
    Refuse,
    /// The record whose TTL ends first is dropped. The wheel of deadlines is searched up to a bound, so it
    /// may be one that ends nearly first; holders that refresh in time keep their records longest.
    OldestExpiryFirst,
}

impl Default for IndexConfig {
    fn default() -> Self {
        Self {
            max_records: 4_000_000,
            max_records_per_holder: 2_000_000,
            max_replicas_per_block: 256,
            max_residency_ranges: 256,
            max_holders: 65_536,
            max_descriptors: 1024,
            max_ttl_ms: 3_600_000,
            max_changes: 65_536,
            max_octets: 8 << 30,
            when_full: WhenFull::Refuse,
            max_scope_percent: None,
        }
    }
}

/// Who publishes: only the holder itself raises its `holder_epoch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Publisher {
    /// The holder named in the record.
    Holder,
    /// Another principal that acts on its behalf.
    Delegate,
}

/// A record was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Whether there was no live record of this replica before.
    pub created: bool,
    /// The TTL granted, in ms.
    pub ttl_ms: u64,
}

/// A record or a withdrawal is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// The record contradicts the registered descriptor (`kvsp-invalid-record`).
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Over [`IndexConfig::max_residency_ranges`] (`kvsp-limit-exceeded`).
    #[error("member residency has over {max} ranges")]
    TooManyRanges {
        /// The limit.
        max: usize,
    },
    /// A `seq` lower than the one known for this replica, or none (`kvsp-stale-record`).
    #[error("seq {known} of this replica is known; send a seq that is not lower")]
    StaleSeq {
        /// The highest `seq` seen.
        known: u64,
    },
    /// A `holder_epoch` lower than the highest seen (`kvsp-stale-record`).
    #[error("holder_epoch {known} of this holder is known; the record is of an earlier start")]
    StaleEpoch {
        /// The highest `holder_epoch` seen.
        known: u64,
    },
    /// A delegate raises `holder_epoch` (`kvsp-not-holder`).
    #[error("only the holder itself raises holder_epoch")]
    EpochByDelegate,
    /// [`IndexConfig::max_records`] is reached (`kvsp-storage-full`).
    #[error("the index holds {max} records, which is its limit; withdraw some or wait for expiry")]
    Full {
        /// The limit.
        max: usize,
    },
    /// [`IndexConfig::max_records_per_holder`] is reached (`kvsp-storage-full`).
    #[error("the holder has {max} records, which is its quota; withdraw some or wait for expiry")]
    HolderFull {
        /// The quota.
        max: usize,
    },
    /// [`IndexConfig::max_replicas_per_block`] is reached (`kvsp-storage-full`).
    #[error("the block has {max} replicas, which is the limit")]
    BlockFull {
        /// The limit.
        max: usize,
    },
    /// [`IndexConfig::max_octets`] is reached (`kvsp-storage-full`).
    #[error("the index uses {max} octets, which is its limit; withdraw records or wait for expiry")]
    MemoryFull {
        /// The limit, in octets.
        max: u64,
    },
    /// [`IndexConfig::max_scope_percent`] is reached (`kvsp-storage-full`).
    #[error(
        "the records of the scope take {max} octets, which is its share; withdraw some or wait for expiry"
    )]
    ScopeFull {
        /// The share, in octets.
        max: u64,
    },
    /// [`IndexConfig::max_holders`] is reached (`kvsp-storage-full`).
    #[error("the index knows {max} holders, which is its limit")]
    HoldersFull {
        /// The limit.
        max: usize,
    },
}

impl From<IndexError> for Problem {
    fn from(error: IndexError) -> Self {
        let problem = match error {
            IndexError::Geometry(_) => ProblemType::InvalidRecord,
            IndexError::TooManyRanges { .. } => ProblemType::LimitExceeded,
            IndexError::StaleSeq { .. } | IndexError::StaleEpoch { .. } => ProblemType::StaleRecord,
            IndexError::EpochByDelegate => ProblemType::NotHolder,
            IndexError::Full { .. }
            | IndexError::HolderFull { .. }
            | IndexError::MemoryFull { .. }
            | IndexError::ScopeFull { .. }
            | IndexError::BlockFull { .. }
            | IndexError::HoldersFull { .. } => ProblemType::StorageFull,
        };
        Self::new(problem, error.to_string())
    }
}
