//! Leases against evictions, and PUTs against each other, under every order of steps that shuttle tries: the
//! machine behind one lock, devices that are written and cut without it, as a service does.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use kvsp_core::lease::LeaseLimits;
use kvsp_core::tier::{
    AdmitError, Block, Holdings, HoldingsConfig, LeaseOf, LeastRecentlyUsed, Level, PerLevel, Removed, Room,
    ScopeFloors, TierSettings, Watermarks,
};
use kvsp_core::time::Time;
use kvsp_proto::id::ScopeId;
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;
use uuid::Uuid;

const NOW: Time = Time::from_millis(1);
const LIMITS: LeaseLimits =
    LeaseLimits { max_ttl_ms: 1000, principal_octets: 10, total_octets: u64::MAX, principal_leases: 9 };

#[derive(Debug)]
struct TenOctets;

impl Block for TenOctets {
    fn scope(&self) -> ScopeId {
        ScopeId([0; 16])
    }

    fn layers(&self) -> u32 {
        2
    }

    fn octets(&self, _: Level, layers: u32) -> u64 {
        5 * u64::from(layers)
    }
}

/// The shape of a service: decisions under a lock, devices outside of it.
struct Service {
    machine: Mutex<Holdings<u32, TenOctets>>,
    moved: Condvar,
    disk: Mutex<BTreeMap<u32, u32>>,
}

impl Service {
    fn new(disk: u64) -> Arc<Self> {
        let policy = Box::<LeastRecentlyUsed<u32>>::default();
        let config = HoldingsConfig {
            tiers: PerLevel::new(None, Some(TierSettings { octets: disk, policy }), None),
            leases: LIMITS,
            floors: ScopeFloors::default(),
            watermarks: Watermarks::default(),
        };
        let machine = Mutex::new(Holdings::new(config).unwrap());
        Arc::new(Self { machine, moved: Condvar::new(), disk: Mutex::new(BTreeMap::new()) })
    }

    fn put(&self, key: u32) -> Result<(), AdmitError> {
        let room = {
            let mut machine = self.machine.lock().unwrap();
            loop {
                match machine.admit(key, TenOctets, NOW) {
                    Ok(room) => break room,
                    Err(AdmitError::Busy) => machine = self.moved.wait(machine).unwrap(),
                    Err(error) => return Err(error),
                }
            }
        };
        self.make(room);
        assert!(self.machine.lock().unwrap().is_ready(&key, Level::Disk));
        {
            let mut disk = self.disk.lock().unwrap();
            assert!(disk.insert(key, 2).is_none(), "nothing may be there");
            assert!(disk.len() <= 2, "the disk is overrun");
        }
        self.machine.lock().unwrap().arrived(&key);
        self.moved.notify_all();
        Ok(())
    }

    fn make(&self, room: Room<u32>) {
        for cut in room.cuts {
            self.disk.lock().unwrap().remove(&cut.key);
            self.machine.lock().unwrap().cut_done(&cut);
            self.moved.notify_all();
        }
    }

    /// Whether a lease was granted; then the block was there as long as it lasted.
    fn read_under_lease(&self, principal: &str, id: u128, key: u32) -> bool {
        let id = Uuid::from_u128(id);
        let request = LeaseOf { id, keys: &[key], ttl_ms: 100, idempotency: None };
        if self.machine.lock().unwrap().lease(principal, &request, NOW).is_err() {
            return false;
        }
        for _ in 0..2 {
            assert_eq!(self.disk.lock().unwrap().get(&key), Some(&2), "a leased block is gone");
        }
        self.machine.lock().unwrap().release_lease(principal, id, NOW).unwrap();
        true
    }

    fn delete(&self, key: u32) -> bool {
        let mut machine = self.machine.lock().unwrap();
        let cuts = loop {
            match machine.remove(&key, NOW) {
                Removed::Was(cuts) => break cuts,
                Removed::Busy => machine = self.moved.wait(machine).unwrap(),
                Removed::Absent | Removed::Leased => return false,
            }
        };
        drop(machine);
        self.make(Room { cuts, ..Room::default() });
        true
    }
}

fn tries() -> usize {
    std::env::var("KVSP_SOAK_OPS").ok().and_then(|text| text.parse::<usize>().ok()).map_or(2000, |n| n / 5)
}

#[test]
fn a_leased_block_is_there_whatever_is_put_or_deleted() {
    let run = || {
        let service = Service::new(20);
        service.put(1).unwrap();
        let readers = [1, 2].map(|n| {
            let service = service.clone();
            thread::spawn(move || service.read_under_lease(["a", "b"][n - 1], n as u128, 1))
        });
        let writers = [2, 3].map(|key| {
            let service = service.clone();
            thread::spawn(move || service.put(key))
        });
        let deleter = {
            let service = service.clone();
            thread::spawn(move || service.delete(1))
        };
        for reader in readers {
            reader.join().unwrap();
        }
        for writer in writers {
            // Where the leased block is half of the disk and a reader holds it, there may be no room.
            let _ = writer.join().unwrap();
        }
        deleter.join().unwrap();
        let machine = service.machine.lock().unwrap();
        assert_eq!(machine.leases().octets(), 0);
        assert_eq!(machine.octets(Level::Disk).0, 10 * service.disk.lock().unwrap().len() as u64);
    };
    shuttle::check_random(run, tries());
    shuttle::check_pct(run, tries(), 3);
}

#[test]
fn of_racing_puts_one_stores() {
    let run = || {
        let service = Service::new(20);
        let puts = [0; 3].map(|_| {
            let service = service.clone();
            thread::spawn(move || service.put(1))
        });
        let stored = puts.into_iter().map(|put| put.join().unwrap());
        let (stored, refused): (Vec<_>, Vec<_>) = stored.partition(Result::is_ok);
        assert_eq!(stored.len(), 1);
        assert!(refused.iter().all(|refused| *refused == Err(AdmitError::Exists)));
    };
    shuttle::check_random(run, tries());
}

#[test]
fn a_quota_holds_under_every_order() {
    let run = || {
        let service = Service::new(40);
        for key in [1, 2] {
            // Two of four fit, and the devices' own check is for two.
            service.put(key).unwrap();
        }
        let leases = [1, 2].map(|key| {
            let service = service.clone();
            thread::spawn(move || {
                let id = Uuid::from_u128(u128::from(key));
                let request = LeaseOf { id, keys: &[key], ttl_ms: 100, idempotency: None };
                service.machine.lock().unwrap().lease("a", &request, NOW).is_ok()
            })
        });
        let granted = leases.into_iter().map(|lease| lease.join().unwrap());
        assert_eq!(granted.filter(|granted| *granted).count(), 1, "ten octets are one block");
    };
    shuttle::check_random(run, tries());
}
