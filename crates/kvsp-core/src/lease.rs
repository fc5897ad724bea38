//! Leases: who keeps which blocks from eviction, how many octets of them, and until when (draft
//! section 6.6, profile section 5 "Holder").
//!
//! Octets are counted once per principal and block however many leases cover it, and once per block in
//! the total of the tier that keeps it whole. Identifiers and idempotency keys belong to their principal: for others they do not exist.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use uuid::Uuid;

use crate::tier::{Level, PerLevel};
use crate::time::Time;

/// What a set of leases enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseLimits {
    /// Longest TTL granted, in ms; a longer request is cut to it.
    pub max_ttl_ms: u64,
    /// Octets of distinct blocks that one principal may have under lease.
    pub principal_octets: u64,
    /// Octets of distinct blocks that all leases together may cover, in all tiers.
    pub total_octets: u64,
    /// Leases that one principal may have; bounds memory, not octets.
    pub principal_leases: usize,
}

/// A granted lease, as its principal sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease<K> {
    /// Names the lease.
    pub id: Uuid,
    /// When it ends.
    pub until: Time,
    /// The blocks that it covers, in the order asked for.
    pub granted: Arc<[K]>,
}

/// A lease is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The principal, or all principals together, would have too many octets under lease
    /// (`kvsp-lease-quota`).
    #[error("{asked} more octets exceed the {limit} that leases may cover, of which {leased} are leased")]
    Quota {
        /// Octets that the request adds.
        asked: u64,
        /// Octets under lease already.
        leased: u64,
        /// The limit.
        limit: u64,
        /// ms until the first lease in question ends; `None` where waiting does not help.
        retry_ms: Option<u64>,
    },
    /// The principal has too many leases at once (`kvsp-overloaded`).
    #[error("too many leases at once")]
    TooMany,
    /// None of the blocks is held (`kvsp-block-not-found`).
    #[error("none of the blocks is held")]
    NothingHeld,
    /// No such lease of this principal, or it has ended (`kvsp-lease-unknown`).
    #[error("no such lease")]
    Unknown,
    /// The idempotency key came before with another request (`kvsp-directive-conflict`).
    #[error("the idempotency key belongs to another request")]
    KeyReused,
}

/// A block that is held, as a lease counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBlock<K> {
    /// The block.
    pub key: K,
    /// The tier that keeps it whole.
    pub level: Level,
    /// Its octets there.
    pub octets: u64,
}

/// A request for a lease, its blocks looked up already.
#[derive(Debug, Clone)]
pub struct Wanted<K> {
    /// The identifier to give to the lease, unless the idempotency key names an earlier one.
    pub id: Uuid,
    /// Distinct blocks that are held.
    pub held: Vec<HeldBlock<K>>,
    /// The TTL asked for, in ms.
    pub ttl_ms: u64,
    /// The idempotency key and a fingerprint of the request that came with it.
    pub idempotency: Option<(String, [u8; 32])>,
}

#[derive(Debug)]
struct Granted<K> {
    principal: Arc<str>,
    lease: Lease<K>,
    idempotency: Option<String>,
}

#[derive(Debug)]
struct Covered {
    octets: u64,
    level: Level,
    leases: u32,
}

#[derive(Debug)]
struct Account<K> {
    octets: u64,
    leases: BTreeSet<Uuid>,
    /// How many of the principal's leases cover a block.
    blocks: BTreeMap<K, u32>,
    keys: BTreeMap<String, ([u8; 32], Uuid)>,
}

impl<K> Default for Account<K> {
    fn default() -> Self {
        Self { octets: 0, leases: BTreeSet::new(), blocks: BTreeMap::new(), keys: BTreeMap::new() }
    }
}

/// All leases of a holder.
#[derive(Debug)]
pub struct Leases<K> {
    limits: LeaseLimits,
    tier_limits: PerLevel<u64>,
    leases: BTreeMap<Uuid, Granted<K>>,
    ends: BTreeSet<(Time, Uuid)>,
    accounts: BTreeMap<Arc<str>, Account<K>>,
    covered: BTreeMap<K, Covered>,
    octets: PerLevel<u64>,
}

impl<K: Copy + Ord> Leases<K> {
    /// No leases yet; `tier_limits` bounds the octets of distinct blocks under lease in each tier.
    #[must_use]
    pub fn new(limits: LeaseLimits, tier_limits: PerLevel<u64>) -> Self {
        Self {
            limits,
            tier_limits,
            leases: BTreeMap::new(),
            ends: BTreeSet::new(),
            accounts: BTreeMap::new(),
            covered: BTreeMap::new(),
            octets: PerLevel::default(),
        }
    }

