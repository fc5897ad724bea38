//! A file system of which chosen operations fail.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::before::{Asking, Before, Operation};

/// Which operations fail, counted over all files from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// The first operation that fails.
    pub first: u64,
    /// How many fail, one after the other; `u64::MAX` for a device that is gone.
    pub count: u64,
    /// The only kind of operation that is counted and fails; all where absent. A disk that is full fails
    /// with [`Operation::Grow`] alone.
    pub only: Option<Operation>,
    /// How they fail.
    pub kind: ErrorKind,
}

/// What is to fail.
#[derive(Debug, Default)]
pub struct Failing {
    operations: AtomicU64,
    faults: Mutex<Option<Faults>>,
}

/// Fails as told, and else does what another file system does.
pub type FailingFileSystem = Asking<Failing>;

impl FailingFileSystem {
    /// Counts from 0 again, and lets those operations fail.
    pub fn fail(&self, faults: Faults) {
        *self.asked.lock() = Some(faults);
        self.asked.operations.store(0, Ordering::SeqCst);
    }

    /// Lets nothing fail any more.
    pub fn heal(&self) {
        *self.asked.lock() = None;
    }

    /// Operations since the last [`Self::fail`] that it counts, failed ones included.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.asked.operations.load(Ordering::SeqCst)
    }
}

impl Failing {
    fn lock(&self) -> MutexGuard<'_, Option<Faults>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Before for Failing {
    fn before(&self, operation: Operation) -> io::Result<()> {
        let faults = self.lock();
        let Some(faults) = faults.filter(|faults| faults.only.is_none_or(|only| only == operation)) else {
            return Ok(());
        };
        let number = self.operations.fetch_add(1, Ordering::SeqCst);
        let fails = number.checked_sub(faults.first).is_some_and(|at| at < faults.count);
        if fails { Err(faults.kind.into()) } else { Ok(()) }
    }
}
