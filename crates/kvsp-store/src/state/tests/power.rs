//! What a loss of power leaves, at every step.

use std::path::Path;

use super::script::{DIR, all, grow, lists, losses, open, states};
use crate::state::StateStore as _;
use crate::state::conformance::Rows;
use crate::testing::{Loss, RecordingFileSystem};

/// What was acknowledged after so many steps.
#[derive(Debug, Clone, Copy)]
struct Acknowledged {
    steps: usize,
    lists: usize,
    term: u64,
}

/// Commits all lists, with a restart in the middle.
fn play(fs: &RecordingFileSystem) -> (Vec<Acknowledged>, Vec<Rows>) {
    let lists = lists();
    let mut acknowledged = Vec::new();
    let mut store = open(fs.clone()).unwrap();
    let mut note = |lists, term| acknowledged.push(Acknowledged { steps: fs.steps(), lists, term });
    note(0, store.term());
    for (done, list) in lists.iter().enumerate() {
        if done == lists.len() / 2 {
            drop(store);
            store = open(fs.clone()).unwrap();
            note(done, store.term());
        }
        store.commit(list).unwrap();
        note(done + 1, store.term());
    }
    drop(store);
    (acknowledged, states(&lists))
}

/// Takes the power after `steps` and looks at what is left.
fn check(
    fs: &RecordingFileSystem,
    acknowledged: &[Acknowledged],
    states: &[Rows],
    steps: usize,
    loss: Loss,
) -> Result<(), String> {
    let last = acknowledged.iter().rev().find(|one| one.steps <= steps);
    let (lists, term) = last.map_or((0, 0), |one| (one.lists, one.term));
    let left = fs.after_power_loss(steps, loss);
    let at = || format!("after {steps} steps with {loss:?}");
    let store = open(left).map_err(|error| format!("{}: {error}", at()))?;
    let found = all(&store);
    // The list that was on its way may be there, whole.
    if !states[lists..].iter().take(2).any(|state| *state == found) {
        let is = states.iter().position(|state| *state == found);
        return Err(format!("{}: the rows are those after {is:?} lists, not {lists}", at()));
    }
    if store.term() <= term {
        return Err(format!("{}: term {} after {term}", at(), store.term()));
    }
    store.commit(&[]).map_err(|error| format!("{}: {error}", at()))
}

fn first_violation(
    fs: &RecordingFileSystem,
    acknowledged: &[Acknowledged],
    states: &[Rows],
) -> Option<String> {
    (0..=fs.steps())
        .flat_map(|steps| losses(steps).map(move |loss| (steps, loss)))
        .find_map(|(steps, loss)| check(fs, acknowledged, states, steps, loss).err())
}

#[test]
fn what_was_acknowledged_survives_a_loss_of_power_at_every_step() {
    let fs = RecordingFileSystem::new();
    let (acknowledged, states) = play(&fs);
    assert_eq!(first_violation(&fs, &acknowledged, &states), None);
}

/// Each of these syncs is needed, and each is missed where it does nothing.
#[test]
fn a_sync_that_does_nothing_is_caught() {
    let ignored = |path: &str| {
        let fs = RecordingFileSystem::new();
        fs.ignore_syncs_of(&Path::new(DIR).join(path));
        let (acknowledged, states) = play(&fs);
        first_violation(&fs, &acknowledged, &states)
    };
    // Until it is opened again the file is known by the name under which it was made.
    for path in ["state.redb.new", "state.redb", ""] {
        let violation = ignored(path);
        assert!(violation.is_some(), "{path:?}");
    }
}

/// One commit, one sync: neither more, which costs, nor less. Only where the file grows there is a second.
#[test]
fn a_commit_costs_one_sync_and_needs_it() {
    let fs = RecordingFileSystem::new();
    let store = open(fs.clone()).unwrap();
    grow(&store);
    let mut numbers = Vec::new();
    for list in lists() {
        numbers.push(fs.syncs().len());
        store.commit(&list).unwrap();
        assert_eq!(fs.syncs().len(), numbers.last().unwrap() + 1);
    }
    drop(store);
    let states = states(&lists());
    for (at, number) in numbers.into_iter().enumerate() {
        let fs = RecordingFileSystem::new();
        fs.ignore_sync(number);
        let store = open(fs.clone()).unwrap();
        grow(&store);
        for list in &lists()[..=at] {
            store.commit(list).unwrap();
        }
        let left = open(fs.after_power_loss(fs.steps(), Loss::All)).unwrap();
        assert_eq!(all(&left), states[at], "list {at} was there without its sync");
        assert_ne!(states[at], states[at + 1]);
    }
}
