//! Reading blocks from the tiers, the fastest first, and what is found out on the way.

use std::ops::Deref;
use std::sync::Arc;

use kvsp_core::tier::{Level, PerLevel, PinId};
use kvsp_proto::container::LayerRange;
use kvsp_store::{BlockMeta, BlockName, BlockPart, StoreError, StoredBlock};

use crate::background::Lift;
use crate::room::Patience;
use crate::service::BlockService;
use crate::state::Seen;

/// ms for which one read keeps its block where it is.
const READ_MS: u64 = 30_000;
/// Looks at where a block is: more than one where it moved while it was read.
const LOOKS: usize = 3;

/// Blocks that are being read, until this is dropped.
#[derive(Debug)]
pub(crate) struct Reading<S: Deref<Target = BlockService>> {
    service: S,
    pin: PinId,
}

impl<S: Deref<Target = BlockService>> Reading<S> {
    /// Keeps blocks where they are while they are read, for `ttl_ms` at most.
    pub(crate) fn begin(service: S, names: &[BlockName], ttl_ms: u64) -> Self {
        let pin = service.state().pin(names, ttl_ms, service.now());
        Self { service, pin }
    }
}

impl<S: Deref<Target = BlockService>> Drop for Reading<S> {
    fn drop(&mut self) {
        self.service.state().holdings.unpin(self.pin);
    }
}

