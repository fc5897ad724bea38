//! A history of commits with what they leave.

use std::path::Path;
use std::sync::Arc;

use crate::fs::FileSystem;
use crate::state::conformance::{Rows, apply, rows};
use crate::state::{RedbConfig, RedbState, RowChange, StateError, StateStore as _};
use crate::testing::Loss;

pub(super) const DIR: &str = "/state";

/// Opens the store of the recorded file systems.
pub(super) fn open(fs: impl FileSystem) -> Result<RedbState, StateError> {
    RedbState::open_on(Arc::new(fs), Path::new(DIR), RedbConfig { cache_octets: 1 << 20 })
}

/// The lists of a session's life: it begins, grows, and is erased; with another one beside it.
pub(super) fn lists() -> Vec<Vec<RowChange>> {
    let row = |table: u8, session: u8, at: u8| vec![table, session, at];
    let value = |seed: u8, octets: usize| vec![seed; octets];
    let mut lists = vec![
        vec![RowChange::set(row(1, 1, 0), value(1, 200)), RowChange::set(row(1, 2, 0), value(2, 200))],
        // More than a page of the database, and more than one page of it.
        vec![RowChange::set(row(3, 1, 0), value(3, 20_000)), RowChange::set(row(1, 1, 0), value(4, 10))],
    ];
    for at in 0..4 {
        let grown = (0..30).map(|more| RowChange::set(row(2, 1, at * 30 + more), value(more, 256)));
        lists.push(grown.chain([RowChange::set(row(1, 1, 0), value(at, 300))]).collect());
    }
    lists.push(
        (0..120)
            .map(|at| RowChange::remove(row(2, 1, at)))
            .chain([RowChange::remove(row(3, 1, 0)), RowChange::set(row(1, 1, 0), value(9, 20))])
            .collect(),
    );
    lists.push(vec![RowChange::set(row(1, 2, 0), value(5, 100)), RowChange::remove(row(1, 1, 0))]);
    lists
}

/// The rows after each of the first lists, beginning with none of them.
pub(super) fn states(lists: &[Vec<RowChange>]) -> Vec<Rows> {
    let mut states = vec![Rows::new()];
    for list in lists {
        let mut next = states.last().unwrap().clone();
        apply(&mut next, list);
        states.push(next);
    }
    states
}

pub(super) fn all(store: &RedbState) -> Rows {
    rows(store, b"").unwrap()
}

/// What is tried at a crash point: what has a name, and some that is drawn. A device writes a sector whole or not at
/// all, on which the database relies for its header: nothing here leaves half a sector, or zeros where octets were.
pub(super) fn losses(step: usize) -> impl Iterator<Item = Loss> {
    let named = [Loss::All, Loss::Nothing, Loss::Octets, Loss::Names, Loss::Removals, Loss::Additions];
    named.into_iter().chain((0..2 * draws()).map(move |seed| Loss::Sectors((step as u64) << 16 | seed)))
}

/// Lets the file grow, and empties it again: then commits of this size find room in it.
pub(super) fn grow(store: &RedbState) {
    let row = |at: u16| [&[9][..], &at.to_be_bytes()].concat();
    store.commit(&(0..1000).map(|at| RowChange::set(row(at), vec![1; 256])).collect::<Vec<_>>()).unwrap();
    store.commit(&(0..1000).map(|at| RowChange::remove(row(at))).collect::<Vec<_>>()).unwrap();
    store.commit(&[]).unwrap();
}

/// How many losses or faults are drawn at each step.
pub(super) fn draws() -> u64 {
    let wanted = std::env::var("KVSP_SOAK_OPS").ok().and_then(|text| text.parse::<u64>().ok());
    wanted.map_or(1, |operations| (operations / 2000).max(1))
}
