//! A container against the descriptor that its Compatibility ID names.

use super::{Container, LayerSections};
use crate::codec::{self, CodecError};
use crate::descriptor::Descriptor;
use crate::registry::Codec;

/// A container contradicts the descriptor (`kvsp-container-mismatch`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The token count is not that of a block, or of the range asked for.
    #[error("{got} tokens where {expected} belong")]
    Tokens {
        /// The descriptor's `block_tokens`, or the tokens of the range.
        expected: u32,
        /// The container's token count.
        got: u32,
    },
    /// The container has layers that the model does not have.
    #[error("layer {last} of a model with {layers} layers")]
    Layers {
        /// The descriptor's `layers`.
        layers: u32,
        /// The container's last layer.
        last: u32,
    },
    /// A section is not as long as the descriptor's geometry makes it.
    #[error("a section of layer {layer} has {got} octets where {expected} belong")]
    Section {
        /// The layer.
        layer: u32,
        /// Octets of a raw section by the descriptor.
        expected: u64,
        /// Octets of the section, decoded.
        got: u64,
    },
    /// A section is not what its codec makes.
    #[error("a section of layer {layer}: {source}")]
    Codec {
        /// The layer.
        layer: u32,
        /// What is wrong with it.
        source: CodecError,
    },
    /// The codec does not apply to the element type.
    #[error("codec {codec} does not apply to elements of {octets} octets")]
    ElementType {
        /// The container's codec.
        codec: Codec,
        /// Octets of an element by the descriptor.
        octets: usize,
    },
    /// The descriptor's sections exceed 2^64 − 1 octets; no container holds them.
    #[error("the descriptor's sections exceed 64 bits")]
    Overflow,
}

impl Container {
    /// Checks token count, layers and section sizes against `descriptor`. Sections of `split-zstd`
    /// are measured, not decompressed; those of private codecs are opaque.
    ///
    /// # Errors
    /// See [`GeometryError`].
    pub fn check_geometry(&self, descriptor: &Descriptor) -> Result<(), GeometryError> {
        self.check_geometry_of(descriptor, descriptor.block_tokens)
    }

    /// As [`Container::check_geometry`], of `expected` tokens instead of a block's: a range of a context that is
    /// split by tokens (draft section 6.9).
    ///
    /// # Errors
    /// See [`GeometryError`].
    pub fn check_geometry_of(&self, descriptor: &Descriptor, expected: u32) -> Result<(), GeometryError> {
        let got = self.token_count();
        if got != expected {
            return Err(GeometryError::Tokens { expected, got });
        }
        let last = self.layers().last();
        if last >= descriptor.layers {
            return Err(GeometryError::Layers { layers: descriptor.layers, last });
        }
        let octets = descriptor.kv_dtype.octets();
        if self.codec() == Codec::SPLIT_ZSTD && octets != codec::SPLIT_ELEMENT_OCTETS {
            return Err(GeometryError::ElementType { codec: self.codec(), octets });
        }
        let (k, v) = descriptor.section_octets(got).ok_or(GeometryError::Overflow)?;
        self.layers().layers().try_for_each(|layer| match self.layer(layer) {
            Some(LayerSections { k: in_k, v: in_v }) => {
                check_section(self.codec(), layer, &in_k, k)?;
                check_section(self.codec(), layer, &in_v, v)
            }
            None => Ok(()),
        })
    }
}

fn check_section(codec: Codec, layer: u32, section: &[u8], expected: u64) -> Result<(), GeometryError> {
    match codec::decoded_octets(codec, section) {
        Ok(Some(got)) if got != expected => Err(GeometryError::Section { layer, expected, got }),
        Ok(_) => Ok(()),
        Err(source) => Err(GeometryError::Codec { layer, source }),
    }
}
