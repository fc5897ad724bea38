//! Writes records and lookup answers as serde_json would, but into one buffer and without building them.

use super::hex;
use crate::id::{BlockKey, CompatId, Digest, ScopeId};
use crate::record::{ReplicaRecord, Residency};
use crate::registry::Codec;

/// The members of a record, wherever they lie; as [`ReplicaRecord`].
#[derive(Debug, Clone)]
pub struct RecordParts<'a, R> {
    /// The block's key.
    pub block_key: &'a BlockKey,
    /// The compatibility of its contents.
    pub compat_id: &'a CompatId,
    /// The scope in which the key was made.
    pub scope_id: &'a ScopeId,
    /// Who serves it, normalised.
    pub holder: &'a str,
    /// The codec in which it is held.
    pub codec: Codec,
    /// Octets of the whole container.
    pub size: u64,
    /// The replica digest.
    pub digest: &'a Digest,
    /// The digests of layers 0…L−1.
    pub layer_digests: Option<&'a [Digest]>,
    /// What resides where.
    pub residency: R,
    /// Time to live in ms.
    pub ttl_ms: u64,
    /// Orders the records of one replica.
    pub seq: Option<u64>,
    /// The holder's start.
    pub holder_epoch: Option<u64>,
    /// The principal that stored the block.
    pub producer: Option<&'a str>,
    /// The Track Namespace of a `moqt` holder.
    pub moqt_namespace: Option<&'a str>,
}

impl<'a> RecordParts<'a, std::iter::Cloned<std::slice::Iter<'a, Residency>>> {
    /// The members of a record.
    #[must_use]
    pub fn of(record: &'a ReplicaRecord) -> Self {
        Self {
            block_key: &record.block_key,
            compat_id: &record.compat_id,
            scope_id: &record.scope_id,
            holder: record.holder.as_str(),
            codec: record.codec,
            size: record.size,
            digest: &record.digest.0,
            layer_digests: record.layer_digests.as_deref(),
            residency: record.residency.iter().cloned(),
            ttl_ms: record.ttl_ms,
            seq: record.seq,
            holder_epoch: record.holder_epoch,
            producer: record.producer.as_deref(),
            moqt_namespace: record.moqt_namespace.as_deref(),
        }
    }
}

impl<R: Iterator<Item = Residency>> RecordParts<'_, R> {
    /// Appends the record as a JSON object.
    pub fn write(self, out: &mut Vec<u8>) {
        let digests = self.layer_digests.map_or(0, <[Digest]>::len);
        out.reserve(512 + 67 * digests + self.holder.len());
        out.extend_from_slice(b"{\"block_key\":");
        push_hex32(out, &self.block_key.0);
        out.extend_from_slice(b",\"compat_id\":");
        push_hex32(out, &self.compat_id.0);
        out.extend_from_slice(b",\"scope_id\":");
        push_hex16(out, &self.scope_id.0);
        out.extend_from_slice(b",\"holder\":");
        push_text(out, self.holder);
        out.extend_from_slice(b",\"codec\":");
        push_integer(out, u64::from(self.codec.number()));
        out.extend_from_slice(b",\"size\":");
        push_integer(out, self.size);
        out.extend_from_slice(b",\"digest\":\"sha-256:");
        out.extend_from_slice(&hex::encode32(&self.digest.0));
        out.push(b'"');
        if let Some(digests) = self.layer_digests {
            out.extend_from_slice(b",\"layer_digests\":");
            push_digests(out, digests);
        }
        out.extend_from_slice(b",\"residency\":[");
        let mut separator: &[u8] = b"";
        for held in self.residency {
            out.extend_from_slice(separator);
            push_residency(out, &held);
            separator = b",";
        }
        out.extend_from_slice(b"],\"ttl_ms\":");
        push_integer(out, self.ttl_ms);
        if let Some(seq) = self.seq {
            out.extend_from_slice(b",\"seq\":");
            push_integer(out, seq);
        }
        if let Some(epoch) = self.holder_epoch {
            out.extend_from_slice(b",\"holder_epoch\":");
            push_integer(out, epoch);
        }
        if let Some(producer) = self.producer {
            out.extend_from_slice(b",\"producer\":");
            push_text(out, producer);
        }
        if let Some(namespace) = self.moqt_namespace {
            out.extend_from_slice(b",\"moqt_namespace\":");
            push_text(out, namespace);
        }
        out.push(b'}');
    }
}

/// Appends `"<hex32>"`.
pub fn push_hex32(out: &mut Vec<u8>, octets: &[u8; 32]) {
    let mut text = [b'"'; 66];
    text[1..65].copy_from_slice(&hex::encode32(octets));
    out.extend_from_slice(&text);
}

/// Appends `"<hex16>"`.
pub fn push_hex16(out: &mut Vec<u8>, octets: &[u8; 16]) {
    let mut text = [b'"'; 34];
    text[1..33].copy_from_slice(&hex::encode16(octets));
    out.extend_from_slice(&text);
}

fn push_digests(out: &mut Vec<u8>, digests: &[Digest]) {
    let Some((first, others)) = digests.split_first() else {
        out.extend_from_slice(b"[]");
        return;
    };
    out.push(b'[');
    push_hex32(out, &first.0);
    for digest in others {
        let mut text = *b",\"................................................................\"";
        text[2..66].copy_from_slice(&hex::encode32(&digest.0));
        out.extend_from_slice(&text);
    }
    out.push(b']');
}

fn push_residency(out: &mut Vec<u8>, held: &Residency) {
    out.extend_from_slice(b"{\"tier\":\"");
    out.extend_from_slice(held.tier.as_str().as_bytes());
    out.extend_from_slice(b"\",\"layers\":[");
    push_integer(out, u64::from(held.layers.0));
    out.push(b',');
    push_integer(out, u64::from(held.layers.1));
    out.push(b']');
    if let Some(rate) = held.read_mbit_per_s {
        out.extend_from_slice(b",\"read_mbit_per_s\":");
        push_double(out, rate);
    }
    out.push(b'}');
}

/// Appends an integer.
pub fn push_integer(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

pub(super) fn push_double(out: &mut Vec<u8>, value: f64) {
    let start = out.len();
    // Writing into a vector does not fail; a number that is none would be `null` there too.
    if serde_json::to_writer(&mut *out, &value).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
}

/// Appends a string.
pub fn push_text(out: &mut Vec<u8>, text: &str) {
    let plain = |c: u8| (0x20..0x7f).contains(&c) && c != b'"' && c != b'\\';
    if text.bytes().all(plain) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
        return;
    }
    let start = out.len();
    if serde_json::to_writer(&mut *out, text).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"\"\"");
    }
}
