//! The few changes of which everything else is made; each keeps all sums true.

use super::super::level::Level;
use super::entry::{Move, Stage};
use super::room::{Demand, Victim};
use super::{Block, Cut, Holdings, Room};
use crate::time::Time;

impl<K: Copy + Ord + std::fmt::Debug + 'static, B: Block> Holdings<K, B> {
    /// A tier holds that many leading layers of a block from now on; the octets that it took before and
    /// takes now.
    pub(super) fn set_held(&mut self, key: &K, level: Level, layers: u32) -> (u64, u64) {
        let before_covered = self.covers_on_disk(key);
        let (Some(entry), Some(shelf)) = (self.blocks.get_mut(key), &mut self.shelves[level]) else {
            return (0, 0);
        };
        let before = shelf.octets(key).unwrap_or(0);
        let now = if layers == 0 { 0 } else { entry.block.octets(level, layers) };
        match (entry.held[level], layers) {
            (0, 0) => {}
            (_, 0) => {
                shelf.remove(key);
            }
            (0, _) => shelf.insert(*key, now),
            _ => shelf.resize(key, now),
        }
        entry.held[level] = layers;
        let scope = entry.block.scope();
        self.floors.subtract(level, scope, before);
        self.floors.add(level, scope, now);
        let covered = self.covers_on_disk(key);
        self.covered = self.covered.saturating_sub(before_covered).saturating_add(covered);
        (before, now)
    }

    /// Octets on disk of a block that is whole in the overflow.
    fn covers_on_disk(&self, key: &K) -> u64 {
        let whole = self.blocks.get(key).is_some_and(|entry| entry.is_whole_at(Level::Object));
        let on_disk = self.shelves[Level::Disk].as_ref().and_then(|disk| disk.octets(key));
        on_disk.filter(|_| whole).unwrap_or(0)
    }

    /// Begins to free what a tier holds beyond the leading `layers` layers; the octets stay charged.
    pub(super) fn begin_cut(&mut self, key: K, level: Level, layers: u32, creditor: Option<K>) -> Cut<K> {
        let back = self.blocks.get(&key).map_or(0, |entry| entry.held[level]);
        let (before, now) = self.set_held(&key, level, layers);
        let octets = before.saturating_sub(now);
        if let Some(shelf) = &mut self.shelves[level] {
            shelf.hold(octets);
        }
        if let Some(entry) = self.blocks.get_mut(&key) {
            entry.moves[level] = Some(Move::Out { octets, back, creditor, attempts: 0 });
        }
        Cut { key, level, layers }
    }

    /// A block ceases to be visible; what it takes is freed, for `creditor` first.
    pub(super) fn begin_leaving(&mut self, key: K, creditor: Option<K>) -> Vec<Cut<K>> {
        let Some(entry) = self.blocks.get_mut(&key) else {
            return Vec::new();
        };
        if entry.stage == Stage::Here {
            self.visible = self.visible.saturating_sub(1);
        }
        entry.stage = Stage::Leaving;
        let (held, moves) = (entry.held, entry.moves);
        self.adopted.remove(&key);
        self.leases.forget(&key);
        self.pins.forget(&key);
        let mut cuts = Vec::new();
        for (level, _) in held.iter().filter(|(_, layers)| **layers > 0) {
            if moves[level].is_none() {
                cuts.push(self.begin_cut(key, level, 0, creditor));
            } else {
                self.add_to_move(&key, level);
            }
        }
        self.settle(&key);
        cuts
    }

    /// What a tier holds of a block goes with what is under way there: with the cut that follows a trim, or
    /// with the one that follows what arrives too late.
    fn add_to_move(&mut self, key: &K, level: Level) {
        let (before, _) = self.set_held(key, level, 0);
        if let Some(shelf) = &mut self.shelves[level] {
            shelf.hold(before);
        }
        if let Some(Move::In { octets, .. } | Move::Out { octets, .. }) =
            self.blocks.get_mut(key).and_then(|entry| entry.moves[level].as_mut())
        {
            *octets = octets.saturating_add(before);
        }
    }

    /// Forgets a block that has left.
    pub(super) fn settle(&mut self, key: &K) {
        let has_left = |entry: &super::Entry<K, B>| entry.stage == Stage::Leaving && entry.moves_nowhere();
        if self.blocks.get(key).is_some_and(has_left) {
            self.blocks.remove(key);
        }
    }

    /// Reserves `octets` in a tier; what the cuts are to free is owed to the block in question. `None`, and
    /// no change, where there is no room.
    pub(super) fn make_room(&mut self, demand: Demand<K>, octets: u64, now: Time) -> Option<(u64, Room<K>)> {
        let shelf = self.shelves[demand.level].as_ref()?;
        if octets > shelf.capacity() {
            return None;
        }
        let free = shelf.free();
        let owed = octets.saturating_sub(free);
        let mut room = Room::default();
        if owed > 0 {
            let victims = self.choose(demand, owed, now)?;
            self.carry_out(demand, victims, &mut room);
        }
        if let Some(shelf) = &mut self.shelves[demand.level] {
            shelf.hold(octets - owed);
        }
        Some((owed, room))
    }

    pub(super) fn carry_out(&mut self, demand: Demand<K>, victims: Vec<Victim<K>>, room: &mut Room<K>) {
        for (key, layers) in victims {
            if self.stays_without(&key, demand.level) {
                room.cuts.push(self.begin_cut(key, demand.level, layers, demand.own));
                room.changed.push(key);
            } else {
                room.cuts.append(&mut self.begin_leaving(key, demand.own));
                room.evicted.push(key);
            }
        }
    }

    /// Whether a block is whole where it counts without what a tier holds.
    pub(super) fn stays_without(&self, key: &K, level: Level) -> bool {
        let whole = |at: Level| self.blocks.get(key).is_some_and(|entry| entry.is_whole_at(at));
        let anchors = [self.home(), Some(Level::Object).filter(|at| self.shelves[*at].is_some())];
        anchors.into_iter().flatten().any(|at| at != level && whole(at))
    }

    /// Octets are free in a tier: they pay what is owed to a block first.
    pub(super) fn pay(&mut self, level: Level, octets: u64, creditor: Option<K>) {
        let mut paid = 0;
        if let Some(entry) = creditor.and_then(|key| self.blocks.get_mut(&key))
            && let Some(Move::In { owed, .. }) = &mut entry.moves[level]
        {
            paid = octets.min(*owed);
            *owed -= paid;
        }
        if let Some(shelf) = &mut self.shelves[level] {
            shelf.cancel(octets - paid);
        }
    }
}
