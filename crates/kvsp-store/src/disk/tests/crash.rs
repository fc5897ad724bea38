//! Power is lost at every step: what was acknowledged is there, and what is there is whole.

use std::collections::BTreeSet;

use super::history::{Act, BLOCKS, History, LAYERS, block, config};
use super::*;
use crate::testing::{LOSSES, Loss, RecordingFileSystem};

/// Random losses that are tried at each step.
const SEEDS: u64 = 8;

/// Everything that a store does, in an order in which each act matters to a later one.
const ACTS: [Act; 14] = [
    Act::Put(1, LAYERS),
    Act::Epoch,
    Act::Put(2, 2),
    Act::Trim(1, 3),
    Act::Put(3, LAYERS),
    Act::Delete(2),
    Act::Put(2, LAYERS),
    Act::Put(1, LAYERS),
    Act::Trim(1, 1),
    Act::Epoch,
    Act::Delete(3),
    Act::Trim(2, 2),
    Act::Put(1, 2),
    Act::Delete(1),
];

fn played() -> History {
    let mut history = History::open(RecordingFileSystem::new());
    for act in ACTS {
        history.act(act);
    }
    history
}

/// Numbers that look drawn (an LCG's upper half).
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// How many random histories: more where a soak asks for them.
fn histories() -> u64 {
    let wanted = std::env::var("KVSP_SOAK_OPS").ok().and_then(|text| text.parse::<u64>().ok());
    // One takes about half a second: hundreds of syncs, each looked behind.
    wanted.map_or(5, |operations| (operations / 1000).max(5))
}

#[test]
fn what_was_acknowledged_survives_a_loss_of_power_at_every_step() {
    let history = played();
    let mut checks = 0;
    for steps in 0..=history.fs.steps() {
        // While the store opens for the first time there is nothing to lose yet.
        let kinds = if steps < history.opened { &LOSSES[..2] } else { &LOSSES };
        let seeds = if steps < history.opened { 1 } else { SEEDS };
        let chances = (0..seeds).map(|seed| Loss::Chance(seed * 1000 + steps as u64));
        for loss in kinds.iter().copied().chain(chances) {
            checks += 1;
            history.check(steps, loss).unwrap_or_else(|why| panic!("{loss:?} after {steps} steps: {why}"));
        }
    }
    println!("{} steps, {checks} losses of power", history.fs.steps());
    assert!(checks > 2000, "{checks}");
}

/// Acts, restarts and kills in any order.
#[test]
fn any_history_survives_a_loss_of_power() {
    for seed in 0..histories() {
        let mut drawn = Drawn(seed);
        let mut history = History::open(RecordingFileSystem::new());
        for _ in 0..20 {
            let number = 1 + drawn.below(u64::from(BLOCKS)) as u8;
            let layers = 1 + drawn.below(u64::from(LAYERS)) as u32;
            let act = match drawn.below(8) {
                0..3 => Act::Put(number, layers),
                3 => Act::Put(number, LAYERS),
                4 => Act::Trim(number, layers),
                5 => Act::Epoch,
                _ => Act::Delete(number),
            };
            let ends = drawn.below(8);
            if ends == 0 {
                history.fs.kill_after(drawn.below(7) as usize);
            }
            let before = history.fs.steps();
            history.act(act);
            if ends <= 1 {
                history.restart();
            }
            for steps in before..=history.fs.steps() {
                if steps < history.opened || history.fs.steps() - steps > 40 {
                    continue;
                }
                for loss in [Loss::All, Loss::Chance(drawn.below(u64::MAX >> 33))] {
                    let checked = history.check(steps, loss);
                    checked.unwrap_or_else(|why| panic!("seed {seed}, {act:?}, {loss:?}, {steps}: {why}"));
                }
            }
        }
    }
}

/// Whether any loss of power right after something was acknowledged shows that the history is wrong.
fn is_caught(history: &History) -> bool {
    let seen: BTreeSet<_> = history.acknowledged.iter().copied().collect();
    seen.iter().rev().any(|steps| LOSSES.iter().any(|loss| history.check(*steps, *loss).is_err()))
}

#[test]
fn every_sync_that_is_left_out_is_caught() {
    let syncs = played().fs.syncs();
    let of_a_shard = |path: &Path| path.parent().is_some_and(|dir| dir.ends_with("blocks"));
    // As the store opens, the shards are synced one after the other.
    let first_shard = syncs.iter().position(|path| of_a_shard(path)).unwrap();
    let opening = first_shard..first_shard + 256;
    assert!(syncs[opening.clone()].iter().all(|path| of_a_shard(path)));
    let mut tried = 0;
    for (number, path) in syncs.iter().enumerate() {
        // These have a test of their own.
        if opening.contains(&number) {
            continue;
        }
        let fs = RecordingFileSystem::new();
        fs.ignore_sync(number);
        let mut history = History::open(fs);
        for act in ACTS {
            history.act(act);
        }
        tried += 1;
        assert!(is_caught(&history), "sync {number}, of {}, may be left out", path.display());
    }
    println!("{tried} syncs left out, each caught");
    assert!(tried > 25, "{tried}");
}

/// A process dies with a block deleted, and its directory not synced. The next one tells that the block is
/// gone: it must not come back.
#[test]
fn a_store_that_opens_makes_durable_what_it_sees_in_every_shard() {
    for shard in 0..=255_u8 {
        let name = BlockName { key: kvsp_proto::id::BlockKey([shard; 32]), ..block(1).meta.name };
        let mut stored = block(1);
        Arc::make_mut(&mut stored.meta).name = name;
        for ignored in [false, true] {
            let fs = RecordingFileSystem::new();
            let store = Inner::open(config(), Arc::new(fs.clone())).unwrap();
            store.put(&stored).unwrap();
            fs.kill_after(1);
            store.delete(&name).unwrap_err();
            drop(store);
            fs.restart();
            if ignored {
                fs.ignore_syncs_of(&config().dir.join(format!("blocks/{shard:02x}")));
            }
            let store = Inner::open(config(), Arc::new(fs.clone())).unwrap();
            assert!(!store.delete(&name).unwrap());
            let fs = fs.after_power_loss(fs.steps(), Loss::All);
            let store = Inner::open(config(), Arc::new(fs)).unwrap();
            assert_eq!(store.find(&name).is_some(), ignored, "{shard}");
        }
    }
}

/// A process dies at any step of its first start; then the next one stores a block.
#[test]
fn a_store_that_was_killed_as_it_began_begins_again() {
    let whole = RecordingFileSystem::new();
    let steps = {
        drop(Inner::open(config(), Arc::new(whole.clone())).unwrap());
        whole.steps()
    };
    for killed in (0..10).chain(steps - 10..steps) {
        let fs = RecordingFileSystem::new();
        fs.kill_after(killed);
        assert!(Inner::open(config(), Arc::new(fs.clone())).is_err(), "{killed}");
        fs.restart();
        let mut history = History::open(fs);
        history.act(Act::Put(1, LAYERS));
        for loss in LOSSES {
            let checked = history.check(history.fs.steps(), loss);
            checked.unwrap_or_else(|why| panic!("killed after {killed}, {loss:?}: {why}"));
        }
    }
}
