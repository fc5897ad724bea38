//! When slots fall due: a heap of coarse ticks, refreshed lazily.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::slot::{Slot, SlotId};
use super::{ChangeKind, Index};
use crate::time::Time;

/// A tick is 2^20 µs: reclaiming may lag by about a second, which no reader sees.
const TICK_SHIFT: u32 = 20;

/// Every slot in use has an entry at or before its deadline; a refresh adds none.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    due: BinaryHeap<Reverse<(u32, SlotId)>>,
}

fn tick_after(deadline: Time) -> u32 {
    u32::try_from((deadline.as_micros() >> TICK_SHIFT).saturating_add(1)).unwrap_or(u32::MAX)
}

fn time_of(tick: u32) -> Time {
    Time::from_micros(u64::from(tick) << TICK_SHIFT)
}

impl Expiry {
    /// Sees to it that the slot is looked at once `deadline` has passed. `before` is the deadline for
    /// which it was queued already.
    pub(super) fn queue(&mut self, id: SlotId, deadline: Time, before: Option<Time>) {
        if before.is_none_or(|before| tick_after(deadline) < tick_after(before)) {
            self.due.push(Reverse((tick_after(deadline), id)));
        }
    }

    fn next_due(&mut self, now: Time) -> Option<SlotId> {
        let Reverse((tick, id)) = *self.due.peek()?;
        if time_of(tick) > now {
            return None;
        }
        self.due.pop();
        Some(id)
    }

    /// Entries outlive withdrawn slots; where they pile up, the heap is built anew.
    fn compact(&mut self, slots: &[Slot], used: usize) {
        if self.due.len() > 2 * used + 1024 {
            self.due = slots
                .iter()
                .enumerate()
                .filter(|(_, slot)| !slot.is_free())
                .map(|(id, slot)| Reverse((tick_after(slot.deadline), id as SlotId)))
                .collect();
        }
    }
}

impl Index {
    /// When [`Index::expire`] has something to do next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.expiry.due.peek().map(|Reverse((tick, _))| time_of(*tick))
    }

    /// Reclaims what has expired, looking at no more than `budget` slots; returns the records (not
    /// tombstones) that went. The driver calls it again at once while it returns a full budget.
    pub fn expire(&mut self, now: Time, budget: usize) -> usize {
        let before = self.records;
        for _ in 0..budget {
            let Some(id) = self.expiry.next_due(now) else { break };
            let Some(slot) = self.slots.get(id as usize) else { continue };
            if slot.is_free() {
                continue;
            }
            if slot.deadline > now {
                let deadline = slot.deadline;
                self.expiry.queue(id, deadline, None);
            } else {
                self.end(id, ChangeKind::Expire, now);
                if let Some(until) = self.slot(id).filter(|slot| !slot.is_free()).map(|slot| slot.deadline) {
                    self.expiry.queue(id, until, None);
                }
            }
        }
        let used = self.used();
        self.expiry.compact(&self.slots, used);
        self.holders.forget(now);
        before - self.records
    }
}
