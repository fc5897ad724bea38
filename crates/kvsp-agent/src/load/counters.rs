//! What loads did, for the metrics and the demo's table.

use std::sync::atomic::{AtomicU64, Ordering};

use kvsp_proto::message::{DirectiveState, DirectiveStatus, FailureReason};

/// Counters of all directives of an instance.
#[derive(Debug, Default)]
pub(crate) struct LoadCounters {
    /// Octets of layers that arrived.
    pub(crate) octets_fetched: AtomicU64,
    /// Octets of layers that passed the digest of their record.
    pub(crate) octets_verified: AtomicU64,
    /// Blocks that arrived whole.
    pub(crate) blocks_loaded: AtomicU64,
    /// Layers refused because their digest is not the record's.
    pub(crate) digest_mismatches: AtomicU64,
    /// Sources given up for a block, for any other reason.
    pub(crate) sources_failed: AtomicU64,
    /// Directives by their end.
    pub(crate) complete: AtomicU64,
    /// Directives that ended partial.
    pub(crate) partial: AtomicU64,
    /// Directives that ended failed.
    pub(crate) failed: AtomicU64,
}

impl LoadCounters {
    pub(super) fn fetched(&self, octets: u64) {
        self.octets_fetched.fetch_add(octets, Ordering::Relaxed);
    }

    pub(super) fn verified(&self, octets: u64) {
        self.octets_verified.fetch_add(octets, Ordering::Relaxed);
    }

    pub(super) fn source_failed(&self, reason: FailureReason) {
        let counter = match reason {
            FailureReason::DigestMismatch => &self.digest_mismatches,
            _ => &self.sources_failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn ended(&self, status: &DirectiveStatus) {
        self.blocks_loaded.fetch_add(status.loaded.len() as u64, Ordering::Relaxed);
        let counter = match status.state {
            DirectiveState::Complete | DirectiveState::Pending => &self.complete,
            DirectiveState::Partial => &self.partial,
            DirectiveState::Failed => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
