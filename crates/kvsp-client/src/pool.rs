//! Connections that wait for the next request.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::time::Instant;

use crate::connect::Stream;

/// A connection between two exchanges: nothing is on its way in either direction.
type Idle = Box<dyn Stream>;

/// Idle connections by authority, newest last.
pub(crate) struct Pool {
    /// Kept for each authority at most.
    max_idle: usize,
    idle_timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: BTreeMap<String, Vec<(Idle, Instant)>>,
    /// Somebody closes what has been idle for too long.
    reaped: bool,
}

impl Pool {
    pub(crate) fn new(max_idle: usize, idle_timeout: Duration) -> Arc<Self> {
        Arc::new(Self { max_idle, idle_timeout, state: Mutex::default() })
    }

    /// The connection used last, if one is left that its peer has not closed.
    pub(crate) fn take(&self, authority: &str) -> Option<Idle> {
        loop {
            let (mut stream, since) = {
                let mut state = self.lock();
                let idle = state.idle.get_mut(authority)?;
                let newest = idle.pop();
                if idle.is_empty() {
                    state.idle.remove(authority);
                }
                newest?
            };
            if since.elapsed() < self.idle_timeout && is_silent(&mut stream) {
                return Some(stream);
            }
        }
    }

    /// Keeps a connection for the next request.
    pub(crate) fn put(self: &Arc<Self>, authority: &str, stream: Idle) {
        let mut state = self.lock();
        if self.max_idle == 0 {
            return;
        }
        let idle = state.idle.entry(authority.to_owned()).or_default();
        if idle.len() >= self.max_idle {
            idle.remove(0);
        }
        idle.push((stream, Instant::now()));
        if !state.reaped
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            state.reaped = true;
            runtime.spawn(reap(Arc::downgrade(self), self.idle_timeout));
        }
    }

    /// Closes what has been idle for too long; whether anything is left.
    fn close_idle(&self) -> bool {
        let mut state = self.lock();
        for idle in state.idle.values_mut() {
            idle.retain(|(_, since)| since.elapsed() < self.idle_timeout);
        }
        state.idle.retain(|_, idle| !idle.is_empty());
        state.reaped = !state.idle.is_empty();
        state.reaped
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs while there are idle connections and somebody holds the pool.
async fn reap(pool: Weak<Pool>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        if !pool.upgrade().is_some_and(|pool| pool.close_idle()) {
            return;
        }
    }
}

/// Whether a connection has nothing to say: a peer that closed it, or sends what nobody asked for, has.
fn is_silent(stream: &mut Idle) -> bool {
    let mut octet = [0];
    let mut read = ReadBuf::new(&mut octet);
    let mut context = Context::from_waker(Waker::noop());
    matches!(Pin::new(stream).poll_read(&mut context, &mut read), Poll::Pending)
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("max_idle", &self.max_idle).finish_non_exhaustive()
    }
}
