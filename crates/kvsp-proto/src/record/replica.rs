//! The Replica Record.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::RecordError;
use crate::digest::replica_digest;
use crate::fast::{self, HolderHint};
use crate::id::{BlockKey, CompatId, Digest, NamedDigest, ScopeId};
use crate::json::{self, JsonError};
use crate::registry::{Codec, Tier};
use crate::uri::{BaseUri, HolderUri};

/// Most layers that a record may list.
pub const MAX_LAYERS: usize = 65_536;

/// An inclusive range of layers, as records carry it: `[first, last]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LayerSpan(pub u32, pub u32);

impl LayerSpan {
    /// Number of layers; 0 where the ends are reversed.
    #[must_use]
    pub fn count(self) -> u64 {
        (u64::from(self.1) + 1).saturating_sub(u64::from(self.0))
    }

    /// Whether a layer lies in the range.
    #[must_use]
    pub const fn contains(self, layer: u32) -> bool {
        self.0 <= layer && layer <= self.1
    }
}

/// Which layers reside in which tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Residency {
    /// The tier.
    pub tier: Tier,
    /// The layers, inclusive.
    pub layers: LayerSpan,
    /// Megabits per second at which the holder reads that tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_mbit_per_s: Option<f64>,
}

/// A replica of a block at a holder (draft section 4.4).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplicaRecord {
    /// The block's key.
    pub block_key: BlockKey,
    /// The compatibility of its contents.
    pub compat_id: CompatId,
    /// The scope in which the key was made.
    pub scope_id: ScopeId,
    /// Who serves it.
    pub holder: HolderUri,
    /// The codec in which it is held.
    pub codec: Codec,
    /// Octets of the whole container.
    pub size: u64,
    /// The replica digest: over all layer digests.
    pub digest: NamedDigest,
    /// The digests of layers 0…L−1; absent where the replica is not served by layer range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_digests: Option<Vec<Digest>>,
    /// What resides where; ranges do not overlap.
    pub residency: Vec<Residency>,
    /// Time to live in ms; in answers what remains.
    pub ttl_ms: u64,
    /// Orders the records of one replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The holder's start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_epoch: Option<u64>,
    /// The principal that stored the block (profile section 4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub producer: Option<String>,
    /// The Track Namespace of a `moqt` holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moqt_namespace: Option<String>,
}

/// The members as they are on the wire, before their meaning is checked.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Wire {
    block_key: BlockKey,
    compat_id: CompatId,
    scope_id: ScopeId,
    holder: String,
    codec: u16,
    size: u64,
    digest: NamedDigest,
    #[serde(default, deserialize_with = "json::present")]
    layer_digests: Option<Vec<Digest>>,
    residency: Vec<WireResidency>,
    ttl_ms: u64,
    #[serde(default, deserialize_with = "json::present")]
    seq: Option<u64>,
    #[serde(default, deserialize_with = "json::present")]
    holder_epoch: Option<u64>,
    #[serde(default, deserialize_with = "json::present")]
    producer: Option<String>,
    #[serde(default, deserialize_with = "json::present")]
    moqt_namespace: Option<String>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct WireResidency {
    tier: String,
    layers: (u32, u32),
    #[serde(default, deserialize_with = "json::present")]
    read_mbit_per_s: Option<f64>,
}

impl ReplicaRecord {
    /// Read a record from I-JSON.
    ///
    /// # Errors
    /// [`RecordError`]; an integer outside its range (`ttl_ms` 0, codec 0 or 65535) counts as malformed,
    /// everything else that is false as invalid.
    pub fn from_json(body: &[u8]) -> Result<Self, RecordError> {
        Self::read(body, &mut HolderHint::default())
    }

    /// As [`ReplicaRecord::from_json`], a little faster where the record names this holder.
    ///
    /// # Errors
    /// As [`ReplicaRecord::from_json`].
    pub fn from_json_of(body: &[u8], holder: &HolderUri) -> Result<Self, RecordError> {
        Self::read(body, &mut HolderHint::new(holder))
    }

    fn read(body: &[u8], hint: &mut HolderHint) -> Result<Self, RecordError> {
        match fast::record(body, hint) {
            Some(record) => Ok(record),
            None => Self::from_value(json::parse(body)?),
        }
    }

