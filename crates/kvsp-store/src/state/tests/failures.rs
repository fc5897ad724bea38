//! Devices that fail or are full.

use std::io::ErrorKind;
use std::sync::Arc;

use super::script::{all, draws, lists, losses, open, states};
use crate::state::conformance::{Rows, apply};
use crate::state::{RedbConfig, RedbState, RowChange, StateError, StateStore as _};
use crate::testing::{FailingFileSystem, Faults, Loss, Operation, RecordingFileSystem};

/// What a run of all lists over a failing device came to.
struct Run {
    store: RedbState,
    /// What was acknowledged.
    rows: Rows,
    /// The steps after which it was, beginning with the empty store.
    acknowledged: Vec<(usize, Rows)>,
    failed: usize,
}

/// Commits all lists. Where one fails the rows are at once those from before, and the next one is tried: `heal` is
/// called after each failure, as often as it wants to be.
fn play(recorded: &RecordingFileSystem, fs: &FailingFileSystem, heal: impl Fn()) -> Run {
    let mut failed = 0;
    let store = loop {
        match open(fs.clone()) {
            Ok(store) => break store,
            Err(error) => {
                assert!(matches!(error, StateError::Io(_) | StateError::Full), "{error}");
                failed += 1;
                heal();
            }
        }
    };
    let mut run =
        Run { store, rows: Rows::new(), acknowledged: vec![(recorded.steps(), Rows::new())], failed };
    for list in lists() {
        match run.store.commit(&list) {
            Ok(()) => apply(&mut run.rows, &list),
            Err(error) => {
                assert!(matches!(error, StateError::Io(_) | StateError::Full), "{error}");
                run.failed += 1;
                heal();
            }
        }
        assert_eq!(all(&run.store), run.rows);
        run.acknowledged.push((recorded.steps(), run.rows.clone()));
    }
    run
}

fn count_operations(only: Option<Operation>) -> u64 {
    let recorded = RecordingFileSystem::new();
    let fs = FailingFileSystem::new(Arc::new(recorded.clone()));
    fs.fail(Faults { first: u64::MAX, count: 0, only, kind: ErrorKind::Other });
    drop(play(&recorded, &fs, || {}));
    fs.operations()
}

/// What was acknowledged is there after the power was taken at the end.
fn check_power(recorded: &RecordingFileSystem, rows: &Rows, at: &str) {
    for loss in losses(0) {
        let left = open(recorded.after_power_loss(recorded.steps(), loss)).unwrap();
        assert_eq!(all(&left), *rows, "{at} {loss:?}");
    }
}

#[test]
fn one_failed_operation_fails_one_commit_at_most() {
    for (only, kind) in [
        (None, ErrorKind::Other),
        (Some(Operation::Grow), ErrorKind::StorageFull),
        (Some(Operation::Sync), ErrorKind::StorageFull),
    ] {
        let operations = count_operations(only);
        assert!(operations > 20);
        for first in 0..operations {
            let recorded = RecordingFileSystem::new();
            let fs = FailingFileSystem::new(Arc::new(recorded.clone()));
            fs.fail(Faults { first, count: 1, only, kind });
            let run = play(&recorded, &fs, || {});
            assert!(run.failed <= 1, "{only:?} {first}: {} failed", run.failed);
            drop(run.store);
            check_power(&recorded, &run.rows, &format!("{only:?} {first}"));
        }
    }
}

/// From one moment on everything fails, for a while: all that is asked for meanwhile fails, then it goes on.
#[test]
fn a_device_that_comes_back_is_used_again() {
    for (only, kind) in [(None, ErrorKind::Other), (Some(Operation::Grow), ErrorKind::StorageFull)] {
        for first in 0..count_operations(only) {
            let recorded = RecordingFileSystem::new();
            let fs = FailingFileSystem::new(Arc::new(recorded.clone()));
            let store = open(fs.clone()).unwrap();
            let (lists, states) = (lists(), states(&lists()));
            fs.fail(Faults { first, count: u64::MAX, only, kind });
            let done = lists.iter().take_while(|list| store.commit(list).is_ok()).count();
            if done == lists.len() {
                break;
            }
            let full = kind == ErrorKind::StorageFull;
            let one = [RowChange::set(b"\x09more".as_slice(), b"more".as_slice())];
            for _ in 0..3 {
                let refused = store.commit(&one).unwrap_err();
                assert!(matches!(refused, StateError::Full) == full, "{refused}");
            }
            fs.heal();
            // Nobody can have known whether the last octets arrived. The three after it were not begun.
            let found = all(&store);
            assert!(states[done..=done + 1].contains(&found), "{only:?} {first}");
            store.commit(&one).unwrap();
            let mut expected = found;
            apply(&mut expected, &one);
            assert_eq!(all(&store), expected);
            drop(store);
            check_power(&recorded, &expected, &format!("{only:?} {first}"));
        }
    }
}

