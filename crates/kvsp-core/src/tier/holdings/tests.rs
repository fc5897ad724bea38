use super::*;

const LIMITS: LeaseLimits =
    LeaseLimits { max_ttl_ms: 1000, principal_octets: 1000, total_octets: 1000, principal_leases: 9 };

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn put(holdings: &mut Holdings<u32>, key: u32, now: Time) -> Result<Vec<u32>, AdmitError> {
    let admission = holdings.admit(key, Sizes { host: 10, disk: 20 }, now)?;
    for key in &admission.evicted {
        holdings.left(key, true);
    }
    holdings.arrived(key);
    Ok(admission.evicted)
}

fn lease(holdings: &mut Holdings<u32>, id: u128, keys: &[u32], now: Time) -> Result<Lease<u32>, LeaseError> {
    let request = LeaseOf { id: Uuid::from_u128(id), keys, ttl_ms: 500, idempotency: None };
    holdings.lease("p", &request, now)
}

#[test]
fn a_leased_block_is_not_evicted_until_its_lease_ends() {
    let mut holdings = Holdings::new(Some(40), None, LIMITS);
    for key in 1..=4 {
        put(&mut holdings, key, at(0)).unwrap();
    }
    let granted = lease(&mut holdings, 1, &[1, 9, 1], at(0)).unwrap();
    assert_eq!(&*granted.granted, [1].as_slice(), "9 is not held");
    assert_eq!(put(&mut holdings, 5, at(499)), Ok(vec![2]));
    assert_eq!(holdings.remove(&1, at(499)), Removed::Leased);
    assert_eq!(put(&mut holdings, 6, at(500)), Ok(vec![3]));
    assert_eq!(holdings.remove(&1, at(500)), Removed::Was(Place { host: true, disk: false }));
    assert_eq!(holdings.remove(&1, at(500)), Removed::Absent);
}

#[test]
fn leases_cover_half_of_the_home_tier_at_most() {
    let mut holdings = Holdings::new(Some(1000), Some(80), LIMITS);
    for key in 1..=4 {
        put(&mut holdings, key, at(0)).unwrap();
    }
    lease(&mut holdings, 1, &[1, 2], at(0)).unwrap();
    assert!(matches!(lease(&mut holdings, 2, &[3], at(0)), Err(LeaseError::Quota { limit: 40, .. })));
    for key in 5..9 {
        put(&mut holdings, key, at(0)).unwrap();
    }
    assert!(holdings.place(&1).is_some() && holdings.place(&2).is_some());
}

#[test]
fn a_block_on_its_way_is_not_visible_and_not_admitted_twice() {
    let mut holdings = Holdings::new(Some(40), None, LIMITS);
    let sizes = Sizes { host: 40, disk: 0 };
    holdings.admit(1, sizes, at(0)).unwrap();
    assert_eq!(holdings.place(&1), None);
    assert_eq!(holdings.admit(1, sizes, at(0)), Err(AdmitError::Busy));
    assert_eq!(holdings.remove(&1, at(0)), Removed::Busy);
    assert_eq!(holdings.admit(2, sizes, at(0)), Err(AdmitError::Full));
    holdings.abandoned(&1);
    assert_eq!(put(&mut holdings, 1, at(0)), Ok(vec![]));
    assert_eq!(holdings.admit(1, sizes, at(0)), Err(AdmitError::Exists));
}

#[test]
fn what_leaves_host_memory_stays_on_disk() {
    let mut holdings = Holdings::new(Some(20), Some(100), LIMITS);
    for key in 1..=3 {
        put(&mut holdings, key, at(0)).unwrap();
    }
    assert_eq!(holdings.place(&1), Some(Place { host: false, disk: true }));
    assert_eq!(holdings.promote(1, 10), Some(vec![2]));
    assert_eq!(holdings.promote(1, 10), None);
    assert_eq!(holdings.place(&2), Some(Place { host: false, disk: true }));
    let large = holdings.admit(9, Sizes { host: 21, disk: 31 }, at(0)).unwrap();
    assert_eq!(large.place, Place { host: false, disk: true });
}

#[test]
fn a_file_counts_until_it_is_deleted() {
    let mut holdings = Holdings::new(None, Some(20), LIMITS);
    put(&mut holdings, 1, at(0)).unwrap();
    assert_eq!(holdings.remove(&1, at(0)), Removed::Was(Place { host: false, disk: true }));
    assert_eq!(holdings.place(&1), None);
    let sizes = Sizes { host: 10, disk: 20 };
    assert_eq!(holdings.admit(1, sizes, at(0)), Err(AdmitError::Busy));
    assert_eq!(holdings.admit(2, sizes, at(0)), Err(AdmitError::Full));
    holdings.left(&1, true);
    let admission = holdings.admit(2, sizes, at(0)).unwrap();
    holdings.arrived(2);
    assert!(admission.evicted.is_empty());
    let admission = holdings.admit(3, sizes, at(0)).unwrap();
    assert_eq!(admission.evicted, [2]);
    assert_eq!(holdings.admit(2, sizes, at(0)), Err(AdmitError::Busy));
    assert_eq!(holdings.disk_octets(), (20, 20));
}

#[test]
fn blocks_of_an_earlier_process_stay_until_its_leases_have_ended() {
    let mut holdings = Holdings::new(None, Some(40), LIMITS);
    holdings.adopt(1, 20, at(0));
    holdings.adopt(2, 20, at(0));
    assert_eq!(put(&mut holdings, 3, at(999)), Err(AdmitError::Full));
    assert_eq!(put(&mut holdings, 3, at(1000)), Ok(vec![1]));
}

#[test]
fn a_fault_takes_a_leased_block() {
    let mut holdings = Holdings::new(Some(40), None, LIMITS);
    put(&mut holdings, 1, at(0)).unwrap();
    lease(&mut holdings, 1, &[1], at(0)).unwrap();
    assert_eq!(holdings.lose(&1), Some(Place { host: true, disk: false }));
    assert_eq!(holdings.leases().octets(), 0);
    assert_eq!(holdings.host_octets(), (0, 40));
}
