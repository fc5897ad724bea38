use uuid::Uuid;

use super::super::policy::LeastRecentlyUsed;
use super::*;
use crate::lease::{Lease, LeaseError};

const LIMITS: LeaseLimits =
    LeaseLimits { max_ttl_ms: 1000, principal_octets: 1000, total_octets: 1000, principal_leases: 9 };
const A: ScopeId = ScopeId([1; 16]);
const B: ScopeId = ScopeId([2; 16]);

/// A block of some layers of 10 octets each, without headers.
#[derive(Debug, Clone, Copy)]
struct Layers(u32, ScopeId);

impl Block for Layers {
    fn scope(&self) -> ScopeId {
        self.1
    }

    fn layers(&self) -> u32 {
        self.0
    }

    fn octets(&self, _: Level, layers: u32) -> u64 {
        10 * u64::from(layers)
    }
}

type Machine = Holdings<u32, Layers>;

fn config(caps: [u64; 3]) -> HoldingsConfig<u32> {
    let [host, disk, object] = caps;
    let caps = PerLevel::new(host, disk, object);
    let tier = |level| {
        let policy = || Box::<LeastRecentlyUsed<u32>>::default();
        (caps[level] > 0).then(|| TierSettings { octets: caps[level], policy: policy() as _ })
    };
    HoldingsConfig {
        tiers: PerLevel::from_fn(tier),
        leases: LIMITS,
        floors: ScopeFloors::default(),
        watermarks: Watermarks { high: 800, low: 500, copies: 2 },
    }
}

