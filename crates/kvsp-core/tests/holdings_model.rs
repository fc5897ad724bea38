//! Tiers and leases against a model so simple that it can be read: lists, walked from the front.
//!
//! `KVSP_SOAK_OPS` sets the number of operations of the long run.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use kvsp_core::lease::{LeaseError, LeaseLimits};
use kvsp_core::tier::{AdmitError, Holdings, LeaseOf, Place, Removed, Sizes};
use kvsp_core::time::Time;
use proptest::prelude::{any, prop, proptest};
use uuid::Uuid;

const KEYS: u32 = 24;
const PRINCIPALS: [&str; 2] = ["a", "b"];
const LIMITS: LeaseLimits =
    LeaseLimits { max_ttl_ms: 400, principal_octets: 150, total_octets: u64::MAX, principal_leases: 6 };

#[derive(Debug, Clone, Copy)]
enum Op {
    Begin { key: u32, octets: u64 },
    End { which: usize, arrives: bool },
    Deleted { which: usize, done: bool },
    Remove(u32),
    Lose(u32),
    Promote(u32),
    Touch(u32),
    Prefix { first: u32, count: u32 },
    Lease { principal: usize, first: u32, count: u32, ttl_ms: u64 },
    Renew { principal: usize, which: usize, ttl_ms: u64 },
    Release { principal: usize, which: usize },
    Advance(u64),
}

impl Op {
    /// An operation told by 64 random bits.
    fn from_bits(bits: u64) -> Self {
        let octets = bits.to_le_bytes();
        let [kind, a, b, c, d, ..] = octets;
        let key = u32::from(a) % KEYS;
        let principal = usize::from(b) % 2;
        let ttl_ms = u64::from(d) * 2;
        match kind % 16 {
            0..=3 => Self::Begin { key, octets: u64::from(b) % 60 },
            4..=6 => Self::End { which: usize::from(a), arrives: b % 8 != 0 },
            7 | 8 => Self::Deleted { which: usize::from(a), done: b % 8 != 0 },
            9 => Self::Remove(key),
            10 if b % 4 == 0 => Self::Lose(key),
            10 => Self::Promote(key),
            11 if b % 2 == 0 => Self::Touch(key),
            11 => Self::Prefix { first: key, count: u32::from(b) % 5 },
            12 => Self::Lease { principal, first: key, count: u32::from(c) % 4, ttl_ms },
            13 => Self::Renew { principal, which: usize::from(a), ttl_ms },
            14 => Self::Release { principal, which: usize::from(a) },
            _ => Self::Advance(u64::from(b) % 120),
        }
    }
}

#[derive(Debug, Clone)]
struct ModelLease {
    id: Uuid,
    principal: usize,
    until: u64,
    keys: Vec<u32>,
}

/// One tier: blocks with their octets, the one to go first in front.
#[derive(Debug, Clone)]
struct ModelTier {
    cap: u64,
    blocks: Vec<(u32, u64)>,
    reserved: u64,
}

impl ModelTier {
    fn used(&self) -> u64 {
        self.reserved + self.blocks.iter().map(|(_, octets)| octets).sum::<u64>()
    }

    fn has(&self, key: u32) -> bool {
        self.blocks.iter().any(|(k, _)| *k == key)
    }

    fn take(&mut self, key: u32) -> Option<u64> {
        let at = self.blocks.iter().position(|(k, _)| *k == key)?;
        Some(self.blocks.remove(at).1)
    }

    fn touch(&mut self, key: u32) {
        if let Some(octets) = self.take(key) {
            self.blocks.push((key, octets));
        }
    }

    fn reserve(&mut self, octets: u64, spared: &[u32]) -> Option<Vec<u32>> {
        let mut after = self.clone();
        let mut gone = Vec::new();
        while after.used() + octets > after.cap {
            let next = after.blocks.iter().map(|(key, _)| *key).find(|key| !spared.contains(key))?;
            after.take(next);
            gone.push(next);
        }
        after.reserved += octets;
        *self = after;
        Some(gone)
    }
}

