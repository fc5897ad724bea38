//! The header and the table of section lengths (draft section 4.3).

use super::{ContainerError, LayerRange, Limits, Malformed};
use crate::registry::Codec;

/// "KVB1".
pub const MAGIC: [u8; 4] = *b"KVB1";
/// The only version.
pub const VERSION: u8 = 1;
/// Octets before the table.
pub const HEADER_OCTETS: usize = 20;
/// Octets of one entry of the table.
pub const ENTRY_OCTETS: usize = 16;

/// The first 20 octets, checked on their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Start {
    codec: u16,
    layers: LayerRange,
    layer_count: u32,
    token_count: u32,
}

impl Start {
    pub(super) fn parse(octets: &[u8; HEADER_OCTETS]) -> Result<Self, Malformed> {
        let [m0, m1, m2, m3, version, flags, c0, c1, rest @ ..] = *octets;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(Malformed::Magic);
        }
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        if flags != 0 {
            return Err(Malformed::Flags(flags));
        }
        let [f0, f1, f2, f3, l0, l1, l2, l3, t0, t1, t2, t3] = rest;
        let first_layer = u32::from_be_bytes([f0, f1, f2, f3]);
        let layer_count = u32::from_be_bytes([l0, l1, l2, l3]);
        let token_count = u32::from_be_bytes([t0, t1, t2, t3]);
        if layer_count == 0 {
            return Err(Malformed::NoLayers);
        }
        if token_count == 0 {
            return Err(Malformed::NoTokens);
        }
        let layers = LayerRange::from_count(first_layer, layer_count).ok_or(Malformed::LayerOverflow)?;
        Ok(Self { codec: u16::from_be_bytes([c0, c1]), layers, layer_count, token_count })
    }

    /// Octets of the table that must follow.
    pub(super) const fn table_octets(&self) -> u64 {
        self.layer_count as u64 * ENTRY_OCTETS as u64
    }

    pub(super) const fn check_limits(&self, limits: &Limits) -> Result<(), ContainerError> {
        if self.layer_count > limits.max_layers {
            return Err(ContainerError::TooManyLayers { max: limits.max_layers });
        }
        Ok(())
    }

    /// `table` is as long as [`Self::table_octets`] says.
    pub(super) fn with_table(self, table: &[u8]) -> Result<Header, Malformed> {
        let (entries, _) = table.as_chunks::<ENTRY_OCTETS>();
        let lengths: Vec<(u64, u64)> = entries.iter().map(entry).collect();
        let start = HEADER_OCTETS as u64 + self.table_octets();
        let size = lengths
            .iter()
            .try_fold(start, |sum, &(k, v)| sum.checked_add(k)?.checked_add(v))
            .ok_or(Malformed::LengthOverflow)?;
        Ok(Header { codec: self.codec, layers: self.layers, token_count: self.token_count, lengths, size })
    }
}

fn entry(octets: &[u8; ENTRY_OCTETS]) -> (u64, u64) {
    let both = u128::from_be_bytes(*octets);
    ((both >> 64) as u64, both as u64)
}

/// A checked header with its table: counts are not zero, layers and lengths do not overflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    codec: u16,
    layers: LayerRange,
    token_count: u32,
    /// One entry for each layer.
    lengths: Vec<(u64, u64)>,
    /// Octets of the whole container.
    size: u64,
}

impl Header {
    /// A header for sections of the given lengths, K and V of each layer in ascending order.
    ///
    /// # Errors
    /// No layers, no tokens, or layers or lengths that overflow.
    pub fn new(
        codec: Codec,
        first_layer: u32,
        token_count: u32,
        lengths: Vec<(u64, u64)>,
    ) -> Result<Self, Malformed> {
        if lengths.is_empty() {
            return Err(Malformed::NoLayers);
        }
        if token_count == 0 {
            return Err(Malformed::NoTokens);
        }
        let layers = u32::try_from(lengths.len())
            .ok()
            .and_then(|count| LayerRange::from_count(first_layer, count))
            .ok_or(Malformed::LayerOverflow)?;
        let start = HEADER_OCTETS as u64 + layers.count() * ENTRY_OCTETS as u64;
        let size = lengths
            .iter()
            .try_fold(start, |sum, &(k, v)| sum.checked_add(k)?.checked_add(v))
            .ok_or(Malformed::LengthOverflow)?;
        Ok(Self { codec: codec.number(), layers, token_count, lengths, size })
    }

    /// The codec's number as it came, 0 and 65535 included.
    #[must_use]
    pub const fn codec_number(&self) -> u16 {
        self.codec
    }

    /// The codec; `None` for the invalid numbers 0 and 65535 (`kvsp-unsupported-codec`).
    #[must_use]
    pub const fn codec(&self) -> Option<Codec> {
        Codec::new(self.codec)
    }

    /// The layers held.
    #[must_use]
    pub const fn layers(&self) -> LayerRange {
        self.layers
    }

    /// Tokens of the block.
    #[must_use]
    pub const fn token_count(&self) -> u32 {
        self.token_count
    }

    /// Octets of the K and V sections of each layer, in ascending layer order.
    #[must_use]
    pub fn lengths(&self) -> &[(u64, u64)] {
        &self.lengths
    }

    /// Octets of the header and the table, before the data.
    #[must_use]
    pub const fn octets(&self) -> usize {
        HEADER_OCTETS + ENTRY_OCTETS * self.lengths.len()
    }

    /// Octets of the whole container.
    #[must_use]
    pub const fn container_octets(&self) -> u64 {
        self.size
    }

    /// The header and table as they stand at the start of a container.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.octets());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, 0]);
        out.extend_from_slice(&self.codec.to_be_bytes());
        out.extend_from_slice(&self.layers.first().to_be_bytes());
        out.extend_from_slice(&(self.lengths.len() as u32).to_be_bytes());
        out.extend_from_slice(&self.token_count.to_be_bytes());
        for (k, v) in &self.lengths {
            out.extend_from_slice(&k.to_be_bytes());
            out.extend_from_slice(&v.to_be_bytes());
        }
        out
    }

    /// The header of those of its layers; `None` where it has not all of them.
    pub(super) fn slice(&self, range: LayerRange) -> Option<Self> {
        let from = range.first().checked_sub(self.layers.first())?;
        let to = range.last().checked_sub(self.layers.first())?;
        let lengths = self.lengths.get(from as usize..=to as usize)?.to_vec();
        let start = (HEADER_OCTETS + ENTRY_OCTETS * lengths.len()) as u64;
        // A part of a sum that did not overflow.
        let size = lengths.iter().fold(start, |sum, &(k, v)| sum.saturating_add(k).saturating_add(v));
        Some(Self { codec: self.codec, layers: range, token_count: self.token_count, lengths, size })
    }
}
