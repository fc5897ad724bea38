//! What replicas of one computation share: the replica digest and the list of layer digests.

use std::num::NonZeroU32;

use kvsp_proto::id::Digest;

use super::replica::NONE;
use super::slab::Slab;

/// Octets of an allocation that the allocator keeps for itself.
const ALLOCATION: u64 = 16;

/// The digests of replicas, counted.
#[derive(Debug, Default)]
pub(super) struct ContentsPool {
    entries: Slab<Contents>,
    /// Lists of layer digests are kept apart, because many records have none.
    lists: Slab<Box<[Digest]>>,
    /// Octets in lists.
    heap: u64,
}

#[derive(Debug)]
struct Contents {
    digest: Digest,
    uses: NonZeroU32,
    list: u32,
}

impl ContentsPool {
    /// Octets of contents that are not there yet.
    pub(super) fn cost(layers: Option<usize>) -> u64 {
        size_of::<Option<Contents>>() as u64 + layers.map_or(0, list_octets)
    }

    /// Octets in use.
    pub(super) fn octets(&self) -> u64 {
        self.entries.octets() + self.lists.octets() + self.heap
    }

    /// New contents, used once.
    pub(super) fn add(&mut self, digest: Digest, layers: Option<&[Digest]>) -> u32 {
        let list = layers.map_or(NONE, |layers| {
            self.heap += list_octets(layers.len()) - size_of::<Box<[Digest]>>() as u64;
            self.lists.add(layers.into())
        });
        self.entries.add(Contents { digest, uses: NonZeroU32::MIN, list })
    }

    /// One more use.
    pub(super) fn take(&mut self, id: u32) {
        if let Some(contents) = self.entries.get_mut(id) {
            contents.uses = contents.uses.saturating_add(1);
        }
    }

    /// One use less. What is not used any more goes: then the number of its layer digests is returned.
    pub(super) fn release(&mut self, id: u32) -> Option<Option<usize>> {
        let contents = self.entries.get_mut(id)?;
        if let Some(left) = NonZeroU32::new(contents.uses.get() - 1) {
            contents.uses = left;
            return None;
        }
        let list = self.entries.remove(id).and_then(|contents| self.lists.remove(contents.list));
        let layers = list.map(|list| list.len());
        self.heap -= layers.map_or(0, |layers| list_octets(layers) - size_of::<Box<[Digest]>>() as u64);
        Some(layers)
    }

    /// Whether contents are these. A replica digest is the digest of its list, which reading a record
    /// verified, so equal digests mean equal lists.
    pub(super) fn is(&self, id: u32, digest: Digest, layers: Option<usize>) -> bool {
        self.digest(id) == Some(digest) && self.list(id).map(<[Digest]>::len) == layers
    }

    pub(super) fn digest(&self, id: u32) -> Option<Digest> {
        self.entries.get(id).map(|contents| contents.digest)
    }

    pub(super) fn list(&self, id: u32) -> Option<&[Digest]> {
        self.lists.get(self.entries.get(id)?.list).map(AsRef::as_ref)
    }

    /// Contents in use.
    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.entries.used()
    }
}

fn list_octets(layers: usize) -> u64 {
    (layers * size_of::<Digest>() + size_of::<Box<[Digest]>>()) as u64 + ALLOCATION
}