impl BlockService {
    /// A whole block, verified where it does not come from memory, and taken up into host memory.
    pub(crate) async fn find(&self, name: BlockName) -> Result<Option<StoredBlock>, StoreError> {
        for _ in 0..LOOKS {
            let Some(Seen { meta, held }) = self.see(&name) else {
                return Ok(None);
            };
            let mut failed = None;
            for level in levels_with(&held, meta.layer_count()) {
                match self.read_whole(&meta, level).await {
                    Ok(Some(block)) => {
                        if level != Level::Host {
                            self.take_up(&block).await;
                        }
                        if level == Level::Object {
                            self.lift(Lift { name, level: Level::Disk, layers: meta.layer_count() });
                        }
                        return Ok(Some(block));
                    }
                    Ok(None) => self.found_missing(&meta, level, meta.layer_count()).await,
                    // A slower tier would need as much.
                    Err(StoreError::NoMemory) => return Err(StoreError::NoMemory),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(None)
    }

    /// A tier does not have what it is told to hold: the block has moved since, or somebody else took it
    /// away. Then that copy is lost.
    async fn found_missing(&self, meta: &Arc<BlockMeta>, level: Level, layers: u32) {
        let still = |seen: Seen| Arc::ptr_eq(&seen.meta, meta) && seen.held[level] >= layers;
        if level == Level::Host || !self.state().see(&meta.name).is_some_and(still) {
            return;
        }
        if let Some(store) = self.tiers.store(level)
            && store.delete(meta.name).await.is_ok()
        {
            let missing = Err(StoreError::Rotten("layers are missing"));
            let _ = self.sound::<()>(meta, level, missing).await;
        }
    }

    async fn read_whole(
        &self,
        meta: &Arc<BlockMeta>,
        level: Level,
    ) -> Result<Option<StoredBlock>, StoreError> {
        let is_it = |block: &StoredBlock| block.is_whole() && block.meta.repr_digest == meta.repr_digest;
        if level == Level::Host {
            return Ok(self.tiers.host.find(&meta.name).filter(is_it));
        }
        let Some(store) = self.tiers.store(level) else {
            return Ok(None);
        };
        let read = {
            let _room = self.room_for(meta.size(), Patience::Waits).await?;
            let _reading = Reading::begin(self, std::slice::from_ref(&meta.name), READ_MS);
            store.get(meta.name).await
        };
        self.measure_buffers();
        Ok(self.sound(meta, level, read).await?.filter(is_it).map(|block| {
            // The one that everything else knows, so that it is kept once.
            StoredBlock { meta: meta.clone(), ..block }
        }))
    }

    /// Some layers of a block, verified likewise.
    pub(crate) async fn find_part(
        &self,
        name: BlockName,
        range: LayerRange,
    ) -> Result<Option<BlockPart>, StoreError> {
        let Some(layers) = range.last().checked_add(1) else {
            return Ok(None);
        };
        for _ in 0..LOOKS {
            let Some(Seen { meta, held }) = self.see(&name) else {
                return Ok(None);
            };
            let mut failed = None;
            for level in levels_with(&held, layers) {
                match self.read_part(&meta, level, range, Patience::Waits).await {
                    Ok(Some(part)) => return Ok(Some(part)),
                    Ok(None) => self.found_missing(&meta, level, layers).await,
                    Err(StoreError::NoMemory) => return Err(StoreError::NoMemory),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(None)
    }

    /// Layers of a block were read. Where they are more than host memory has from layer 0 on, it takes them
    /// up in the background.
    pub(crate) fn was_read(&self, name: BlockName, range: LayerRange) {
        let seen = self.state().see(&name);
        let layers = range.last().saturating_add(1);
        if seen
            .is_some_and(|Seen { held, .. }| range.first() <= held[Level::Host] && held[Level::Host] < layers)
        {
            self.lift(Lift { name, level: Level::Host, layers });
        }
    }

    pub(crate) async fn read_part(
        &self,
        meta: &Arc<BlockMeta>,
        level: Level,
        range: LayerRange,
        patience: Patience,
    ) -> Result<Option<BlockPart>, StoreError> {
        if level == Level::Host {
            let block = self.tiers.host.find(&meta.name);
            return Ok(block.filter(|b| Arc::ptr_eq(&b.meta, meta)).and_then(|block| block.part(range)));
        }
        let Some(store) = self.tiers.store(level) else {
            return Ok(None);
        };
        let octets = meta.header_of(range).map_or(0, |header| header.container_octets());
        let read = {
            let _room = self.room_for(octets, patience).await?;
            let _reading = Reading::begin(self, std::slice::from_ref(&meta.name), READ_MS);
            store.part(meta.name, range).await
        };
        self.measure_buffers();
        let part = self.sound(meta, level, read).await?;
        // The name may have come to another block while it was read.
        Ok(part.filter(|_| self.meta(&meta.name).is_some_and(|now| Arc::ptr_eq(&now, meta))))
    }

    /// Where a block is, which is a use of it.
    fn see(&self, name: &BlockName) -> Option<Seen> {
        let mut state = self.state();
        let seen = state.see(name)?;
        state.holdings.touch(name);
        Some(seen)
    }

    /// What was read, unless it is rotten: then that copy is lost, and where there is no other, the block.
    pub(crate) async fn sound<T>(
        &self,
        meta: &Arc<BlockMeta>,
        level: Level,
        read: Result<Option<T>, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        match read {
            Err(StoreError::Rotten(why)) => {
                let room = self.state().lost(meta, level, self.now());
                if let Some(room) = room {
                    tracing::warn!(block = ?meta.name, ?level, why, "a block is rotten");
                    self.metrics.quarantined.inc();
                    self.news.notify_one();
                    // What a device refuses is tried again later.
                    let _ = self.cut(room.cuts).await;
                    self.measure(&self.state());
                }
                Ok(None)
            }
            read => read,
        }
    }

    /// Takes a block up into host memory, or as many leading layers as were read, where there is room for
    /// it.
    pub(crate) async fn take_up(&self, block: &StoredBlock) {
        let name = block.meta.name;
        let room = {
            let mut state = self.state();
            // The block may have gone, and come again as another, while it was read.
            let same = state.entries.get(&name).is_some_and(|entry| Arc::ptr_eq(&entry.meta, &block.meta));
            if !same {
                return;
            }
            let now = self.now();
            let room = state.holdings.promote(name, Level::Host, block.layers(), now);
            room.inspect(|room| state.apply(room, now))
        };
        let Some(room) = room else {
            return;
        };
        // Of memory only; it refuses nothing.
        let _ = self.make_room(room).await;
        let mut state = self.state();
        let fits =
            state.holdings.is_ready(&name, Level::Host) && self.tiers.host.insert(block.clone()).is_ok();
        if fits && state.arrived_at(&name, Level::Host, self.now()) {
            self.metrics.promotions.inc();
        } else {
            if state.see(&name).is_none() {
                self.tiers.host.remove(&name);
            }
            state.holdings.gave_up(&name, Level::Host);
        }
        self.measure(&state);
        drop(state);
        self.has_moved();
        self.news.notify_one();
    }
}

/// The tiers that hold that many leading layers, the fastest first.
fn levels_with(held: &PerLevel<u32>, layers: u32) -> impl Iterator<Item = Level> {
    let held = *held;
    Level::ALL.into_iter().filter(move |level| held[*level] >= layers)
}
