//! The feed of changes: its cursors, who follows it, and the call that something has changed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use kvsp_core::index::Index;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The longest cursor that is looked at.
const MAX_CURSOR_OCTETS: usize = 128;

/// The feed of one life of the index.
#[derive(Debug)]
pub(crate) struct Feed {
    /// Tells this life's cursors from others'.
    incarnation: u64,
    /// The end of the life before, where nothing was missed since, and the cursor that goes on from there.
    before: OnceLock<(u64, u64, u64)>,
    moved: Notify,
    followers: AtomicUsize,
    room: Arc<Semaphore>,
    gauge: Gauge,
}

/// A follower, counted as long as this lives.
pub(crate) struct Follower {
    feed: Arc<Feed>,
    _room: OwnedSemaphorePermit,
}

impl Feed {
    pub(crate) fn new(incarnation: u64, max_followers: usize, gauge: Gauge) -> Arc<Self> {
        Arc::new(Self {
            incarnation,
            before: OnceLock::new(),
            moved: Notify::new(),
            followers: AtomicUsize::new(0),
            room: Arc::new(Semaphore::new(max_followers.min(Semaphore::MAX_PERMITS))),
            gauge,
        })
    }

    /// This life's name.
    pub(crate) const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Cursors at the end of the life before, `(incarnation, next)`, go on at `start`: nothing was missed.
    pub(crate) fn continues(&self, before: (u64, u64), start: u64) {
        // Set once, before anyone follows.
        let _ = self.before.set((before.0, before.1, start));
    }

    /// The text of a cursor, which is the `id` of the last change before it.
    pub(crate) fn id_of(&self, cursor: u64) -> String {
        format!("{:016x}-{cursor}", self.incarnation)
    }

    /// The cursor of a text; `None` for one of another life, or of another service.
    pub(crate) fn cursor_of(&self, text: &str) -> Option<u64> {
        let (life, number) = text.split_once('-').filter(|_| text.len() <= MAX_CURSOR_OCTETS)?;
        let life = u64::from_str_radix(life, 16).ok()?;
        let cursor = number.parse().ok()?;
        if life == self.incarnation {
            return Some(cursor).filter(|_| text == self.id_of(cursor));
        }
        let &(before, next, start) = self.before.get()?;
        (text == format!("{before:016x}-{next}")).then_some(start)
    }

    /// Wakes the followers. Called after every change, and cheap where nobody follows.
    pub(crate) fn tell(&self) {
        if self.followers.load(Ordering::Acquire) > 0 {
            self.moved.notify_waiters();
        }
    }

    /// Waits for a change; to be asked for before the index is read, so that none is missed in between.
    pub(crate) fn moved(&self) -> tokio::sync::futures::Notified<'_> {
        self.moved.notified()
    }

    /// Room for one more follower.
    pub(crate) fn follow(self: &Arc<Self>) -> Option<Follower> {
        let room = Arc::clone(&self.room).try_acquire_owned().ok()?;
        self.followers.fetch_add(1, Ordering::AcqRel);
        self.gauge.inc();
        Some(Follower { feed: Arc::clone(self), _room: room })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.feed.followers.fetch_sub(1, Ordering::AcqRel);
        self.feed.gauge.dec();
    }
}

/// The cursor of a reader that wants what comes from now on.
pub(crate) const fn from_now(index: &Index) -> u64 {
    index.next_change()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_of_one_life_and_of_the_end_of_the_one_before() {
        let feed = Feed::new(0xab, 1, Gauge::default());
        assert_eq!(feed.id_of(7), "00000000000000ab-7");
        assert_eq!(feed.cursor_of("00000000000000ab-7"), Some(7));
        assert_eq!(feed.cursor_of("00000000000000aa-7"), None);
        feed.continues((0xaa, 7), 3);
        assert_eq!(feed.cursor_of("00000000000000aa-7"), Some(3));
        for other in ["00000000000000aa-6", "ab-7", "00000000000000ab-07", "00000000000000AB-7", "", "-", "x"]
        {
            assert_eq!(feed.cursor_of(other), None, "{other}");
        }
    }

    #[test]
    fn there_is_room_for_so_many() {
        let feed = Feed::new(1, 1, Gauge::default());
        let first = feed.follow();
        assert!(first.is_some() && feed.follow().is_none());
        drop(first);
        assert!(feed.follow().is_some());
    }
}
