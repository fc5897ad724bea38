//! Section encodings and the way from one to another (profile sections 2 and 9).

mod split_zstd;

use bytes::Bytes;

use crate::container::{Container, Malformed};
use crate::registry::Codec;

/// Octets of the elements that `split-zstd` is for.
pub const SPLIT_ELEMENT_OCTETS: usize = 2;

/// A section or container cannot be decoded or encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// A raw section has an odd number of octets and so is not of two-octet elements.
    #[error("an odd number of octets")]
    Odd,
    /// A section of `split-zstd` breaks off before its planes.
    #[error("the section breaks off")]
    Truncated,
    /// The method octet is neither 0 nor 1.
    #[error("method {0} is unknown")]
    Method(u8),
    /// The H plane is not exactly one zstd frame that states its content size.
    #[error("the high plane is not one zstd frame with a content size")]
    NotAFrame,
    /// The planes differ in length.
    #[error("the planes differ in length")]
    Planes,
    /// The frame does not decompress to what it states.
    #[error("the high plane does not decompress")]
    Corrupt,
    /// The compressor failed.
    #[error("the high plane does not compress")]
    Compressor,
    /// `split-zstd` is for elements of two octets.
    #[error("split-zstd does not apply to elements of {0} octets")]
    ElementType(usize),
    /// The sections of this codec are opaque here: private, or not registered.
    #[error("sections of codec {0} are opaque")]
    Opaque(Codec),
    /// The result would not be a container.
    #[error(transparent)]
    Container(#[from] Malformed),
}

/// The raw section that `section` stands for; the same octets where the codec is `raw`.
///
/// # Errors
/// The section is not what the codec makes, or the codec is opaque.
pub fn decode_section(codec: Codec, section: &Bytes) -> Result<Bytes, CodecError> {
    match codec {
        Codec::RAW => Ok(section.clone()),
        Codec::SPLIT_ZSTD => split_zstd::decode(section).map(Bytes::from),
        other => Err(CodecError::Opaque(other)),
    }
}

/// Octets of the raw section that `section` stands for, without decoding it; `None` where the codec
/// is opaque.
///
/// # Errors
/// The section is not what the codec makes.
pub fn decoded_octets(codec: Codec, section: &[u8]) -> Result<Option<u64>, CodecError> {
    match codec {
        Codec::RAW => Ok(Some(section.len() as u64)),
        Codec::SPLIT_ZSTD => split_zstd::decoded_octets(section).map(|octets| Some(octets as u64)),
        _ => Ok(None),
    }
}

/// The container in another codec; the same octets where it has that codec already.
/// `element_octets` is the size of the elements of its descriptor.
///
/// # Errors
/// A codec is opaque, does not apply to the elements, or a section is not what its codec makes.
pub fn transcode(container: &Container, to: Codec, element_octets: usize) -> Result<Container, CodecError> {
    let from = container.codec();
    if from == to {
        return Ok(container.clone());
    }
    if let Some(opaque) =
        [from, to].into_iter().find(|codec| !matches!(*codec, Codec::RAW | Codec::SPLIT_ZSTD))
    {
        return Err(CodecError::Opaque(opaque));
    }
    if element_octets != SPLIT_ELEMENT_OCTETS {
        return Err(CodecError::ElementType(element_octets));
    }
    let mut encoder = split_zstd::Encoder::new()?;
    let mut recode = |section: &Bytes| {
        let raw = decode_section(from, section)?;
        if to == Codec::SPLIT_ZSTD { encoder.encode(&raw).map(Bytes::from) } else { Ok(raw) }
    };
    let mut sections = Vec::with_capacity(container.header().lengths().len());
    for layer in container.layers().layers() {
        if let Some(layer) = container.layer(layer) {
            sections.push((recode(&layer.k)?, recode(&layer.v)?));
        }
    }
    Ok(Container::build(to, container.layers().first(), container.token_count(), &sections)?)
}

#[cfg(test)]
mod tests;
