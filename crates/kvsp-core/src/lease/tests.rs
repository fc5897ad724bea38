use super::*;

const LIMITS: LeaseLimits =
    LeaseLimits { max_ttl_ms: 1000, principal_octets: 100, total_octets: 150, principal_leases: 3 };

fn wanted(id: u128, held: &[(u32, u64)]) -> Wanted<u32> {
    let held = held.iter().map(|&(key, octets)| HeldBlock { key, level: Level::Disk, octets }).collect();
    Wanted { id: Uuid::from_u128(id), held, ttl_ms: 500, idempotency: None }
}

fn leases() -> Leases<u32> {
    Leases::new(LIMITS, PerLevel::new(u64::MAX, u64::MAX, u64::MAX))
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

#[test]
fn a_lease_ends_on_time_and_not_before() {
    let mut leases = leases();
    let lease = leases.create("a", wanted(1, &[(7, 10)]), at(0)).unwrap();
    assert_eq!(lease.until, at(500));
    leases.expire(Time::from_micros(499_999));
    assert!(leases.covers(&7));
    leases.expire(at(500));
    assert!(!leases.covers(&7));
    assert_eq!(leases.get("a", lease.id), Err(LeaseError::Unknown));
    assert_eq!((leases.octets(), leases.len()), (0, 0));
}

#[test]
fn a_ttl_is_cut_and_may_be_shortened() {
    let mut leases = leases();
    let id = leases.create("a", Wanted { ttl_ms: u64::MAX, ..wanted(1, &[(7, 10)]) }, at(5)).unwrap().id;
    assert_eq!(leases.get("a", id).unwrap().until, at(1005));
    assert_eq!(leases.renew("a", id, u64::MAX, at(10)).unwrap().until, at(1010));
    assert_eq!(leases.renew("a", id, 1, at(10)).unwrap().until, at(11));
    assert_eq!(leases.next_end(), Some(at(11)));
}

#[test]
fn octets_are_limited_for_one_and_for_all() {
    let mut leases = leases();
    let refused = leases.create("a", wanted(1, &[(1, 60), (2, 41)]), at(0));
    assert_eq!(refused, Err(LeaseError::Quota { asked: 101, leased: 0, limit: 100, retry_ms: None }));
    leases.create("a", wanted(2, &[(1, 60), (2, 40)]), at(0)).unwrap();
    leases.create("a", wanted(3, &[(1, 60), (2, 40)]), at(0)).unwrap();
    let refused = leases.create("a", wanted(4, &[(3, 1)]), at(100));
    assert_eq!(refused, Err(LeaseError::Quota { asked: 1, leased: 100, limit: 100, retry_ms: Some(400) }));
    leases.create("b", wanted(5, &[(1, 60), (3, 40)]), at(0)).unwrap();
    assert_eq!(leases.octets(), 140);
    assert!(matches!(
        leases.create("c", wanted(6, &[(4, 11)]), at(0)),
        Err(LeaseError::Quota { leased: 140, limit: 150, .. })
    ));
    leases.create("c", wanted(7, &[(4, 10)]), at(0)).unwrap();
}

#[test]
fn leases_are_counted_too() {
    let mut leases = leases();
    for id in 1..=3 {
        leases.create("a", wanted(id, &[(1, 1)]), at(0)).unwrap();
    }
    assert_eq!(leases.create("a", wanted(4, &[(1, 1)]), at(0)), Err(LeaseError::TooMany));
    leases.create("b", wanted(4, &[(1, 1)]), at(0)).unwrap();
}

#[test]
fn a_lease_belongs_to_its_principal() {
    let mut leases = leases();
    let id = leases.create("a", wanted(1, &[(1, 1)]), at(0)).unwrap().id;
    assert_eq!(leases.get("b", id), Err(LeaseError::Unknown));
    assert_eq!(leases.renew("b", id, 1, at(0)), Err(LeaseError::Unknown));
    assert_eq!(leases.release("b", id), Err(LeaseError::Unknown));
    leases.release("a", id).unwrap();
    assert_eq!(leases.release("a", id), Err(LeaseError::Unknown));
}

#[test]
fn an_idempotency_key_returns_the_first_lease_of_its_principal() {
    let mut leases = leases();
    let keyed = |id, print| Wanted { idempotency: Some(("k".into(), [print; 32])), ..wanted(id, &[(1, 1)]) };
    let first = leases.create("a", keyed(1, 0), at(0)).unwrap();
    assert_eq!(leases.create("a", keyed(2, 0), at(10)).unwrap(), first);
    assert_eq!(leases.create("a", keyed(3, 9), at(10)), Err(LeaseError::KeyReused));
    assert_ne!(leases.create("b", keyed(4, 9), at(10)).unwrap().id, first.id);
    leases.expire(at(500));
    assert_eq!(leases.create("a", keyed(5, 9), at(500)).unwrap().id, Uuid::from_u128(5));
}

#[test]
fn a_block_is_free_once_its_last_lease_is_gone() {
    let mut leases = leases();
    let first = leases.create("a", wanted(1, &[(1, 5), (2, 5)]), at(0)).unwrap();
    let second = leases.create("b", wanted(2, &[(1, 5)]), at(0)).unwrap();
    leases.release("a", first.id).unwrap();
    assert!(leases.covers(&1) && !leases.covers(&2));
    leases.release("b", second.id).unwrap();
    assert!(!leases.covers(&1));
    assert_eq!(leases.create("a", wanted(3, &[]), at(0)), Err(LeaseError::NothingHeld));
}

#[test]
fn a_lost_block_leaves_its_leases() {
    let mut leases = leases();
    let id = leases.create("a", wanted(1, &[(1, 5), (2, 6)]), at(0)).unwrap().id;
    leases.forget(&1);
    assert_eq!(leases.octets(), 6);
    assert_eq!(*leases.get("a", id).unwrap().granted, [2]);
    // The block may come again, and be leased again, while the first lease is still there.
    leases.create("a", wanted(2, &[(1, 50)]), at(0)).unwrap();
    leases.release("a", id).unwrap();
    assert!(leases.covers(&1));
    assert_eq!(leases.octets(), 50);
}

#[test]
fn each_tier_has_a_limit_of_its_own() {
    let mut leases = Leases::new(LIMITS, PerLevel::new(0, 20, 30));
    let on =
        |id, level, key, octets| Wanted { held: vec![HeldBlock { key, level, octets }], ..wanted(id, &[]) };
    leases.create("a", on(1, Level::Disk, 1, 20), at(0)).unwrap();
    assert!(matches!(
        leases.create("a", on(2, Level::Disk, 2, 1), at(0)),
        Err(LeaseError::Quota { asked: 1, leased: 20, limit: 20, .. })
    ));
    leases.create("a", on(3, Level::Object, 3, 30), at(0)).unwrap();
    leases.create("a", on(4, Level::Disk, 1, 20), at(0)).unwrap();
    assert_eq!(leases.octets_by_tier(), &PerLevel::new(0, 20, 30));
    for id in [1, 3, 4] {
        leases.release("a", Uuid::from_u128(id)).unwrap();
    }
    assert_eq!(leases.octets(), 0);
}
