//! Leases and pins: what keeps blocks where they are.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::super::level::Level;
use super::super::pins::PinId;
use super::{Block, Holdings};
use crate::lease::{HeldBlock, Lease, LeaseError, Wanted};
use crate::time::Time;

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

impl<K: Copy + Ord + std::fmt::Debug + 'static, B: Block> Holdings<K, B> {
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
        self.expire(now);
        let mut seen = BTreeSet::new();
        let keys = request.keys.iter().filter(|key| seen.insert(**key));
        let wanted = Wanted {
            id: request.id,
            held: keys.filter_map(|key| self.anchor(key)).collect(),
            ttl_ms: request.ttl_ms,
            idempotency: request.idempotency.clone(),
        };
        let lease = self.leases.create(principal, wanted, now)?;
        self.touch_prefix(&lease.granted);
        Ok(lease)
    }

    /// The tier that keeps a block, and its octets there.
    fn anchor(&self, key: &K) -> Option<HeldBlock<K>> {
        let entry = self.here(key)?;
        let level = self.home().filter(|home| entry.is_whole_at(*home)).unwrap_or(Level::Object);
        let octets = self.shelves[level].as_ref()?.octets(key)?;
        Some(HeldBlock { key: *key, level, octets })
    }

    /// See [`Leases::get`](crate::lease::Leases::get).
    ///
    /// # Errors
    /// [`LeaseError::Unknown`].
    pub fn get_lease(&mut self, principal: &str, id: Uuid, now: Time) -> Result<Lease<K>, LeaseError> {
        self.expire(now);
        self.leases.get(principal, id)
    }

    /// See [`Leases::renew`](crate::lease::Leases::renew).
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
        self.expire(now);
        self.leases.renew(principal, id, ttl_ms, now)
    }

    /// See [`Leases::release`](crate::lease::Leases::release).
    ///
    /// # Errors
    /// [`LeaseError::Unknown`].
    pub fn release_lease(&mut self, principal: &str, id: Uuid, now: Time) -> Result<(), LeaseError> {
        self.expire(now);
        self.leases.release(principal, id)
    }

    /// Keeps blocks that are being read where they are until [`Holdings::unpin`], or for `ttl_ms` at most.
    /// All pins together cover at most a quarter of each tier; a block beyond that is not kept.
    pub fn pin(&mut self, keys: &[K], ttl_ms: u64, now: Time) -> PinId {
        self.expire(now);
        let anchors: Vec<_> = keys.iter().filter_map(|key| self.anchor(key)).collect();
        let until = now.after_millis(ttl_ms);
        self.pins.pin(anchors.into_iter().map(|held| (held.key, held.level, held.octets)), until)
    }

    /// The blocks are read, or nobody reads them any more.
    pub fn unpin(&mut self, id: PinId) {
        self.pins.release(id);
    }
}
