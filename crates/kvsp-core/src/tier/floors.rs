//! What each scope keeps whatever others need.

use std::collections::BTreeMap;

use kvsp_proto::id::ScopeId;

use super::level::{Level, PerLevel};

/// Octets of the home tier that a scope keeps: the eviction for another scope never takes it below. In the
/// other tiers the floor is the same share of their caps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScopeFloors {
    /// Floors of scopes by name.
    pub scopes: BTreeMap<ScopeId, u64>,
    /// The floor of every other scope; lowered while so many scopes have blocks that all floors together
    /// would exceed the cap.
    pub others: u64,
}

/// Floors do not fit in the home tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("floors of {octets} octets exceed the {cap} of the home tier")]
pub struct FloorsExceed {
    /// The sum of the floors.
    pub octets: u64,
    /// The cap.
    pub cap: u64,
}

impl ScopeFloors {
    /// Judges the sum of the floors.
    ///
    /// # Errors
    /// The named floors together, or the one of all others, exceed the cap of the home tier.
    pub fn check(&self, cap: u64) -> Result<(), FloorsExceed> {
        let octets = self.named().saturating_add(self.others);
        if octets > cap { Err(FloorsExceed { octets, cap }) } else { Ok(()) }
    }

    fn named(&self) -> u64 {
        self.scopes.values().fold(0, |sum, octets| sum.saturating_add(*octets))
    }
}

/// What every scope has in every tier, and what it keeps.
#[derive(Debug)]
pub(super) struct Floors {
    floors: ScopeFloors,
    home: u64,
    caps: PerLevel<u64>,
    used: PerLevel<BTreeMap<ScopeId, u64>>,
}

/// Judges the victims of one eviction, one after the other.
#[derive(Debug)]
pub(super) struct Tally<'a> {
    floors: &'a Floors,
    by: Option<ScopeId>,
    taken: PerLevel<BTreeMap<ScopeId, u64>>,
}

impl Floors {
    /// `home` is the cap of the home tier.
    pub(super) fn new(floors: ScopeFloors, home: u64, caps: PerLevel<u64>) -> Self {
        Self { floors, home, caps, used: PerLevel::default() }
    }

    pub(super) fn add(&mut self, level: Level, scope: ScopeId, octets: u64) {
        let used = self.used[level].entry(scope).or_default();
        *used = used.saturating_add(octets);
    }

    pub(super) fn subtract(&mut self, level: Level, scope: ScopeId, octets: u64) {
        if let Some(used) = self.used[level].get_mut(&scope) {
            *used = used.saturating_sub(octets);
            if *used == 0 {
                self.used[level].remove(&scope);
            }
        }
    }

    pub(super) fn used(&self, level: Level, scope: ScopeId) -> u64 {
        self.used[level].get(&scope).copied().unwrap_or(0)
    }

    /// The octets below which others do not take a scope in a tier.
    pub(super) fn floor(&self, level: Level, scope: ScopeId) -> u64 {
        let at_home = self.floors.scopes.get(&scope).copied().unwrap_or_else(|| self.of_others(level));
        if self.caps[level] == self.home || self.home == 0 {
            return at_home;
        }
        let scaled = u128::from(at_home) * u128::from(self.caps[level]) / u128::from(self.home);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    fn of_others(&self, level: Level) -> u64 {
        if self.floors.others == 0 {
            return 0;
        }
        let unnamed = self.used[level].keys().filter(|scope| !self.floors.scopes.contains_key(scope)).count();
        let left = self.home.saturating_sub(self.floors.named());
        self.floors.others.min(left / u64::try_from(unnamed).unwrap_or(u64::MAX).max(1))
    }

    /// Begins an eviction for a scope, or for none.
    pub(super) fn tally(&self, by: Option<ScopeId>) -> Tally<'_> {
        Tally { floors: self, by, taken: PerLevel::default() }
    }
}

impl Tally<'_> {
    /// Takes octets of each tier from a scope, unless that took another's scope below its floor in one.
    pub(super) fn take(&mut self, scope: ScopeId, octets: &PerLevel<u64>) -> bool {
        if self.by == Some(scope) {
            return true;
        }
        let keeps = |(level, octets): (Level, &u64)| {
            let floor = if *octets == 0 { 0 } else { self.floors.floor(level, scope) };
            let taken = self.taken[level].get(&scope).copied().unwrap_or(0).saturating_add(*octets);
            floor == 0 || self.floors.used(level, scope).saturating_sub(taken) >= floor
        };
        let fits = octets.iter().all(keeps);
        if fits {
            for (level, octets) in octets.iter().filter(|(_, octets)| **octets > 0) {
                let taken = self.taken[level].entry(scope).or_default();
                *taken = taken.saturating_add(*octets);
            }
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ScopeId = ScopeId([1; 16]);
    const B: ScopeId = ScopeId([2; 16]);

    fn floors(named: &[(ScopeId, u64)], others: u64) -> Floors {
        let floors = ScopeFloors { scopes: named.iter().copied().collect(), others };
        Floors::new(floors, 100, PerLevel::new(50, 100, 1000))
    }

    #[test]
    fn a_floor_is_a_share_of_every_tier() {
        let floors = floors(&[(A, 30)], 0);
        let of = |level| floors.floor(level, A);
        assert_eq!(Level::ALL.map(of), [15, 30, 300]);
        assert_eq!(floors.floor(Level::Disk, B), 0);
    }

    #[test]
    fn one_scope_does_not_take_another_below_its_floor() {
        let mut floors = floors(&[(A, 30)], 0);
        floors.add(Level::Disk, A, 50);
        floors.add(Level::Host, A, 20);
        let on_disk = |octets| PerLevel::new(0, octets, 0);
        let mut tally = floors.tally(Some(B));
        assert!(tally.take(A, &on_disk(15)));
        assert!(!tally.take(A, &on_disk(6)), "29 would be left");
        assert!(!tally.take(A, &PerLevel::new(6, 1, 0)), "14 would be left in host memory");
        assert!(tally.take(A, &PerLevel::new(5, 5, 0)));
        assert!(tally.take(B, &on_disk(1000)), "its own");
        assert!(floors.tally(Some(A)).take(A, &on_disk(50)), "its own");
        assert!(!floors.tally(None).take(A, &on_disk(50)));
    }

    #[test]
    fn the_floor_of_all_others_yields_where_there_are_many() {
        let mut floors = floors(&[(A, 40)], 25);
        for n in 10..14 {
            floors.add(Level::Disk, ScopeId([n; 16]), 20);
        }
        assert_eq!(floors.floor(Level::Disk, ScopeId([10; 16])), 15, "a quarter of what A leaves");
        assert_eq!(floors.floor(Level::Disk, A), 40);
    }

    #[test]
    fn floors_beyond_the_cap_are_refused() {
        let floors = ScopeFloors { scopes: [(A, 60), (B, 30)].into(), others: 10 };
        assert_eq!(floors.check(100), Ok(()));
        assert_eq!(floors.check(99), Err(FloorsExceed { octets: 100, cap: 99 }));
    }
}
