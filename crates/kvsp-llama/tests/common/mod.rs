//! A minimal driver of the engine, as the instance agent would be.

// Each test binary uses a part of it.
#![allow(dead_code, unreachable_pub)]

pub mod files;
pub mod group;
pub mod real;

use kvsp_engine::{Engine, PageId, Span};
use kvsp_llama::{LlamaEngine, LoadOptions, ModelSource, load};
use kvsp_proto::registry::ElementType;

/// A tiny engine with 64 MiB of pages.
pub fn tiny(block_tokens: u32, kv_dtype: ElementType) -> LlamaEngine {
    open(&ModelSource::Tiny { seed: 0 }, block_tokens, kv_dtype)
}

/// An engine with 64 MiB of pages.
pub fn open(source: &ModelSource, block_tokens: u32, kv_dtype: ElementType) -> LlamaEngine {
    let name = Some("test/model".to_owned());
    let options = LoadOptions { name, block_tokens, kv_dtype, pool_octets: 64 << 20 };
    load(source, &options, &|_, _| {}).unwrap()
}

/// The pages from `first` on that hold `tokens` tokens.
pub fn pages(engine: &LlamaEngine, first: u32, tokens: usize) -> Vec<PageId> {
    let block = engine.info().descriptor.block_tokens;
    (first..first + (tokens as u32).div_ceil(block)).map(PageId).collect()
}

/// Run spans through all layers.
pub fn pass(engine: &mut LlamaEngine, spans: Vec<Span>) -> Vec<Option<Vec<f32>>> {
    let mut pass = engine.begin(spans).unwrap();
    while engine.next_layer(&pass).is_some() {
        engine.step_layer(&mut pass).unwrap();
    }
    engine.finish(pass).unwrap()
}

/// Run `tokens[from..]` in chunks of these lengths (the last one repeated); the logits after the last token.
pub fn prefill(
    engine: &mut LlamaEngine,
    pages: &[PageId],
    tokens: &[u32],
    from: usize,
    chunks: &[usize],
) -> Vec<f32> {
    let mut position = from;
    let mut lengths = chunks.iter().copied();
    let mut length = usize::MAX;
    let mut logits = None;
    while position < tokens.len() {
        length = lengths.next().unwrap_or(length);
        let end = position.saturating_add(length).min(tokens.len());
        let span = Span {
            tokens: tokens[position..end].to_vec(),
            position,
            first_page: 0,
            pages: pages.to_vec(),
            logits: end == tokens.len(),
        };
        logits = pass(engine, vec![span]).remove(0);
        position = end;
    }
    logits.unwrap()
}

/// The bits of logits: `==` on floats would let −0 pass for 0.
pub fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// The lowest token of the highest logit.
pub fn greedy(logits: &[f32]) -> u32 {
    kvsp_engine::Sampler::greedy().sample(logits, 0)
}

/// Text-like tokens of the tiny model that do not repeat in a short period.
pub fn some_tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| 32 + (i.wrapping_mul(2_654_435_761) >> 16) % 95).collect()
}

/// Copy the first `blocks` pages to pages of another engine through raw sections.
pub fn transfer(
    from: &LlamaEngine,
    source: &[PageId],
    to: &mut LlamaEngine,
    target: &[PageId],
    blocks: usize,
) {
    for (&source, &target) in source.iter().zip(target).take(blocks) {
        for layer in 0..from.info().descriptor.layers as usize {
            let mut sections = Vec::new();
            from.read_layer(source, layer, &mut sections).unwrap();
            let (k, v) = sections.split_at(sections.len() / 2);
            to.write_layer(target, layer, k, v).unwrap();
        }
    }
}
