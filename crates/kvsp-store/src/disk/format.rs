//! The file of a block: self-describing, version 2.
//!
//! ```text
//! "KVSPBLK" 00    magic                                  8 octets
//! version         2                                      u32
//! compat, scope, key                                     32 + 16 + 32
//! digest of the whole container                          32
//! producer        its length in octets, UTF-8            u16 + n
//! layer digests   their number, 32 octets each           u32 + 32 n
//! digest          SHA-256 of everything before,
//!                 and of the header and table below      32
//! zeros           to a multiple of 64 octets
//! header, table   of the whole container                 (draft section 4.3)
//! data            K and V of the leading layers, to the end of the file
//! ```
//! Integers are in network byte order. How many layers are held follows from the length of the file, which
//! ends where a layer ends; the file of a whole block ends with its container. An unknown version is refused,
//! not guessed.

use kvsp_proto::container::{ENTRY_OCTETS, HEADER_OCTETS, Header, Limits, StreamEvent, StreamParser};
use kvsp_proto::digest::{ReprDigest, sha256_parts};
use kvsp_proto::id::{BlockKey, CompatId, Digest, ScopeId};

use crate::block::{BlockMeta, BlockName};

const MAGIC: &[u8; 8] = b"KVSPBLK\0";
const VERSION: u32 = 2;
const FIXED_OCTETS: usize = 8 + 4 + 32 + 16 + 32 + 32 + 2 + 4 + 32;
/// Where the container starts is a multiple of this: copies between buffers that are a few octets apart
/// within a page are several times slower.
const ALIGNMENT: usize = 64;
/// More layers than any holder takes: bounds what a rotten count can make a reader allocate.
const MAX_LAYERS: usize = 65_536;

/// Containers come from this process or an earlier one, which enforced its own limits.
pub(crate) const LIMITS: Limits = Limits { max_octets: u64::MAX, max_layers: MAX_LAYERS as u32 };

/// Octets before the container's own header.
pub(crate) fn preface_octets(meta: &BlockMeta) -> usize {
    let exact = FIXED_OCTETS + producer_octets(&meta.producer) + 32 * meta.layer_digests.len();
    exact.next_multiple_of(ALIGNMENT)
}

/// Octets before the data: those of [`encode`].
pub(crate) fn head_octets(meta: &BlockMeta) -> usize {
    preface_octets(meta) + meta.header.octets()
}

/// Octets of the file that holds the `layers` leading layers.
pub(crate) fn file_octets(meta: &BlockMeta, layers: u32) -> u64 {
    (head_octets(meta) as u64).saturating_add(meta.data_octets(layers))
}

/// How many layers a file of that length holds; `None` where it does not end with a layer. Layers without
/// octets count as held.
pub(crate) fn layers_held(meta: &BlockMeta, file_octets: u64) -> Option<u32> {
    let mut rest = file_octets.checked_sub(head_octets(meta) as u64)?;
    let mut layers = 0;
    for (k, v) in meta.header.lengths() {
        // The header's own sum of all lengths did not overflow.
        match rest.checked_sub(k + v) {
            Some(less) => (rest, layers) = (less, layers + 1),
            None => break,
        }
    }
    (rest == 0 && layers > 0).then_some(layers)
}

/// A producer longer than the format holds is cut; names are base URIs or subjects, far shorter.
const fn producer_octets(producer: &str) -> usize {
    if producer.len() > u16::MAX as usize { u16::MAX as usize } else { producer.len() }
}

/// Everything before the data.
pub(crate) fn encode(meta: &BlockMeta) -> Vec<u8> {
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
    let header = meta.header.encode();
    let digest = sha256_parts([out.as_slice(), &header]);
    out.extend_from_slice(digest.as_bytes());
    out.resize(preface_octets(meta), 0);
    out.extend_from_slice(&header);
    out
}

/// Octets do not tell what block they are the start of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undecided {
    /// They are not the start of a block's file.
    NoBlock,
    /// At least so many octets of the file are needed.
    More(usize),
}

