//! Blocks on their way in and out.

use std::sync::Arc;

use kvsp_core::tier::{AdmitError, Cut, Level, Removed, Room};
use kvsp_store::{BlockName, StoreError, StoredBlock};

use crate::service::{BlockService, PutOutcome};

/// A block is not stored, or not deleted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeepError {
    #[error("no eviction can make room")]
    Full,
    #[error("an earlier block of that name could not be deleted yet")]
    Stuck,
    #[error("the block is under lease")]
    Leased,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl BlockService {
    /// Stores a block. Runs to its end even where the caller goes away.
    pub(crate) async fn keep(self: &Arc<Self>, block: StoredBlock) -> Result<PutOutcome, KeepError> {
        let service = self.clone();
        let task = tokio::spawn(async move { service.keep_now(block).await });
        task.await.unwrap_or(Err(KeepError::Store(StoreError::Stopped)))
    }

    async fn keep_now(&self, block: StoredBlock) -> Result<PutOutcome, KeepError> {
        let name = block.meta.name;
        let room = loop {
            let mut moved = self.moved.subscribe();
            let admitted = self.state().admit(&block.meta, self.now());
            match admitted {
                Ok(room) => break room,
                Err(AdmitError::Exists) => return Ok(PutOutcome::Exists),
                Err(AdmitError::Full) => return Err(KeepError::Full),
                Err(AdmitError::Stuck) => return Err(KeepError::Stuck),
                // Every move ends by itself; the sender lives as long as the service.
                Err(AdmitError::Busy) => drop(moved.changed().await),
            }
        };
        let written = match self.make_room(room).await {
            Ok(()) => self.write_home(&block).await,
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            self.state().holdings.abandoned(&name);
            self.has_moved();
            return Err(error);
        }
        {
            let mut state = self.state();
            state.arrived(&block, self.now());
            self.measure(&state);
        }
        self.metrics.puts.inc();
        self.has_moved();
        self.news.notify_one();
        self.arrivals.notify_one();
        Ok(PutOutcome::Stored)
    }

    /// Writes a block for which there is room at its home, where that is not memory.
    async fn write_home(&self, block: &StoredBlock) -> Result<(), KeepError> {
        let home = self.state().holdings.home().ok_or(KeepError::Full)?;
        if !self.state().holdings.is_ready(&block.meta.name, home) {
            return Err(KeepError::Full);
        }
        match self.tiers.store(home).filter(|_| home != Level::Host) {
            Some(store) => Ok(store.put(block.clone()).await?),
            None => Ok(()),
        }
    }

    /// Frees what a decision says. An error where a device refused; what it refused is tried again later.
    pub(crate) async fn make_room(&self, room: Room<BlockName>) -> Result<(), KeepError> {
        self.metrics.evictions.inc_by(room.evicted.len() as u64);
        self.metrics.demotions.inc_by(room.changed.len() as u64);
        self.metrics.trims.inc_by(room.cuts.iter().filter(|cut| cut.layers > 0).count() as u64);
        if !room.is_empty() {
            self.news.notify_one();
        }
        self.cut(room.cuts).await
    }

    /// Frees octets, one tier's after the other; all are tried.
    pub(crate) async fn cut(&self, cuts: Vec<Cut<BlockName>>) -> Result<(), KeepError> {
        let mut failed = None;
        for cut in cuts {
            let done = match self.tiers.store(cut.level) {
                Some(store) if cut.layers == 0 => store.delete(cut.key).await,
                Some(store) => store.trim(cut.key, cut.layers).await,
                None => Ok(false),
            };
            let mut state = self.state();
            match done {
                // No memory for a copy of the layers that should stay: then all of them go.
                Ok(false) if cut.level == Level::Host => {
                    self.tiers.host.remove(&cut.key);
                    state.holdings.cut_done(&cut);
                    let room = state.holdings.lost(&cut.key, cut.level);
                    state.apply(&room, self.now());
                }
                // Where it was not there any more, rotten and moved aside, there is nothing left to free.
                Ok(_) => state.holdings.cut_done(&cut),
                Err(error) => {
                    state.cut_failed(&cut, self.now());
                    self.metrics.refused.inc();
                    tracing::error!(block = ?cut.key, level = ?cut.level, %error, "octets could not be freed");
                    failed = Some(error);
                }
            }
            drop(state);
            self.has_moved();
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Deletes a block. Runs to its end even where the caller goes away.
    pub(crate) async fn discard(self: &Arc<Self>, name: BlockName) -> Result<bool, KeepError> {
        let service = self.clone();
        let task = tokio::spawn(async move { service.discard_now(name).await });
        task.await.unwrap_or(Err(KeepError::Store(StoreError::Stopped)))
    }

    async fn discard_now(&self, name: BlockName) -> Result<bool, KeepError> {
        let cuts = loop {
            let mut moved = self.moved.subscribe();
            let removed = self.state().remove(&name, self.now());
            match removed {
                Removed::Was(cuts) => break cuts,
                Removed::Absent => return Ok(false),
                Removed::Leased => return Err(KeepError::Leased),
                Removed::Busy if self.state().holdings.is_stuck(&name) => return Err(KeepError::Stuck),
                Removed::Busy => drop(moved.changed().await),
            }
        };
        self.news.notify_one();
        self.cut(cuts).await?;
        self.measure(&self.state());
        Ok(true)
    }

    pub(crate) fn has_moved(&self) {
        self.moved.send_modify(|count| *count = count.wrapping_add(1));
    }
}
