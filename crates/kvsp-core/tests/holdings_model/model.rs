//! What must hold, whoever decides.

use std::collections::{BTreeMap, BTreeSet};

use kvsp_core::lease::LeaseLimits;
use kvsp_core::tier::Block;
use kvsp_core::tier::{Level, PerLevel};
use kvsp_proto::id::ScopeId;
use uuid::Uuid;

pub const KEYS: u32 = 24;
pub const PRINCIPALS: [&str; 2] = ["a", "b"];
pub const LIMITS: LeaseLimits =
    LeaseLimits { max_ttl_ms: 400, principal_octets: 150, total_octets: u64::MAX, principal_leases: 6 };

#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub caps: [Option<u64>; 3],
    pub floors: [u64; 3],
    pub others: u64,
}

impl Setup {
    pub fn cap(&self, level: Level) -> u64 {
        let [host, disk, object] = self.caps;
        PerLevel::new(host, disk, object)[level].unwrap_or(0)
    }

    pub fn has(&self, level: Level) -> bool {
        self.cap(level) > 0
    }

    pub fn home(&self) -> Level {
        [Level::Disk, Level::Object].into_iter().find(|level| self.has(*level)).unwrap_or(Level::Host)
    }

    /// Tiers of which one keeps a visible block whole.
    pub fn anchors(&self) -> BTreeSet<Level> {
        let overflow = self.has(Level::Object).then_some(Level::Object);
        [self.home()].into_iter().chain(overflow).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    pub scope: u8,
    pub layers: u32,
    /// Octets of a layer.
    pub unit: u64,
}

impl Block for Unit {
    fn scope(&self) -> ScopeId {
        ScopeId([self.scope; 16])
    }

    fn layers(&self) -> u32 {
        self.layers
    }