    /// Ends the leases whose time has come. Every other method supposes that this ran with the same `now`.
    pub fn expire(&mut self, now: Time) {
        while let Some(&(until, id)) = self.ends.first() {
            if until > now {
                return;
            }
            self.end(id);
        }
    }

    /// Whether a block is under a lease.
    #[must_use]
    pub fn covers(&self, key: &K) -> bool {
        self.covered.contains_key(key)
    }

    /// Octets of distinct blocks under lease, in all tiers.
    #[must_use]
    pub fn octets(&self) -> u64 {
        self.octets.iter().fold(0, |sum, (_, octets)| sum.saturating_add(*octets))
    }

    /// Octets of distinct blocks under lease, by tier.
    #[must_use]
    pub const fn octets_by_tier(&self) -> &PerLevel<u64> {
        &self.octets
    }

    /// Number of leases.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// When the next lease ends.
    #[must_use]
    pub fn next_end(&self) -> Option<Time> {
        self.ends.first().map(|&(until, _)| until)
    }

    /// Grants a lease on the blocks that are held, or returns the one that the same idempotency key made.
    ///
    /// # Errors
    /// [`LeaseError`]; nothing has changed then.
    pub fn create(&mut self, principal: &str, wanted: Wanted<K>, now: Time) -> Result<Lease<K>, LeaseError> {
        if let Some((key, fingerprint)) = &wanted.idempotency
            && let Some((first, id)) = self.accounts.get(principal).and_then(|account| account.keys.get(key))
        {
            if first != fingerprint {
                return Err(LeaseError::KeyReused);
            }
            return self.get(principal, *id);
        }
        if wanted.held.is_empty() {
            return Err(LeaseError::NothingHeld);
        }
        self.check_limits(principal, &wanted.held, now)?;
        Ok(self.grant(principal, wanted, now))
    }

    fn check_limits(&self, principal: &str, held: &[HeldBlock<K>], now: Time) -> Result<(), LeaseError> {
        let account = self.accounts.get(principal);
        if account.is_some_and(|account| account.leases.len() >= self.limits.principal_leases) {
            return Err(LeaseError::TooMany);
        }
        let leased = account.map_or(0, |account| account.octets);
        let asked = sum(held, |key| account.is_some_and(|account| account.blocks.contains_key(key)));
        self.check_quota(asked, leased, self.limits.principal_octets, Some(principal), now)?;
        let asked = sum(held, |key| self.covered.contains_key(key));
        self.check_quota(asked, self.octets(), self.limits.total_octets, None, now)?;
        for (level, limit) in self.tier_limits.iter() {
            let here: Vec<_> = held.iter().filter(|block| block.level == level).copied().collect();
            let asked = sum(&here, |key| self.covered.contains_key(key));
            self.check_quota(asked, self.octets[level], *limit, None, now)?;
        }
        Ok(())
    }

    fn check_quota(
        &self,
        asked: u64,
        leased: u64,
        limit: u64,
        principal: Option<&str>,
        now: Time,
    ) -> Result<(), LeaseError> {
        if asked == 0 || leased.saturating_add(asked) <= limit {
            return Ok(());
        }
        let ends = self.ends.iter().find(|(_, id)| {
            principal
                .is_none_or(|name| self.leases.get(id).is_some_and(|granted| *granted.principal == *name))
        });
        let retry_ms = ends.filter(|_| asked <= limit).map(|&(until, _)| now.millis_until(until).max(1));
        Err(LeaseError::Quota { asked, leased, limit, retry_ms })
    }

    fn grant(&mut self, principal: &str, wanted: Wanted<K>, now: Time) -> Lease<K> {
        let principal: Arc<str> = principal.into();
        let account = self.accounts.entry(principal.clone()).or_default();
        for &HeldBlock { key, level, octets } in &wanted.held {
            let covered = self.covered.entry(key).or_insert_with(|| {
                self.octets[level] = self.octets[level].saturating_add(octets);
                Covered { octets, level, leases: 0 }
            });
            covered.leases = covered.leases.saturating_add(1);
            let count = account.blocks.entry(key).or_insert_with(|| {
                account.octets = account.octets.saturating_add(covered.octets);
                0
            });
            *count = count.saturating_add(1);
        }
        account.leases.insert(wanted.id);
        let lease = Lease {
            id: wanted.id,
            until: now.after_millis(wanted.ttl_ms.min(self.limits.max_ttl_ms)),
            granted: wanted.held.iter().map(|block| block.key).collect(),
        };
        let idempotency = wanted.idempotency.map(|(key, fingerprint)| {
            account.keys.insert(key.clone(), (fingerprint, lease.id));
            key
        });
        self.ends.insert((lease.until, lease.id));
        self.leases.insert(lease.id, Granted { principal, lease: lease.clone(), idempotency });
        lease
    }

