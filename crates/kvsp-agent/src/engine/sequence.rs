//! One sequence: its tokens, keys and pages, and how far it is computed.

use std::sync::Arc;
use std::time::Duration;

use kvsp_core::time::Time;
use kvsp_engine::{PageId, Sampler};
use kvsp_openai::FinishReason;
use kvsp_proto::block_key::{BlockKeyChain, ScopeKey};
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use tokio::sync::mpsc;

use super::pages::{PageTable, ScopedKey};
use super::{EngineRequest, Output};

/// A forward pass under way.
pub(super) struct Running<P> {
    pub(super) pass: P,
    /// New tokens that it computes.
    pub(super) tokens: usize,
    /// Time spent computing, without stalls.
    pub(super) spent: Duration,
}

pub(super) struct Sequence<P> {
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_len: usize,
    pub(super) max_tokens: usize,
    pub(super) sampler: Sampler,
    pub(super) output: mpsc::Sender<Output>,
    pub(super) arrived: Time,
    /// Its place in the order of arrival; no two are equal, so of two sequences one always gives way.
    pub(super) order: u64,
    pub(super) request_ref: Option<String>,
    scope: Option<ScopeId>,
    chain: Option<BlockKeyChain>,
    keys: Vec<BlockKey>,
    pub(super) pages: Vec<PageId>,
    /// Whether leading blocks were looked for since the pages were last given up.
    pub(super) attached: bool,
    /// Leading pages that were found, not computed here; they may still be arriving.
    pub(super) prefix: usize,
    /// Tokens whose K and V are in the pages, or will be once the prefix has arrived.
    pub(super) computed: usize,
    /// Blocks that were named, or found by name.
    pub(super) named: usize,
    pub(super) pass: Option<Running<P>>,
    /// The output is over; the pages go with the next sweep.
    pub(super) ended: bool,
}

impl<P> Sequence<P> {
    pub(super) fn new(
        request: EngineRequest,
        compat: CompatId,
        block_tokens: u32,
        output: mpsc::Sender<Output>,
        (order, now): (u64, Time),
    ) -> Self {
        let scope: Option<Arc<ScopeKey>> = request.scope;
        let mut chain = scope.as_ref().map(|key| BlockKeyChain::new(key, compat, block_tokens));
        let keys = chain.as_mut().map(|chain| chain.extend(&request.prompt)).unwrap_or_default();
        Self {
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            max_tokens: request.max_tokens,
            sampler: request.sampler,
            output,
            arrived: now,
            order,
            request_ref: request.request_ref,
            scope: scope.map(|key| key.scope_id()),
            chain,
            keys,
            pages: Vec::new(),
            attached: false,
            prefix: 0,
            computed: 0,
            named: 0,
            pass: None,
            ended: false,
        }
    }

    /// The name of a complete block.
    pub(super) fn block(&self, index: usize) -> Option<ScopedKey> {
        Some(ScopedKey { scope: self.scope?, key: *self.keys.get(index)? })
    }

    /// Output tokens so far.
    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Whether the only token left to compute is the last one, and nothing it needs is still arriving.
    pub(super) fn is_decoding(&self, pages: &PageTable, layers: usize) -> bool {
        self.pass.is_none()
            && self.computed + 1 == self.tokens.len()
            && self.readable_layers(pages, layers) == layers
    }

    /// Layers up to which the whole prefix has arrived.
    pub(super) fn readable_layers(&self, pages: &PageTable, layers: usize) -> usize {
        self.pages[..self.prefix].iter().map(|&id| pages.layers_ready(id)).min().unwrap_or(layers)
    }

    /// The first page of the prefix whose loading failed.
    pub(super) fn broken_page(&self, pages: &PageTable) -> Option<usize> {
        self.pages[..self.prefix].iter().position(|&id| pages.is_broken(id))
    }

    /// Send an output. The channel has room for all of them, so this fails only when the client is gone,
    /// and then the next turn drops the sequence.
    pub(super) fn send(&mut self, output: Output) {
        drop(self.output.try_send(output));
    }

    /// End the output.
    pub(super) fn finish(&mut self, reason: FinishReason) {
        self.send(Output::Finished(reason));
        self.ended = true;
    }

    /// Append an output token.
    pub(super) fn push(&mut self, token: u32) {
        self.tokens.push(token);
        if let Some(key) = self.chain.as_mut().and_then(|chain| chain.push(token)) {
            self.keys.push(key);
        }
    }

    /// Forget all pages; returns them to be released. The tokens stay, so the sequence can be computed again.
    pub(super) fn take_pages(&mut self) -> Vec<PageId> {
        self.pass = None;
        self.attached = false;
        self.prefix = 0;
        self.computed = 0;
        self.named = 0;
        std::mem::take(&mut self.pages)
    }

    /// Keep the first `blocks` pages only; returns the others to be released.
    pub(super) fn truncate(&mut self, blocks: usize, block_tokens: usize) -> Vec<PageId> {
        self.pass = None;
        self.prefix = blocks;
        self.named = blocks;
        self.computed = blocks * block_tokens;
        self.pages.split_off(blocks)
    }
}
