//! The gate before the engine.

use kvsp_proto::codec;
use kvsp_proto::container::LayerSections;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::message::FailureReason;
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::registry::Codec;

/// One layer of a block as a source sent it.
#[derive(Debug, Clone)]
pub(super) struct ArrivedLayer {
    pub(super) layer: u32,
    pub(super) codec: Option<Codec>,
    pub(super) token_count: u32,
    pub(super) sections: LayerSections,
}

impl ArrivedLayer {
    /// Octets of both sections.
    pub(super) fn octets(&self) -> u64 {
        (self.sections.k.len() + self.sections.v.len()) as u64
    }

    /// Check the layer against the descriptor and the record, in the order of the profile's section 5:
    /// layers, token count and section sizes, then the layer digest. Returns the sections as the engine
    /// takes them (codec `raw`).
    ///
    /// # Errors
    /// Why the layer must not enter the engine.
    pub(super) fn admit(
        &self,
        record: &ReplicaRecord,
        descriptor: &Descriptor,
    ) -> Result<LayerSections, FailureReason> {
        let sizes = descriptor.section_octets(self.token_count).ok_or(FailureReason::ContainerMismatch)?;
        let fits = self.layer < descriptor.layers
            && self.token_count == descriptor.block_tokens
            && self.codec == Some(record.codec)
            && (decoded(record.codec, &self.sections.k), decoded(record.codec, &self.sections.v))
                == (Some(sizes.0), Some(sizes.1));
        if !fits {
            return Err(FailureReason::ContainerMismatch);
        }
        let digests = record.layer_digests.as_ref().ok_or(FailureReason::NoRecord)?;
        if digests.len() != descriptor.layers as usize {
            return Err(FailureReason::ContainerMismatch);
        }
        if digests.get(self.layer as usize) != Some(&self.sections.digest()) {
            return Err(FailureReason::DigestMismatch);
        }
        let decode = |section| codec::decode_section(record.codec, section);
        match (decode(&self.sections.k), decode(&self.sections.v)) {
            (Ok(k), Ok(v)) => Ok(LayerSections { k, v }),
            _ => Err(FailureReason::ContainerMismatch),
        }
    }
}

/// Octets of a section once it is decoded; `None` where it cannot be.
fn decoded(codec: Codec, section: &[u8]) -> Option<u64> {
    codec::decoded_octets(codec, section).ok().flatten()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kvsp_proto::digest::{layer_digest, replica_digest};
    use kvsp_proto::id::{BlockKey, CompatId, NamedDigest, ScopeId};
    use kvsp_proto::record::{LayerSpan, Residency};
    use kvsp_proto::registry::Tier;

    use super::*;

    fn descriptor() -> Descriptor {
        let digest = format!("sha-256:{}", "00".repeat(32));
        Descriptor::from_value(serde_json::json!({
            "model": "m", "model_digest": digest, "tokenizer_digest": digest, "layers": 1, "kv_heads": 1,
            "head_dim": 2, "kv_dtype": "float16", "positional": "rope", "block_tokens": 2,
            "layout": "kvsp-layout-1",
        }))
        .unwrap()
    }

    fn arrived() -> ArrivedLayer {
        let sections =
            LayerSections { k: Bytes::from_static(b"kkkkkkkk"), v: Bytes::from_static(b"vvvvvvvv") };
        ArrivedLayer { layer: 0, codec: Some(Codec::RAW), token_count: 2, sections }
    }

    fn record() -> ReplicaRecord {
        let digests = vec![layer_digest(b"kkkkkkkk", b"vvvvvvvv")];
        ReplicaRecord {
            block_key: BlockKey([1; 32]),
            compat_id: CompatId([2; 32]),
            scope_id: ScopeId([3; 16]),
            holder: "http://h/".parse().unwrap(),
            codec: Codec::RAW,
            size: 52,
            digest: NamedDigest(replica_digest(&digests)),
            layer_digests: Some(digests),
            residency: vec![Residency { tier: Tier::Host, layers: LayerSpan(0, 0), read_mbit_per_s: None }],
            ttl_ms: 1,
            seq: None,
            holder_epoch: None,
            producer: None,
            moqt_namespace: None,
        }
    }

    #[test]
    fn what_the_record_lists_passes() {
        let raw = arrived().admit(&record(), &descriptor()).unwrap();
        assert_eq!(raw, arrived().sections);
    }

    #[test]
    fn other_octets_sizes_layers_or_codecs_do_not() {
        let refuse = |layer: &ArrivedLayer| layer.admit(&record(), &descriptor()).unwrap_err();
        let mut other = arrived();
        other.sections.v = Bytes::from_static(b"vvvvvvvw");
        assert_eq!(refuse(&other), FailureReason::DigestMismatch);
        other.sections.v = Bytes::from_static(b"vvvvvv");
        assert_eq!(refuse(&other), FailureReason::ContainerMismatch);
        // The same octets, cut elsewhere, have the same digest: only the size check can tell.
        let shifted =
            LayerSections { k: Bytes::from_static(b"kkkkkkk"), v: Bytes::from_static(b"kvvvvvvvv") };
        assert_eq!(
            refuse(&ArrivedLayer { sections: shifted, ..arrived() }),
            FailureReason::ContainerMismatch
        );
        assert_eq!(refuse(&ArrivedLayer { layer: 1, ..arrived() }), FailureReason::ContainerMismatch);
        assert_eq!(refuse(&ArrivedLayer { token_count: 1, ..arrived() }), FailureReason::ContainerMismatch);
        let coded = ArrivedLayer { codec: Some(Codec::SPLIT_ZSTD), ..arrived() };
        assert_eq!(refuse(&coded), FailureReason::ContainerMismatch);
        let mut bare = record();
        bare.layer_digests = None;
        assert_eq!(arrived().admit(&bare, &descriptor()).unwrap_err(), FailureReason::NoRecord);
    }
}
