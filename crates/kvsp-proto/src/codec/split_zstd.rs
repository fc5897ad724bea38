//! Codec 0x0002 `split-zstd` (profile section 9).
//!
//! The exponents of neighbouring elements are alike, their mantissas are noise. Rotated left by one
//! bit, an element has its exponent in the high octet and its sign in bit 0; the plane of the high
//! octets compresses, the plane of the low octets is left alone.

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe;

use super::CodecError;

/// A section is stored as it is.
const STORED: u8 = 0;
/// A section is split into planes.
const SPLIT: u8 = 1;
/// Method and the length of the compressed plane.
const SPLIT_HEAD: usize = 5;
/// Exponents are a few distinct octets: a higher level costs time and gains next to nothing.
const LEVEL: i32 = 3;
/// Starts a zstd frame that is not skippable.
const FRAME_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// Encodes sections one after the other in one compression context.
pub(super) struct Encoder(Compressor<'static>);

impl Encoder {
    pub(super) fn new() -> Result<Self, CodecError> {
        Compressor::new(LEVEL).map(Self).map_err(|_| CodecError::Compressor)
    }

    pub(super) fn encode(&mut self, raw: &[u8]) -> Result<Vec<u8>, CodecError> {
        let (elements, odd) = raw.as_chunks::<2>();
        if !odd.is_empty() {
            return Err(CodecError::Odd);
        }
        let mut high = Vec::with_capacity(elements.len());
        let mut low = Vec::with_capacity(elements.len());
        for element in elements {
            let [l, h] = u16::from_le_bytes(*element).rotate_left(1).to_le_bytes();
            high.push(h);
            low.push(l);
        }
        // One octet more than the plane itself would not make the section smaller.
        let frame = self.0.compress(&high).map_err(|_| CodecError::Compressor)?;
        let Some(length) = u32::try_from(frame.len()).ok().filter(|_| SPLIT_HEAD + frame.len() <= high.len())
        else {
            return Ok([&[STORED], raw].concat());
        };
        Ok([&[SPLIT], length.to_be_bytes().as_slice(), &frame, &low].concat())
    }
}

/// A section taken apart and checked, but not decompressed.
enum Parts<'a> {
    Stored(&'a [u8]),
    /// The frame states that it holds as many octets as the low plane.
    Split {
        frame: &'a [u8],
        low: &'a [u8],
    },
}

impl<'a> Parts<'a> {
    fn of(section: &'a [u8]) -> Result<Self, CodecError> {
        match section {
            [] => Err(CodecError::Truncated),
            [STORED, raw @ ..] if raw.len() % 2 == 1 => Err(CodecError::Odd),
            [STORED, raw @ ..] => Ok(Self::Stored(raw)),
            [SPLIT, a, b, c, d, planes @ ..] => {
                let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
                let (frame, low) = planes.split_at_checked(length).ok_or(CodecError::Truncated)?;
                check_frame(frame, low.len() as u64)?;
                Ok(Self::Split { frame, low })
            }
            [SPLIT, ..] => Err(CodecError::Truncated),
            [method, ..] => Err(CodecError::Method(*method)),
        }
    }
}

/// `frame` is one frame, nothing after it, that states `octets` as its content size.
fn check_frame(frame: &[u8], octets: u64) -> Result<(), CodecError> {
    if !frame.starts_with(&FRAME_MAGIC) {
        return Err(CodecError::NotAFrame);
    }
    match zstd_safe::get_frame_content_size(frame) {
        Ok(Some(size)) if size == octets => {}
        Ok(Some(_)) => return Err(CodecError::Planes),
        Ok(None) | Err(_) => return Err(CodecError::NotAFrame),
    }
    match zstd_safe::find_frame_compressed_size(frame) {
        Ok(length) if length == frame.len() => Ok(()),
        Ok(_) | Err(_) => Err(CodecError::NotAFrame),
    }
}

/// Octets of the raw section.
pub(super) fn decoded_octets(section: &[u8]) -> Result<usize, CodecError> {
    Ok(match Parts::of(section)? {
        Parts::Stored(raw) => raw.len(),
        Parts::Split { low, .. } => 2 * low.len(),
    })
}

/// The raw section. Allocates three octets for each octet of the low plane, which is there already.
pub(super) fn decode(section: &[u8]) -> Result<Vec<u8>, CodecError> {
    let (frame, low) = match Parts::of(section)? {
        Parts::Stored(raw) => return Ok(raw.to_vec()),
        Parts::Split { frame, low } => (frame, low),
    };
    let mut high = vec![0; low.len()];
    let decompressed = Decompressor::new()
        .and_then(|mut decompressor| decompressor.decompress_to_buffer(frame, high.as_mut_slice()))
        .map_err(|_| CodecError::Corrupt)?;
    if decompressed != low.len() {
        return Err(CodecError::Corrupt);
    }
    let mut raw = Vec::with_capacity(2 * low.len());
    for (h, l) in high.iter().zip(low) {
        raw.extend_from_slice(&u16::from_le_bytes([*l, *h]).rotate_right(1).to_le_bytes());
    }
    Ok(raw)
}
