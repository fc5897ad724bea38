//! Registered descriptors, and what they say about records (profile section 2).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use kvsp_proto::descriptor::{Descriptor, DescriptorError};
use kvsp_proto::id::CompatId;
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::registry::Codec;

/// Octets of the largest descriptor that is kept.
pub const MAX_DESCRIPTOR_OCTETS: usize = 64 << 10;

/// The descriptors that a service knows, by their Compatibility ID; they never expire.
#[derive(Debug, Clone)]
pub struct Descriptors {
    known: BTreeMap<CompatId, Arc<Descriptor>>,
    max: usize,
}

/// A descriptor is not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorRefusal {
    /// It is the descriptor of another Compatibility ID (`kvsp-compat-mismatch`).
    #[error("the descriptor's compatibility ID is {computed}")]
    Mismatch {
        /// The Compatibility ID of the descriptor.
        computed: CompatId,
    },
    /// The registry is full (`kvsp-storage-full`).
    #[error("{max} descriptors are registered, which is the limit")]
    Full {
        /// Most descriptors kept.
        max: usize,
    },
}

/// Reads a descriptor as a peer sent it.
///
/// # Errors
/// The problem to answer: `kvsp-malformed-json` or `kvsp-descriptor-invalid`.
pub fn read(body: &[u8]) -> Result<Descriptor, Problem> {
    Descriptor::from_json(body).map_err(|error| match error {
        DescriptorError::Json(error) => error.into(),
        DescriptorError::Invalid { .. } => Problem::new(ProblemType::DescriptorInvalid, error.to_string()),
    })
}

impl From<DescriptorRefusal> for Problem {
    fn from(refusal: DescriptorRefusal) -> Self {
        match refusal {
            DescriptorRefusal::Mismatch { computed } => {
                Self::new(ProblemType::CompatMismatch, refusal.to_string())
                    .with("computed", computed.to_string())
            }
            DescriptorRefusal::Full { .. } => Self::new(ProblemType::StorageFull, refusal.to_string()),
        }
    }
}

/// A record contradicts the registered descriptor of its compatibility (`kvsp-invalid-record`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Another number of layer digests than the descriptor has layers.
    #[error("member layer_digests has {got} entries, the descriptor has {layers} layers")]
    Layers {
        /// Entries of the record.
        got: usize,
        /// Layers of the descriptor.
        layers: u32,
    },
    /// A resident layer that the descriptor does not have.
    #[error("member residency: layer {layer} of {layers}")]
    Residency {
        /// The layer.
        layer: u32,
        /// Layers of the descriptor.
        layers: u32,
    },
    /// A raw container of another size than the descriptor's geometry gives.
    #[error("member size is {got}, a raw container of this descriptor has {want} octets")]
    Size {
        /// `size` of the record.
        got: u64,
        /// Octets by the descriptor.
        want: u64,
    },
    /// Codec `split-zstd` with an element type that has not two octets.
    #[error("member codec: {codec} is for element types of two octets")]
    Codec {
        /// The codec.
        codec: Codec,
    },
}

impl Descriptors {
    /// An empty registry of at most `max` descriptors.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { known: BTreeMap::new(), max }
    }

    /// Registers a descriptor under the Compatibility ID it was sent for; `true` where it is new.
    ///
    /// # Errors
    /// [`DescriptorRefusal`].
    pub fn register(&mut self, compat: CompatId, descriptor: Descriptor) -> Result<bool, DescriptorRefusal> {
        if descriptor.compat_id() != compat {
            return Err(DescriptorRefusal::Mismatch { computed: descriptor.compat_id() });
        }
        if self.known.contains_key(&compat) {
            return Ok(false);
        }
        if self.known.len() >= self.max {
            return Err(DescriptorRefusal::Full { max: self.max });
        }
        self.known.insert(compat, Arc::new(descriptor));
        Ok(true)
    }

    /// The descriptor of a Compatibility ID.
    #[must_use]
    pub fn get(&self, compat: CompatId) -> Option<&Arc<Descriptor>> {
        self.known.get(&compat)
    }

    /// The descriptors after a Compatibility ID, in the order of their IDs; from the first with `None`.
    pub fn after(&self, compat: Option<CompatId>) -> impl Iterator<Item = (CompatId, &Arc<Descriptor>)> {
        let from = compat.map_or(Bound::Unbounded, Bound::Excluded);
        self.known.range((from, Bound::Unbounded)).map(|(compat, descriptor)| (*compat, descriptor))
    }

    /// Checks a record against the geometry of its compatibility, where that is known.
    ///
    /// # Errors
    /// [`GeometryError`].
    pub fn check(&self, record: &ReplicaRecord) -> Result<(), GeometryError> {
        self.get(record.compat_id).map_or(Ok(()), |descriptor| check(descriptor, record))
    }
}

