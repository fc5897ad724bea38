//! Element types of the cache: values are rounded to one when they enter it.

use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use kvsp_proto::registry::ElementType;

use crate::error::LoadError;

/// An element type this engine stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KvType {
    F32,
    F16,
    Bf16,
}

impl KvType {
    pub(crate) fn new(element: ElementType) -> Result<Self, LoadError> {
        match element {
            ElementType::Float32 => Ok(Self::F32),
            ElementType::Float16 => Ok(Self::F16),
            ElementType::Bfloat16 => Ok(Self::Bf16),
            other => Err(LoadError::Unsupported(format!(
                "a cache of {other} (float32, float16 and bfloat16 are stored)"
            ))),
        }
    }

    /// Octets of one element.
    pub(crate) fn octets(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The nearest value of this type. Beyond its range the greatest finite one: an infinity in a later row
    /// would reach earlier ones as 0 · ∞.
    pub(crate) fn round(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::F16 => f16::from_f32(x.clamp(f16::MIN.to_f32(), f16::MAX.to_f32())).to_f32(),
            Self::Bf16 => bf16::from_f32(x.clamp(bf16::MIN.to_f32(), bf16::MAX.to_f32())).to_f32(),
        }
    }

    /// Append elements, little-endian. Exact for rounded values.
    pub(crate) fn encode(self, values: &[f32], out: &mut Vec<u8>) {
        // Whole slices, because the processor converts many at once.
        match self {
            Self::F32 => out.extend(values.iter().flat_map(|x| x.to_le_bytes())),
            Self::F16 => {
                let mut halves = vec![f16::ZERO; values.len()];
                halves.convert_from_f32_slice(values);
                out.extend(halves.iter().flat_map(|x| x.to_le_bytes()));
            }
            Self::Bf16 => {
                let mut halves = vec![bf16::ZERO; values.len()];
                halves.convert_from_f32_slice(values);
                out.extend(halves.iter().flat_map(|x| x.to_le_bytes()));
            }
        }
    }

    /// The elements of little-endian octets; a trailing part of one is left out.
    pub(crate) fn decode(self, octets: &[u8]) -> Vec<f32> {
        match self {
            Self::F32 => octets.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            Self::F16 => {
                let halves: Vec<f16> = octets.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b)).collect();
                halves.to_f32_vec()
            }
            Self::Bf16 => {
                let halves: Vec<bf16> =
                    octets.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b)).collect();
                halves.to_f32_vec()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_values_survive_the_octets() {
        for kv in [KvType::F32, KvType::F16, KvType::Bf16] {
            for x in [0.0, -0.0, 1.0, 0.1, -3.337e-5, 1e-7, 70_000.0, f32::MAX, f32::MIN] {
                let rounded = kv.round(x);
                assert!(rounded.is_finite());
                let mut octets = Vec::new();
                kv.encode(&[rounded], &mut octets);
                assert_eq!(octets.len(), kv.octets());
                assert_eq!(kv.decode(&octets)[0].to_bits(), rounded.to_bits());
            }
        }
    }
}
