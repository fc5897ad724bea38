//! Contexts that are split anew under random schedules: the two machines, a leader, stable storage and a network, and
//! what must hold after every step. `KVSP_SOAK_OPS` sets the number of runs, `KVSP_SEED` replays the run of one seed.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod controller;
mod instance;
mod leader;
mod mutants;
mod net;
mod oracle;
mod patience;
mod rng;
mod schedules;
mod world;

use std::collections::BTreeMap;

use world::run;

/// Steps with faults in one run; the way to rest comes after.
pub const STEPS: usize = 3_000;

/// What of `KVSP_SOAK_OPS` a run counts as.
const OPERATIONS: u64 = 50;

/// What every few runs come to.
const HAPPENS: [&str; 8] = [
    "acknowledgement",
    "abort decided",
    "commit decided",
    "controller crashed",
    "crash in a write",
    "leader failed over",
    "member crashed",
    "range computed again",
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

#[test]
fn no_range_is_lost_and_every_change_is_decided_once() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let runs = number("KVSP_SOAK_OPS").map_or(60, |operations| (operations / OPERATIONS).max(1));
    let seeds: Vec<u64> = number("KVSP_SEED").map_or_else(|| (0..runs).collect(), |seed| vec![seed]);
    let mut counts = BTreeMap::new();
    for seed in &seeds {
        let _told = Seed(*seed);
        let (world, outcome) = run(*seed, STEPS, None);
        if let Err(violation) = outcome {
            panic!(
                "{violation:?}, with {} packets under way; {}",
                world.shared.net.len(),
                world.controller.state()
            );
        }
        let excused = world.shared.oracle.excused.iter();
        let all = world.shared.counts.iter().chain(excused);
        all.for_each(|(what, n)| *counts.entry(*what).or_insert(0) += n);
    }
    println!("{} runs: {counts:#?}", seeds.len());
    if seeds.len() >= 40 {
        // A simulation in which nothing happens finds nothing.
        for what in HAPPENS {
            let often: u64 = counts.get(what).copied().unwrap_or(0);
            assert!(often > 10, "{what}: {often} times in {} runs", seeds.len());
        }
    }
}
