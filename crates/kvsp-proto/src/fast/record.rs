//! Replica Records, alone and in batches.

use super::reader::{Reader, Unknown, once};
use crate::id::{BlockKey, CompatId, Digest, NamedDigest, ScopeId};
use crate::message::ReplicaName;
use crate::record::{LayerSpan, ReplicaRecord, Residency};
use crate::registry::Codec;
use crate::uri::HolderUri;

/// Hex digits of a digest.
const DIGEST_DIGITS: usize = 64;

/// Digests for which room is made at once.
const USUAL_LAYERS: usize = 128;

/// The holder that a record most likely names: of the path, or of the record before. Its normal form need not
/// be parsed again.
#[derive(Debug, Default)]
pub(crate) struct HolderHint(Option<HolderUri>);

impl HolderHint {
    pub(crate) fn new(holder: &HolderUri) -> Self {
        Self(Some(holder.clone()))
    }

    fn holder(&mut self, text: &str) -> Option<HolderUri> {
        if self.0.as_ref().is_none_or(|known| known.as_str() != text) {
            self.0 = Some(text.parse().ok()?);
        }
        self.0.clone()
    }
}

/// A plain record that is true in itself; `None` where the strict reader has to judge.
pub(crate) fn record(text: &[u8], hint: &mut HolderHint) -> Option<ReplicaRecord> {
    let mut reader = Reader::new(text);
    let record = read_record(&mut reader, hint)?;
    reader.end()?;
    Some(record)
}

/// A batch of which every item is plain and, by itself, true.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// Records to publish.
    pub put: Vec<ReplicaRecord>,
    /// Replicas to withdraw.
    pub delete: Vec<ReplicaName>,
}

/// A plain batch of at most `max` items; `None` where a [`BatchRequest`](crate::message::BatchRequest) has to
/// be read from the text by [`crate::json`], its items one by one.
#[must_use]
pub fn batch(text: &[u8], max: usize) -> Option<Batch> {
    let (mut put, mut delete) = (None, None);
    let mut unknown = Unknown::default();
    let mut hint = HolderHint::default();
    let mut left = max;
    let mut reader = Reader::new(text);
    reader.object(|reader, name| match name {
        b"put" => {
            let mut records = Vec::new();
            reader.array(|reader| {
                left = left.checked_sub(1)?;
                records.push(read_record(reader, &mut hint)?);
                Some(())
            })?;
            once(&mut put, records)
        }
        b"delete" => {
            let mut names = Vec::new();
            reader.array(|reader| {
                left = left.checked_sub(1)?;
                names.push(read_name(reader, &mut hint)?);
                Some(())
            })?;
            once(&mut delete, names)
        }
        _ => unknown.skip(reader, name),
    })?;
    reader.end()?;
    Some(Batch { put: put.unwrap_or_default(), delete: delete.unwrap_or_default() })
}

fn read_record(reader: &mut Reader<'_>, hint: &mut HolderHint) -> Option<ReplicaRecord> {
    let (mut block_key, mut compat_id, mut scope_id, mut holder) = (None, None, None, None);
    let (mut codec, mut size, mut digest, mut layer_digests) = (None, None, None, None);
    let (mut residency, mut ttl_ms, mut seq, mut holder_epoch) = (None, None, None, None);
    let (mut producer, mut moqt_namespace) = (None, None);
    let mut unknown = Unknown::default();
    reader.object(|reader, name| match name {
        b"block_key" => once(&mut block_key, BlockKey(reader.hex32()?)),
        b"compat_id" => once(&mut compat_id, CompatId(reader.hex32()?)),
        b"scope_id" => once(&mut scope_id, ScopeId(reader.hex16()?)),
        b"holder" => once(&mut holder, hint.holder(reader.string()?)?),
        b"codec" => once(&mut codec, Codec::new(u16::try_from(reader.integer()?).ok()?)?),
        b"size" => once(&mut size, reader.integer()?),
        b"digest" => once(&mut digest, reader.string()?.parse::<NamedDigest>().ok()?),
        b"layer_digests" => {
            // Not more than needed: 32 digests are just what an allocator serves from its fastest lists.
            let mut list = Vec::with_capacity(reader.guess_items(DIGEST_DIGITS, USUAL_LAYERS));
            reader.array(|reader| {
                list.push(Digest(reader.hex32()?));
                Some(())
            })?;
            once(&mut layer_digests, list)
        }
        b"residency" => {
            let mut list = Vec::with_capacity(1);
            reader.array(|reader| {
                list.push(read_residency(reader)?);
                Some(())
            })?;
            once(&mut residency, list)
        }
        b"ttl_ms" => once(&mut ttl_ms, reader.integer().filter(|&ttl| ttl > 0)?),
        b"seq" => once(&mut seq, reader.integer()?),
        b"holder_epoch" => once(&mut holder_epoch, reader.integer()?),
        b"producer" => once(&mut producer, reader.string()?.to_owned()),
        b"moqt_namespace" => once(&mut moqt_namespace, reader.string()?.to_owned()),
        _ => unknown.skip(reader, name),
    })?;
    let record = ReplicaRecord {
        block_key: block_key?,
        compat_id: compat_id?,
        scope_id: scope_id?,
        holder: holder?,
        codec: codec?,
        size: size?,
        digest: digest?,
        layer_digests,
        residency: residency?,
        ttl_ms: ttl_ms?,
        seq,
        holder_epoch,
        producer,
        moqt_namespace,
    };
    record.check().ok()?;
    Some(record)
}

fn read_residency(reader: &mut Reader<'_>) -> Option<Residency> {
    let (mut tier, mut layers, mut rate) = (None, None, None);
    let mut unknown = Unknown::default();
    reader.object(|reader, name| match name {
        b"tier" => once(&mut tier, reader.string()?.parse().ok()?),
        b"layers" => {
            let mut ends = [None, None];
            let mut count = 0;
            reader.array(|reader| {
                *ends.get_mut(count)? = Some(reader.integer32()?);
                count += 1;
                Some(())
            })?;
            let span = LayerSpan(ends[0]?, ends[1]?);
            once(&mut layers, (span.0 <= span.1).then_some(span)?)
        }
        b"read_mbit_per_s" => once(&mut rate, reader.number().filter(|rate| rate.is_finite())?),
        _ => unknown.skip(reader, name),
    })?;
    Some(Residency { tier: tier?, layers: layers?, read_mbit_per_s: rate })
}

fn read_name(reader: &mut Reader<'_>, hint: &mut HolderHint) -> Option<ReplicaName> {
    let (mut compat_id, mut scope_id, mut block_key) = (None, None, None);
    let (mut holder, mut seq) = (None, None);
    let mut unknown = Unknown::default();
    reader.object(|reader, name| match name {
        b"compat_id" => once(&mut compat_id, CompatId(reader.hex32()?)),
        b"scope_id" => once(&mut scope_id, ScopeId(reader.hex16()?)),
        b"block_key" => once(&mut block_key, BlockKey(reader.hex32()?)),
        b"holder" => once(&mut holder, hint.holder(reader.string()?)?),
        b"seq" => once(&mut seq, reader.integer()?),
        _ => unknown.skip(reader, name),
    })?;
    Some(ReplicaName {
        compat_id: compat_id?,
        scope_id: scope_id?,
        block_key: block_key?,
        holder: holder?,
        seq,
    })
}
