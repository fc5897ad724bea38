//! Memory for what is brought in from below: who asks waits in line, for a time, and is refused then.
//!
//! Every such buffer is of the one arena of all blocks, whose cap holds whatever happens here. What happens here
//! is that readers leave the others theirs: together with blocks that host memory has let go of and that are
//! still being sent they take `read_octets`, so that bodies of PUTs find room however slowly somebody reads.
//!
//! Nobody who waits here holds a buffer that is counted here, nor a slot of a store, so that all who wait can
//! be served by those who have been.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvsp_buffer::{PageBuffer, footprint};
use kvsp_core::tier::Level;
use kvsp_store::StoreError;
use tokio::sync::{Mutex, Notify};

use crate::service::BlockService;

/// How often the first in line looks whether there is room: nobody tells when a buffer was sent.
const LOOK: Duration = Duration::from_millis(2);

/// What is asked for, and by whom it is asked.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// First come, first served: a large read is not overtaken for ever by small ones.
    line: Mutex<()>,
    /// Octets that reads may take that have not ended.
    promised: AtomicU64,
    /// Octets of bodies that are coming in.
    arriving: AtomicU64,
    /// A promise was given back.
    freed: Notify,
}

/// What to do where there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Wait as long as a PUT would.
    Waits,
    /// Nothing needs to be read: leave it.
    Leaves,
}

/// Room for one buffer that a read will take, until this is dropped: from then on the buffer itself counts.
#[derive(Debug)]
pub(crate) struct Promise<'a> {
    room: &'a Room,
    octets: u64,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.room.promised.fetch_sub(self.octets, Ordering::Relaxed);
        self.room.freed.notify_one();
    }
}

/// The buffers of one body that is coming in, until it is stored or refused.
pub(crate) struct Arriving<'a> {
    service: &'a BlockService,
    octets: u64,
}

impl<'a> Arriving<'a> {
    pub(crate) const fn new(service: &'a BlockService) -> Self {
        Self { service, octets: 0 }
    }

    /// A buffer; `None` where there is no room.
    pub(crate) fn take(&mut self, octets: usize) -> Option<PageBuffer> {
        let buffer = self.service.buffers.take(octets)?;
        self.octets = self.octets.saturating_add(buffer.footprint());
        self.service.room.arriving.fetch_add(buffer.footprint(), Ordering::Relaxed);
        Some(buffer)
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        self.service.room.arriving.fetch_sub(self.octets, Ordering::Relaxed);
    }
}

impl BlockService {
    /// How long a request waits for memory.
    pub(crate) const fn wait(&self) -> Duration {
        Duration::from_millis(self.config.ingest_wait_ms)
    }

    /// Room for a buffer of `octets`.
    ///
    /// # Errors
    /// [`StoreError::NoMemory`].
    pub(crate) async fn room_for(&self, octets: u64, patience: Patience) -> Result<Promise<'_>, StoreError> {
        let octets = usize::try_from(octets).map_or(u64::MAX, footprint);
        match patience {
            Patience::Leaves => self.room.line.try_lock().ok().and_then(|_turn| self.promise(octets)),
            Patience::Waits => tokio::time::timeout(self.wait(), self.wait_in_line(octets)).await.ok(),
        }
        .ok_or(StoreError::NoMemory)
    }

    async fn wait_in_line(&self, octets: u64) -> Promise<'_> {
        let _turn = self.room.line.lock().await;
        loop {
            if let Some(promise) = self.promise(octets) {
                return promise;
            }
            let _ = tokio::time::timeout(LOOK, self.room.freed.notified()).await;
        }
    }

    /// Called by the first in line alone.
    fn promise(&self, octets: u64) -> Option<Promise<'_>> {
        let promised = self.room.promised.load(Ordering::Relaxed);
        let used = self.buffers.used().saturating_add(promised);
        let others = [
            self.state().holdings.octets(Level::Host).0,
            self.room.arriving.load(Ordering::Relaxed),
            self.transcoded.octets(),
        ];
        let reads = others.into_iter().fold(used, u64::saturating_sub);
        // One that is larger than all of it goes alone.
        let fits = reads == 0 || reads.saturating_add(octets) <= self.config.read_octets;
        if !fits || used.saturating_add(octets) > self.buffers.capacity() {
            return None;
        }
        self.room.promised.fetch_add(octets, Ordering::Relaxed);
        Some(Promise { room: &self.room, octets })
    }
}
