//! Blocks on their way in, up, down and out.

use super::super::level::{Level, PerLevel};
use super::entry::{Entry, Move, Stage};
use super::room::Demand;
use super::{AdmitError, Block, Cut, Holdings, Removed, Room};
use crate::time::Time;

/// Blocks looked at for one copy to the overflow, and for the room that it needs there.
const COPY_WALK: usize = 4096;
/// ms until a refused cut is tried again, at first and at most.
const RETRY_MS: (u64, u64) = (1_000, 60_000);

impl<K: Copy + Ord + std::fmt::Debug + 'static, B: Block> Holdings<K, B> {
    /// Makes room for a block at its home, and in the cache above where there can be. Once the cuts are
    /// reported, [`Holdings::is_ready`] tells whether it may be written.
    ///
    /// # Errors
    /// [`AdmitError`]; nothing has changed then.
    pub fn admit(&mut self, key: K, block: B, now: Time) -> Result<Room<K>, AdmitError> {
        self.expire(now);
        if let Some(entry) = self.blocks.get(&key) {
            return Err(match entry.stage {
                Stage::Here => AdmitError::Exists,
                Stage::Leaving if self.is_stuck(&key) => AdmitError::Stuck,
                Stage::Arriving | Stage::Leaving => AdmitError::Busy,
            });
        }
        let home = self.home().ok_or(AdmitError::Full)?;
        let (layers, scope) = (block.layers(), block.scope());
        let demand = Demand { level: home, own: Some(key), scope: Some(scope), walk: usize::MAX };
        let octets = block.octets(home, layers);
        let cached = block.octets(Level::Host, layers);
        let (owed, mut room) = self.make_room(demand, octets, now).ok_or(AdmitError::Full)?;
        let mut entry = Entry::new(block, Stage::Arriving);
        entry.moves[home] = Some(Move::In { layers, octets, owed });
        self.blocks.insert(key, entry);
        if home != Level::Host
            && let Some((owed, more)) = self.make_room(Demand { level: Level::Host, ..demand }, cached, now)
        {
            room.append(more);
            if let Some(entry) = self.blocks.get_mut(&key) {
                entry.moves[Level::Host] = Some(Move::In { layers, octets: cached, owed });
            }
        }
        Ok(room)
    }

    /// Whether a block is withdrawn, but a device refused to delete it.
    #[must_use]
    pub fn is_stuck(&self, key: &K) -> bool {
        let refused =
            |under_way: &Option<Move<K>>| matches!(under_way, Some(Move::Out { attempts: 1.., .. }));
        let leaving = self.blocks.get(key).filter(|entry| entry.stage == Stage::Leaving);
        leaving.is_some_and(|entry| entry.moves.iter().any(|(_, under_way)| refused(under_way)))
    }

    /// Whether all octets that a block needs in a tier are reserved: it may be written there.
    #[must_use]
    pub fn is_ready(&self, key: &K, level: Level) -> bool {
        let under_way = self.blocks.get(key).and_then(|entry| entry.moves[level]);
        matches!(under_way, Some(Move::In { owed: 0, .. }))
    }

    /// A block that was admitted is at its home, whole and, where that is not memory, durable: from now on
    /// it is visible. How many layers each tier holds: host memory must have those now.
    pub fn arrived(&mut self, key: &K) -> PerLevel<u32> {
        let is_ready = self.home().is_some_and(|home| self.is_ready(key, home));
        let Some(entry) = self.blocks.get_mut(key).filter(|entry| entry.stage == Stage::Arriving) else {
            return PerLevel::default();
        };
        if !is_ready {
            self.abandoned(key);
            return PerLevel::default();
        }
        entry.stage = Stage::Here;
        self.visible = self.visible.saturating_add(1);
        for level in Level::ALL {
            if !self.arrived_at(key, level) {
                self.gave_up(key, level);
            }
        }
        self.residency(key).unwrap_or_default()
    }

    /// A block that was admitted does not come.
    pub fn abandoned(&mut self, key: &K) {
        if self.blocks.get(key).is_some_and(|entry| entry.stage == Stage::Arriving) {
            for level in Level::ALL {
                self.gave_up(key, level);
            }
            self.blocks.remove(key);
        }
    }

    /// The layers of a block for which room was made in a tier are there. False where the block has gone
    /// meanwhile or there is no room after all: [`Holdings::gave_up`] ends it.
    pub fn arrived_at(&mut self, key: &K, level: Level) -> bool {
        let Some(entry) = self.blocks.get_mut(key).filter(|entry| entry.stage == Stage::Here) else {
            return false;
        };
        let Some(Move::In { layers, octets, owed: 0 }) = entry.moves[level] else {
            return false;
        };
        entry.moves[level] = None;
        if let Some(shelf) = &mut self.shelves[level] {
            shelf.cancel(octets);
        }
        if level == Level::Object {
            self.copies.remove(key);
        }
        self.set_held(key, level, layers);
        if level == Level::Object
            && self.home() == Some(Level::Disk)
            && let Some(entry) = self.blocks.get_mut(key)
        {
            entry.cold_copy = true;
        }
        true
    }

    /// The layers of a block for which room was made in a tier do not come. Of a block that is visible the
    /// tier must have what it had before. Of one that has left it may have that, or what was written
    /// since, or nothing: all of it stays charged until the cut, which [`Holdings::retries`] hands out, is
    /// done.
    pub fn gave_up(&mut self, key: &K, level: Level) {
        let Some(entry) = self.blocks.get_mut(key) else {
            return;
        };
        let Some(Move::In { octets, owed, .. }) = entry.moves[level] else {
            return;
        };
        let octets = octets.saturating_sub(owed);
        if level == Level::Object {
            self.copies.remove(key);
        }
        if entry.stage == Stage::Leaving && octets > 0 {
            entry.moves[level] = Some(Move::Out { octets, back: 0, creditor: None, attempts: 0 });
            self.refused.insert((Time::default(), Cut { key: *key, level, layers: 0 }));
            return;
        }
        entry.moves[level] = None;
        if let Some(shelf) = &mut self.shelves[level] {
            shelf.cancel(octets);
        }
        self.settle(key);
    }

    /// Makes room for the leading `layers` layers of a block in a tier above the one that they were read
    /// from: in host memory at the cost of colder blocks, on disk only where octets are free. `None`, and no
    /// change, where they are there already or there is no room. [`Holdings::arrived_at`] ends it.
    pub fn promote(&mut self, key: K, level: Level, layers: u32, now: Time) -> Option<Room<K>> {
        self.expire(now);
        let entry = self.here(&key)?;
        let above = match level {
            Level::Host => self.home() != Some(Level::Host),
            Level::Disk => entry.is_whole_at(Level::Object) && layers == entry.block.layers(),
            Level::Object => false,
        };
        let wanted = layers > entry.held[level] && layers <= entry.block.layers();
        if !above || !wanted || entry.moves[level].is_some() {
            return None;
        }
        let octets = entry.block.octets(level, layers);
        let shelf = self.shelves[level].as_ref()?;
        if level == Level::Disk && shelf.used().saturating_add(octets) > self.mark(self.watermarks.high) {
            return None;
        }
        let scope = Some(entry.block.scope());
        let demand = Demand { level, own: Some(key), scope, walk: usize::MAX };
        let (owed, room) = self.make_room(demand, octets, now)?;
        if let Some(entry) = self.blocks.get_mut(&key) {
            entry.moves[level] = Some(Move::In { layers, octets, owed });
        }
        Some(room)
    }

    /// Octets of the disk at a watermark.
    fn mark(&self, thousandths: u64) -> u64 {
        let (_, cap) = self.octets(Level::Disk);
        u64::try_from(u128::from(cap) * u128::from(thousandths) / 1000).unwrap_or(u64::MAX)
    }

    /// The next cold block to copy whole from disk to the object store, with the room that it needs there;
    /// [`Holdings::arrived_at`] or [`Holdings::gave_up`] ends it.
    pub fn demote(&mut self, now: Time) -> Option<(K, Room<K>)> {
        self.expire(now);
        self.shelves[Level::Object].as_ref()?;
        let (used, _) = self.octets(Level::Disk);
        if used > self.mark(self.watermarks.high) {
            self.demoting = true;
        }
        let coming = self.copies.values().fold(0_u64, |sum, octets| sum.saturating_add(*octets));
        let bare = self.disk_only_octets().saturating_sub(coming);
        if bare <= self.mark(self.watermarks.low) {
            self.demoting = false;
        }
        if !self.demoting || self.copies.len() >= self.watermarks.copies {
            return None;
        }
        let is_bare = |key: &K| {
            let whole =
                |entry: &&Entry<K, B>| entry.is_whole_at(Level::Disk) && !entry.is_whole_at(Level::Object);
            self.here(key).filter(whole).is_some_and(Entry::moves_nowhere)
        };
        let key = self.shelves[Level::Disk].as_ref()?.order().take(COPY_WALK).find(is_bare)?;
        let entry = self.here(&key)?;
        let (layers, scope) = (entry.block.layers(), Some(entry.block.scope()));
        let octets = entry.block.octets(Level::Object, layers);
        let demand = Demand { level: Level::Object, own: Some(key), scope, walk: COPY_WALK };
        let (owed, room) = self.make_room(demand, octets, now)?;
        let on_disk = self.shelves[Level::Disk].as_ref().and_then(|disk| disk.octets(&key)).unwrap_or(0);
        self.copies.insert(key, on_disk);
        if let Some(entry) = self.blocks.get_mut(&key) {
            entry.moves[Level::Object] = Some(Move::In { layers, octets, owed });
        }
        Some((key, room))
    }

    /// A cut is carried out: its octets are free.
    pub fn cut_done(&mut self, cut: &Cut<K>) {
        let Some(entry) = self.blocks.get_mut(&cut.key) else {
            return;
        };
        let Some(Move::Out { octets, creditor, .. }) = entry.moves[cut.level] else {
            return;
        };
        if entry.stage == Stage::Leaving && cut.layers > 0 {
            // The block left while it was trimmed: the rest goes too.
            self.refused.insert((Time::default(), Cut { layers: 0, ..*cut }));
            return;
        }
        entry.moves[cut.level] = None;
        self.pay(cut.level, octets, creditor);
        self.settle(&cut.key);
    }

    /// A device refused a cut. A block that is still visible has its layers there again; one that is not
    /// keeps its octets charged until the cut, which [`Holdings::retries`] hands out again, is done.
    pub fn cut_failed(&mut self, cut: &Cut<K>, now: Time) {
        let Some(entry) = self.blocks.get_mut(&cut.key) else {
            return;
        };
        let Some(Move::Out { octets, back, creditor, attempts }) = entry.moves[cut.level] else {
            return;
        };
        if entry.stage == Stage::Here {
            entry.moves[cut.level] = None;
            if let Some(shelf) = &mut self.shelves[cut.level] {
                shelf.cancel(octets);
            }
            self.set_held(&cut.key, cut.level, back);
            return;
        }
        let wait = RETRY_MS.0.saturating_mul(1 << attempts.min(16)).min(RETRY_MS.1);
        let attempts = attempts.saturating_add(1);
        entry.moves[cut.level] = Some(Move::Out { octets, back, creditor, attempts });
        self.refused.insert((now.after_millis(wait), Cut { layers: 0, ..*cut }));
    }

    /// The cuts whose time has come: those that a device refused before, and of blocks that left while they
    /// were trimmed or on their way to another tier.
    pub fn retries(&mut self, now: Time) -> Vec<Cut<K>> {
        let mut due = Vec::new();
        while let Some(&(at, cut)) = self.refused.first().filter(|(at, _)| *at <= now) {
            self.refused.remove(&(at, cut));
            due.push(cut);
        }
        due
    }

    /// When the next of [`Holdings::retries`] is due.
    #[must_use]
    pub fn next_retry(&self) -> Option<Time> {
        self.refused.first().map(|&(due, _)| due)
    }

    /// A block of an earlier process is there, `held` layers in each tier. It may be under a lease of that
    /// process until `leased_until` at the latest, and is neither evicted nor deleted before. False, and no
    /// change, where it is known already or whole in no tier that outlives a process.
    pub fn adopt(&mut self, key: K, block: B, held: PerLevel<u32>, leased_until: Time) -> bool {
        let whole = [Level::Disk, Level::Object].into_iter().any(|level| held[level] == block.layers());
        if !whole || self.blocks.contains_key(&key) {
            return false;
        }
        self.blocks.insert(key, Entry::new(block, Stage::Here));
        self.visible = self.visible.saturating_add(1);
        for (level, layers) in held.iter() {
            self.set_held(&key, level, *layers);
        }
        self.adopted.insert(key);
        self.adopted_until = self.adopted_until.max(leased_until);
        true
    }

    /// Evicts what is above a cap, because an earlier process had a higher one.
    pub fn shrink(&mut self, now: Time) -> Room<K> {
        self.expire(now);
        let mut room = Room::default();
        for level in Level::ALL {
            let (used, cap) = self.octets(level);
            let demand = Demand { level, own: None, scope: None, walk: usize::MAX };
            if used > cap
                && let Some(victims) = self.choose(demand, used - cap, now)
            {
                self.carry_out(demand, victims, &mut room);
            }
        }
        room
    }

    /// Whether a block may be under a lease of an earlier process.
    pub(super) fn may_be_leased(&self, key: &K, now: Time) -> bool {
        now < self.adopted_until && self.adopted.contains(key)
    }

    /// Removes a block at its owner's wish.
    pub fn remove(&mut self, key: &K, now: Time) -> Removed<K> {
        self.expire(now);
        let Some(entry) = self.blocks.get(key) else {
            return Removed::Absent;
        };
        if entry.stage != Stage::Here || !entry.moves_nowhere() {
            return Removed::Busy;
        }
        if self.leases.covers(key) || self.may_be_leased(key, now) {
            return Removed::Leased;
        }
        Removed::Was(self.begin_leaving(*key, None))
    }

    /// What a tier held of a block is lost to a fault, and off the device already. Where it is whole nowhere
    /// then, leased or not, the block is gone.
    pub fn lost(&mut self, key: &K, level: Level) -> Room<K> {
        let mut room = Room::default();
        let Some(entry) = self.here(key) else {
            return room;
        };
        if entry.held[level] == 0 {
            return room;
        }
        self.set_held(key, level, 0);
        if let Some(entry) = self.blocks.get_mut(key)
            && let Some(Move::Out { back, .. }) = &mut entry.moves[level]
        {
            *back = 0;
        }
        if self.stays_without(key, level) {
            room.changed.push(*key);
        } else {
            room.cuts = self.begin_leaving(*key, None);
            room.evicted.push(*key);
        }
        room
    }
}
