//! Blocks and replicas as readers see them.

use kvsp_proto::id::{BlockKey, Digest, NamedDigest};
use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::Codec;
use kvsp_proto::uri::HolderUri;

use super::Index;
use super::block::BlockId;
use super::holders::Holder;
use super::replica::{Held, Replica};
use crate::time::Time;

/// The live replicas of one block.
#[derive(Debug, Clone, Copy)]
pub struct BlockView<'a> {
    index: &'a Index,
    block: BlockId,
    layers: Option<u32>,
    now: Time,
}

/// One live replica.
#[derive(Debug, Clone, Copy)]
pub struct ReplicaView<'a> {
    index: &'a Index,
    replica: &'a Replica,
    owner: &'a Holder,
    now: Time,
}

impl<'a> BlockView<'a> {
    pub(super) const fn new(index: &'a Index, block: BlockId, layers: Option<u32>, now: Time) -> Self {
        Self { index, block, layers, now }
    }

    /// The block's key.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        self.index.key_of(self.block)
    }

    /// Its live replicas, ordered by holder.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaView<'a>> + use<'a> {
        let Self { index, now, .. } = *self;
        index.chain(self.block).filter(move |(_, replica)| replica.is_live(now)).filter_map(
            move |(_, replica)| {
                index.holders.get(replica.holder).map(|owner| ReplicaView { index, replica, owner, now })
            },
        )
    }

    /// What "every layer" is: the descriptor's layers where it is known, else the length of the longest
    /// `layer_digests`, else up to the highest resident layer (profile section 5).
    #[must_use]
    pub fn layers(&self) -> u32 {
        let digests = || {
            let longest = self.replicas().filter_map(|r| r.layer_digests().map(<[_]>::len)).max();
            longest.and_then(|n| u32::try_from(n).ok())
        };
        let highest = || self.replicas().map(|r| r.replica.end()).max();
        self.layers.or_else(digests).or_else(highest).unwrap_or(0)
    }

    /// Whether live replicas of equal digest and codec hold every layer together.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let layers = self.layers();
        let mut spans: Vec<(Digest, Codec, LayerSpan)> = self
            .replicas()
            .flat_map(|r| r.replica.held().map(move |held| (r.digest(), r.codec(), held.layers)))
            .collect();
        spans.sort_unstable();
        spans
            .chunk_by(|a, b| (a.0, a.1) == (b.0, b.1))
            .any(|group| covers(group.iter().map(|(_, _, span)| *span), layers))
    }
}

/// Whether spans, ordered by their first layer, cover layers `0..layers` without a gap.
pub(crate) fn covers(spans: impl Iterator<Item = LayerSpan>, layers: u32) -> bool {
    let mut end = 0_u64;
    for span in spans {
        if u64::from(span.0) > end {
            break;
        }
        end = end.max(u64::from(span.1) + 1);
    }
    end >= u64::from(layers)
}

impl<'a> ReplicaView<'a> {
    pub(super) const fn new(index: &'a Index, replica: &'a Replica, owner: &'a Holder, now: Time) -> Self {
        Self { index, replica, owner, now }
    }

    pub(super) const fn is_of(&self, holder: u32) -> bool {
        self.replica.holder == holder
    }

    /// Who holds it.
    #[must_use]
    pub fn holder(&self) -> &'a HolderUri {
        &self.owner.uri
    }

    /// Its replica digest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.index.contents.digest(self.replica.contents).unwrap_or_default()
    }

    /// Its codec.
    #[must_use]
    pub const fn codec(&self) -> Codec {
        self.replica.codec
    }

    /// Octets of the whole container.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.replica.size
    }

    /// What resides where.
    pub fn residency(&self) -> impl Iterator<Item = Residency> + use<'a> {
        self.replica.held().map(Held::to_residency)
    }

    /// Its layer digests, in the order of layers.
    #[must_use]
    pub fn layer_digests(&self) -> Option<&'a [Digest]> {
        self.index.contents.list(self.replica.contents)
    }

    /// What remains of its TTL, in ms; at least 1.
    #[must_use]
    pub fn ttl_ms(&self) -> u64 {
        // A live record has some time left, however little: 0 is no TTL.
        self.now.millis_until(self.replica.deadline).max(1)
    }

    /// Its `seq`.
    #[must_use]
    pub fn seq(&self) -> Option<u64> {
        self.replica.seq()
    }

    /// Its `holder_epoch`.
    #[must_use]
    pub fn holder_epoch(&self) -> Option<u64> {
        self.owner.epoch.filter(|_| self.replica.has_epoch())
    }

    /// Who made the block.
    #[must_use]
    pub fn producer(&self) -> Option<&'a str> {
        self.index.texts.get(self.replica.texts)?.producer.as_deref()
    }

    /// The MOQT namespace under which it is served.
    #[must_use]
    pub fn moqt_namespace(&self) -> Option<&'a str> {
        self.index.texts.get(self.replica.texts)?.namespace.as_deref()
    }

    /// The record, with its remaining TTL; without layer digests unless asked for.
    #[must_use]
    pub fn to_record(&self, digests: bool) -> ReplicaRecord {
        let (compat_id, scope_id) = self.index.space_of(self.replica.block);
        ReplicaRecord {
            block_key: self.index.key_of(self.replica.block),
            compat_id,
            scope_id,
            holder: HolderUri::clone(&self.owner.uri),
            codec: self.codec(),
            size: self.size(),
            digest: NamedDigest(self.digest()),
            layer_digests: self.layer_digests().filter(|_| digests).map(<[Digest]>::to_vec),
            residency: self.residency().collect(),
            ttl_ms: self.ttl_ms(),
            seq: self.seq(),
            holder_epoch: self.holder_epoch(),
            producer: self.producer().map(ToOwned::to_owned),
            moqt_namespace: self.moqt_namespace().map(ToOwned::to_owned),
        }
    }
}
