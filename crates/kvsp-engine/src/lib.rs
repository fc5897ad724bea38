//! What an inference engine is to KVSP: a pool of KV pages, a forward pass that can be stepped one layer at
//! a time, a tokenizer and a sampler.
//!
//! The instance agent owns the schedule; the engine owns the arithmetic and the memory of its pages. A pass
//! is advanced layer by layer so that layer `l` can be computed while layer `l + 1` of a fetched prefix is
//! still arriving, and so that other sessions run between two layers when it is late (draft section 6.5:
//! prefetch never blocks admitted work).

mod detokenize;
mod merge;
mod sampler;
mod split;

use std::ops::Range;
use std::sync::Arc;

use kvsp_proto::descriptor::Descriptor;

pub use detokenize::{Detokenizer, StopMatcher};
pub use merge::{Merge, MergeError};
pub use sampler::{Sampler, SamplerError, SamplerParams};
pub use split::{PageRun, Partial, Queries};

/// Why an engine could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The caller broke the contract of the trait; the text says how.
    #[error("engine misuse: {0}")]
    Misuse(String),
    /// Sections of the wrong length for the engine's geometry.
    #[error("a section of {got} octets where {want} were expected")]
    SectionSize {
        /// Octets given.
        got: usize,
        /// Octets of `block_tokens` tokens in the descriptor's geometry.
        want: usize,
    },
    /// The backend failed.
    #[error("engine backend: {0}")]
    Backend(String),
}

/// What never changes while an engine runs.
#[derive(Debug, Clone)]
pub struct EngineInfo {
    /// The descriptor of every block this engine makes or takes.
    pub descriptor: Arc<Descriptor>,
    /// Longest sequence in tokens, prompt and output together.
    pub max_context: usize,
    /// Entries of a logits row.
    pub vocab: usize,
    /// Tokens that end a generation.
    pub eos: Vec<u32>,
    /// Pages of the KV pool; page identifiers are `0..pages`.
    pub pages: usize,
    /// Whether equal state gives bit-identical tokens on equal hardware whatever else shares a pass.
    pub batch_invariant: bool,
}

/// One physical KV page of `block_tokens` tokens, all layers. Pages are allocated by the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

/// Consecutive new tokens of one sequence to run through the model.
#[derive(Debug, Clone)]
pub struct Span {
    /// The tokens, at least one.
    pub tokens: Vec<u32>,
    /// Position of the first of them; positions `0..position` are already in the pages (or, layer by layer,
    /// will be before [`Engine::step_layer`] reaches that layer).
    pub position: usize,
    /// The block of the first page, 0 where all of them are here. Above 0 the pass cannot be stepped by
    /// [`Engine::step_layer`], which needs every earlier position, only by [`Engine::project`] and
    /// [`Engine::complete`].
    pub first_page: usize,
    /// Pages of the sequence from that block on, in order, holding at least the positions of `tokens`.
    pub pages: Vec<PageId>,
    /// Whether the logits after the last token are wanted.
    pub logits: bool,
}

