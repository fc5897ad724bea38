//! Drives the machine and the model by the same random numbers, and compares.

use std::collections::BTreeMap;

use kvsp_core::lease::LeaseError;
use kvsp_core::tier::{
    AdmitError, Block as _, Cut, Holdings, HoldingsConfig, LeaseOf, Removed, Room, TierSettings, Watermarks,
};
use kvsp_core::tier::{LeastRecentlyUsed, Level, PerLevel, PinId, ScopeFloors};
use kvsp_core::time::Time;
use kvsp_proto::id::ScopeId;
use uuid::Uuid;

use super::model::{KEYS, LIMITS, Model, PRINCIPALS, Setup, Unit};

type Scopes = PerLevel<[(u64, u64); 3]>;

/// What a device was asked for and has not answered yet.
#[derive(Debug, Clone)]
enum Task {
    Cut(Cut<u32>),
    /// A block is to be written at its home, once the cuts are done.
    Arrive {
        key: u32,
        unit: Unit,
        cuts: Vec<Cut<u32>>,
    },
    /// Leading layers are to be written elsewhere.
    Fill {
        key: u32,
        unit: Unit,
        level: Level,
        layers: u32,
        cuts: Vec<Cut<u32>>,
    },
}

pub struct Driver {
    machine: Holdings<u32, Unit>,
    model: Model,
    tasks: Vec<Task>,
    next_id: u128,
    made: Vec<Uuid>,
    pins: Vec<(PinId, u64)>,
    seen: BTreeMap<&'static str, u32>,
}

impl Driver {
    pub fn new(setup: Setup) -> Self {
        let tier = |level| {
            let octets = setup.cap(level);
            setup
                .has(level)
                .then(|| TierSettings { octets, policy: Box::<LeastRecentlyUsed<u32>>::default() })
        };
        let named = setup.floors.iter().zip(0..).filter(|(octets, _)| **octets > 0);
        let config = HoldingsConfig {
            tiers: PerLevel::from_fn(tier),
            leases: LIMITS,
            floors: ScopeFloors {
                scopes: named.map(|(octets, scope)| (ScopeId([scope; 16]), *octets)).collect(),
                others: setup.others,
            },
            watermarks: Watermarks { high: 700, low: 500, copies: 3 },
        };
        Self {
            machine: Holdings::new(config).unwrap(),
            model: Model::new(setup),
            tasks: vec![],
            next_id: 0,
            made: vec![],
            pins: vec![],
            seen: BTreeMap::new(),
        }
    }

    pub fn seen(&self) -> impl Iterator<Item = (&'static str, u32)> {
        self.seen.iter().map(|(what, count)| (*what, *count))
    }