fn machine(caps: [u64; 3]) -> Machine {
    Holdings::new(config(caps)).unwrap()
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn put_of(machine: &mut Machine, key: u32, block: Layers, now: Time) -> Result<Room<u32>, AdmitError> {
    let room = machine.admit(key, block, now)?;
    room.cuts.iter().for_each(|cut| machine.cut_done(cut));
    assert!(machine.is_ready(&key, machine.home().unwrap()));
    machine.arrived(&key);
    Ok(room)
}

/// The blocks evicted for one of two layers.
fn put(machine: &mut Machine, key: u32, now: Time) -> Result<Vec<u32>, AdmitError> {
    put_of(machine, key, Layers(2, A), now).map(|room| room.evicted)
}

fn lease(machine: &mut Machine, id: u128, keys: &[u32], now: Time) -> Result<Lease<u32>, LeaseError> {
    let request = LeaseOf { id: Uuid::from_u128(id), keys, ttl_ms: 500, idempotency: None };
    machine.lease("p", &request, now)
}

fn held(machine: &Machine, key: u32) -> Option<[u32; 3]> {
    machine.residency(&key).map(|held| Level::ALL.map(|level| held[level]))
}

#[test]
fn a_leased_block_is_not_evicted_until_its_lease_ends() {
    let mut machine = machine([80, 0, 0]);
    for key in 1..=4 {
        put(&mut machine, key, at(0)).unwrap();
    }
    let granted = lease(&mut machine, 1, &[1, 9, 1], at(0)).unwrap();
    assert_eq!(&*granted.granted, [1].as_slice(), "9 is not held");
    assert_eq!(put(&mut machine, 5, at(499)), Ok(vec![2]));
    assert_eq!(machine.remove(&1, at(499)), Removed::Leased);
    assert_eq!(put(&mut machine, 6, at(500)), Ok(vec![3]));
    let cut = Cut { key: 1, level: Level::Host, layers: 0 };
    assert_eq!(machine.remove(&1, at(500)), Removed::Was(vec![cut]));
    assert_eq!(machine.remove(&1, at(500)), Removed::Busy);
    machine.cut_done(&cut);
    assert_eq!(machine.remove(&1, at(500)), Removed::Absent);
}

#[test]
fn leases_cover_half_of_each_tier_at_most() {
    let mut machine = machine([1000, 80, 0]);
    for key in 1..=4 {
        put(&mut machine, key, at(0)).unwrap();
    }
    lease(&mut machine, 1, &[1, 2], at(0)).unwrap();
    assert!(matches!(lease(&mut machine, 2, &[3], at(0)), Err(LeaseError::Quota { limit: 40, .. })));
    for key in 5..9 {
        put(&mut machine, key, at(0)).unwrap();
    }
    assert!(held(&machine, 1).is_some() && held(&machine, 2).is_some());
}

#[test]
fn a_block_on_its_way_is_not_visible_and_not_admitted_twice() {
    let mut machine = machine([40, 0, 0]);
    let whole = Layers(4, A);
    machine.admit(1, whole, at(0)).unwrap();
    assert_eq!(held(&machine, 1), None);
    assert_eq!(machine.admit(1, whole, at(0)), Err(AdmitError::Busy));
    assert_eq!(machine.remove(&1, at(0)), Removed::Busy);
    assert_eq!(machine.admit(2, whole, at(0)), Err(AdmitError::Full));
    machine.abandoned(&1);
    assert_eq!(machine.octets(Level::Host), (0, 40));
    assert_eq!(put(&mut machine, 1, at(0)), Ok(vec![]));
    assert_eq!(machine.admit(1, whole, at(0)), Err(AdmitError::Exists));
}

#[test]
fn the_tail_half_leaves_host_memory_first_and_comes_back_when_it_is_read() {
    let mut machine = machine([100, 1000, 0]);
    for key in 1..=2 {
        put_of(&mut machine, key, Layers(4, A), at(0)).unwrap();
    }
    let room = put_of(&mut machine, 3, Layers(4, A), at(0)).unwrap();
    assert_eq!(room.cuts, [Cut { key: 1, level: Level::Host, layers: 2 }]);
    assert_eq!((room.changed, room.evicted), (vec![1], vec![]));
    assert_eq!(held(&machine, 1), Some([2, 4, 0]));
    let room = put_of(&mut machine, 4, Layers(2, A), at(0)).unwrap();
    assert_eq!(room.cuts, [Cut { key: 1, level: Level::Host, layers: 0 }]);
    assert_eq!(held(&machine, 1), Some([0, 4, 0]));
    machine.touch(&1);
    let room = machine.promote(1, Level::Host, 3, at(0)).unwrap();
    assert_eq!(room.cuts, [Cut { key: 2, level: Level::Host, layers: 0 }]);
    assert!(!machine.is_ready(&1, Level::Host) && !machine.arrived_at(&1, Level::Host));
    machine.cut_done(&room.cuts[0]);
    assert!(machine.arrived_at(&1, Level::Host));
    assert_eq!(held(&machine, 1), Some([3, 4, 0]));
    assert_eq!(machine.promote(1, Level::Host, 3, at(0)), None, "they are there");
}

#[test]
fn octets_count_until_they_are_freed() {
    let mut machine = machine([0, 20, 0]);
    put(&mut machine, 1, at(0)).unwrap();
    let Removed::Was(cuts) = machine.remove(&1, at(0)) else { panic!() };
    assert_eq!(held(&machine, 1), None);
    assert_eq!(machine.admit(1, Layers(2, A), at(0)), Err(AdmitError::Busy));
    assert_eq!(machine.admit(2, Layers(2, A), at(0)), Err(AdmitError::Full));
    machine.cut_done(&cuts[0]);
    assert_eq!(put(&mut machine, 2, at(0)), Ok(vec![]));
    let room = machine.admit(3, Layers(1, A), at(0)).unwrap();
    assert_eq!(room.evicted, [2]);
    assert_eq!(machine.octets(Level::Disk), (20, 20));
    assert!(!machine.is_ready(&3, Level::Disk), "the file of 2 is still there");
    assert_eq!(
        machine.admit(4, Layers(1, A), at(0)),
        Err(AdmitError::Full),
        "and so are its other ten octets"
    );
    machine.cut_done(&room.cuts[0]);
    assert!(machine.is_ready(&3, Level::Disk));
    assert_eq!(machine.octets(Level::Disk), (10, 20));
}

#[test]
fn what_a_device_refuses_to_free_is_tried_again() {
    let mut machine = machine([0, 20, 0]);
    put(&mut machine, 1, at(0)).unwrap();
    let room = machine.admit(2, Layers(2, A), at(0)).unwrap();
    machine.cut_failed(&room.cuts[0], at(0));
    assert!(!machine.is_ready(&2, Level::Disk));
    machine.abandoned(&2);
    assert_eq!(machine.octets(Level::Disk), (20, 20), "the file is there");
    assert_eq!(machine.admit(1, Layers(2, A), at(0)), Err(AdmitError::Stuck));
    assert_eq!(machine.retries(at(999)), []);
    let again = machine.retries(at(1000));
    assert_eq!(again, room.cuts);
    machine.cut_failed(&again[0], at(1000));
    assert_eq!((machine.next_retry(), machine.retries(at(2999))), (Some(at(3000)), vec![]));
    let again = machine.retries(at(3000));
    machine.cut_done(&again[0]);
    assert_eq!(machine.octets(Level::Disk), (0, 20));
    assert_eq!(put(&mut machine, 1, at(3000)), Ok(vec![]));
}

#[test]
fn a_trim_that_is_refused_leaves_what_was_there() {
    let mut machine = machine([40, 100, 0]);
    put_of(&mut machine, 1, Layers(4, A), at(0)).unwrap();
    let room = machine.admit(2, Layers(2, A), at(0)).unwrap();
    assert_eq!(room.cuts, [Cut { key: 1, level: Level::Host, layers: 2 }]);
    assert_eq!(held(&machine, 1), Some([2, 4, 0]));
    machine.cut_failed(&room.cuts[0], at(0));
    assert_eq!(held(&machine, 1), Some([4, 4, 0]));
    machine.arrived(&2);
    assert_eq!(held(&machine, 2), Some([0, 2, 0]), "it is not cached");
}

/// A disk with two of four blocks copied: 1 and 2, the coldest.
fn demoted() -> Machine {
    let mut machine = machine([0, 100, 80]);
    for key in 1..=4 {
        put(&mut machine, key, at(0)).unwrap();
    }
    assert_eq!(machine.demote(at(0)), None, "below the mark");
    put(&mut machine, 5, at(0)).unwrap();
    for want in [1, 2] {
        let (key, room) = machine.demote(at(0)).unwrap();
        assert_eq!((key, room), (want, Room::default()));
    }
    assert_eq!(machine.demote(at(0)), None, "two are under way");
    for key in [1, 2] {
        assert!(machine.arrived_at(&key, Level::Object));
        assert_eq!(held(&machine, key), Some([0, 2, 2]));
    }
    machine
}

#[test]
fn what_is_copied_gives_way_before_anything_is_evicted() {
    let mut machine = demoted();
    let room = put_of(&mut machine, 6, Layers(3, A), at(0)).unwrap();
    assert!(room.evicted.is_empty());
    assert_eq!(held(&machine, 1), Some([0, 0, 2]));
    assert_eq!(held(&machine, 2), Some([0, 1, 2]), "the tail half is enough");
    assert_eq!(machine.octets(Level::Disk), (100, 100));
    let room = put_of(&mut machine, 7, Layers(2, A), at(0)).unwrap();
    assert_eq!((held(&machine, 2), room.evicted), (Some([0, 0, 2]), vec![3]));
}

#[test]
fn what_lives_in_the_object_store_is_evicted_there_and_comes_back_where_there_is_room() {
    let mut machine = demoted();
    put_of(&mut machine, 6, Layers(3, A), at(0)).unwrap();
    assert_eq!(machine.promote(1, Level::Disk, 2, at(0)), None, "the disk is full");
    lease(&mut machine, 1, &[1], at(0)).unwrap();
    assert_eq!(machine.leases().octets_by_tier(), &PerLevel::new(0, 0, 20));
    for key in 3..=6 {
        let Removed::Was(cuts) = machine.remove(&key, at(0)) else { panic!() };
        cuts.iter().for_each(|cut| machine.cut_done(cut));
    }
    assert_eq!(machine.promote(1, Level::Disk, 2, at(0)), Some(Room::default()));
    assert!(machine.arrived_at(&1, Level::Disk));
    assert_eq!(held(&machine, 1), Some([0, 2, 2]));
}

#[test]
fn a_copy_that_is_lost_leaves_the_other() {
    let mut machine = demoted();
    let room = machine.lost(&1, Level::Disk);
    assert_eq!((room.changed, room.evicted), (vec![1], vec![]));
    assert_eq!(held(&machine, 1), Some([0, 0, 2]));
    assert_eq!(machine.lost(&1, Level::Object).evicted, [1]);
    assert_eq!(held(&machine, 1), None);
}

#[test]
fn blocks_of_an_earlier_process_stay_until_its_leases_have_ended() {
    let mut machine = machine([0, 40, 0]);
    let on_disk = |layers| PerLevel::new(0, layers, 0);
    assert!(machine.adopt(1, Layers(2, A), on_disk(2), at(1000)));
    assert!(machine.adopt(2, Layers(2, A), on_disk(2), at(1000)));
    assert!(!machine.adopt(3, Layers(2, A), on_disk(1), at(1000)), "whole nowhere");
    assert_eq!(put(&mut machine, 3, at(999)), Err(AdmitError::Full));
    assert_eq!(machine.remove(&2, at(999)), Removed::Leased);
    assert_eq!(put(&mut machine, 3, at(1000)), Ok(vec![1]));
    assert!(matches!(machine.remove(&2, at(1000)), Removed::Was(_)));
}

#[test]
fn what_an_earlier_process_never_leased_makes_room_at_once() {
    let mut machine = machine([0, 40, 0]);
    for key in [1, 2] {
        assert!(machine.adopt(key, Layers(2, A), PerLevel::new(0, 2, 0), at(0)));
    }
    assert_eq!(put(&mut machine, 3, at(0)), Ok(vec![1]));
}

#[test]
fn a_block_that_may_be_leased_leaves_the_disk_where_the_object_store_has_it() {
    let mut machine = machine([0, 40, 80]);
    for key in [1, 2] {
        assert!(machine.adopt(key, Layers(2, A), PerLevel::new(0, 2, 2), at(1000)));
    }
    assert_eq!(put(&mut machine, 3, at(1)), Ok(vec![]), "nobody is evicted for it");
    assert_eq!(machine.len(), 3);
}

#[test]
fn a_cap_that_was_lowered_is_kept_once_the_leases_have_ended() {
    let mut machine = machine([0, 40, 0]);
    for key in 1..=3 {
        assert!(machine.adopt(key, Layers(2, A), PerLevel::new(0, 2, 0), at(1000)));
    }
    assert!(machine.shrink(at(999)).is_empty());
    assert_eq!(machine.shrink(at(1000)).evicted, [1]);
}

#[test]
fn a_fault_takes_a_leased_block() {
    let mut machine = machine([40, 0, 0]);
    put(&mut machine, 1, at(0)).unwrap();
    lease(&mut machine, 1, &[1], at(0)).unwrap();
    assert_eq!(machine.lost(&1, Level::Host).evicted, [1]);
    assert_eq!(machine.leases().octets(), 0);
    assert_eq!(machine.octets(Level::Host), (0, 40));
}

#[test]
fn a_block_that_is_read_stays_for_a_while() {
    let mut machine = machine([0, 80, 0]);
    for key in 1..=4 {
        put(&mut machine, key, at(0)).unwrap();
    }
    let pin = machine.pin(&[1, 2], 100, at(0));
    assert_eq!(put(&mut machine, 5, at(99)), Ok(vec![2]), "a quarter of the tier is pinned at most");
    machine.unpin(pin);
    assert_eq!(put(&mut machine, 6, at(99)), Ok(vec![1]));
    machine.pin(&[3], 100, at(99));
    assert_eq!(put(&mut machine, 7, at(199)), Ok(vec![3]));
}

#[test]
fn a_scope_keeps_its_floor() {
    let floors = ScopeFloors { scopes: [(A, 40)].into(), others: 0 };
    let mut machine: Machine = Holdings::new(HoldingsConfig { floors, ..config([0, 80, 0]) }).unwrap();
    for key in 1..=3 {
        put(&mut machine, key, at(0)).unwrap();
    }
    put_of(&mut machine, 10, Layers(2, B), at(0)).unwrap();
    assert_eq!(put_of(&mut machine, 11, Layers(2, B), at(0)).unwrap().evicted, [1]);
    assert_eq!(put_of(&mut machine, 12, Layers(2, B), at(0)).unwrap().evicted, [10], "A has its floor");
    assert_eq!(put(&mut machine, 4, at(0)), Ok(vec![2]), "its own");
    assert_eq!(machine.admit(13, Layers(5, B), at(0)), Err(AdmitError::Full));
    let floors = ScopeFloors { scopes: [(A, 81)].into(), others: 0 };
    let refused = Machine::new(HoldingsConfig { floors, ..config([0, 80, 0]) });
    assert_eq!(refused.unwrap_err(), FloorsExceed { octets: 81, cap: 80 });
}

#[test]
fn a_block_that_leaves_while_it_is_trimmed_goes_altogether() {
    let mut machine = machine([40, 60, 0]);
    put_of(&mut machine, 1, Layers(4, A), at(0)).unwrap();
    let room = machine.admit(2, Layers(2, A), at(0)).unwrap();
    let trim = room.cuts[0];
    assert_eq!(trim, Cut { key: 1, level: Level::Host, layers: 2 });
    assert!(machine.lost(&1, Level::Disk).cuts.is_empty(), "a cut is under way already");
    assert_eq!(machine.octets(Level::Host), (40, 40));
    machine.cut_done(&trim);
    let rest = machine.retries(at(0));
    assert_eq!(rest, [Cut { key: 1, level: Level::Host, layers: 0 }]);
    machine.cut_done(&rest[0]);
    machine.arrived(&2);
    assert_eq!((held(&machine, 2), machine.octets(Level::Host)), (Some([2, 2, 0]), (20, 40)));
}

#[test]
fn what_a_tier_held_of_a_block_that_left_is_charged_until_it_is_cut() {
    let mut machine = machine([40, 60, 0]);
    put_of(&mut machine, 1, Layers(3, A), at(0)).unwrap();
    let room = put_of(&mut machine, 2, Layers(2, A), at(0)).unwrap();
    assert_eq!((room.changed, held(&machine, 1)), (vec![1], Some([1, 3, 0])));
    let cuts = machine.promote(1, Level::Host, 2, at(0)).unwrap().cuts;
    cuts.iter().for_each(|cut| machine.cut_done(cut));
    assert!(machine.lost(&1, Level::Disk).cuts.is_empty(), "something is under way already");
    let charged = machine.octets(Level::Host);
    assert!(!machine.arrived_at(&1, Level::Host));
    machine.gave_up(&1, Level::Host);
    assert_eq!(machine.octets(Level::Host), charged, "nothing is deleted yet");
    assert_eq!(machine.admit(1, Layers(2, A), at(0)), Err(AdmitError::Busy));
    let rest = machine.retries(at(0));
    assert_eq!(rest, [Cut { key: 1, level: Level::Host, layers: 0 }]);
    machine.cut_failed(&rest[0], at(0));
    assert_eq!(machine.admit(1, Layers(2, A), at(0)), Err(AdmitError::Stuck));
    let rest = machine.retries(at(1000));
    machine.cut_done(&rest[0]);
    assert_eq!(put(&mut machine, 1, at(1000)), Ok(vec![]));
}
