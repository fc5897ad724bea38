//! A file system that takes its time.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::before::{Asking, Before, Operation};

/// What is to be waited for.
#[derive(Debug, Default)]
pub struct Slow {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    waiting: usize,
    delay: Duration,
}

/// Does what another file system does, later: after a delay, or when it is let go.
pub type SlowFileSystem = Asking<Slow>;

impl SlowFileSystem {
    /// From now on every operation takes this much longer.
    pub fn delay(&self, delay: Duration) {
        self.asked.lock().delay = delay;
    }

    /// From now on every operation waits for [`Self::go`].
    pub fn stop(&self) {
        self.asked.lock().stopped = true;
    }

    /// Lets all that waits go on.
    pub fn go(&self) {
        self.asked.lock().stopped = false;
        self.asked.moved.notify_all();
    }

    /// Waits until `count` operations wait; blocks the thread.
    pub fn wait_for(&self, count: usize) {
        let few = |state: &mut State| state.waiting < count;
        drop(self.asked.moved.wait_while(self.asked.lock(), few));
    }
}

impl Slow {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Before for Slow {
    fn before(&self, _: Operation) -> io::Result<()> {
        let mut state = self.lock();
        state.waiting += 1;
        self.moved.notify_all();
        let state = self.moved.wait_while(state, |state| state.stopped);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        let delay = state.delay;
        drop(state);
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        Ok(())
    }
}
