//! Buffers under one cap.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::page_buffer::PageBuffer;
use crate::region::{Region, occupied};

/// A source of buffers that together occupy at most a cap. Clones share it.
///
/// Counted is what each buffer [occupies](crate::footprint), from [`take`](Self::take) until it is dropped, or
/// until the last [`Bytes`] into which it was frozen is dropped. Mappings that are kept for reuse count against
/// the cap as well, but give way to a buffer that needs their room.
#[derive(Debug, Clone)]
pub struct Arena(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    capacity: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Octets of the regions in use.
    used: u64,
    /// Octets of the regions kept.
    kept: u64,
    /// Mappings kept for reuse, by their size.
    free: BTreeMap<usize, Vec<Region>>,
}

impl Arena {
    /// An arena of at most `cap_octets`. Nothing is allocated until it is taken.
    #[must_use]
    pub fn new(cap_octets: u64) -> Self {
        Self(Arc::new(Shared { capacity: cap_octets, state: Mutex::default() }))
    }

    /// A buffer of `octets`. `None` where it does not fit beside the buffers in use, or the system has no more
    /// memory.
    #[must_use]
    pub fn take(&self, octets: usize) -> Option<PageBuffer> {
        let region = self.0.region(occupied(octets)?)?;
        Some(PageBuffer::new(Lent { region, from: Some(Arc::clone(&self.0)) }, octets))
    }

    /// A copy of `octets` in a buffer of its own. `None` as [`take`](Self::take).
    #[must_use]
    pub fn copy_of(&self, octets: &[u8]) -> Option<Bytes> {
        let mut buffer = self.take(octets.len())?;
        buffer.copy_from_slice(octets);
        Some(buffer.freeze())
    }

    /// Octets that the buffers in use occupy, frozen ones included: at most [`capacity`](Self::capacity).
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.lock().used
    }

    /// Octets that the system has lent: those in use and those kept for reuse. At most
    /// [`capacity`](Self::capacity).
    #[must_use]
    pub fn mapped(&self) -> u64 {
        let state = self.0.lock();
        state.used + state.kept
    }

    /// The cap in octets.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.0.capacity
    }

    /// Gives the mappings kept for reuse back to the system.
    pub fn trim(&self) {
        self.0.lock().give_back(u64::MAX);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is whole before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn region(&self, octets: usize) -> Option<Region> {
        let counted = octets as u64;
        let mut state = self.lock();
        if state.used.checked_add(counted)? > self.capacity {
            return None;
        }
        if let Some(region) = state.reuse(octets) {
            return Some(region);
        }
        // Under the lock, so that the system never lends more than the cap, not for a moment.
        let over = (state.used + state.kept + counted).saturating_sub(self.capacity);
        state.give_back(over);
        let region = Region::new(octets).or_else(|| {
            state.give_back(u64::MAX);
            Region::new(octets)
        })?;
        state.used += counted;
        Some(region)
    }

    fn back(&self, region: Region) {
        let counted = region.octets() as u64;
        let mut state = self.lock();
        if region.is_mapping() {
            state.free.entry(region.octets()).or_default().push(region);
            state.kept += counted;
        } else {
            drop(region);
        }
        state.used -= counted;
    }
}

impl State {
    /// The kept mapping of that size that was used last: its pages are the likeliest to be in a cache.
    fn reuse(&mut self, octets: usize) -> Option<Region> {
        let regions = self.free.get_mut(&octets)?;
        let region = regions.pop();
        if regions.is_empty() {
            self.free.remove(&octets);
        }
        if region.is_some() {
            self.kept -= octets as u64;
            self.used += octets as u64;
        }
        region
    }

    /// Gives kept mappings of at least `octets` together back to the system, or all: large ones first, which
    /// are the fewest calls.
    fn give_back(&mut self, octets: u64) {
        let mut left = octets;
        while left > 0
            && let Some(mut largest) = self.free.last_entry()
        {
            match largest.get_mut().pop() {
                Some(region) => {
                    self.kept -= region.octets() as u64;
                    left = left.saturating_sub(region.octets() as u64);
                }
                None => drop(largest.remove()),
            }
        }
    }
}

/// A region on loan; dropping it gives the region back.
pub(crate) struct Lent {
    region: Region,
    /// `None`: counted nowhere.
    from: Option<Arc<Shared>>,
}

impl Lent {
    pub(crate) const fn unpooled(region: Region) -> Self {
        Self { region, from: None }
    }

    pub(crate) const fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) const fn region_mut(&mut self) -> &mut Region {
        &mut self.region
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(shared) = self.from.take() {
            shared.back(std::mem::replace(&mut self.region, Region::none()));
        }
    }
}
