//! A block as a store keeps it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use kvsp_proto::container::{Container, Header, LayerRange};
use kvsp_proto::digest::{ReprDigest, replica_digest};
use kvsp_proto::id::{BlockKey, CompatId, Digest, NamedDigest, ScopeId};
use kvsp_proto::registry::Codec;

/// Names a block at a holder: `blocks/{compat}/{scope}/{key}` (draft section 6.7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockName {
    /// The compatibility of its contents.
    pub compat: CompatId,
    /// The scope in which its key was made.
    pub scope: ScopeId,
    /// Its key.
    pub key: BlockKey,
}

impl fmt::Debug for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.compat, self.scope, self.key)
    }
}

/// What is known of a block without its data; computed once, when the block comes in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockMeta {
    /// The block.
    pub name: BlockName,
    /// The principal that stored it.
    pub producer: String,
    /// Header and table of its container, which has all layers from layer 0.
    pub header: Header,
    /// The codec of its sections.
    pub codec: Codec,
    /// The digests of its layers, in ascending order.
    pub layer_digests: Vec<Digest>,
    /// The digest of the whole container.
    pub repr_digest: ReprDigest,
}

impl BlockMeta {
    /// Hashes a container twice: by layer and as a whole. Takes about a millisecond for a megabyte.
    #[must_use]
    pub fn of(name: BlockName, producer: String, container: &Container) -> Self {
        Self {
            name,
            producer,
            header: container.header().clone(),
            codec: container.codec(),
            layer_digests: container.layer_digests(),
            repr_digest: container.repr_digest(),
        }
    }

    /// The replica digest (draft section 4.3).
    #[must_use]
    pub fn digest(&self) -> NamedDigest {
        NamedDigest(replica_digest(&self.layer_digests))
    }

    /// Octets of the container.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.header.container_octets()
    }

    /// The layers held: from layer 0.
    #[must_use]
    pub const fn layers(&self) -> LayerRange {
        self.header.layers()
    }
}

/// A block with its data.
#[derive(Debug, Clone)]
pub struct StoredBlock {
    /// What is known of it.
    pub meta: Arc<BlockMeta>,
    /// Its container.
    pub container: Container,
}

impl StoredBlock {
    /// The container of some of its layers; `None` where it has not all of them. Copies no data.
    #[must_use]
    pub fn part(&self, range: LayerRange) -> Option<BlockPart> {
        let slice = self.container.slice(range)?;
        Some(BlockPart { head: slice.head, data: slice.data })
    }
}

/// Some layers of a block: two parts that, one after the other, are a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockPart {
    /// Header and table.
    pub head: Bytes,
    /// The sections.
    pub data: Bytes,
}

impl BlockPart {
    /// Octets of both parts.
    #[must_use]
    pub const fn size(&self) -> u64 {
        // Both are in memory, so the sum cannot overflow.
        (self.head.len() + self.data.len()) as u64
    }
}
