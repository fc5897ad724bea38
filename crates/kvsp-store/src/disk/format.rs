//! The file of a block: self-describing, version 1.
//!
//! ```text
//! "KVSPBLK" 00    magic                                  8 octets
//! version         1                                      u32
//! compat, scope, key                                     32 + 16 + 32
//! digest of the whole container                          32
//! producer        its length in octets, UTF-8            u16 + n
//! layer digests   their number, 32 octets each           u32 + 32 n
//! digest          SHA-256 of everything before           32
//! container       to the end of the file                 (draft section 4.3)
//! ```
//! Integers are in network byte order. An unknown version is refused, not guessed.

use std::sync::Arc;

use kvsp_proto::container::{Container, Limits};
use kvsp_proto::digest::{ReprDigest, sha256};
use kvsp_proto::id::{BlockKey, CompatId, Digest, ScopeId};

use crate::block::{BlockMeta, BlockName};

const MAGIC: &[u8; 8] = b"KVSPBLK\0";
const VERSION: u32 = 1;
const FIXED_OCTETS: usize = 8 + 4 + 32 + 16 + 32 + 32 + 2 + 4 + 32;
/// More layers than any holder takes: bounds what a rotten count can make a reader allocate.
const MAX_LAYERS: usize = 65_536;

/// Containers come from this process or an earlier one, which enforced its own limits.
pub(super) const LIMITS: Limits = Limits { max_octets: u64::MAX, max_layers: MAX_LAYERS as u32 };

/// The part of a file before the container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) name: BlockName,
    pub(super) producer: String,
    pub(super) repr_digest: ReprDigest,
    pub(super) layer_digests: Vec<Digest>,
}

/// Octets before the container.
pub(super) fn head_octets(meta: &BlockMeta) -> usize {
    FIXED_OCTETS + producer_octets(&meta.producer) + 32 * meta.layer_digests.len()
}

/// A producer longer than the format holds is cut; names are base URIs or subjects, far shorter.
const fn producer_octets(producer: &str) -> usize {
    if producer.len() > u16::MAX as usize { u16::MAX as usize } else { producer.len() }
}

/// The octets before the container.
pub(super) fn encode(meta: &BlockMeta) -> Vec<u8> {
    let mut out = Vec::with_capacity(head_octets(meta));
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(meta.name.compat.as_bytes());
    out.extend_from_slice(meta.name.scope.as_bytes());
    out.extend_from_slice(meta.name.key.as_bytes());
    out.extend_from_slice(meta.repr_digest.0.as_bytes());
    let producer = &meta.producer.as_bytes()[..producer_octets(&meta.producer)];
    out.extend_from_slice(&(producer.len() as u16).to_be_bytes());
    out.extend_from_slice(producer);
    out.extend_from_slice(&(meta.layer_digests.len() as u32).to_be_bytes());
    for digest in &meta.layer_digests {
        out.extend_from_slice(digest.as_bytes());
    }
    let digest = sha256(&out);
    out.extend_from_slice(digest.as_bytes());
    out
}

/// Reads what [`encode`] wrote, from the start of a file, and how long it was; `None` where it is not that,
/// `Some(Err(n))` where at least `n` octets of the file are needed to tell.
pub(super) fn decode(file: &[u8]) -> Option<Result<(Head, usize), usize>> {
    let mut at = Cursor { octets: file, taken: 0 };
    let head = match at.head() {
        Ok(head) => head?,
        Err(More(octets)) => return Some(Err(octets)),
    };
    let covered = file.get(..at.taken)?;
    let digest = match at.take(32) {
        Ok(digest) => digest,
        Err(More(octets)) => return Some(Err(octets)),
    };
    (sha256(covered).as_bytes().as_slice() == digest).then_some(Ok((head, at.taken)))
}

struct Cursor<'a> {
    octets: &'a [u8],
    taken: usize,
}

/// The file must be read to here.
struct More(usize);

impl<'a> Cursor<'a> {
    fn take(&mut self, octets: usize) -> Result<&'a [u8], More> {
        let end = self.taken + octets;
        let taken = self.octets.get(self.taken..end).ok_or(More(end))?;
        self.taken = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], More> {
        let end = self.taken + N;
        self.take(N)?.try_into().map_err(|_| More(end))
    }

    fn head(&mut self) -> Result<Option<Head>, More> {
        if self.array::<8>()? != *MAGIC || u32::from_be_bytes(self.array()?) != VERSION {
            return Ok(None);
        }
        let name = BlockName {
            compat: CompatId(self.array()?),
            scope: ScopeId(self.array()?),
            key: BlockKey(self.array()?),
        };
        let repr_digest = ReprDigest(Digest(self.array()?));
        let producer = u16::from_be_bytes(self.array()?);
        let producer = String::from_utf8_lossy(self.take(usize::from(producer))?).into_owned();
        let layers = u32::from_be_bytes(self.array()?) as usize;
        if layers > MAX_LAYERS {
            return Ok(None);
        }
        let digests = self.take(32 * layers)?.as_chunks::<32>().0;
        let layer_digests = digests.iter().map(|digest| Digest(*digest)).collect();
        Ok(Some(Head { name, producer, repr_digest, layer_digests }))
    }
}

impl Head {
    /// The meta data of the block whose container has this header.
    pub(super) fn with(self, header: kvsp_proto::container::Header) -> Option<Arc<BlockMeta>> {
        let codec = header.codec()?;
        if header.layers().count() != self.layer_digests.len() as u64 {
            return None;
        }
        Some(Arc::new(BlockMeta {
            name: self.name,
            producer: self.producer,
            header,
            codec,
            layer_digests: self.layer_digests,
            repr_digest: self.repr_digest,
        }))
    }
}

/// Whether a container read back is the one that the meta data describe. Equal headers and equal layer
/// digests make an equal whole, so the data is hashed once.
pub(super) fn is_intact(meta: &BlockMeta, container: &Container) -> bool {
    *container.header() == meta.header && container.layer_digests() == meta.layer_digests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::sample;

    #[test]
    fn a_head_survives_and_nothing_shorter_or_changed_does() {
        let block = sample(1, 3, 8);
        let octets = encode(&block.meta);
        assert_eq!(octets.len(), head_octets(&block.meta));
        let (head, length) = decode(&octets).unwrap().unwrap();
        assert_eq!(length, octets.len());
        assert_eq!(head.clone().with(block.meta.header.clone()).unwrap(), block.meta);
        for cut in 0..octets.len() {
            assert!(matches!(decode(&octets[..cut]), Some(Err(more)) if more > cut), "{cut}");
        }
        for at in 0..octets.len() {
            let mut changed = octets.clone();
            changed[at] ^= 1;
            assert!(!matches!(decode(&changed), Some(Ok(_))), "{at}");
        }
    }
}
