//! Computed blocks on their way out of the engine.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kvsp_engine::{Engine, EngineError, PageId};
use kvsp_proto::container;
use kvsp_proto::registry::Codec;

use super::super::EngineEvent;
use super::super::pages::ScopedKey;
use super::Scheduler;

/// Time for handing out blocks in a turn: reading them takes time that decoding needs too, but who waits for
/// the copies of a long prompt must not wait a turn for each of its blocks.
const EXPORT_SLICE: Duration = Duration::from_millis(2);

/// A block to hand out; its page has a reference for it.
pub(super) struct Export {
    pub(super) block: ScopedKey,
    pub(super) page: PageId,
    /// Something relies on its copy outside the process.
    pub(super) wanted: bool,
}

impl<E: Engine> Scheduler<E> {
    /// Hand out computed blocks, at least one, until the time slice is used up.
    pub(super) fn export(&mut self) {
        let begin = Instant::now();
        while let Some(Export { block, page, wanted }) = self.exports.pop_front() {
            self.progressed = true;
            match self.read_block(page) {
                // The agent may have stopped; then nobody wants the block.
                Ok(container) => {
                    drop(self.events.blocking_send(EngineEvent::Computed { block, container, wanted }));
                }
                Err(error) => tracing::warn!(%error, "a computed block was not exported"),
            }
            self.pages.release(page);
            if begin.elapsed() >= EXPORT_SLICE {
                break;
            }
        }
        for change in self.pages.take_changes() {
            if self.events.blocking_send(EngineEvent::Device(change)).is_err() {
                break;
            }
        }
    }

    fn read_block(&self, page: PageId) -> Result<Bytes, EngineError> {
        let mut layers = Vec::with_capacity(self.layers);
        for layer in 0..self.layers {
            let mut octets = Vec::new();
            self.engine.read_layer(page, layer, &mut octets)?;
            layers.push(octets);
        }
        let (k, _) = self
            .engine
            .info()
            .descriptor
            .section_octets(self.engine.info().descriptor.block_tokens)
            .ok_or_else(|| EngineError::Misuse("the descriptor's sections overflow".into()))?;
        let k = usize::try_from(k).unwrap_or(usize::MAX);
        let sections: Vec<(&[u8], &[u8])> =
            layers.iter().filter_map(|octets| octets.split_at_checked(k)).collect();
        container::encode(Codec::RAW, 0, self.engine.info().descriptor.block_tokens, &sections)
            .map_err(|e| EngineError::Backend(e.to_string()))
    }
}
