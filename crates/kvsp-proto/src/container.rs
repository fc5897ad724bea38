//! The KV Block Container (draft section 4.3): a contiguous range of layers of one block.
//!
//! ```text
//! "KVB1"  version u8  flags u8  codec u16  first layer u32  layer count u32  token count u32
//! layer count x { K length u64, V length u64 }
//! for each layer in ascending order: K octets, V octets          (all in network byte order)
//! ```

mod geometry;
mod hasher;
mod header;
mod range;
mod stream;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use kvsp_hash::Sweep;

pub use geometry::GeometryError;
pub use hasher::ContainerHasher;
pub use header::{ENTRY_OCTETS, HEADER_OCTETS, Header, MAGIC, VERSION};
pub use range::{LayerRange, RangeError};
pub use stream::{StreamEvent, StreamParser};

use crate::digest::{self, ReprDigest};
use crate::id::{Digest, NamedDigest};
use crate::registry::Codec;
use header::Start;

/// What a receiver takes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Octets of a whole container.
    pub max_octets: u64,
    /// Layers of a container.
    pub max_layers: u32,
}

impl Default for Limits {
    /// 1 GiB and 4096 layers: above every model known, below what harms a server.
    fn default() -> Self {
        Self { max_octets: 1 << 30, max_layers: 4096 }
    }
}

impl Limits {
    const fn check_octets(&self, octets: u64) -> Result<(), ContainerError> {
        if octets > self.max_octets { Err(ContainerError::TooLarge { max: self.max_octets }) } else { Ok(()) }
    }
}

/// Octets are not a container (`kvsp-malformed-container`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The first four octets are not "KVB1".
    #[error("the magic is not KVB1")]
    Magic,
    /// Not version 1.
    #[error("version {0} is not 1")]
    Version(u8),
    /// Reserved flags are set.
    #[error("flags {0:#04x} are set")]
    Flags(u8),
    /// The layer count is 0.
    #[error("no layers")]
    NoLayers,
    /// The token count is 0.
    #[error("no tokens")]
    NoTokens,
    /// First layer and layer count lead beyond layer 2^32 − 1.
    #[error("the layers exceed 32 bits")]
    LayerOverflow,
    /// The section lengths add up to more than 2^64 − 1.
    #[error("the section lengths exceed 64 bits")]
    LengthOverflow,
    /// There are fewer octets than header, table and lengths call for.
    #[error("octets are missing")]
    Missing,
    /// There are more octets than header, table and lengths call for.
    #[error("octets follow the last section")]
    Trailing,
}

/// A container is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ContainerError {
    /// Not a container (`kvsp-malformed-container`, 400).
    #[error("malformed container: {0}")]
    Malformed(#[from] Malformed),
    /// Well-formed, but of codec 0 or 65535, which are invalid (`kvsp-unsupported-codec`, 415).
    #[error("codec {0} is invalid")]
    Codec(u16),
    /// Larger than the receiver takes (`kvsp-limit-exceeded`, 413).
    #[error("the container exceeds {max} octets")]
    TooLarge {
        /// The limit in octets.
        max: u64,
    },
    /// More layers than the receiver takes (`kvsp-limit-exceeded`, 413).
    #[error("the container exceeds {max} layers")]
    TooManyLayers {
        /// The limit in layers.
        max: u32,
    },
}

/// The sections of one layer, slices of the container they came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerSections {
    /// The K section, as the codec encodes it.
    pub k: Bytes,
    /// The V section, as the codec encodes it.
    pub v: Bytes,
}

impl LayerSections {
    /// `k_octets` is within `layer`.
    fn split(layer: &Bytes, k_octets: usize) -> Self {
        Self { k: layer.slice(..k_octets), v: layer.slice(k_octets..) }
    }

    /// The layer digest: SHA-256 of K followed by V.
    #[must_use]
    pub fn digest(&self) -> Digest {
        digest::layer_digest(&self.k, &self.v)
    }
}

/// A well-formed container. Cloning it shares its octets, and so do the sections taken from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    octets: Bytes,
    codec: Codec,
    header: Arc<Header>,
    /// Where each layer starts in the octets, and where the last one ends.
    starts: Arc<[usize]>,
}

impl Container {
    /// Checks a whole container. Nothing is copied, and nothing allocated on the word of a count or
    /// length that the octets present do not bear out.
    ///
    /// # Errors
    /// See [`ContainerError`]; a container that is malformed is that first, whatever its codec.
    pub fn parse(octets: Bytes, limits: &Limits) -> Result<Self, ContainerError> {
        limits.check_octets(octets.len() as u64)?;
        let (start, rest) = octets.split_first_chunk::<HEADER_OCTETS>().ok_or(Malformed::Missing)?;
        let start = Start::parse(start)?;
        let table = usize::try_from(start.table_octets())
            .ok()
            .and_then(|length| rest.get(..length))
            .ok_or(Malformed::Missing)?;
        let header = start.with_table(table)?;
        match header.container_octets().cmp(&(octets.len() as u64)) {
            std::cmp::Ordering::Greater => return Err(Malformed::Missing.into()),
            std::cmp::Ordering::Less => return Err(Malformed::Trailing.into()),
            std::cmp::Ordering::Equal => {}
        }
        start.check_limits(limits)?;
        let codec = header.codec().ok_or(ContainerError::Codec(header.codec_number()))?;
        Ok(Self::assemble(octets, codec, header))
    }