/// Reads what [`encode`] wrote, from the start of a file.
pub(crate) fn decode(file: &[u8]) -> Result<BlockMeta, Undecided> {
    let mut at = Cursor { octets: file, taken: 0 };
    if at.array::<8>()? != *MAGIC || u32::from_be_bytes(at.array()?) != VERSION {
        return Err(Undecided::NoBlock);
    }
    let name =
        BlockName { compat: CompatId(at.array()?), scope: ScopeId(at.array()?), key: BlockKey(at.array()?) };
    let repr_digest = ReprDigest(Digest(at.array()?));
    let producer = u16::from_be_bytes(at.array()?);
    let producer = String::from_utf8_lossy(at.take(usize::from(producer))?).into_owned();
    let layers = u32::from_be_bytes(at.array()?) as usize;
    if layers > MAX_LAYERS {
        return Err(Undecided::NoBlock);
    }
    let digests = at.take(32 * layers)?.as_chunks::<32>().0;
    let layer_digests = digests.iter().map(|digest| Digest(*digest)).collect();
    let covered = at.taken;
    let digest = at.array::<32>()?;
    let padding = at.taken.next_multiple_of(ALIGNMENT) - at.taken;
    let padded = at.take(padding)?.iter().all(|octet| *octet == 0);
    let header = at.take(HEADER_OCTETS + ENTRY_OCTETS * layers)?;
    let covered = file.get(..covered).unwrap_or_default();
    if !padded || sha256_parts([covered, header]).as_bytes() != &digest {
        return Err(Undecided::NoBlock);
    }
    let header = parse_header(header).filter(|header| header.lengths().len() == layers);
    let header = header.ok_or(Undecided::NoBlock)?;
    let codec = header.codec().ok_or(Undecided::NoBlock)?;
    Ok(BlockMeta { name, producer, header, codec, layer_digests, repr_digest })
}

fn parse_header(octets: &[u8]) -> Option<Header> {
    let mut parser = StreamParser::single(LIMITS);
    parser.push(octets.to_vec().into());
    match parser.next_event() {
        Ok(Some(StreamEvent::Header(header))) => Some(header),
        _ => None,
    }
}

struct Cursor<'a> {
    octets: &'a [u8],
    taken: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, octets: usize) -> Result<&'a [u8], Undecided> {
        let end = self.taken + octets;
        let taken = self.octets.get(self.taken..end).ok_or(Undecided::More(end))?;
        self.taken = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Undecided> {
        let end = self.taken + N;
        self.take(N)?.try_into().map_err(|_| Undecided::More(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::sample;

    #[test]
    fn a_head_survives_and_nothing_shorter_or_changed_does() {
        for layers in [1, 3, 200] {
            let block = sample(1, layers, 8);
            let octets = encode(&block.meta);
            assert_eq!(octets.len(), head_octets(&block.meta));
            assert_eq!(preface_octets(&block.meta) % 64, 0);
            assert_eq!(decode(&octets).unwrap(), *block.meta);
            for cut in 0..octets.len() {
                assert!(matches!(decode(&octets[..cut]), Err(Undecided::More(more)) if more > cut), "{cut}");
            }
            for at in 0..octets.len() {
                let mut changed = octets.clone();
                changed[at] ^= 1;
                assert!(decode(&changed).is_err(), "{at}");
            }
        }
    }

    #[test]
    fn a_length_tells_the_layers_where_it_ends_with_one() {
        let meta = sample(1, 3, 8).meta;
        let head = head_octets(&meta) as u64;
        for octets in 0..head + 60 {
            let want = [(head + 16, 1), (head + 32, 2), (head + 48, 3)]
                .iter()
                .find_map(|(at, layers)| (*at == octets).then_some(*layers));
            assert_eq!(layers_held(&meta, octets), want, "{octets}");
        }
        for layers in 1..=3 {
            assert_eq!(layers_held(&meta, file_octets(&meta, layers)), Some(layers));
        }
        assert_eq!(layers_held(&sample(1, 3, 0).meta, head), Some(3));
    }
}
