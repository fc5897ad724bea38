//! One version of a map, as its leader computes at it.

use std::collections::BTreeSet;

use kvsp_core::reshard::{Ranges, instances_of, ranges_of};
use kvsp_proto::message::Shard;
use kvsp_proto::uri::BaseUri;

use super::super::remote::Peers;

/// A version that all its members have opened for this leader.
pub(in super::super) struct View {
    pub(in super::super) version: u64,
    pub(in super::super) shards: Vec<Shard>,
    /// Positions of this instance.
    pub(in super::super) own: Ranges,
    pub(in super::super) peers: Peers,
    /// The other members.
    others: BTreeSet<BaseUri>,
}

impl View {
    /// A version with these shards, as `own` sees it.
    pub(super) fn new(version: u64, shards: Vec<Shard>, own: &BaseUri, peers: Peers) -> Self {
        let mut others = instances_of(&shards);
        others.remove(own);
        Self { version, own: ranges_of(&shards, own), shards, peers, others }
    }

    pub(in super::super) fn others(&self) -> Vec<BaseUri> {
        self.others.iter().cloned().collect()
    }
}
