//! Devices that fail or are full.

use std::io::ErrorKind;
use std::sync::Arc;

use super::script::{all, lists, losses, open, states};
use crate::state::conformance::{Rows, apply};
use crate::state::{RedbState, RowChange, StateError, StateStore as _};
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
        recorded.fail_sync(number);
        let run = play(&recorded, &FailingFileSystem::new(Arc::new(recorded.clone())), || {});
        assert!(run.failed <= 1);
        drop(run.store);
        for steps in run.acknowledged[0].0..=recorded.steps() {
            let known = run.acknowledged.iter().rposition(|(at, _)| *at <= steps).unwrap();
            let may_be: Vec<_> = run.acknowledged[known..].iter().take(2).map(|(_, rows)| rows).collect();
            for loss in [Loss::All, Loss::Nothing, Loss::Sectors(steps as u64)] {
                let left = open(recorded.after_power_loss(steps, loss))
                    .unwrap_or_else(|error| panic!("sync {number}, after {steps} steps, {loss:?}: {error}"));
                let found = all(&left);
                let lists = lists();
                // A list whose commit failed may still be on the device when the power goes before it is undone.
                let begun = known < lists.len() && {
                    let mut begun = run.acknowledged[known].1.clone();
                    apply(&mut begun, &lists[known]);
                    begun == found
                };
                assert!(may_be.contains(&&found) || begun, "sync {number}, after {steps} steps, {loss:?}");
            }
        }
    }
}