/// An inference engine. One thread owns it and calls it; a call may take milliseconds.
pub trait Engine: Send + 'static {
    /// A forward pass under way: hidden states of the spans and the next layer.
    type Pass: Send;

    /// The unchanging facts.
    fn info(&self) -> &EngineInfo;

    /// Start a pass over `spans` (of distinct sequences): embeds the tokens, computes no layer.
    ///
    /// # Errors
    /// [`EngineError::Misuse`] for an empty span, too few or unknown pages, a token outside the vocabulary or
    /// a position beyond the context.
    fn begin(&mut self, spans: Vec<Span>) -> Result<Self::Pass, EngineError>;

    /// The layer that [`Engine::step_layer`] computes next; `None` once all are done.
    fn next_layer(&self, pass: &Self::Pass) -> Option<usize>;

    /// Compute one layer for all rows of the pass: writes K and V of the new tokens (rounded to `kv_dtype`)
    /// into their pages and reads, of this layer alone, all earlier positions.
    ///
    /// # Errors
    /// [`EngineError::Misuse`] once all layers are done or where a span lacks its first pages;
    /// [`EngineError::Backend`] when the arithmetic fails.
    fn step_layer(&mut self, pass: &mut Self::Pass) -> Result<(), EngineError>;

    /// The first half of a layer whose attention is put together by the caller: writes K and V of the new
    /// tokens (rounded) into their pages and gives the queries of each span, in order. The pass stays at that
    /// layer, so a step that failed elsewhere may be repeated from here, with the same result.
    ///
    /// # Errors
    /// As for [`Engine::step_layer`], but no page other than those of the new tokens is needed.
    fn project(&mut self, pass: &mut Self::Pass) -> Result<Vec<Queries>, EngineError>;

    /// The second half: the rest of the layer from the attention of each span (rows × heads × `head_dim`, in
    /// order), as [`Merge`] gives it. The pass goes on to the next layer.
    ///
    /// # Errors
    /// [`EngineError::Misuse`] where the layer was not projected or for attention of other lengths;
    /// [`EngineError::Backend`].
    fn complete(&mut self, pass: &mut Self::Pass, attention: &[Vec<f32>]) -> Result<(), EngineError>;

    /// Attention of `queries` over the keys at the positions `keys`, which lie in `pages`: a row at position p
    /// sees those up to p. Nothing else of the pages is read, so it may be rubbish; keys beyond the last row,
    /// which none sees, need not be there. Over all keys this gives what [`Engine::step_layer`] computes.
    ///
    /// # Errors
    /// [`EngineError::Misuse`] for queries of other dimensions or beyond the context, no row, an inverted range,
    /// an unknown layer, and keys that are in none of the pages or in one whose layer was never written;
    /// [`EngineError::Backend`].
    fn attend(
        &self,
        layer: usize,
        pages: &PageRun,
        keys: Range<usize>,
        queries: &Queries,
    ) -> Result<Partial, EngineError>;

    /// End a pass: for each span, in order, the logits after its last token where they were asked for.
    ///
    /// # Errors
    /// [`EngineError::Misuse`] while layers remain.
    fn finish(&mut self, pass: Self::Pass) -> Result<Vec<Option<Vec<f32>>>, EngineError>;

    /// Put the K and V sections (codec `raw`, the descriptor's layout, `block_tokens` tokens) of one layer
    /// into a page.
    ///
    /// # Errors
    /// [`EngineError::SectionSize`] for wrong lengths, [`EngineError::Misuse`] for an unknown page or layer.
    fn write_layer(&mut self, page: PageId, layer: usize, k: &[u8], v: &[u8]) -> Result<(), EngineError>;

    /// Append the K section, then the V section, of one layer of a full page to `out` (codec `raw`).
    ///
    /// # Errors
    /// [`EngineError::Misuse`] for an unknown page or layer.
    fn read_layer(&self, page: PageId, layer: usize, out: &mut Vec<u8>) -> Result<(), EngineError>;

    /// As [`Engine::write_layer`], for some tokens of a page: `k` and `v` hold those of `slots` alone. The
    /// others are left as they are.
    ///
    /// # Errors
    /// [`EngineError::SectionSize`] for wrong lengths, [`EngineError::Misuse`] for an unknown page or layer, no
    /// slot, or slots outside a page.
    fn write_tokens(
        &mut self,
        page: PageId,
        layer: usize,
        slots: Range<usize>,
        k: &[u8],
        v: &[u8],
    ) -> Result<(), EngineError>;

    /// Append the K and the V section of some tokens of a page in one layer to `k` and `v` (codec `raw`). What
    /// was never written is zeros or what lay there before.
    ///
    /// # Errors
    /// [`EngineError::Misuse`] for an unknown page or layer, one that was never written, no slot, or slots
    /// outside a page.
    fn read_tokens(
        &self,
        page: PageId,
        layer: usize,
        slots: Range<usize>,
        k: &mut Vec<u8>,
        v: &mut Vec<u8>,
    ) -> Result<(), EngineError>;
}

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, …
    pub role: String,
    /// The text.
    pub content: String,
}

/// A tokenizer could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// The model has no chat template, or it refused the messages; the text says which.
    #[error("chat template: {0}")]
    Template(String),
    /// The text or the tokens could not be converted.
    #[error("tokenizer: {0}")]
    Convert(String),
}

/// Text to tokens and back.
pub trait Tokenizer: Send + Sync + 'static {
    /// The tokens of a text as it stands (special tokens in the text are recognised; a beginning-of-sequence
    /// token is added where the model's tokenizer definition asks for it).
    ///
    /// # Errors
    /// [`TokenizerError::Convert`].
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError>;

    /// The text of tokens, special ones left out; incomplete UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::Convert`] for tokens outside the vocabulary.
    fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError>;

    /// The prompt of a chat by the model's template, with the generation prompt for the assistant added.
    ///
    /// # Errors
    /// [`TokenizerError::Template`] where there is no template or it refuses the messages.
    fn chat(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, TokenizerError>;
}