/// A failed sync: what it should have written is seen and counted as written, and is not on the device.
#[test]
fn octets_that_a_failed_sync_lost_are_not_built_upon() {
    let count = RecordingFileSystem::new();
    drop(play(&count, &FailingFileSystem::new(Arc::new(count.clone())), || {}));
    for number in 0..count.syncs().len() {
        let recorded = RecordingFileSystem::new();
        recorded.fail_syncs(number..number + 1);
        let run = play(&recorded, &FailingFileSystem::new(Arc::new(recorded.clone())), || {});
        assert!(run.failed <= 1);
        drop(run.store);
        let stride = if draws() > 1 { 1 } else { 3 };
        for steps in (run.acknowledged[0].0..=recorded.steps()).step_by(stride) {
            let known = run.acknowledged.iter().rposition(|(at, _)| *at <= steps).unwrap();
            // A list on its way may be there, also one that fails before that is known.
            let mut may_be = vec![run.acknowledged[known].1.clone()];
            may_be.extend(lists().get(known).map(|list| {
                let mut begun = may_be[0].clone();
                apply(&mut begun, list);
                begun
            }));
            for loss in [Loss::All, Loss::Nothing, Loss::Sectors(steps as u64)] {
                let left = open(recorded.after_power_loss(steps, loss))
                    .unwrap_or_else(|error| panic!("sync {number}, after {steps} steps, {loss:?}: {error}"));
                assert!(may_be.contains(&all(&left)), "sync {number}, after {steps} steps, {loss:?}");
            }
        }
    }
}

/// Syncs fail for a while, those of the copy too, in this process or over a restart of it.
#[test]
fn a_file_stays_suspect_until_it_is_copied() {
    let one = [RowChange::set(b"\x09more".as_slice(), b"more".as_slice())];
    for restart in [false, true] {
        for failures in 1..=5 {
            let recorded = RecordingFileSystem::new();
            let mut store = open(recorded.clone()).unwrap();
            let lists = lists();
            lists[..3].iter().for_each(|list| store.commit(list).unwrap());
            let mut expected = states(&lists)[3].clone();
            let begin = recorded.syncs().len();
            recorded.fail_syncs(begin..begin + failures);
            // It is acknowledged only where a copy took it along.
            let committed = store.commit(&lists[3]).is_ok();
            assert!(!committed || failures == 1);
            if restart {
                drop(store);
                recorded.restart();
                store = (0..failures).find_map(|_| open(recorded.clone()).ok()).unwrap();
            }
            let tried = (0..=failures).take_while(|_| store.commit(&one).is_err()).count();
            assert!(tried < failures, "{tried} commits failed of {failures} syncs");
            // Where the copy failed too nobody could tell what became of the list before.
            let found = all(&store);
            if committed || found.len() > expected.len() + 1 {
                apply(&mut expected, &lists[3]);
            }
            apply(&mut expected, &one);
            assert_eq!(found, expected);
            check_power(&recorded, &expected, &format!("restart: {restart}, {failures} failures"));
        }
    }
}

/// A file that rotted is refused, or has the rows it had; it is never a panic and never other rows.
#[test]
fn a_file_that_rotted_is_refused_or_whole() {
    let dir = tempfile::tempdir().unwrap();
    let lists = lists();
    {
        let store = RedbState::open(dir.path(), RedbConfig::default()).unwrap();
        lists[..6].iter().for_each(|list| store.commit(list).unwrap());
    }
    let file = dir.path().join("state.redb");
    let good = std::fs::read(&file).unwrap();
    let expected = &states(&lists)[6];
    let mut refused = 0;
    for seed in 0..60 * draws() {
        let mut bad = good.clone();
        let mut drawn = Drawn(seed);
        match seed % 3 {
            0 => (0..3).for_each(|_| bad[drawn.below(good.len())] ^= 1 << drawn.below(8)),
            1 => {
                let page = drawn.below(good.len() / 4096) * 4096;
                bad[page..page + 4096].fill(0);
            }
            _ => {
                let (from, to) = (drawn.below(good.len() / 512) * 512, drawn.below(good.len() / 512) * 512);
                bad.copy_within(from..from + 512, to);
            }
        }
        std::fs::write(&file, bad).unwrap();
        match RedbState::open(dir.path(), RedbConfig::default()) {
            Ok(store) => assert_eq!(&all(&store), expected, "seed {seed}"),
            Err(StateError::Corrupt(_) | StateError::UnknownVersion(_)) => refused += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(refused > 0);
}

/// Numbers that look drawn (splitmix64).
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit.max(1) as u64) as usize
    }
}
