//! The feed of changes: a ring of the last ones, numbered without holes.

use std::collections::VecDeque;
use std::sync::Arc;

use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::uri::HolderUri;

use super::Index;
use super::replica::ReplicaId;

/// What happened to a replica record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChangeKind {
    /// There is a new record, or what the record says has changed.
    Publish,
    /// It was withdrawn: by its holder, or because the holder's process has ended.
    Withdraw,
    /// Its TTL has passed, or it had to go to make room.
    Expire,
}

/// One change. Of one replica, every `Publish` but the first since its last end is an update, and every
/// end follows a `Publish`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its number: one more than that of the change before.
    pub number: u64,
    /// What happened.
    pub kind: ChangeKind,
    /// The replica's compatibility.
    pub compat: CompatId,
    /// Its scope.
    pub scope: ScopeId,
    /// Its block.
    pub key: BlockKey,
    /// Its holder.
    pub holder: Arc<HolderUri>,
}

/// What followed a cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changes {
    /// The changes from the cursor on, as many as were asked for.
    Events {
        /// In order, without holes.
        events: Vec<Change>,
        /// The cursor with which to go on.
        next: u64,
    },
    /// The ring no longer holds what followed the cursor, or the cursor is not of this index. The reader
    /// takes this cursor first, then reads the state anew, then goes on: no change is lost in between.
    Gap {
        /// The cursor with which to go on.
        next: u64,
    },
}

/// A change in the ring; its number is its place.
#[derive(Debug)]
struct Kept {
    kind: ChangeKind,
    compat: CompatId,
    scope: ScopeId,
    key: BlockKey,
    holder: Arc<HolderUri>,
}

/// The last changes.
#[derive(Debug)]
pub(super) struct Ring {
    kept: VecDeque<Kept>,
    /// The number of the next change.
    next: u64,
    max: usize,
}

impl Ring {
    pub(super) const fn new(max: usize) -> Self {
        Self { kept: VecDeque::new(), next: 0, max }
    }

    /// Octets in use.
    pub(super) fn octets(&self) -> u64 {
        (self.kept.len() * size_of::<Kept>()) as u64
    }

    fn push(&mut self, change: Kept) {
        self.next += 1;
        if self.max == 0 {
            return;
        }
        if self.kept.len() >= self.max {
            self.kept.pop_front();
        }
        self.kept.push_back(change);
    }

    fn since(&self, cursor: u64, limit: usize) -> Changes {
        let first = self.next - self.kept.len() as u64;
        if cursor < first || cursor > self.next {
            return Changes::Gap { next: self.next };
        }
        // At most the ring's length, which is a `usize`.
        let skipped = (cursor - first) as usize;
        let events: Vec<Change> = (cursor..)
            .zip(self.kept.iter().skip(skipped).take(limit))
            .map(|(number, kept)| Change {
                number,
                kind: kept.kind,
                compat: kept.compat,
                scope: kept.scope,
                key: kept.key,
                holder: Arc::clone(&kept.holder),
            })
            .collect();
        let next = cursor + events.len() as u64;
        Changes::Events { events, next }
    }
}

impl Index {
    /// The changes from number `cursor` on, at most `limit`. Numbers begin at 0 with the index and have no
    /// holes; they are not kept over a restart, so a reader's cursor belongs to one life of the index.
    ///
    /// An expiry is told when the record is reclaimed ([`Index::expire`]), which may be a second after it
    /// has disappeared from answers. A refresh that changes nothing but deadline, `seq` and `holder_epoch`
    /// is no change.
    #[must_use]
    pub fn changes_since(&self, cursor: u64, limit: usize) -> Changes {
        self.changes.since(cursor, limit)
    }

    /// The cursor of a reader that wants what comes from now on.
    #[must_use]
    pub const fn next_change(&self) -> u64 {
        self.changes.next
    }

    /// Tells of a change of a record.
    pub(super) fn note(&mut self, kind: ChangeKind, id: ReplicaId) {
        let Some(replica) = self.replica(id) else { return };
        let ((compat, scope), key) = (self.space_of(replica.block), self.key_of(replica.block));
        let Some(holder) = self.holders.get(replica.holder) else { return };
        self.changes.push(Kept { kind, compat, scope, key, holder: Arc::clone(&holder.uri) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(changes: u8, max: usize) -> Ring {
        let mut ring = Ring::new(max);
        let holder: Arc<HolderUri> = Arc::new("https://h/".parse().unwrap());
        for n in 0..changes {
            ring.push(Kept {
                kind: ChangeKind::Publish,
                compat: CompatId::default(),
                scope: ScopeId::default(),
                key: BlockKey([n; 32]),
                holder: Arc::clone(&holder),
            });
        }
        ring
    }

    fn numbers(changes: &Changes) -> Option<(Vec<(u64, u8)>, u64)> {
        let Changes::Events { events, next } = changes else { return None };
        Some((events.iter().map(|event| (event.number, event.key.0[0])).collect(), *next))
    }

    #[test]
    fn a_cursor_reads_on_without_holes() {
        let ring = ring(5, 3);
        assert_eq!(numbers(&ring.since(2, 2)), Some((vec![(2, 2), (3, 3)], 4)));
        assert_eq!(numbers(&ring.since(4, 2)), Some((vec![(4, 4)], 5)));
        assert_eq!(numbers(&ring.since(5, 2)), Some((vec![], 5)));
        assert_eq!(numbers(&ring.since(3, 0)), Some((vec![], 3)));
    }

    #[test]
    fn what_left_the_ring_or_never_was_is_a_gap() {
        let kept = ring(5, 3);
        for cursor in [0, 1, 6, u64::MAX] {
            assert_eq!(kept.since(cursor, 9), Changes::Gap { next: 5 });
        }
        let none = ring(5, 0);
        assert_eq!(none.since(4, 9), Changes::Gap { next: 5 });
        assert_eq!(numbers(&none.since(5, 9)), Some((vec![], 5)));
        assert_eq!(numbers(&ring(0, 3).since(0, 9)), Some((vec![], 0)));
    }
}
