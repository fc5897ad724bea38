//! When replicas fall due: a wheel of coarse ticks, refreshed lazily.

use std::collections::{BTreeMap, VecDeque};

use super::block::{TICK_SHIFT, tick_of};
use super::replica::{NONE, ReplicaId};
use super::{ChangeKind, Index};
use crate::time::Time;

/// The tick after a deadline: reclaiming lags by about a second at most, which no reader sees.
fn tick_after(deadline: Time) -> u32 {
    tick_of(deadline).saturating_add(1).min(NONE - 1)
}

fn time_of(tick: u32) -> Time {
    Time::from_micros(u64::from(tick) << TICK_SHIFT)
}

/// Every number in use is queued at or before its deadline; a refresh moves nothing. The queued one is
/// looked at in its tick, and moved on if its deadline has moved meanwhile.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    ticks: BTreeMap<u32, VecDeque<ReplicaId>>,
    /// For each number the tick in which it is queued, or [`NONE`]. Entries in other ticks are void; they
    /// come from deadlines that moved forward.
    queued: Vec<u32>,
    entries: usize,
}

impl Expiry {
    /// Octets of one number: where it is queued, and its entry with what a growing list keeps free.
    pub(super) const OCTETS: u64 = 12;

    /// Octets in use.
    pub(super) const fn octets(&self) -> u64 {
        (self.queued.len() * 4 + self.entries * 8) as u64
    }

    /// Sees to it that the replica is looked at once `deadline` has passed.
    pub(super) fn queue(&mut self, id: ReplicaId, deadline: Time) {
        let tick = tick_after(deadline);
        if self.queued.len() <= id as usize {
            self.queued.resize(id as usize + 1, NONE);
        }
        if let Some(queued) = self.queued.get_mut(id as usize)
            && *queued > tick
        {
            *queued = tick;
            self.ticks.entry(tick).or_default().push_back(id);
            self.entries += 1;
        }
    }

    /// Whether a deadline is due in a tick.
    pub(super) fn is_due(deadline: Time, tick: u32) -> bool {
        tick_after(deadline) <= tick
    }

    /// A deadline has moved.
    pub(super) fn requeue(&mut self, id: ReplicaId, deadline: Time, before: Time) {
        if deadline < before {
            self.queue(id, deadline);
        }
    }

    /// The next one queued, and its tick, if that is not after `last`.
    pub(super) fn pop(&mut self, last: u32) -> Option<(u32, ReplicaId)> {
        loop {
            let mut first = self.ticks.first_entry().filter(|first| *first.key() <= last)?;
            let tick = *first.key();
            let id = first.get_mut().pop_front();
            if first.get().is_empty() {
                first.remove();
            }
            let Some(id) = id else { continue };
            self.entries -= 1;
            if let Some(queued) = self.queued.get_mut(id as usize)
                && *queued == tick
            {
                *queued = NONE;
                return Some((tick, id));
            }
        }
    }

    /// Void entries are few, unless someone moves deadlines to and fro; then they are thrown out.
    fn compact(&mut self) {
        if self.entries <= 2 * self.queued.len() + 1024 {
            return;
        }
        let queued = &self.queued;
        self.ticks.retain(|tick, ids| {
            ids.retain(|id| queued.get(*id as usize) == Some(tick));
            !ids.is_empty()
        });
        self.entries = self.ticks.values().map(VecDeque::len).sum();
    }
}

impl Index {
    /// When [`Index::expire`] has something to do next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.expiry.ticks.keys().next().map(|tick| time_of(*tick))
    }

    /// Reclaims what has expired, looking at no more than `budget` replicas; returns the records (not
    /// tombstones) that went. The driver calls it again at once while it returns a full budget.
    pub fn expire(&mut self, now: Time, budget: usize) -> usize {
        let before = self.records;
        for _ in 0..budget {
            let Some((_, id)) = self.expiry.pop(tick_of(now)) else { break };
            if self.replica(id).is_some_and(|replica| replica.deadline <= now) {
                self.end(id, ChangeKind::Expire, now);
            }
            // Its deadline has moved, or it is a tombstone now.
            if let Some(deadline) = self.replica(id).map(|replica| replica.deadline) {
                self.expiry.queue(id, deadline);
            }
        }
        self.expiry.compact();
        self.holders.forget(now);
        before - self.records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moving_to_and_fro_leaves_few_entries() {
        let mut expiry = Expiry::default();
        let (far, near) = (Time::from_millis(60_000), Time::from_millis(5_000));
        for round in 0..5_000 {
            expiry.queue(0, far.after_millis(round * 1_000));
            expiry.queue(0, near.after_millis(round * 1_000));
            assert_eq!(expiry.pop(u32::MAX).map(|(_, id)| id), Some(0));
            expiry.compact();
        }
        assert!(expiry.entries < 1_100 && expiry.ticks.len() < 1_100);
        assert_eq!(expiry.pop(u32::MAX), None);
        assert_eq!((expiry.entries, expiry.ticks.len()), (0, 0));
    }
}