#[derive(Debug)]
struct Model {
    host: Option<ModelTier>,
    disk: Option<ModelTier>,
    leases: Vec<ModelLease>,
    /// Key, octets at home, octets in the cache.
    arriving: Vec<(u32, u64, Option<u64>)>,
    /// Key, octets of the disk.
    leaving: Vec<(u32, u64)>,
    now: u64,
}

impl Model {
    fn home(&mut self) -> &mut ModelTier {
        self.disk.as_mut().or(self.host.as_mut()).unwrap()
    }

    fn leased(&self) -> Vec<u32> {
        self.leases.iter().flat_map(|lease| lease.keys.clone()).collect()
    }

    fn expire(&mut self) {
        let now = self.now;
        self.leases.retain(|lease| lease.until > now);
    }

    fn is_moving(&self, key: u32) -> bool {
        self.arriving.iter().any(|(k, ..)| *k == key) || self.leaving.iter().any(|(k, _)| *k == key)
    }

    fn place(&self, key: u32) -> Option<Place> {
        let on = |tier: &Option<ModelTier>| tier.as_ref().is_some_and(|tier| tier.has(key));
        let place = Place { host: on(&self.host), disk: on(&self.disk) };
        (place.host || place.disk).then_some(place)
    }

    fn admit(&mut self, key: u32, sizes: Sizes) -> Result<(Vec<u32>, Vec<u32>), AdmitError> {
        self.expire();
        if self.is_moving(key) {
            return Err(AdmitError::Busy);
        }
        if self.place(key).is_some() {
            return Err(AdmitError::Exists);
        }
        let spared = self.leased();
        let on_disk = self.disk.is_some();
        let home = if on_disk { sizes.disk } else { sizes.host };
        let evicted = self.home().reserve(home, &spared).ok_or(AdmitError::Full)?;
        let mut demoted = None;
        if on_disk {
            for key in &evicted {
                self.host.as_mut().and_then(|host| host.take(*key));
                self.leaving.push((*key, 0));
            }
            demoted = self.host.as_mut().and_then(|host| host.reserve(sizes.host, &[]));
        }
        self.arriving.push((key, home, demoted.as_ref().map(|_| sizes.host)));
        Ok((evicted, demoted.unwrap_or_default()))
    }

    fn end(&mut self, which: usize, arrives: bool) {
        let (key, home, cached) = self.arriving.remove(which);
        let tiers = [Some(home), cached];
        let on_disk = self.disk.is_some();
        let (first, second) =
            if on_disk { (self.disk.as_mut(), self.host.as_mut()) } else { (self.host.as_mut(), None) };
        for (tier, octets) in [first, second].into_iter().zip(tiers) {
            if let (Some(tier), Some(octets)) = (tier, octets) {
                tier.reserved -= octets;
                if arrives {
                    tier.blocks.push((key, octets));
                }
            }
        }
    }

    fn lose(&mut self, key: u32) -> Option<Place> {
        let place = self.place(key)?;
        for lease in &mut self.leases {
            lease.keys.retain(|k| *k != key);
        }
        self.host.as_mut().and_then(|host| host.take(key));
        if let Some(disk) = &mut self.disk
            && let Some(octets) = disk.take(key)
        {
            disk.reserved += octets;
            self.leaving.push((key, octets));
        }
        Some(place)
    }

    fn octets(&mut self, mut keys: Vec<u32>) -> u64 {
        keys.sort_unstable();
        keys.dedup();
        self.home().blocks.iter().filter(|(key, _)| keys.contains(key)).map(|(_, octets)| octets).sum()
    }

    fn lease(
        &mut self,
        id: Uuid,
        principal: usize,
        keys: &[u32],
        ttl_ms: u64,
    ) -> Result<Vec<u32>, &'static str> {
        self.expire();
        let held: Vec<u32> = keys.iter().copied().filter(|key| self.place(*key).is_some()).collect();
        if held.is_empty() {
            return Err("nothing");
        }
        let own = |lease: &&ModelLease| lease.principal == principal;
        if self.leases.iter().filter(own).count() >= LIMITS.principal_leases {
            return Err("many");
        }
        let mine: Vec<u32> = self.leases.iter().filter(own).flat_map(|lease| lease.keys.clone()).collect();
        let all = self.leased();
        let half = self.home().cap / 2;
        if self.octets([mine, held.clone()].concat()) > LIMITS.principal_octets
            || self.octets([all, held.clone()].concat()) > half
        {
            return Err("quota");
        }
        let until = self.now + ttl_ms.min(LIMITS.max_ttl_ms);
        self.leases.push(ModelLease { id, principal, until, keys: held.clone() });
        self.prefix(&held);
        Ok(held)
    }

    fn prefix(&mut self, keys: &[u32]) {
        for key in keys.iter().rev() {
            for tier in [&mut self.host, &mut self.disk].into_iter().flatten() {
                tier.touch(*key);
            }
        }
    }
}

