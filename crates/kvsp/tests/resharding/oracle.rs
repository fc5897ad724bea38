//! What one engine, alone and in this process, says to a prompt: where an answer went another way than the one that
//! nothing interrupted, every token of it must be one that a single engine chooses, or as good as.
//!
//! A split context adds attention up in another order, so logits differ in their last digits, and keys and values are
//! rounded to 16 bits after that. Where two tokens are that close, either is right.

use kvsp_engine::{Engine, PageId, Sampler, SamplerParams, Span};
use kvsp_llama::{LlamaEngine, LoadOptions, ModelSource};

/// Logits of a split context differ from those of a whole one by less than this, with 16 bits an element.
const TOLERANCE: f32 = 1e-2;

/// A question as an engine takes it.
pub(crate) struct Oracle {
    prompt: Vec<u32>,
    sampler: Sampler,
}

impl Oracle {
    /// For a question to the tiny model, of which an octet is a token.
    pub(crate) fn of(question: &serde_json::Value) -> Self {
        let temperature = question["temperature"].as_f64().unwrap();
        let top_k = question["top_k"].as_u64().map(|k| u32::try_from(k).unwrap());
        let params = SamplerParams { temperature, top_k, ..SamplerParams::default() };
        let sampler = Sampler::new(params, question["seed"].as_u64().unwrap()).unwrap();
        let prompt = question["prompt"].as_str().unwrap().bytes().map(u32::from).collect();
        Self { prompt, sampler }
    }

    /// Holds the tokens of an answer that is not the one that nothing interrupted: another only where two tokens lie
    /// closer than the tolerance; at how many of them it took the other way.
    pub(crate) fn hold(&self, tokens: &[u32], what: &str) -> usize {
        let others = self.others(tokens, what);
        eprintln!(
            "{what}: {others} of {} tokens are others, each within {TOLERANCE} of its logit",
            tokens.len()
        );
        assert!(others > 0, "{what}: the tokens are those of a single engine, and the text is another");
        others
    }

    /// How many of these output tokens a single engine would not have chosen, though as good.
    fn others(&self, tokens: &[u32], what: &str) -> usize {
        let options = LoadOptions { name: Some("kvsp/tiny".to_owned()), ..LoadOptions::default() };
        let mut engine = kvsp_llama::load(&ModelSource::Tiny { seed: 0 }, &options, &|_, _| {}).unwrap();
        let all = self.prompt.len() + tokens.len();
        let pages: Vec<PageId> = (0..all as u32).map(PageId).collect();
        let (mut next, mut position, mut others) = (self.prompt.clone(), 0, 0);
        for (step, &token) in tokens.iter().enumerate() {
            let computed = next.len();
            let logits = logits(&mut engine, next, position, &pages);
            position += computed;
            let step = step as u64;
            if self.sampler.sample(&logits, step) != token {
                let said = self.prompt.len() as u64 + step;
                assert!(self.is_close(&logits, step, token), "{what}: token {token} at position {said}");
                others += 1;
            }
            next = vec![token];
        }
        others
    }

    /// Whether this token would be chosen with logits that differ by less than the tolerance.
    fn is_close(&self, logits: &[f32], step: u64, token: u32) -> bool {
        // All up to one token a little higher, or lower, than the others: it moves the borders of the lot by as much as
        // can be. And this token alone a little higher.
        let moved = |higher: &dyn Fn(u32) -> bool| {
            let moved: Vec<f32> = (0..)
                .zip(logits)
                .map(|(id, logit)| if higher(id) { logit + TOLERANCE } else { logit - TOLERANCE })
                .collect();
            self.sampler.sample(&moved, step) == token
        };
        moved(&|id| id == token)
            || moved(&|id| id <= token)
            || moved(&|id| id > token)
            || moved(&|id| id < token)
            || moved(&|id| id >= token)
    }
}

/// The logits after the last of these tokens.
fn logits(engine: &mut LlamaEngine, tokens: Vec<u32>, position: usize, pages: &[PageId]) -> Vec<f32> {
    let pages = pages.get(..(position + tokens.len()).div_ceil(16)).unwrap().to_vec();
    let mut pass = engine.begin(vec![Span { tokens, position, first_page: 0, pages, logits: true }]).unwrap();
    while engine.next_layer(&pass).is_some() {
        engine.step_layer(&mut pass).unwrap();
    }
    engine.finish(pass).unwrap().remove(0).unwrap()
}
