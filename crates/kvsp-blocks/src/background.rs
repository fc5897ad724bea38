//! What a service does by itself: moving blocks between tiers, freeing what could not be freed at once, and
//! keeping its counters true.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvsp_core::tier::Level;
use kvsp_proto::container::{Container, LayerRange};
use kvsp_store::{BlockName, BlockPart, StoreError, StoredBlock};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::room::Patience;
use crate::service::BlockService;
use crate::state::Seen;

/// How often leases are ended that nobody asks for, refused cuts tried again, and cold blocks looked for.
const PERIOD: Duration = Duration::from_millis(250);
/// How long nothing is copied to an object store that did not take a block: it may be full or away.
const COPY_PAUSE: Duration = Duration::from_secs(2);
/// Promotions that wait at most; more are forgotten, and the next read asks for them again.
pub(crate) const MAX_LIFTS: usize = 256;

/// Leading layers of a block were read from a lower tier: they should be in a higher one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lift {
    pub(crate) name: BlockName,
    pub(crate) level: Level,
    pub(crate) layers: u32,
}

impl BlockService {
    /// Asks for a promotion, where not too many are asked for.
    pub(crate) fn lift(&self, lift: Lift) {
        // Full, or nobody runs the background: the next read asks again.
        let _ = self.lifts.0.try_send(lift);
    }

    /// Promotes what was read, until `stop`.
    pub(crate) async fn keep_lifting(&self, stop: CancellationToken) {
        let mut lifts = self.lifts.1.lock().await;
        while let Some(Some(lift)) = stop.run_until_cancelled(next(&mut lifts)).await {
            let lifted = match lift.level {
                Level::Host => self.lift_to_host(lift).await,
                Level::Disk | Level::Object => self.lift_to_disk(lift).await,
            };
            // Without memory to spare the layers stay below.
            if let Err(error) = lifted
                && !matches!(error, StoreError::NoMemory)
            {
                tracing::warn!(block = ?lift.name, level = ?lift.level, %error, "a promotion failed");
            }
        }
    }

    async fn lift_to_host(&self, lift: Lift) -> Result<(), StoreError> {
        let Some(Seen { meta, held }) = self.state().see(&lift.name) else {
            return Ok(());
        };
        let Some(range) = LayerRange::from_count(0, lift.layers) else {
            return Ok(());
        };
        let from = [Level::Disk, Level::Object].into_iter().find(|level| held[*level] >= lift.layers);
        let (Some(from), true) = (from, held[Level::Host] < lift.layers) else {
            return Ok(());
        };
        let Some(part) = self.read_part(&meta, from, range, Patience::Leaves).await? else {
            return Ok(());
        };
        let joined = {
            let _room = self.room_for(part.size(), Patience::Leaves).await?;
            self.joined(&part)
        };
        if let Some(container) = joined {
            drop(part);
            self.take_up(&StoredBlock { meta, container }).await;
        }
        Ok(())
    }

    /// Both parts in one buffer; `None` where there is no memory for it.
    fn joined(&self, part: &BlockPart) -> Option<Container> {
        let mut buffer = self.buffers.take(usize::try_from(part.size()).ok()?)?;
        let (head, data) = buffer.split_at_mut_checked(part.head.len())?;
        head.copy_from_slice(&part.head);
        data.copy_from_slice(&part.data);
        Container::parse(buffer.freeze(), &self.container_limits()).ok()
    }

    async fn lift_to_disk(&self, lift: Lift) -> Result<(), StoreError> {
        let name = lift.name;
        if self.state().holdings.promote(name, Level::Disk, lift.layers, self.now()).is_none() {
            return Ok(());
        }
        let written = self.copy(&name, Level::Object, Level::Disk, Patience::Leaves).await;
        self.end_copy(&name, Level::Disk, written).await.map(drop)
    }