    /// A lease of this principal.
    ///
    /// # Errors
    /// [`LeaseError::Unknown`].
    pub fn get(&self, principal: &str, id: Uuid) -> Result<Lease<K>, LeaseError> {
        let granted = self.leases.get(&id).filter(|granted| *granted.principal == *principal);
        granted.map(|granted| granted.lease.clone()).ok_or(LeaseError::Unknown)
    }

    /// Lets a lease end `ttl_ms`, or the longest TTL granted, from now: later or sooner than before.
    ///
    /// # Errors
    /// [`LeaseError::Unknown`].
    pub fn renew(
        &mut self,
        principal: &str,
        id: Uuid,
        ttl_ms: u64,
        now: Time,
    ) -> Result<Lease<K>, LeaseError> {
        let granted = self.leases.get_mut(&id).filter(|granted| *granted.principal == *principal);
        let granted = granted.ok_or(LeaseError::Unknown)?;
        self.ends.remove(&(granted.lease.until, id));
        granted.lease.until = now.after_millis(ttl_ms.min(self.limits.max_ttl_ms));
        self.ends.insert((granted.lease.until, id));
        Ok(granted.lease.clone())
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// [`LeaseError::Unknown`].
    pub fn release(&mut self, principal: &str, id: Uuid) -> Result<(), LeaseError> {
        self.get(principal, id)?;
        self.end(id);
        Ok(())
    }

    /// A block is lost to a fault: it is under no lease any more. The leases live on without it.
    pub fn forget(&mut self, key: &K) {
        let Some(covered) = self.covered.remove(key) else {
            return;
        };
        self.octets[covered.level] = self.octets[covered.level].saturating_sub(covered.octets);
        for account in self.accounts.values_mut() {
            if account.blocks.remove(key).is_some() {
                account.octets = account.octets.saturating_sub(covered.octets);
            }
        }
        for granted in self.leases.values_mut() {
            if granted.lease.granted.contains(key) {
                granted.lease.granted = granted.lease.granted.iter().filter(|k| *k != key).copied().collect();
            }
        }
    }

    fn end(&mut self, id: Uuid) {
        let Some(Granted { principal, lease, idempotency }) = self.leases.remove(&id) else {
            return;
        };
        self.ends.remove(&(lease.until, id));
        let Some(account) = self.accounts.get_mut(&principal) else {
            return;
        };
        account.leases.remove(&id);
        if let Some(key) = idempotency {
            account.keys.remove(&key);
        }
        for key in &*lease.granted {
            let Some(&Covered { octets, level, .. }) = self.covered.get(key) else {
                continue;
            };
            if count_down(&mut account.blocks, key, |count| count) {
                account.octets = account.octets.saturating_sub(octets);
            }
            if count_down(&mut self.covered, key, |covered| &mut covered.leases) {
                self.octets[level] = self.octets[level].saturating_sub(octets);
            }
        }
        if account.leases.is_empty() {
            self.accounts.remove(&principal);
        }
    }
}

/// Octets of the blocks that are not counted yet.
fn sum<K>(held: &[HeldBlock<K>], counted: impl Fn(&K) -> bool) -> u64 {
    let new = held.iter().filter(|block| !counted(&block.key));
    new.fold(0, |sum, block| sum.saturating_add(block.octets))
}

/// Takes one off a count; whether it was the last, which removes the entry.
fn count_down<K: Ord, V>(map: &mut BTreeMap<K, V>, key: &K, count: impl Fn(&mut V) -> &mut u32) -> bool {
    let Some(value) = map.get_mut(key) else {
        return false;
    };
    let count = count(value);
    *count = count.saturating_sub(1);
    let last = *count == 0;
    if last {
        map.remove(key);
    }
    last
}

#[cfg(test)]
mod tests;