struct Pair {
    machine: Holdings<u32>,
    model: Model,
    next_id: u128,
    /// Every lease ever made.
    made: Vec<Uuid>,
}

impl Pair {
    fn new(host: Option<u64>, disk: Option<u64>) -> Self {
        let tier = |cap| ModelTier { cap, blocks: vec![], reserved: 0 };
        Self {
            machine: Holdings::new(host, disk, LIMITS),
            model: Model {
                host: host.map(tier),
                disk: disk.map(tier),
                leases: vec![],
                arriving: vec![],
                leaving: vec![],
                now: 0,
            },
            next_id: 0,
            made: vec![],
        }
    }

    fn now(&self) -> Time {
        Time::from_millis(self.model.now)
    }

    fn step(&mut self, op: Op) {
        let now = self.now();
        match op {
            Op::Begin { key, octets } => {
                let sizes = Sizes { host: octets, disk: octets + 10 };
                let got = self.machine.admit(key, sizes, now).map(|a| (a.evicted, a.demoted));
                assert_eq!(got, self.model.admit(key, sizes));
            }
            Op::End { which, arrives } if !self.model.arriving.is_empty() => {
                let which = which % self.model.arriving.len();
                let key = self.model.arriving[which].0;
                if arrives {
                    self.machine.arrived(key);
                } else {
                    self.machine.abandoned(&key);
                }
                self.model.end(which, arrives);
            }
            Op::Deleted { which, done } if !self.model.leaving.is_empty() => {
                let (key, octets) = self.model.leaving.remove(which % self.model.leaving.len());
                self.machine.left(&key, done);
                if done {
                    self.model.disk.as_mut().unwrap().reserved -= octets;
                }
            }
            Op::Remove(key) => {
                self.model.expire();
                let want = if self.model.is_moving(key) {
                    Removed::Busy
                } else if self.model.leased().contains(&key) {
                    Removed::Leased
                } else {
                    self.model.lose(key).map_or(Removed::Absent, Removed::Was)
                };
                assert_eq!(self.machine.remove(&key, now), want);
            }
            Op::Lose(key) => assert_eq!(self.machine.lose(&key), self.model.lose(key)),
            Op::Promote(key) => self.promote(key),
            Op::Touch(key) => {
                self.machine.touch(&key);
                self.model.prefix(&[key]);
            }
            Op::Prefix { first, count } => {
                let keys: Vec<u32> = (first..first + count).collect();
                self.machine.touch_prefix(&keys);
                self.model.prefix(&keys);
            }
            Op::Lease { principal, first, count, ttl_ms } => self.lease(principal, first, count, ttl_ms),
            Op::Renew { principal, which, ttl_ms } => self.renew(principal, which, ttl_ms),
            Op::Release { principal, which } => self.release(principal, which),
            Op::Advance(ms) => self.model.now += ms,
            Op::End { .. } | Op::Deleted { .. } => {}
        }
        self.compare();
    }

    fn promote(&mut self, key: u32) {
        let there = self.model.place(key) == Some(Place { host: false, disk: true });
        let want = match (&mut self.model.host, there) {
            (Some(host), true) => host.reserve(15, &[]).inspect(|_| {
                host.reserved -= 15;
                host.blocks.push((key, 15));
            }),
            _ => None,
        };
        assert_eq!(self.machine.promote(key, 15), want);
    }