    /// Copies cold blocks down, frees what was refused before and ends leases, until `stop`.
    pub(crate) async fn keep_moving(self: &Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut copies = JoinSet::new();
        let mut held_until = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = ticks.tick() => {}
                () = self.arrivals.notified() => {}
                Some(copied) = copies.join_next() => {
                    if !matches!(copied, Ok(true)) {
                        held_until = Instant::now() + COPY_PAUSE;
                    }
                }
            }
            self.free_refused().await;
            if Instant::now() >= held_until {
                self.begin_copies(&mut copies).await;
            }
            let mut state = self.state();
            state.holdings.expire(self.now());
            self.measure(&state);
        }
        // A copy that is cut off leaves nothing: it is written aside until it is whole.
        copies.shutdown().await;
    }

    async fn free_refused(&self) {
        let (cuts, room) = {
            let mut state = self.state();
            let now = self.now();
            let room = state.holdings.shrink(now);
            state.apply(&room, now);
            (state.holdings.retries(now), room)
        };
        // Counted and logged there; tried again later.
        let _ = self.cut(cuts).await;
        let _ = self.make_room(room).await;
    }

    async fn begin_copies(self: &Arc<Self>, copies: &mut JoinSet<bool>) {
        loop {
            let next = {
                let mut state = self.state();
                let now = self.now();
                state.holdings.demote(now).inspect(|(_, room)| state.apply(room, now))
            };
            let Some((name, room)) = next else {
                return;
            };
            let made = self.make_room(room).await;
            let service = self.clone();
            copies.spawn(async move {
                let ready = service.state().holdings.is_ready(&name, Level::Object);
                let written = match made {
                    Ok(()) if ready => service.copy(&name, Level::Disk, Level::Object, Patience::Waits).await,
                    _ => Ok(false),
                };
                let ended = service.end_copy(&name, Level::Object, written).await;
                let copied = ended.inspect_err(
                    |error| tracing::warn!(block = ?name, %error, "a cold block could not be copied"),
                );
                service.metrics.copies.inc_by(u64::from(matches!(copied, Ok(true))));
                matches!(copied, Ok(true))
            });
        }
    }

    /// Copies a whole block from one tier to another; false where it is not there any more.
    async fn copy(
        &self,
        name: &BlockName,
        from: Level,
        to: Level,
        patience: Patience,
    ) -> Result<bool, StoreError> {
        let Some(Seen { meta, .. }) = self.state().see(name) else {
            return Ok(false);
        };
        let (Some(source), Some(target)) = (self.tiers.store(from), self.tiers.store(to)) else {
            return Ok(false);
        };
        let read = {
            let _room = self.room_for(meta.size(), patience).await?;
            source.get(*name).await
        };
        let Some(block) = self.sound(&meta, from, read).await? else {
            return Ok(false);
        };
        if !block.is_whole() || block.meta.repr_digest != meta.repr_digest {
            return Ok(false);
        }
        match target.put(block).await {
            // It is there already, from an earlier attempt whose end was not seen.
            Ok(()) | Err(StoreError::Exists) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Leaves in a tier what it held of a block before; a write that failed may have left more there. Where
    /// even that fails the octets stay charged.
    async fn put_back(&self, name: &BlockName, level: Level) -> bool {
        let held = self.state().see(name).map_or(0, |seen| seen.held[level]);
        let Some(store) = self.tiers.store(level) else {
            return true;
        };
        let done = if held == 0 { store.delete(*name).await } else { store.trim(*name, held).await };
        done.inspect_err(|error| tracing::error!(block = ?name, ?level, %error, "a copy could not be undone"))
            .is_ok()
    }

    /// Ends a move between tiers; whether the block is there now. What arrived too late is deleted.
    async fn end_copy(
        &self,
        name: &BlockName,
        level: Level,
        written: Result<bool, StoreError>,
    ) -> Result<bool, StoreError> {
        let arrived = matches!(written, Ok(true)) && self.state().arrived_at(name, level, self.now());
        if !arrived && self.put_back(name, level).await {
            self.state().holdings.gave_up(name, level);
        }
        self.measure(&self.state());
        self.has_moved();
        self.news.notify_one();
        written.map(|_| arrived)
    }
}

async fn next(lifts: &mut mpsc::Receiver<Lift>) -> Option<Lift> {
    lifts.recv().await
}