    /// Read a record from a JSON value that came through [`json::parse`].
    ///
    /// # Errors
    /// As [`ReplicaRecord::from_json`].
    pub fn from_value(value: Value) -> Result<Self, RecordError> {
        let wire: Wire = json::from_value(value)?;
        let codec = Codec::new(wire.codec)
            .ok_or_else(|| JsonError::Malformed("member codec is not in 1…65534".into()))?;
        if wire.ttl_ms == 0 {
            return Err(JsonError::Malformed("member ttl_ms is not at least 1".into()).into());
        }
        let holder: HolderUri =
            wire.holder.parse().map_err(|e| RecordError::invalid(format!("member holder: {e}")))?;
        let residency = wire.residency.into_iter().map(WireResidency::check).collect::<Result<_, _>>()?;
        let record = Self {
            block_key: wire.block_key,
            compat_id: wire.compat_id,
            scope_id: wire.scope_id,
            holder,
            codec,
            size: wire.size,
            digest: wire.digest,
            layer_digests: wire.layer_digests,
            residency,
            ttl_ms: wire.ttl_ms,
            seq: wire.seq,
            holder_epoch: wire.holder_epoch,
            producer: wire.producer,
            moqt_namespace: wire.moqt_namespace,
        };
        record.check()?;
        Ok(record)
    }

    /// Whether the members agree with each other.
    pub(crate) fn check(&self) -> Result<(), RecordError> {
        let count = self.layer_digests.as_ref().map(Vec::len);
        if count == Some(0) {
            return Err(RecordError::invalid("member layer_digests is empty"));
        }
        if count.is_some_and(|n| n > MAX_LAYERS) {
            return Err(RecordError::invalid(format!("member layer_digests has over {MAX_LAYERS} entries")));
        }
        check_ranges(&self.residency, count)?;
        if let Some(digests) = &self.layer_digests
            && replica_digest(digests) != self.digest.0
        {
            return Err(RecordError::invalid("member digest is not the SHA-256 of layer_digests"));
        }
        match (&self.moqt_namespace, self.holder.is_moqt()) {
            (Some(namespace), true) => check_namespace(namespace),
            (None, true) => Err(RecordError::invalid("a moqt holder needs the member moqt_namespace")),
            (_, false) => Ok(()),
        }
    }

    /// The HTTP base URI of the holder; `None` for a `moqt` publisher, which HTTP clients skip.
    #[must_use]
    pub fn http_holder(&self) -> Option<BaseUri> {
        self.holder.http()
    }

    /// The tier in which a layer resides.
    #[must_use]
    pub fn tier_of(&self, layer: u32) -> Option<&Residency> {
        self.residency.iter().find(|r| r.layers.contains(layer))
    }
}

impl WireResidency {
    fn check(self) -> Result<Residency, RecordError> {
        let tier = self.tier.parse().map_err(|e| RecordError::invalid(format!("member residency: {e}")))?;
        let (first, last) = self.layers;
        if first > last {
            return Err(RecordError::invalid(format!(
                "member residency: layers [{first}, {last}] are reversed"
            )));
        }
        if self.read_mbit_per_s.is_some_and(|rate| !rate.is_finite() || rate < 0.0) {
            return Err(RecordError::invalid("member residency: read_mbit_per_s is negative"));
        }
        Ok(Residency { tier, layers: LayerSpan(first, last), read_mbit_per_s: self.read_mbit_per_s })
    }
}

fn check_ranges(residency: &[Residency], layers: Option<usize>) -> Result<(), RecordError> {
    if residency.is_empty() {
        return Err(RecordError::invalid("member residency is empty"));
    }
    let mut ranges: Vec<LayerSpan> = residency.iter().map(|r| r.layers).collect();
    ranges.sort_unstable();
    if let Some(pair) = ranges.windows(2).find(|pair| pair[1].0 <= pair[0].1) {
        return Err(RecordError::invalid(format!("member residency: layer {} is in two ranges", pair[1].0)));
    }
    let end = ranges.last().map_or(0, |r| u64::from(r.1) + 1);
    let bound = layers.unwrap_or(MAX_LAYERS);
    if end > bound as u64 {
        return Err(RecordError::invalid(format!("member residency: layer {} of {bound}", end - 1)));
    }
    Ok(())
}

