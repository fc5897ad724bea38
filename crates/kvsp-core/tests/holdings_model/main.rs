//! Tiers and leases against a model so simple that it can be read: devices that are maps, lists of leases
//! and pins, and a clock. Devices carry out what the machine hands out late, in any order, or not at all.
//!
//! `KVSP_SOAK_OPS` sets the number of operations of the long run.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

mod driver;
mod model;

use driver::Driver;
use model::Setup;
use proptest::prelude::{any, prop, proptest};

const HOST: Setup = Setup { caps: [Some(300), None, None], floors: [0; 3], others: 0 };
const DISK: Setup = Setup { caps: [None, Some(400), None], floors: [0; 3], others: 0 };
const HOST_DISK: Setup = Setup { caps: [Some(120), Some(400), None], floors: [0; 3], others: 0 };
const DISK_OBJECT: Setup = Setup { caps: [None, Some(300), Some(500)], floors: [0; 3], others: 0 };
const HOST_OBJECT: Setup = Setup { caps: [Some(150), None, Some(400)], floors: [0; 3], others: 0 };
const ALL: Setup = Setup { caps: [Some(150), Some(300), Some(600)], floors: [0; 3], others: 0 };
const FLOORS: Setup = Setup { caps: [Some(150), Some(400), Some(600)], floors: [120, 60, 0], others: 40 };

fn run(setup: Setup, ops: impl Iterator<Item = u64>) {
    let mut driver = Driver::new(setup);
    for bits in ops {
        driver.step(bits);
    }
    driver.finish();
}

proptest! {
    #[test]
    fn host_memory_alone(ops in prop::collection::vec(any::<u64>(), 0..300)) {
        run(HOST, ops.into_iter());
    }

    #[test]
    fn disk_alone(ops in prop::collection::vec(any::<u64>(), 0..300)) {
        run(DISK, ops.into_iter());
    }

    #[test]
    fn host_memory_over_disk(ops in prop::collection::vec(any::<u64>(), 0..300)) {
        run(HOST_DISK, ops.into_iter());
    }

    #[test]
    fn all_tiers(ops in prop::collection::vec(any::<u64>(), 0..400)) {
        run(ALL, ops.into_iter());
    }

    #[test]
    fn all_tiers_with_floors(ops in prop::collection::vec(any::<u64>(), 0..400)) {
        run(FLOORS, ops.into_iter());
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
    let ops = std::env::var("KVSP_SOAK_OPS").ok().map_or(70_000, |text| text.parse().expect("a number"));
    let setups = [HOST, DISK, HOST_DISK, DISK_OBJECT, HOST_OBJECT, ALL, FLOORS];
    for (seed, setup) in (1..).zip(setups) {
        run(setup, sequence(seed).take(ops / setups.len()));
    }
}

#[test]
fn the_run_does_everything() {
    let mut driver = Driver::new(ALL);
    sequence(99).take(30_000).for_each(|bits| driver.step(bits));
    for (what, count) in driver.seen() {
        assert!(count > 10, "{what} happened {count} times");
    }
}