    fn note(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn now(&self) -> Time {
        Time::from_millis(self.model.now)
    }

    /// One operation told by 64 random bits.
    pub fn step(&mut self, bits: u64) {
        let [kind, a, b, c, d, e, ..] = bits.to_le_bytes();
        let key = u32::from(a) % KEYS;
        let (principal, ttl_ms) = (usize::from(b) % 2, u64::from(d) * 2);
        let keys: Vec<u32> = (key..key + u32::from(c) % 4).collect();
        match kind % 24 {
            0..=3 => {
                self.begin(key, Unit { scope: a % 3, layers: 1 + u32::from(b) % 5, unit: u64::from(c) % 14 });
            }
            4..=11 => self.progress(usize::from(a), b % 10 != 0, e % 12 == 0),
            12 => self.remove(key),
            13 if b % 4 == 0 => self.lose(key, Level::ALL[usize::from(c) % 3]),
            13 if b % 4 == 1 => {
                // One that is on its way to another tier.
                let fills = self.tasks.iter().filter(|task| matches!(task, Task::Fill { .. }));
                let key = fills.map(Task::key).nth(usize::from(a) % 3).unwrap_or(key);
                self.lose(key, Level::ALL[usize::from(c) % 3]);
            }
            13 | 14 => self.promote(key, Level::ALL[usize::from(b) % 2], 1 + u32::from(c) % 5),
            15 => self.demote(),
            16 => {
                self.machine.touch_prefix(&keys);
                self.model.prefix(&keys);
            }
            17 => self.lease(principal, &keys, ttl_ms),
            18 => self.renew(principal, usize::from(a), ttl_ms),
            19 => self.release(principal, usize::from(a)),
            20 => self.pin(&keys, ttl_ms),
            21 if !self.pins.is_empty() => self.unpin(usize::from(a)),
            22 => self.retry(),
            _ => self.model.now += u64::from(b) % 120,
        }
        self.check();
    }

    /// Everything that is under way ends; then what is charged is what is there.
    pub fn finish(&mut self) {
        for _ in 0..100 {
            self.model.now += 100_000;
            self.retry();
            for which in (0..self.tasks.len()).rev() {
                self.progress(which, true, false);
                self.check();
            }
        }
        assert!(self.tasks.is_empty(), "{:?}", self.tasks);
        for level in Level::ALL {
            assert_eq!(self.machine.octets(level).0, self.model.device_octets(level), "{level:?}");
        }
        for (key, held) in self.model.visible.keys().map(|key| (*key, self.machine.residency(key).unwrap())) {
            for (level, layers) in held.iter() {
                assert_eq!(self.model.devices[level].get(&key).map_or(0, |(_, n)| *n), *layers);
            }
        }
    }

    fn begin(&mut self, key: u32, unit: Unit) {
        let before = self.model.order.clone();
        let free = {
            let (used, cap) = self.machine.octets(self.model.setup.home());
            cap - used
        };
        let (now, scopes) = (self.now(), self.scopes());
        self.model.expire();
        match self.machine.admit(key, unit, now) {
            Ok(room) => {
                assert!(!self.model.visible.contains_key(&key));
                if self.model.setup.anchors().len() == 1 && self.model.setup.floors == [0; 3] {
                    self.check_order(&before, &room);
                }
                let cuts = room.cuts.clone();
                self.take(room, unit.scope, &scopes);
                self.tasks.push(Task::Arrive { key, unit, cuts });
            }
            Err(AdmitError::Exists) => assert!(self.model.visible.contains_key(&key)),
            Err(AdmitError::Busy | AdmitError::Stuck) => assert!(!self.model.visible.contains_key(&key)),
            Err(AdmitError::Full) => self.check_full(unit, free),
        }
    }

    /// Without an overflow the coldest blocks that may go do.
    fn check_order(&self, before: &[u32], room: &Room<u32>) {
        let Some(last) = room.evicted.last() else { return };
        let colder = before.iter().take_while(|key| *key != last);
        for key in colder.filter(|key| !room.evicted.contains(key)) {
            let is_busy = self.tasks.iter().any(|task| task.key() == *key);
            assert!(self.model.is_protected(*key) || is_busy, "{key} is colder than {last} and stays");
        }
    }

    /// A refusal has a reason: what may go is too little.
    fn check_full(&mut self, unit: Unit, free: u64) {
        self.note("full");
        let home = self.model.setup.home();
        if self.model.setup.floors != [0; 3] {
            return;
        }
        let may_go = self.model.visible.iter().filter(|(key, _)| {
            !self.model.is_protected(**key) && self.tasks.iter().all(|task| task.key() != **key)
        });
        let may_go = may_go.map(|(key, unit)| match self.machine.residency(key).unwrap()[home] {
            0 => 0,
            layers => unit.octets(home, layers),
        });
        assert!(free + may_go.sum::<u64>() < unit.octets(home, unit.layers), "it could have been taken");
    }

    /// Takes up what became of others, and judges it. `by` is the scope for which it was, `before` what
    /// all had.
    fn take(&mut self, room: Room<u32>, by: u8, before: &Scopes) {
        self.check_floors(before, by);
        for key in &room.evicted {
            self.note("evicted");
            assert!(!self.model.is_protected(*key), "{key} is leased or being read");
            self.model.vanishes(*key);
            assert!(self.machine.residency(key).is_none());
        }
        for key in &room.changed {
            self.note("shrunk");
            let unit = self.model.visible[key];
            if self.model.is_protected(*key) {
                // A spare copy or cached layers; where it is kept it stays whole.
                let held = self.machine.residency(key).unwrap();
                let home = self.model.setup.home();
                let level = if held[home] == unit.layers { home } else { Level::Object };
                assert_eq!(held[level], unit.layers);
            }
        }
        self.tasks.extend(room.cuts.into_iter().map(Task::Cut));
    }

    /// What each scope has in each tier, and its floor there.
    fn scopes(&self) -> Scopes {
        PerLevel::from_fn(|level| {
            [0, 1, 2].map(|scope| {
                let id = ScopeId([scope; 16]);
                (self.machine.scope_octets(level, id), self.machine.floor(level, id))
            })
        })
    }

    /// A scope that lost octets to another still has its floor.
    fn check_floors(&self, before: &Scopes, by: u8) {
        let after = self.scopes();
        for (level, scopes) in before.iter() {
            for (scope, (had, floor)) in (0..).zip(scopes) {
                let (has, _) = after[level][usize::from(scope)];
                assert!(
                    scope == by || has >= *had || has >= *floor,
                    "{scope}: {has} of {floor} in {level:?}"
                );
            }
        }
    }

    fn progress(&mut self, which: usize, works: bool, aborts: bool) {
        if self.tasks.is_empty() {
            return;
        }
        let which = which % self.tasks.len();
        let now = self.now();
        match self.tasks[which].clone() {
            Task::Cut(cut) => {
                self.tasks.remove(which);
                if works {
                    self.model.cut(cut.key, cut.level, cut.layers);
                    self.machine.cut_done(&cut);
                } else {
                    self.note("refused");
                    self.machine.cut_failed(&cut, now);
                }
            }
            Task::Arrive { key, unit, cuts } => {
                let home = self.model.setup.home();
                if aborts {
                    self.machine.abandoned(&key);
                } else if self.machine.is_ready(&key, home) {
                    self.arrive(key, unit, home);
                } else if cuts.iter().any(|cut| self.is_pending(cut)) {
                    return;
                } else {
                    self.machine.abandoned(&key);
                }
                self.tasks.remove(which);
            }
            Task::Fill { key, unit, level, layers, cuts } => {
                if aborts {
                    self.machine.gave_up(&key, level);
                } else if self.machine.is_ready(&key, level) {
                    self.fill(key, unit, level, layers);
                } else if cuts.iter().any(|cut| self.is_pending(cut)) {
                    return;
                } else {
                    assert!(!self.machine.arrived_at(&key, level));
                    self.machine.gave_up(&key, level);
                }
                self.tasks.remove(which);
            }
        }
    }

    fn is_pending(&self, cut: &Cut<u32>) -> bool {
        self.tasks.iter().any(|task| matches!(task, Task::Cut(other) if other == cut))
    }

    fn arrive(&mut self, key: u32, unit: Unit, home: Level) {
        self.note("arrived");
        self.model.write(key, home, unit, unit.layers);
        let cached = home != Level::Host && self.machine.is_ready(&key, Level::Host);
        if cached {
            self.model.write(key, Level::Host, unit, unit.layers);
        }
        let held = self.machine.arrived(&key);
        let there = |level| if level == home || (cached && level == Level::Host) { unit.layers } else { 0 };
        assert_eq!(held, PerLevel::from_fn(there));
        self.model.appears(key, unit);
    }

    fn fill(&mut self, key: u32, unit: Unit, level: Level, layers: u32) {
        self.model.write(key, level, unit, layers);
        if self.model.visible.contains_key(&key) {
            self.note(if level == Level::Object { "demoted" } else { "promoted" });
            assert!(self.machine.arrived_at(&key, level));
        } else {
            // It went while it was written; the machine hands out a cut for what is there.
            self.note("late");
            assert!(!self.machine.arrived_at(&key, level));
            self.machine.gave_up(&key, level);
        }
    }

    fn remove(&mut self, key: u32) {
        self.model.expire();
        match self.machine.remove(&key, self.now()) {
            Removed::Was(cuts) => {
                assert!(!self.model.leased().contains(&key));
                self.model.vanishes(key);
                self.tasks.extend(cuts.into_iter().map(Task::Cut));
            }
            Removed::Absent => assert!(!self.model.visible.contains_key(&key)),
            Removed::Leased => assert!(self.model.leased().contains(&key)),
            Removed::Busy => {}
        }
    }

    fn lose(&mut self, key: u32, level: Level) {
        let held = self.machine.residency(&key).map_or(0, |held| held[level]);
        if held == 0 {
            return;
        }
        self.model.cut(key, level, 0);
        let room = self.machine.lost(&key, level);
        let unit = self.model.visible[&key];
        let whole = |at: &Level| self.machine.residency(&key).is_some_and(|held| held[*at] == unit.layers);
        if self.model.setup.anchors().iter().any(whole) {
            assert_eq!((room.evicted, room.changed, room.cuts), (vec![], vec![key], vec![]));
        } else {
            self.note("lost");
            assert_eq!(room.evicted, [key]);
            self.model.vanishes(key);
            self.tasks.extend(room.cuts.into_iter().map(Task::Cut));
        }
    }

    fn promote(&mut self, key: u32, level: Level, layers: u32) {
        self.model.expire();
        let Some(unit) = self.model.visible.get(&key).copied() else { return };
        let layers = if level == Level::Disk { unit.layers } else { layers };
        let held = self.machine.residency(&key).unwrap();
        let scopes = self.scopes();
        if let Some(room) = self.machine.promote(key, level, layers, self.now()) {
            assert!(
                held[level] < layers && layers <= unit.layers && level != self.model.setup.home()
                    || level == Level::Disk
            );
            assert!(level != Level::Disk || room.is_empty(), "nothing goes for a promotion to disk");
            let cuts = room.cuts.clone();
            self.take(room, unit.scope, &scopes);
            self.tasks.push(Task::Fill { key, unit, level, layers, cuts });
        }
    }

    fn demote(&mut self) {
        self.model.expire();
        let scopes = self.scopes();
        if let Some((key, room)) = self.machine.demote(self.now()) {
            let unit = self.model.visible[&key];
            let cuts = room.cuts.clone();
            self.take(room, unit.scope, &scopes);
            let (level, layers) = (Level::Object, unit.layers);
            self.tasks.push(Task::Fill { key, unit, level, layers, cuts });
        }
    }

    fn retry(&mut self) {
        let due = self.machine.retries(self.now());
        for cut in due {
            self.note("retried");
            self.tasks.push(Task::Cut(cut));
        }
    }

    fn anchors(&self, keys: &[u32]) -> Vec<(u32, Level, u64)> {
        let home = self.model.setup.home();
        let anchor = |key: &u32| {
            let (unit, held) = (self.model.visible.get(key)?, self.machine.residency(key)?);
            let level = if held[home] == unit.layers { home } else { Level::Object };
            Some((*key, level, unit.octets(level, unit.layers)))
        };
        keys.iter().filter_map(anchor).collect()
    }

    fn lease(&mut self, principal: usize, keys: &[u32], ttl_ms: u64) {
        self.next_id += 1;
        let id = Uuid::from_u128(self.next_id);
        let anchors = self.anchors(keys);
        let request = LeaseOf { id, keys, ttl_ms, idempotency: None };
        let got = self.machine.lease(PRINCIPALS[principal], &request, self.now());
        let got = got.map(|lease| lease.granted.to_vec()).map_err(|error| match error {
            LeaseError::Quota { .. } => "quota",
            LeaseError::TooMany => "many",
            LeaseError::NothingHeld => "nothing",
            LeaseError::Unknown | LeaseError::KeyReused => "never",
        });
        assert_eq!(got, self.model.lease(id, principal, &anchors, ttl_ms));
        if got.is_ok() {
            self.note("leased");
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
        self.model.expire();
        let got = self.machine.release_lease(PRINCIPALS[principal], id, now);
        assert_eq!(got.is_ok(), self.model.leases.len() < before);
    }

    fn pin(&mut self, keys: &[u32], ttl_ms: u64) {
        let anchors = self.anchors(keys);
        let id = self.machine.pin(keys, ttl_ms, self.now());
        self.model.pin(&anchors, ttl_ms);
        self.pins.push((id, self.model.pins.last().unwrap().id));
    }

    fn unpin(&mut self, which: usize) {
        let (id, model) = self.pins.swap_remove(which % self.pins.len());
        self.model.expire();
        self.machine.unpin(id);
        self.model.pins.retain(|set| set.id != model);
    }

    fn check(&mut self) {
        assert_eq!(self.machine.len(), self.model.visible.len());
        for level in Level::ALL {
            let (used, cap) = self.machine.octets(level);
            assert!(used <= cap, "{level:?}: {used} of {cap}");
            let there = self.model.device_octets(level);
            assert!(there <= used, "{level:?} holds {there}, charged are {used}");
        }
        for key in 0..KEYS + 4 {
            let held = self.machine.residency(&key);
            assert_eq!(held.is_some(), self.model.visible.contains_key(&key), "{key}");
            let Some(held) = held else { continue };
            let unit = self.model.visible[&key];
            for (level, layers) in held.iter() {
                let there = self.model.devices[level].get(&key).map_or(0, |(_, n)| *n);
                assert!(there >= *layers, "{key} in {level:?}: {layers} layers told, {there} there");
            }
            let whole = |level: &Level| held[*level] == unit.layers;
            assert!(self.model.setup.anchors().iter().any(whole), "{key} is whole nowhere: {held:?}");
        }
        let now = self.model.now;
        for lease in self.model.leases.iter().filter(|lease| lease.until > now) {
            for key in &lease.keys {
                assert!(self.model.visible.contains_key(key), "leased block {key} is gone");
            }
        }
    }
}

impl Task {
    fn key(&self) -> u32 {
        match self {
            Self::Cut(cut) => cut.key,
            Self::Arrive { key, .. } | Self::Fill { key, .. } => *key,
        }
    }
}