    /// Encodes a container from the sections of its layers, in ascending layer order.
    ///
    /// # Errors
    /// No layers, no tokens, or layers or lengths that overflow.
    pub fn build<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        codec: Codec,
        first_layer: u32,
        token_count: u32,
        sections: &[(K, V)],
    ) -> Result<Self, Malformed> {
        let lengths =
            sections.iter().map(|(k, v)| (k.as_ref().len() as u64, v.as_ref().len() as u64)).collect();
        let header = Header::new(codec, first_layer, token_count, lengths)?;
        let size = usize::try_from(header.container_octets()).map_err(|_| Malformed::LengthOverflow)?;
        let mut octets = BytesMut::with_capacity(size);
        octets.extend_from_slice(&header.encode());
        for (k, v) in sections {
            octets.extend_from_slice(k.as_ref());
            octets.extend_from_slice(v.as_ref());
        }
        Ok(Self::assemble(octets.freeze(), codec, header))
    }

    /// The octets are as long as the header says.
    fn assemble(octets: Bytes, codec: Codec, header: Header) -> Self {
        let mut at = header.octets();
        let mut starts = Vec::with_capacity(header.lengths().len() + 1);
        starts.push(at);
        for &(k, v) in header.lengths() {
            at += (k + v) as usize;
            starts.push(at);
        }
        Self { octets, codec, header: Arc::new(header), starts: starts.into() }
    }

    /// The header and the section lengths.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The codec of all sections; not necessarily one that this implementation knows.
    #[must_use]
    pub const fn codec(&self) -> Codec {
        self.codec
    }

    /// The layers held.
    #[must_use]
    pub fn layers(&self) -> LayerRange {
        self.header.layers()
    }

    /// Tokens of the block.
    #[must_use]
    pub fn token_count(&self) -> u32 {
        self.header.token_count()
    }

    /// The whole container.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.octets
    }

    /// Octets of the whole container.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.octets.len() as u64
    }

    /// The sections of `layer`, without copying; `None` where it is not held.
    #[must_use]
    pub fn layer(&self, layer: u32) -> Option<LayerSections> {
        let index = self.index(layer)?;
        let &(k, _) = self.header.lengths().get(index)?;
        Some(LayerSections::split(&self.layer_octets(layer)?, k as usize))
    }

    /// K followed by V of `layer`, one slice; `None` where it is not held.
    #[must_use]
    pub fn layer_octets(&self, layer: u32) -> Option<Bytes> {
        let index = self.index(layer)?;
        Some(self.octets.slice(*self.starts.get(index)?..*self.starts.get(index + 1)?))
    }

    fn index(&self, layer: u32) -> Option<usize> {
        self.layers().contains(layer).then(|| (layer - self.layers().first()) as usize)
    }

    /// The layer digests in ascending layer order. Hashes all data: keep the result.
    #[must_use]
    pub fn layer_digests(&self) -> Vec<Digest> {
        self.starts.windows(2).map(|bounds| digest::sha256(&self.octets[bounds[0]..bounds[1]])).collect()
    }

    /// The `Repr-Digest` of the whole container and the layer digests in ascending layer order, in one pass
    /// over the octets that takes little longer than one of the two. Keep the result.
    #[must_use]
    pub fn digests(&self) -> (ReprDigest, Vec<Digest>) {
        let mut sweep = Sweep::new();
        sweep.update_whole_only(&self.octets[..self.header.octets()]);
        let mut digests = Vec::with_capacity(self.header.lengths().len());
        for bounds in self.starts.windows(2) {
            sweep.update(&self.octets[bounds[0]..bounds[1]]);
            digests.push(Digest(sweep.end_segment()));
        }
        (ReprDigest(Digest(sweep.finish())), digests)
    }

    /// The digest of the layer digests: the replica's digest where all layers are held.
    #[must_use]
    pub fn digest(&self) -> NamedDigest {
        NamedDigest(digest::replica_digest(&self.layer_digests()))
    }

    /// The `Repr-Digest` of the whole container.
    #[must_use]
    pub fn repr_digest(&self) -> ReprDigest {
        ReprDigest::of(&self.octets)
    }

    /// The container of those layers alone: a header of its own and a slice of this one's data.
    /// `None` where they are not all held.
    #[must_use]
    pub fn slice(&self, range: LayerRange) -> Option<ContainerSlice> {
        let header = self.header.slice(range)?;
        let from = self.index(range.first())?;
        let to = self.index(range.last())?;
        let data = self.octets.slice(*self.starts.get(from)?..*self.starts.get(to + 1)?);
        Some(ContainerSlice { head: header.encode().into(), header, codec: self.codec, data })
    }
}

/// Some layers of a container in two parts that, one after the other, are a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSlice {
    /// The encoded header and table.
    pub head: Bytes,
    /// The sections, shared with the container that they were taken from.
    pub data: Bytes,
    header: Header,
    codec: Codec,
}

impl ContainerSlice {
    /// The header and the section lengths.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Octets of both parts.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.header.container_octets()
    }

    /// The `Repr-Digest` of both parts, one after the other.
    #[must_use]
    pub fn repr_digest(&self) -> ReprDigest {
        ReprDigest(digest::sha256_parts([self.head.as_ref(), self.data.as_ref()]))
    }

    /// Copies both parts into one container.
    #[must_use]
    pub fn join(self) -> Container {
        let mut octets = BytesMut::with_capacity(self.head.len() + self.data.len());
        octets.extend_from_slice(&self.head);
        octets.extend_from_slice(&self.data);
        Container::assemble(octets.freeze(), self.codec, self.header)
    }
}

/// Encodes a container from the sections of its layers, in ascending layer order; see
/// [`Container::build`].
///
/// # Errors
/// No layers, no tokens, or layers or lengths that overflow.
pub fn encode<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    codec: Codec,
    first_layer: u32,
    token_count: u32,
    sections: &[(K, V)],
) -> Result<Bytes, Malformed> {
    Container::build(codec, first_layer, token_count, sections).map(|container| container.octets)
}

#[cfg(test)]
mod tests;
