//! What a lookup reads of a block: 48 octets, dense, in the order of publication.

use kvsp_proto::id::BlockKey;

use super::replica::{NONE, Replica, ReplicaId};
use crate::time::Time;

/// The number of a block, or [`NONE`].
pub(super) type BlockId = u32;

/// 2^20 µs, about a second: the grain in which a lookup compares deadlines before it looks closer.
pub(super) const TICK_SHIFT: u32 = 20;

/// The tick in which a point of time lies.
pub(super) fn tick_of(time: Time) -> u32 {
    u32::try_from(time.as_micros() >> TICK_SHIFT).unwrap_or(u32::MAX)
}

/// A block and a summary of its replicas, so that the common case needs nothing else. A free one has no
/// space.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) key: BlockKey,
    pub(super) space: u32,
    /// The first of its replicas, in the order of their holders.
    pub(super) head: ReplicaId,
    /// Before this tick there is a live replica, for certain: the one of `whole` where there is one.
    pub(super) sure: u32,
    /// Until then this many leading layers are whole on one replica, which no live replica's list or
    /// residency exceeds; 0 where that takes a closer look.
    pub(super) whole: u32,
}

const _: () = assert!(size_of::<Block>() == 48, "a lookup streams through blocks");

impl Block {
    pub(super) const FREE: Self = Self { key: BlockKey([0; 32]), space: NONE, head: NONE, sure: 0, whole: 0 };

    /// Whether it is the block of this key in this space.
    pub(super) fn is(&self, space: u32, key: &BlockKey) -> bool {
        // Word by word: a call to compare 32 octets would take longer than comparing them.
        let words = |key: &BlockKey| {
            let [a, b] = key.0.as_chunks::<16>().0 else { return [0; 2] };
            [u128::from_ne_bytes(*a), u128::from_ne_bytes(*b)]
        };
        let (own, other) = (words(&self.key), words(key));
        ((own[0] ^ other[0]) | (own[1] ^ other[1])) == 0 && self.space == space
    }

    /// Summarises the replicas anew.
    pub(super) fn sum_up<'a>(
        &mut self,
        replicas: impl Iterator<Item = &'a Replica> + Clone,
        listed: impl Fn(&Replica) -> Option<u32>,
    ) {
        let records = replicas.filter(|replica| !replica.is_tombstone());
        let most = records.clone().map(|record| listed(record).unwrap_or(0).max(record.end())).max();
        let most = most.unwrap_or(0);
        let whole =
            |record: &&Replica| record.only_span().is_some_and(|span| span.0 == 0) && record.end() >= most;
        let latest = |deadline: Option<Time>| deadline.map(tick_of);
        match latest(records.clone().filter(whole).map(|record| record.deadline).max()) {
            Some(tick) => (self.sure, self.whole) = (tick, most),
            None => {
                self.sure = latest(records.map(|record| record.deadline).max()).unwrap_or(0);
                self.whole = 0;
            }
        }
    }
}