    fn lease(&mut self, principal: usize, first: u32, count: u32, ttl_ms: u64) {
        self.next_id += 1;
        let id = Uuid::from_u128(self.next_id);
        let keys: Vec<u32> = (first..first + count).collect();
        let request = LeaseOf { id, keys: &keys, ttl_ms, idempotency: None };
        let got = self.machine.lease(PRINCIPALS[principal], &request, self.now());
        let got = got.map(|lease| lease.granted.to_vec()).map_err(|error| match error {
            LeaseError::Quota { .. } => "quota",
            LeaseError::TooMany => "many",
            LeaseError::NothingHeld => "nothing",
            LeaseError::Unknown | LeaseError::KeyReused => "never",
        });
        assert_eq!(got, self.model.lease(id, principal, &keys, ttl_ms));
        if got.is_ok() {
            self.made.push(id);
        }
    }

    fn renew(&mut self, principal: usize, which: usize, ttl_ms: u64) {
        let Some(&id) = self.made.iter().rev().nth(which % 16) else { return };
        let now = self.now();
        self.model.expire();
        let until = self.model.now + ttl_ms.min(LIMITS.max_ttl_ms);
        let known = self.model.leases.iter_mut().find(|l| l.id == id && l.principal == principal);
        let want = known.map(|lease| {
            lease.until = until;
            Time::from_millis(until)
        });
        let got = self.machine.renew_lease(PRINCIPALS[principal], id, ttl_ms, now);
        assert_eq!(got.map(|lease| lease.until).ok(), want);
    }

    fn release(&mut self, principal: usize, which: usize) {
        let Some(&id) = self.made.iter().rev().nth(which % 16) else { return };
        let now = self.now();
        self.model.expire();
        let before = self.model.leases.len();
        self.model.leases.retain(|lease| lease.id != id || lease.principal != principal);
        let got = self.machine.release_lease(PRINCIPALS[principal], id, now);
        assert_eq!(got.is_ok(), self.model.leases.len() < before);
    }

    fn compare(&mut self) {
        for key in 0..KEYS + 5 {
            assert_eq!(self.machine.place(&key), self.model.place(key), "key {key}");
        }
        let tier = |tier: &Option<ModelTier>| tier.as_ref().map_or((0, 0), |tier| (tier.used(), tier.cap));
        assert_eq!(self.machine.host_octets(), tier(&self.model.host));
        assert_eq!(self.machine.disk_octets(), tier(&self.model.disk));
        for (used, cap) in [self.machine.host_octets(), self.machine.disk_octets()] {
            assert!(used <= cap, "a cap is overrun: {used} of {cap}");
        }
        let leased = self.model.leased();
        for key in &leased {
            assert!(self.model.place(*key).is_some(), "leased block {key} is gone");
        }
        // Expired leases are forgotten at the next use of the clock, so the machine may still count some.
        assert!(
            self.machine.leases().octets() >= {
                let now = self.model.now;
                let live = self.model.leases.iter().filter(|lease| lease.until > now);
                let live: Vec<u32> = live.flat_map(|lease| lease.keys.clone()).collect();
                self.model.octets(live)
            }
        );
    }
}

fn run(host: Option<u64>, disk: Option<u64>, ops: impl Iterator<Item = u64>) {
    let mut pair = Pair::new(host, disk);
    for bits in ops {
        pair.step(Op::from_bits(bits));
    }
}

proptest! {
    #[test]
    fn host_memory_alone(ops in prop::collection::vec(any::<u64>(), 0..300)) {
        run(Some(300), None, ops.into_iter());
    }

    #[test]
    fn disk_alone(ops in prop::collection::vec(any::<u64>(), 0..300)) {
        run(None, Some(400), ops.into_iter());
    }

    #[test]
    fn host_memory_over_disk(ops in prop::collection::vec(any::<u64>(), 0..300)) {
        run(Some(120), Some(400), ops.into_iter());
    }
}

/// The same sequence in every run (splitmix64).
fn sequence(seed: u64) -> impl Iterator<Item = u64> {
    (1..).map(move |n: u64| {
        let mut z = seed.wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

#[test]
fn a_long_run() {
    let ops = std::env::var("KVSP_SOAK_OPS").ok().map_or(60_000, |text| text.parse().expect("a number"));
    for (seed, (host, disk)) in (1..).zip([(Some(300), None), (None, Some(400)), (Some(120), Some(400))]) {
        run(host, disk, sequence(seed).take(ops / 3));
    }
}