    fn octets(&self, level: Level, layers: u32) -> u64 {
        let head = match level {
            Level::Host => 3,
            Level::Disk => 7,
            Level::Object => 5,
        };
        head + u64::from(layers) * self.unit
    }
}

#[derive(Debug, Clone)]
pub struct ModelLease {
    pub id: Uuid,
    pub principal: usize,
    pub until: u64,
    pub keys: Vec<u32>,
}

/// Blocks that are being read.
#[derive(Debug)]
pub struct ModelPins {
    pub id: u64,
    pub until: u64,
    pub keys: Vec<(u32, Level, u64)>,
}

#[derive(Debug)]
pub struct Model {
    pub setup: Setup,
    pub now: u64,
    /// What each device has: block and leading layers. The truth.
    pub devices: PerLevel<BTreeMap<u32, (Unit, u32)>>,
    /// Visible blocks.
    pub visible: BTreeMap<u32, Unit>,
    pub leases: Vec<ModelLease>,
    /// Where a leased block was counted first.
    pub covered: BTreeMap<u32, (Level, u64)>,
    pub pins: Vec<ModelPins>,
    pub pins_made: u64,
    /// Visible blocks by last use, the coldest first.
    pub order: Vec<u32>,
}

impl Model {
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            now: 0,
            devices: PerLevel::default(),
            visible: BTreeMap::new(),
            leases: vec![],
            covered: BTreeMap::new(),
            pins: vec![],
            pins_made: 0,
            order: vec![],
        }
    }

    pub fn device_octets(&self, level: Level) -> u64 {
        self.devices[level].values().map(|(unit, layers)| unit.octets(level, *layers)).sum()
    }

    /// A device writes leading layers of a block; what it had before goes when that is done.
    pub fn write(&mut self, key: u32, level: Level, unit: Unit, layers: u32) {
        let during = self.device_octets(level) + unit.octets(level, layers);
        assert!(during <= self.setup.cap(level), "{level:?} holds {during} of {}", self.setup.cap(level));
        self.devices[level].insert(key, (unit, layers));
    }

    pub fn cut(&mut self, key: u32, level: Level, layers: u32) {
        match self.devices[level].get_mut(&key) {
            Some((_, held)) if layers > 0 => *held = layers.min(*held),
            _ => {
                self.devices[level].remove(&key);
            }
        }
    }

    pub fn expire(&mut self) {
        let now = self.now;
        self.leases.retain(|lease| lease.until > now);
        self.pins.retain(|set| set.until > now);
        let leased = self.leased();
        self.covered.retain(|key, _| leased.contains(key));
    }

    pub fn leased(&self) -> BTreeSet<u32> {
        self.leases.iter().flat_map(|lease| lease.keys.iter().copied()).collect()
    }

    pub fn pinned(&self) -> BTreeSet<u32> {
        self.pins.iter().flat_map(|set| set.keys.iter().map(|(key, ..)| *key)).collect()
    }

    pub fn is_protected(&self, key: u32) -> bool {
        self.leased().contains(&key) || self.pinned().contains(&key)
    }

    pub fn touch(&mut self, key: u32) {
        if self.visible.contains_key(&key) {
            self.order.retain(|k| *k != key);
            self.order.push(key);
        }
    }

    pub fn prefix(&mut self, keys: &[u32]) {
        keys.iter().rev().for_each(|key| self.touch(*key));
    }

    pub fn appears(&mut self, key: u32, unit: Unit) {
        assert!(self.visible.insert(key, unit).is_none());
        self.touch(key);
    }

    pub fn vanishes(&mut self, key: u32) {
        assert!(self.visible.remove(&key).is_some(), "{key} was not visible");
        self.order.retain(|k| *k != key);
        self.leases.iter_mut().for_each(|lease| lease.keys.retain(|k| *k != key));
        self.pins.iter_mut().for_each(|set| set.keys.retain(|(k, ..)| *k != key));
        self.covered.remove(&key);
    }

    fn sum(held: impl Iterator<Item = (u32, u64)>) -> u64 {
        held.collect::<BTreeMap<_, _>>().values().sum()
    }

    /// Judges a lease on blocks that are held where `anchors` says.
    pub fn lease(
        &mut self,
        id: Uuid,
        principal: usize,
        anchors: &[(u32, Level, u64)],
        ttl_ms: u64,
    ) -> Result<Vec<u32>, &'static str> {
        self.expire();
        if anchors.is_empty() {
            return Err("nothing");
        }
        let own: Vec<_> = self.leases.iter().filter(|lease| lease.principal == principal).collect();
        if own.len() >= LIMITS.principal_leases {
            return Err("many");
        }
        let counted = |key: u32| self.covered[&key];
        let mine: BTreeSet<u32> = own.iter().flat_map(|lease| lease.keys.clone()).collect();
        let asked = |known: &dyn Fn(u32) -> bool, level: Option<Level>| {
            let new = anchors.iter().filter(|(key, at, _)| !known(*key) && level.is_none_or(|l| l == *at));
            Self::sum(new.map(|(key, _, octets)| (*key, *octets)))
        };
        let own_octets = Self::sum(mine.iter().map(|key| (*key, counted(*key).1)));
        let new = asked(&|key| mine.contains(&key), None);
        if new > 0 && own_octets + new > LIMITS.principal_octets {
            return Err("quota");
        }
        for level in Level::ALL {
            let here = self.covered.values().filter(|(at, _)| *at == level).map(|(_, octets)| octets);
            let new = asked(&|key| self.covered.contains_key(&key), Some(level));
            if new > 0 && here.sum::<u64>() + new > self.setup.cap(level) / 2 {
                return Err("quota");
            }
        }
        for (key, level, octets) in anchors {
            self.covered.entry(*key).or_insert((*level, *octets));
        }
        let keys: Vec<u32> = anchors.iter().map(|(key, ..)| *key).collect();
        let until = self.now + ttl_ms.min(LIMITS.max_ttl_ms);
        self.leases.push(ModelLease { id, principal, until, keys: keys.clone() });
        self.prefix(&keys);
        Ok(keys)
    }

    pub fn pin(&mut self, anchors: &[(u32, Level, u64)], ttl_ms: u64) {
        self.expire();
        let mut keys = vec![];
        for &(key, level, octets) in anchors {
            let first = self.pins.iter().flat_map(|set| &set.keys).find(|(k, ..)| *k == key).copied();
            let all =
                self.pins.iter().flat_map(|set| &set.keys).chain(&keys).filter(|(_, at, _)| *at == level);
            let fits = Self::sum(all.map(|(k, _, n)| (*k, *n))) + octets <= self.setup.cap(level) / 4;
            if let Some(first) = first {
                keys.push(first);
            } else if fits {
                keys.push((key, level, octets));
            }
        }
        self.pins_made += 1;
        self.pins.push(ModelPins { id: self.pins_made, until: self.now + ttl_ms, keys });
    }
}