fn check(descriptor: &Descriptor, record: &ReplicaRecord) -> Result<(), GeometryError> {
    let layers = descriptor.layers;
    if let Some(digests) = &record.layer_digests
        && u32::try_from(digests.len()) != Ok(layers)
    {
        return Err(GeometryError::Layers { got: digests.len(), layers });
    }
    if let Some(layer) = record.residency.iter().map(|r| r.layers.1).find(|&layer| layer >= layers) {
        return Err(GeometryError::Residency { layer, layers });
    }
    if record.codec == Codec::RAW
        && let Some(want) = descriptor.block_octets()
        && record.size != want
    {
        return Err(GeometryError::Size { got: record.size, want });
    }
    if record.codec == Codec::SPLIT_ZSTD && descriptor.kv_dtype.octets() != 2 {
        return Err(GeometryError::Codec { codec: record.codec });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kvsp_proto::digest::replica_digest;
    use kvsp_proto::id::{Digest, NamedDigest};
    use serde_json::json;

    use super::*;

    fn descriptor(dtype: &str) -> Descriptor {
        let digest = format!("sha-256:{}", "ab".repeat(32));
        Descriptor::from_value(json!({
            "model": "m", "model_digest": digest, "tokenizer_digest": digest, "layers": 2, "kv_heads": 2,
            "head_dim": 4, "kv_dtype": dtype, "positional": "none", "block_tokens": 16,
            "layout": "kvsp-layout-1"
        }))
        .unwrap()
    }

    fn record(compat: CompatId, layers: u8, codec: u16, size: u64) -> ReplicaRecord {
        let digests: Vec<Digest> = (0..layers).map(|l| Digest([l; 32])).collect();
        ReplicaRecord::from_value(json!({
            "block_key": "11".repeat(32), "compat_id": compat, "scope_id": "33".repeat(16),
            "holder": "https://h/", "codec": codec, "size": size,
            "digest": NamedDigest(replica_digest(&digests)), "layer_digests": digests,
            "residency": [{"tier": "host", "layers": [0, layers - 1]}], "ttl_ms": 1000
        }))
        .unwrap()
    }

    #[test]
    fn a_descriptor_is_registered_under_its_own_id_only() {
        let mut known = Descriptors::new(1);
        let (first, second) = (descriptor("bfloat16"), descriptor("float32"));
        let computed = first.compat_id();
        assert_eq!(
            known.register(CompatId([0; 32]), first.clone()),
            Err(DescriptorRefusal::Mismatch { computed })
        );
        assert_eq!(known.register(computed, first.clone()), Ok(true));
        assert_eq!(known.register(computed, first), Ok(false));
        assert_eq!(known.register(second.compat_id(), second), Err(DescriptorRefusal::Full { max: 1 }));
    }

    #[test]
    fn records_are_held_to_the_geometry() {
        let mut known = Descriptors::new(8);
        let (two, four) = (descriptor("bfloat16"), descriptor("float32"));
        let (compat, wide) = (two.compat_id(), four.compat_id());
        // 20 octets of header, 16 a layer of table, K and V of 16 tokens × 2 heads × 4 elements × 2 octets.
        let size = 20 + 2 * (16 + 2 * 16 * 2 * 4 * 2);
        assert_eq!(known.check(&record(compat, 3, 1, 7)), Ok(()), "nothing is known yet");
        known.register(compat, two).unwrap();
        known.register(wide, four).unwrap();
        assert_eq!(known.check(&record(compat, 2, 1, size)), Ok(()));
        assert_eq!(known.check(&record(compat, 2, 2, 7)), Ok(()), "a compressed size is free");
        assert_eq!(
            known.check(&record(compat, 3, 1, size)),
            Err(GeometryError::Layers { got: 3, layers: 2 })
        );
        assert_eq!(known.check(&record(compat, 2, 1, 7)), Err(GeometryError::Size { got: 7, want: size }));
        assert_eq!(
            known.check(&record(wide, 2, 2, 7)),
            Err(GeometryError::Codec { codec: Codec::SPLIT_ZSTD })
        );
        let mut beyond = record(compat, 3, 1, size);
        beyond.layer_digests = None;
        assert_eq!(known.check(&beyond), Err(GeometryError::Residency { layer: 2, layers: 2 }));
    }
}
