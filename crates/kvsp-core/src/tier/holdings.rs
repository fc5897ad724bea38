//! What a holder holds: its tiers and its leases in one machine, so that an eviction and a lease can
//! never pass each other.
//!
//! The lowest tier there is (disk, else host) is the *home* of every block: leases protect what is there,
//! and a block that leaves it is gone. Host memory above a disk is a cache of it: a block that leaves it
//! stays on disk.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::level::{Level, PerLevel};
use super::policy::{EvictionPolicy, LeastRecentlyUsed};
use super::shelf::Shelf;
use crate::lease::{HeldBlock, Lease, LeaseError, LeaseLimits, Leases, Wanted};
use crate::time::Time;

/// The octets that a block takes in each tier, headers included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// In host memory.
    pub host: u64,
    /// On disk.
    pub disk: u64,
}

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// In host memory.
    pub host: bool,
    /// On disk.
    pub disk: bool,
}

/// Room was made for a block, which is on its way until [`Holdings::arrived`] or [`Holdings::abandoned`].
#[derive(Debug, PartialEq, Eq)]
pub struct Admission<K> {
    /// Where it will be.
    pub place: Place,
    /// Blocks that are gone. On disk, each must be deleted before anything is written in its place, and
    /// [`Holdings::left`] be called.
    pub evicted: Vec<K>,
    /// Blocks that left host memory and stay on disk.
    pub demoted: Vec<K>,
}

/// A block is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// It is held already (`kvsp-block-exists`).
    #[error("the block is held already")]
    Exists,
    /// It is on its way in or out: ask again when that is done.
    #[error("the block is on its way")]
    Busy,
    /// No eviction can make room (`kvsp-storage-full`).
    #[error("no eviction can make room")]
    Full,
}

/// A block was taken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It was here; where it was on disk it must be deleted there, and then [`Holdings::left`] be called.
    Was(Place),
    /// It was not here.
    Absent,
    /// It is under lease and stays (`kvsp-block-leased`).
    Leased,
    /// It is on its way in or out: ask again when that is done.
    Busy,
}

#[derive(Debug, Clone, Copy)]
enum Moving {
    Arriving { home: u64, cached: Option<u64> },
    Leaving { octets: u64 },
}

/// The blocks of a holder, by tier, with their leases.
#[derive(Debug)]
pub struct Holdings<K> {
    host: Option<Shelf<K>>,
    disk: Option<Shelf<K>>,
    leases: Leases<K>,
    moving: BTreeMap<K, Moving>,
    /// Blocks of an earlier process, whose leases are not known: not evicted until the longest TTL of a
    /// lease has passed.
    adopted: BTreeSet<K>,
    adopted_until: Time,
    max_lease_ttl_ms: u64,
}

