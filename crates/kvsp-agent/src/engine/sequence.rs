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
use super::{EngineRequest, Output, Pace, PromptTokens};

/// Stands for a token that is not known. It is never computed.
const PLACEHOLDER: u32 = 0;

/// A forward pass under way.
pub(super) struct Running<P> {
    pub(super) pass: P,
    /// New tokens that it computes.
    pub(super) tokens: usize,
    /// Time spent computing, without stalls.
    pub(super) spent: Duration,
}

pub(super) struct Sequence<P> {
    /// Prompt and output. The first `unknown` blocks are placeholders: their tokens are not known.
    pub(super) tokens: Vec<u32>,
    /// Leading blocks that are known by their keys alone, and never computed.
    pub(super) unknown: usize,
    pub(super) prompt_len: usize,
    /// Tokens that the request came with, prompt and output.
    pub(super) given: usize,
    pub(super) max_tokens: usize,
    pub(super) sampler: Sampler,
    first_step: u64,
    pace: Option<Arc<Pace>>,
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
    /// The first logits came.
    pub(super) started: bool,
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
        let scope_key = scope.as_deref();
        let (mut tokens, mut keys, mut chain) = match request.prompt {
            PromptTokens::Known(tokens) => {
                let chain = scope_key.map(|key| BlockKeyChain::new(key, compat, block_tokens));
                (tokens, Vec::new(), chain)
            }
            PromptTokens::Keyed { blocks, tail } => {
                let mut tokens = vec![PLACEHOLDER; blocks.len().saturating_mul(block_tokens as usize)];
                tokens.extend(tail);
                let chain = scope_key.map(|key| match blocks.last() {
                    Some(last) => BlockKeyChain::after(*last, key, compat, block_tokens),
                    None => BlockKeyChain::new(key, compat, block_tokens),
                });
                (tokens, blocks, chain)
            }
        };
        let unknown = keys.len();
        let prompt_len = tokens.len();
        tokens.extend(request.generated);
        if let Some(chain) = &mut chain {
            keys.extend(chain.extend(&tokens[unknown * block_tokens as usize..]));
        }
        Self {
            unknown,
            prompt_len,
            given: tokens.len(),
            tokens,
            max_tokens: request.max_tokens,
            sampler: request.sampler,
            first_step: request.first_step,
            pace: request.pace,
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
            started: false,
            ended: false,
        }
    }

    /// Whether it may compute now: what it generated so far must not run away from who watches it.
    pub(super) fn may_go_on(&self) -> bool {
        self.pace.as_ref().is_none_or(|pace| pace.allows(self.generated()))
    }

    /// Whether something relies on its blocks outside the process.
    pub(super) const fn is_watched(&self) -> bool {
        self.pace.is_some()
    }

    /// The sampler's step of the next output token.
    pub(super) fn step(&self) -> u64 {
        self.first_step.wrapping_add(self.generated() as u64)
    }

    /// Of the next `tokens` to compute, those of the prompt, and those of the output that the request came
    /// with.
    pub(super) fn parts(&self, tokens: usize) -> (usize, usize) {
        let (from, to) = (self.computed, self.computed + tokens);
        let within = |begin: usize, end: usize| to.min(end).saturating_sub(from.max(begin));
        (within(0, self.prompt_len), within(self.prompt_len, self.given))
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
