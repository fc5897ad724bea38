//! A block as a store keeps it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use kvsp_proto::container::{Container, ENTRY_OCTETS, HEADER_OCTETS, Header, LayerRange};
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
    /// Hashes a container by layer and as a whole, in one pass over its octets.
    #[must_use]
    pub fn of(name: BlockName, producer: String, container: &Container) -> Self {
        let (repr_digest, layer_digests) = container.digests();
        Self {
            name,
            producer,
            header: container.header().clone(),
            codec: container.codec(),
            layer_digests,
            repr_digest,
        }
    }

    /// The replica digest (draft section 4.3).
    #[must_use]
    pub fn digest(&self) -> NamedDigest {
        NamedDigest(replica_digest(&self.layer_digests))
    }

    /// Octets of the whole container.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.header.container_octets()
    }

    /// All layers of the block: from layer 0.
    #[must_use]
    pub const fn layers(&self) -> LayerRange {
        self.header.layers()
    }

    /// How many layers the block has.
    #[must_use]
    pub fn layer_count(&self) -> u32 {
        // A header counts its layers in 32 bits.
        self.header.lengths().len() as u32
    }

    /// Octets of the sections of the `layers` leading layers.
    #[must_use]
    pub fn data_octets(&self, layers: u32) -> u64 {
        // The header's own sum of all lengths did not overflow, so parts of it do not.
        self.header.lengths().iter().take(layers as usize).map(|(k, v)| k + v).sum()
    }

    /// Octets of the container of the `layers` leading layers: header, table and sections.
    #[must_use]
    pub fn container_octets(&self, layers: u32) -> u64 {
        let layers = layers.min(self.layer_count());
        let head = HEADER_OCTETS as u64 + ENTRY_OCTETS as u64 * u64::from(layers);
        head.saturating_add(self.data_octets(layers))
    }

    /// The header of the container of some of its layers; `None` where it has not all of them.
    #[must_use]
    pub fn header_of(&self, range: LayerRange) -> Option<Header> {
        let wanted = self.header.lengths().get(range.first() as usize..=range.last() as usize)?;
        Header::new(self.codec, range.first(), self.header.token_count(), wanted.to_vec()).ok()
    }
}

/// A block with the data of its leading layers, or of all.
#[derive(Debug, Clone)]
pub struct StoredBlock {
    /// What is known of the whole block.
    pub meta: Arc<BlockMeta>,
    /// The container of the layers that are held: from layer 0.
    pub container: Container,
}

impl StoredBlock {
    /// How many layers are held, from layer 0.
    #[must_use]
    pub fn layers(&self) -> u32 {
        self.container.header().lengths().len() as u32
    }

    /// Whether all layers are held.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.layers() == self.meta.layer_count()
    }

    /// The container of some of its layers; `None` where they are not all held. Copies no data.
    #[must_use]
    pub fn part(&self, range: LayerRange) -> Option<BlockPart> {
        let slice = self.container.slice(range)?;
        Some(BlockPart { head: slice.head, data: slice.data })
    }

    /// The block with no more than its `layers` leading layers, copied out where those are not all that is
    /// held; `None` for no layers.
    #[must_use]
    pub fn leading(&self, layers: u32) -> Option<Self> {
        if layers >= self.layers() {
            return Some(self.clone());
        }
        let slice = self.container.slice(LayerRange::from_count(0, layers)?)?;
        Some(Self { meta: self.meta.clone(), container: slice.join() })
    }

    /// Whether this is more of the block of which `layers` layers are held.
    pub(crate) fn extends(&self, meta: &BlockMeta, layers: u32) -> bool {
        self.layers() > layers && *self.meta == *meta
    }
}

/// What a store holds of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// What is known of the whole block.
    pub meta: Arc<BlockMeta>,
    /// How many layers are held, from layer 0.
    pub layers: u32,
    /// Octets that they take in this store.
    pub octets: u64,
}

impl Held {
    /// Whether all layers are held.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.layers == self.meta.layer_count()
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
