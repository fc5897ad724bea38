//! Rows in memory: for tests, and for a controller whose sessions need not outlive it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{EachRow, RowChange, StateError, StateStore, check_changes};

#[derive(Debug, Default)]
struct Rows {
    term: u64,
    rows: BTreeMap<Bytes, Bytes>,
}

/// Rows that live as long as their last handle. It has no bound of its own: what is kept is bounded by whoever
/// commits.
#[derive(Debug)]
pub struct MemoryState {
    shared: Arc<Mutex<Rows>>,
    term: u64,
}

impl Default for MemoryState {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryState {
    /// An empty store, at term 1.
    #[must_use]
    pub fn new() -> Self {
        Self::open(Arc::default())
    }

    /// Another handle of the same rows, of a higher term: this one is fenced from now on.
    #[must_use]
    pub fn reopen(&self) -> Self {
        Self::open(self.shared.clone())
    }

    fn open(shared: Arc<Mutex<Rows>>) -> Self {
        let term = {
            let mut rows = shared.lock().unwrap_or_else(PoisonError::into_inner);
            rows.term += 1;
            rows.term
        };
        Self { shared, term }
    }

    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StateStore for MemoryState {
    fn term(&self) -> u64 {
        self.term
    }

    fn commit(&self, changes: &[RowChange]) -> Result<(), StateError> {
        check_changes(changes)?;
        let mut rows = self.lock();
        if rows.term != self.term {
            return Err(StateError::Fenced { term: self.term, current: rows.term });
        }
        for change in changes {
            match &change.value {
                Some(value) => drop(rows.rows.insert(change.key.clone(), value.clone())),
                None => drop(rows.rows.remove(&change.key)),
            }
        }
        Ok(())
    }

    fn scan(&self, prefix: &[u8], each: &mut EachRow<'_>) -> Result<(), StateError> {
        // One copy of the rows, which share their octets: a commit in between would otherwise be seen in part.
        let rows = self.lock().rows.clone();
        let from = (Bound::Included(prefix), Bound::Unbounded);
        for (key, value) in rows.range::<[u8], _>(from).take_while(|(key, _)| key.starts_with(prefix)) {
            each(key, value)?;
        }
        Ok(())
    }
}