impl<K: Copy + Ord + Send + std::fmt::Debug + 'static> Holdings<K> {
    /// Nothing held. Each tier has a byte cap, or is absent; without any, nothing is ever admitted.
    /// `limits.total_octets` is lowered to half of the home tier.
    #[must_use]
    pub fn new(host_octets: Option<u64>, disk_octets: Option<u64>, limits: LeaseLimits) -> Self {
        let policy = || Box::<LeastRecentlyUsed<K>>::default();
        Self::with_policies(
            host_octets.map(|n| (n, policy() as _)),
            disk_octets.map(|n| (n, policy() as _)),
            limits,
        )
    }

    /// As [`Holdings::new`] with other eviction policies.
    #[must_use]
    pub fn with_policies(
        host: Option<(u64, Box<dyn EvictionPolicy<K>>)>,
        disk: Option<(u64, Box<dyn EvictionPolicy<K>>)>,
        limits: LeaseLimits,
    ) -> Self {
        let home = disk.as_ref().or(host.as_ref()).map_or(0, |(octets, _)| *octets);
        let limits = LeaseLimits { total_octets: limits.total_octets.min(home / 2), ..limits };
        let shelf = |(octets, policy)| Shelf::new(octets, policy);
        Self {
            host: host.map(shelf),
            disk: disk.map(shelf),
            leases: Leases::new(limits, PerLevel::new(u64::MAX, u64::MAX, u64::MAX)),
            moving: BTreeMap::new(),
            adopted: BTreeSet::new(),
            adopted_until: Time::default(),
            max_lease_ttl_ms: limits.max_ttl_ms,
        }
    }

    /// Octets used, on their way included, and the cap of host memory.
    #[must_use]
    pub fn host_octets(&self) -> (u64, u64) {
        self.host.as_ref().map_or((0, 0), |shelf| (shelf.used(), shelf.capacity()))
    }

    /// Octets used, on their way included, and the cap of the disk.
    #[must_use]
    pub fn disk_octets(&self) -> (u64, u64) {
        self.disk.as_ref().map_or((0, 0), |shelf| (shelf.used(), shelf.capacity()))
    }

    /// Blocks held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.home().map_or(0, Shelf::len)
    }

    /// Whether no block is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The leases.
    #[must_use]
    pub const fn leases(&self) -> &Leases<K> {
        &self.leases
    }

    /// Ends the leases whose time has come. Every decision does that by itself; this is for the counters.
    pub fn expire(&mut self, now: Time) {
        self.leases.expire(now);
    }

    /// Where a block is; `None` where it is not held, or not yet.
    #[must_use]
    pub fn place(&self, key: &K) -> Option<Place> {
        let place = Place { host: on(self.host.as_ref(), key), disk: on(self.disk.as_ref(), key) };
        (place.host || place.disk).then_some(place)
    }

    /// Makes room for a block before it is written.
    ///
    /// # Errors
    /// [`AdmitError`]; nothing has changed then.
    pub fn admit(&mut self, key: K, sizes: Sizes, now: Time) -> Result<Admission<K>, AdmitError> {
        self.leases.expire(now);
        if self.moving.contains_key(&key) {
            return Err(AdmitError::Busy);
        }
        if self.place(&key).is_some() {
            return Err(AdmitError::Exists);
        }
        let on_disk = self.disk.is_some();
        let home_octets = if on_disk { sizes.disk } else { sizes.host };
        let evicted = self.evict_for(home_octets, now).ok_or(AdmitError::Full)?;
        let demoted = if on_disk { self.demote_for(sizes.host) } else { None };
        let cached = demoted.as_ref().map(|_| sizes.host);
        self.moving.insert(key, Moving::Arriving { home: home_octets, cached });
        let place = Place { host: !on_disk || cached.is_some(), disk: on_disk };
        Ok(Admission { place, evicted, demoted: demoted.unwrap_or_default() })
    }

    fn evict_for(&mut self, octets: u64, now: Time) -> Option<Vec<K>> {
        let frozen = now < self.adopted_until;
        let (leases, adopted) = (&self.leases, &self.adopted);
        let home = self.disk.as_mut().or(self.host.as_mut())?;
        let victims = home.reserve(octets, |key| leases.covers(key) || (frozen && adopted.contains(key)))?;
        for key in &victims {
            self.adopted.remove(key);
            if self.disk.is_some() {
                if let Some(host) = &mut self.host {
                    host.remove(key);
                }
                // Their octets are the new block's already; the name is free once the file is gone.
                self.moving.insert(*key, Moving::Leaving { octets: 0 });
            }
        }
        Some(victims)
    }

    /// `None` where there is no host memory over the disk, or the block is larger than all of it.
    fn demote_for(&mut self, octets: u64) -> Option<Vec<K>> {
        self.host.as_mut()?.reserve(octets, |_| false)
    }

    /// A block that was admitted is there, whole and, on disk, durable: from now on it is visible.
    pub fn arrived(&mut self, key: K) {
        let Some(Moving::Arriving { home, cached }) = self.moving.remove(&key) else {
            return;
        };
        if let Some(shelf) = self.disk.as_mut().or(self.host.as_mut()) {
            shelf.commit(key, home);
        }
        if let (Some(octets), Some(host)) = (cached, &mut self.host) {
            host.commit(key, octets);
        }
    }

    /// A block that was admitted does not come.
    pub fn abandoned(&mut self, key: &K) {
        let Some(Moving::Arriving { home, cached }) = self.moving.remove(key) else {
            return;
        };
        if let Some(shelf) = self.disk.as_mut().or(self.host.as_mut()) {
            shelf.cancel(home);
        }
        if let (Some(octets), Some(host)) = (cached, &mut self.host) {
            host.cancel(octets);
        }
    }

    /// A block that was evicted or removed is off the disk. Where `deleted` is false the octets are
    /// still there and stay charged, but the name is free again.
    pub fn left(&mut self, key: &K, deleted: bool) {
        if let Some(Moving::Leaving { octets }) = self.moving.remove(key)
            && let (true, Some(disk)) = (deleted, &mut self.disk)
        {
            disk.cancel(octets);
        }
    }

    /// Charges octets to the disk that are no block's: an evicted file that could not be deleted.
    pub const fn strand(&mut self, octets: u64) {
        if let Some(disk) = &mut self.disk {
            disk.hold(octets);
        }
    }

    /// A block of an earlier process is on disk. It is not evicted until the longest lease that the
    /// earlier process can have granted has ended.
    pub fn adopt(&mut self, key: K, disk_octets: u64, now: Time) {
        if let Some(disk) = &mut self.disk {
            disk.insert(key, disk_octets);
            self.adopted.insert(key);
            self.adopted_until = now.after_millis(self.max_lease_ttl_ms);
        }
    }

    /// Takes a block up from disk into host memory: the blocks that left it for that; `None`, and no
    /// change, where it is not on disk, is there already or cannot fit.
    pub fn promote(&mut self, key: K, host_octets: u64) -> Option<Vec<K>> {
        if self.place(&key) != Some(Place { host: false, disk: true }) {
            return None;
        }
        let demoted = self.demote_for(host_octets)?;
        if let Some(host) = &mut self.host {
            host.commit(key, host_octets);
        }
        Some(demoted)
    }

    /// Removes a block at its owner's wish.
    pub fn remove(&mut self, key: &K, now: Time) -> Removed {
        self.leases.expire(now);
        if self.moving.contains_key(key) {
            return Removed::Busy;
        }
        if self.leases.covers(key) {
            return Removed::Leased;
        }
        self.lose(key).map_or(Removed::Absent, Removed::Was)
    }

    /// A block is lost to a fault, leased or not. On disk it is leaving: [`Holdings::left`] ends that.
    pub fn lose(&mut self, key: &K) -> Option<Place> {
        let place = self.place(key)?;
        self.leases.forget(key);
        self.adopted.remove(key);
        if let Some(host) = &mut self.host {
            host.remove(key);
        }
        if let Some(disk) = &mut self.disk
            && let Some(octets) = disk.remove(key)
        {
            disk.hold(octets);
            self.moving.insert(*key, Moving::Leaving { octets });
        }
        Some(place)
    }

    /// A block is used.
    pub fn touch(&mut self, key: &K) {
        for shelf in [&mut self.host, &mut self.disk].into_iter().flatten() {
            shelf.touch(key);
        }
    }

    /// The leading blocks of one prefix, in its order, are used.
    pub fn touch_prefix(&mut self, keys: &[K]) {
        for shelf in [&mut self.host, &mut self.disk].into_iter().flatten() {
            shelf.touch_prefix(keys);
        }
    }

    /// Grants a lease on those of `keys` (in prefix order, duplicates ignored) that are held.
    ///
    /// # Errors
    /// [`LeaseError`]; nothing has changed then.
    pub fn lease(
        &mut self,
        principal: &str,
        request: &LeaseOf<'_, K>,
        now: Time,
    ) -> Result<Lease<K>, LeaseError> {
        self.leases.expire(now);
        let mut wanted = Wanted {
            id: request.id,
            held: Vec::new(),
            ttl_ms: request.ttl_ms,
            idempotency: request.idempotency.clone(),
        };
        let mut seen = BTreeSet::new();
        for key in request.keys.iter().filter(|key| seen.insert(**key)) {
            if let Some(octets) = self.home().and_then(|home| home.octets(key)) {
                wanted.held.push(HeldBlock { key: *key, level: Level::Host, octets });
            }
        }
        let lease = self.leases.create(principal, wanted, now)?;
        self.touch_prefix(&lease.granted);
        Ok(lease)
    }

    /// See [`Leases::get`].
    ///
    /// # Errors
    /// [`LeaseError::Unknown`].
    pub fn get_lease(&mut self, principal: &str, id: Uuid, now: Time) -> Result<Lease<K>, LeaseError> {
        self.leases.expire(now);
        self.leases.get(principal, id)
    }

    /// See [`Leases::renew`].
    ///
    /// # Errors
    /// [`LeaseError::Unknown`].
    pub fn renew_lease(
        &mut self,
        principal: &str,
        id: Uuid,
        ttl_ms: u64,
        now: Time,
    ) -> Result<Lease<K>, LeaseError> {
        self.leases.expire(now);
        self.leases.renew(principal, id, ttl_ms, now)
    }

    /// See [`Leases::release`].
    ///
    /// # Errors
    /// [`LeaseError::Unknown`].
    pub fn release_lease(&mut self, principal: &str, id: Uuid, now: Time) -> Result<(), LeaseError> {
        self.leases.expire(now);
        self.leases.release(principal, id)
    }

    fn home(&self) -> Option<&Shelf<K>> {
        self.disk.as_ref().or(self.host.as_ref())
    }
}

/// What [`Holdings::lease`] is asked for.
#[derive(Debug, Clone)]
pub struct LeaseOf<'a, K> {
    /// The identifier to give to a new lease.
    pub id: Uuid,
    /// The blocks, in prefix order.
    pub keys: &'a [K],
    /// The TTL in ms.
    pub ttl_ms: u64,
    /// An idempotency key and the fingerprint of the request that came with it.
    pub idempotency: Option<(String, [u8; 32])>,
}

fn on<K: Copy + Ord>(shelf: Option<&Shelf<K>>, key: &K) -> bool {
    shelf.is_some_and(|shelf| shelf.octets(key).is_some())
}

#[cfg(test)]
mod tests;
