//! Sessions under random schedules: the three machines, a disk and a network, and what must hold after every
//! step. `KVSP_SOAK_OPS` sets the number of runs, `KVSP_SEED` replays the run of one seed.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod controller;
mod disk;
mod front;
mod instance;
mod mutants;
mod net;
mod oracle;
mod rng;
mod schedules;
mod world;

use std::collections::BTreeMap;

use world::run;

/// Steps with faults in one run; the way to the end comes after.
const STEPS: usize = 1_500;

/// What of `KVSP_SOAK_OPS` a run counts as.
const OPERATIONS: u64 = 50;

/// What every few runs come to.
const HAPPENS: [&str; 14] = [
    "acknowledgement",
    "checkpoint refused",
    "crash in a write",
    "fenced by an epoch or an end",
    "hand over asked",
    "probe said lost",
    "prompt given",
    "request sent anew",
    "request waited",
    "resume sent",
    "token after a gap",
    "token again",
    "token of an old epoch",
    "write failed",
];

/// Tells the seed of a run that panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("again with KVSP_SEED={}", self.0);
        }
    }
}

fn seed() -> Option<u64> {
    std::env::var("KVSP_SEED").ok().map(|text| text.parse().expect("KVSP_SEED is a number"))
}

#[test]
fn every_index_once_in_order_of_one_chain() {
    let operations = std::env::var("KVSP_SOAK_OPS").ok().map(|text| text.parse().expect("a number"));
    let runs = operations.map_or(80, |operations: u64| (operations / OPERATIONS).max(1));
    let seeds: Vec<u64> = seed().map_or_else(|| (0..runs).collect(), |seed| vec![seed]);
    let mut counts = BTreeMap::new();
    for seed in &seeds {
        let _told = Seed(*seed);
        let (world, outcome) = run(*seed, STEPS, None);
        if let Err(violation) = outcome {
            let packets = world.shared.net.len();
            panic!("{violation:?}, with {packets} packets under way");
        }
        let (oracle, mut happened) = (&world.shared.oracle, world.shared.counts);
        happened.extend([("failover", oracle.failovers), ("acknowledgement", oracle.acks)]);
        happened.into_iter().for_each(|(what, n)| *counts.entry(what).or_default() += n);
    }
    println!("{} runs: {counts:#?}", seeds.len());
    if seeds.len() >= 40 {
        // A simulation in which nothing happens finds nothing.
        let often = |what: &str| counts.get(what).copied().unwrap_or(0);
        assert!(often("failover") > 3 * seeds.len() as u64);
        for what in HAPPENS {
            assert!(often(what) > 10, "{what}: {} times in {} runs", often(what), seeds.len());
        }
    }
}
