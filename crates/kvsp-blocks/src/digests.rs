//! Digests of representations that are not whole blocks: computed once each, as far as memory allows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use kvsp_proto::container::LayerRange;
use kvsp_proto::digest::ReprDigest;
use kvsp_proto::id::Digest;
use kvsp_proto::registry::Codec;

/// Digests kept, about 100 octets each.
const MAX_DIGESTS: usize = 65_536;

/// Names a representation by the digest of the whole block that it is taken from, so that another block
/// under the same name has other representations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReprName {
    pub(crate) whole: Digest,
    pub(crate) layers: LayerRange,
    pub(crate) codec: Codec,
}

/// The digests computed last.
#[derive(Debug, Default)]
pub(crate) struct DigestCache(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    digests: BTreeMap<ReprName, ReprDigest>,
    order: VecDeque<ReprName>,
}

impl DigestCache {
    pub(crate) fn get(&self, name: &ReprName) -> Option<ReprDigest> {
        self.lock().digests.get(name).copied()
    }

    pub(crate) fn insert(&self, name: ReprName, digest: ReprDigest) {
        let mut kept = self.lock();
        if kept.digests.insert(name, digest).is_some() {
            return;
        }
        kept.order.push_back(name);
        if kept.order.len() > MAX_DIGESTS
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.digests.remove(&oldest);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        // A panic between two changes costs a digest kept too long or computed twice.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
