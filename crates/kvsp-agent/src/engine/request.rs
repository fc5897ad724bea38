//! What the engine is asked to generate, and how far it may go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvsp_engine::Sampler;
use kvsp_proto::block_key::ScopeKey;
use kvsp_proto::id::BlockKey;
use tokio::sync::Notify;

/// What comes before the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PromptTokens {
    /// All its tokens.
    Known(Vec<u32>),
    /// The keys of its complete blocks, whose tokens nobody told, and the tokens after them. Such blocks are
    /// loaded or the request ends with [`super::Output::NeedsPrompt`]; they cannot be computed.
    Keyed { blocks: Vec<BlockKey>, tail: Vec<u32> },
}

/// A request as the engine sees it.
#[derive(Debug)]
pub(crate) struct EngineRequest {
    pub(crate) prompt: PromptTokens,
    /// Output tokens that exist already.
    pub(crate) generated: Vec<u32>,
    /// Most output tokens, those that exist already among them.
    pub(crate) max_tokens: usize,
    pub(crate) sampler: Sampler,
    /// The sampler's step at output index 0; wraps, so that any step can stand at any index.
    pub(crate) first_step: u64,
    /// Under which scope blocks are reused and published; none: not at all.
    pub(crate) scope: Option<Arc<ScopeKey>>,
    /// The directive's reference, whose pinned pages this request takes over.
    pub(crate) request_ref: Option<String>,
    /// How far it may go; none: to its end.
    pub(crate) pace: Option<Arc<Pace>>,
}

impl EngineRequest {
    /// Most outputs: the start, every token and the end, so that sending one never waits for a slow client.
    pub(crate) fn most_outputs(&self) -> usize {
        self.max_tokens.saturating_sub(self.generated.len()).saturating_add(3)
    }
}

/// How many output tokens a request may have: raised by who watches what became of them, read by the engine.
#[derive(Debug)]
pub(crate) struct Pace {
    limit: AtomicU64,
    /// The engine met the limit since it was set last.
    held: AtomicBool,
    raised: Notify,
}

impl Pace {
    pub(crate) const fn new(limit: u64) -> Self {
        Self { limit: AtomicU64::new(limit), held: AtomicBool::new(false), raised: Notify::const_new() }
    }

    /// Whether a request with that many output tokens may compute one more.
    ///
    /// Told before it is looked at again: either this sees a limit that is being raised, or [`Pace::raise`]
    /// sees that the engine was held.
    pub(super) fn allows(&self, generated: usize) -> bool {
        let generated = generated as u64;
        if generated < self.limit.load(Ordering::SeqCst) {
            return true;
        }
        self.held.store(true, Ordering::SeqCst);
        generated < self.limit.load(Ordering::SeqCst)
    }

    /// Waits until a request with that many output tokens may compute one more, where no engine thread waits.
    pub(crate) async fn until_allowed(&self, generated: usize) {
        loop {
            // Listens before it looks, so that no raise is missed.
            let raised = self.raised.notified();
            if (generated as u64) < self.limit.load(Ordering::SeqCst) {
                return;
            }
            raised.await;
        }
    }

    /// Let the request go on to `limit` tokens; whether the engine must be woken for it.
    pub(crate) fn raise(&self, limit: u64) -> bool {
        let is_new = self.limit.fetch_max(limit, Ordering::SeqCst) < limit;
        self.raised.notify_waiters();
        is_new && self.held.swap(false, Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_raises_the_limit_learns_that_the_engine_waits() {
        let pace = Pace::new(2);
        assert!(pace.allows(1) && !pace.raise(3), "nobody waits");
        assert!(!pace.allows(3));
        assert!(!pace.raise(3) && !pace.raise(1), "no limit is taken back, and none is new");
        assert!(!pace.allows(3));
        assert!(pace.raise(4) && pace.allows(3));
    }
}
