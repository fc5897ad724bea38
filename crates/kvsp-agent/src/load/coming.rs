//! Blocks that directives are bringing to the host tier alone, because the engine had no page for them: it was not
//! there yet, or full. A request that comes to need them waits for them instead of computing them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::engine::ScopedKey;

/// The blocks that are coming.
#[derive(Debug, Clone, Default)]
pub(crate) struct Coming(Arc<Mutex<HashMap<ScopedKey, Awaited>>>);

#[derive(Debug)]
struct Awaited {
    /// Loads that bring it.
    loads: usize,
    /// None of them does any more.
    over: CancellationToken,
}

/// That a load brings a block, until it is dropped.
#[derive(Debug)]
pub(crate) struct Bringing {
    coming: Coming,
    block: ScopedKey,
}

impl Coming {
    fn with<R>(&self, run: impl FnOnce(&mut HashMap<ScopedKey, Awaited>) -> R) -> R {
        run(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A load begins to bring a block.
    pub(crate) fn begin(&self, block: ScopedKey) -> Bringing {
        self.with(|blocks| {
            blocks
                .entry(block)
                .or_insert_with(|| Awaited { loads: 0, over: CancellationToken::new() })
                .loads += 1;
        });
        Bringing { coming: self.clone(), block }
    }

    /// Whether a load brings the block.
    pub(crate) fn has(&self, block: &ScopedKey) -> bool {
        self.with(|blocks| blocks.contains_key(block))
    }

    /// Waits until the block has come, or no load brings it any more.
    pub(crate) async fn over(&self, block: &ScopedKey) {
        let over = self.with(|blocks| blocks.get(block).map(|awaited| awaited.over.clone()));
        if let Some(over) = over {
            over.cancelled().await;
        }
    }
}

impl Drop for Bringing {
    fn drop(&mut self) {
        self.coming.with(|blocks| {
            let Entry::Occupied(mut awaited) = blocks.entry(self.block) else { return };
            awaited.get_mut().loads -= 1;
            if awaited.get().loads == 0 {
                awaited.remove().over.cancel();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use kvsp_proto::id::{BlockKey, ScopeId};

    use super::*;

    #[tokio::test]
    async fn a_block_is_awaited_until_the_last_load_that_brings_it_is_over() {
        let block = |n| ScopedKey { scope: ScopeId([0; 16]), key: BlockKey([n; 32]) };
        let coming = Coming::default();
        let (first, second) = (coming.begin(block(1)), coming.begin(block(1)));
        assert!(coming.has(&block(1)) && !coming.has(&block(2)));
        coming.over(&block(2)).await;
        drop(first);
        assert!(coming.has(&block(1)));
        let waiting = coming.clone();
        let waiting = tokio::spawn(async move { waiting.over(&block(1)).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(second);
        waiting.await.unwrap();
        assert!(!coming.has(&block(1)));
    }
}