/// Five fields, each one length octet and 1–255 octets (profile section 5).
fn check_namespace(text: &str) -> Result<(), RecordError> {
    let wrong =
        || RecordError::invalid("member moqt_namespace is not five length-prefixed fields in base64url");
    let octets = URL_SAFE_NO_PAD.decode(text).map_err(|_| wrong())?;
    let mut rest = octets.as_slice();
    for _ in 0..5 {
        let (&length, after) = rest.split_first().ok_or_else(wrong)?;
        if length == 0 {
            return Err(wrong());
        }
        rest = after.get(usize::from(length)..).ok_or_else(wrong)?;
    }
    if rest.is_empty() { Ok(()) } else { Err(wrong()) }
}

impl<'de> Deserialize<'de> for ReplicaRecord {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Self::from_value(value).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> Value {
        let digests = [Digest([1; 32]), Digest([2; 32])];
        json!({
            "block_key": "11".repeat(32), "compat_id": "22".repeat(32), "scope_id": "33".repeat(16),
            "holder": "HTTPS://H1.example/kvsp/", "codec": 1, "size": 100,
            "digest": NamedDigest(replica_digest(&digests)), "layer_digests": digests,
            "residency": [{"tier": "host", "layers": [1, 1]}, {"tier": "device", "layers": [0, 0], "x": 1}],
            "ttl_ms": 1000, "unknown": {}
        })
    }

    fn with(member: &str, value: Value) -> Result<ReplicaRecord, RecordError> {
        let mut record = sample();
        record[member] = value;
        ReplicaRecord::from_json(record.to_string().as_bytes())
    }

    #[test]
    fn a_record_is_read_and_written() {
        let record = ReplicaRecord::from_value(sample()).unwrap();
        assert_eq!(record.holder.as_str(), "https://h1.example/kvsp/");
        assert_eq!(record.tier_of(1).unwrap().tier, Tier::Host);
        let again = ReplicaRecord::from_value(serde_json::to_value(&record).unwrap()).unwrap();
        assert_eq!(again, record);
    }

    #[test]
    fn what_is_false_is_invalid_and_what_is_misshapen_is_malformed() {
        let invalid = [
            ("holder", json!("https://h/x")),
            ("residency", json!([{"tier": "host", "layers": [0, 1]}, {"tier": "disk", "layers": [1, 1]}])),
            ("residency", json!([{"tier": "tape", "layers": [0, 1]}])),
            ("residency", json!([{"tier": "host", "layers": [1, 0]}])),
            ("residency", json!([{"tier": "host", "layers": [0, 2]}])),
            ("residency", json!([])),
            ("digest", json!(format!("sha-256:{}", "00".repeat(32)))),
            ("layer_digests", json!([])),
        ];
        for (member, value) in invalid {
            assert!(matches!(with(member, value.clone()), Err(RecordError::Invalid(_))), "{member} {value}");
        }
        let malformed = [
            ("ttl_ms", json!(0)),
            ("codec", json!(0)),
            ("codec", json!(70_000)),
            ("size", json!("1")),
            ("size", json!(-1)),
        ];
        for (member, value) in malformed {
            assert!(
                matches!(with(member, value.clone()), Err(RecordError::Json(JsonError::Malformed(_)))),
                "{member} {value}"
            );
        }
        assert!(matches!(
            with("block_key", json!("AA")),
            Err(RecordError::Json(JsonError::BadIdentifier(_)))
        ));
    }

    #[test]
    fn a_moqt_holder_has_a_namespace_of_five_fields() {
        let mut record = sample();
        record["holder"] = json!("moqt://relay.example/");
        assert!(ReplicaRecord::from_value(record.clone()).is_err());
        for (octets, valid) in [
            (b"\x01a\x01b\x01c\x01d\x01e".as_slice(), true),
            (b"\x01a\x01b\x01c\x01d", false),
            (b"\x01a\x01b\x01c\x01d\x00", false),
            (b"\x01a\x01b\x01c\x01d\x01e\x01f", false),
        ] {
            record["moqt_namespace"] = json!(URL_SAFE_NO_PAD.encode(octets));
            assert_eq!(ReplicaRecord::from_value(record.clone()).is_ok(), valid);
        }
    }
}
