//! What one engine, alone, says to a prompt, and how sure it is.

use kvsp_engine::{Engine, PageId, Span, Tokenizer as _};
use kvsp_llama::ModelSource;

use crate::support::Setup;

/// Logits of a context that is split differ from those of one that is not by less than this. Attention is added up in
/// another order; where a key or value then lies on the other side between two steps of `float16`, it differs by one
/// of them: 1.6e-3 was seen.
pub(crate) const TOLERANCE: f32 = 3e-3;

/// A greedy answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    /// How far the highest logit lay above the next, for each token and for the end, where it came to it.
    pub(crate) margins: Vec<f32>,
}

/// The greedy answer of a single engine, by passes of one token each after the prompt's.
pub(crate) fn greedy(prompt: &[u32], max_tokens: usize) -> Answer {
    let setup = Setup::alone();
    let mut engine = setup.prepared().load(&|_, _| {}).unwrap();
    let info = engine.info().clone();
    let pages: Vec<PageId> = (0..u32::try_from(info.pages).unwrap()).map(PageId).collect();
    let mut answer = Answer { tokens: Vec::new(), margins: Vec::new() };
    let (mut next, mut position) = (prompt.to_vec(), 0);
    while answer.tokens.len() < max_tokens {
        let computed = next.len();
        let span = Span { tokens: next, position, first_page: 0, pages: pages.clone(), logits: true };
        let mut pass = engine.begin(vec![span]).unwrap();
        while engine.next_layer(&pass).is_some() {
            engine.step_layer(&mut pass).unwrap();
        }
        let logits = engine.finish(pass).unwrap().remove(0).unwrap();
        position += computed;
        let (token, margin) = best(&logits);
        answer.margins.push(margin);
        if info.eos.contains(&token) {
            break;
        }
        answer.tokens.push(token);
        next = vec![token];
    }
    answer
}

/// The text of output tokens.
pub(crate) fn text(tokens: &[u32]) -> String {
    kvsp_llama::tokenizer(&ModelSource::Tiny { seed: 0 }).unwrap().decode(tokens).unwrap()
}

/// The token of the highest logit, and how far that lies above the next.
fn best(logits: &[f32]) -> (u32, f32) {
    let mut ranked: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    (ranked[0].1, ranked[0].0 - ranked[1].0)
}

impl Answer {
    /// As [`Self::assert_same`] where only the text is told: equal, or equal up to the first such place.
    pub(crate) fn assert_same_text(&self, told: &str, what: &str) {
        if told == text(&self.tokens) {
            return;
        }
        let close = self.margins.iter().position(|margin| *margin < TOLERANCE);
        let sure = close.and_then(|at| self.tokens.get(..at));
        let sure = sure.unwrap_or_else(|| panic!("{what}: {told:?} where {:?} is sure", text(&self.tokens)));
        assert!(told.starts_with(&text(sure)), "{what}: {told:?} where {:?} is sure", text(sure));
        eprintln!("{what}: goes another way after {} tokens, where the two highest lay close", sure.len());
    }

    /// Holds the tokens of a split context to this answer: equal, or different only from where the two highest logits
    /// lay closer than [`TOLERANCE`]. Such places are told.
    pub(crate) fn assert_same(&self, told: &[u32], what: &str) {
        let close = self.margins.iter().filter(|margin| **margin < TOLERANCE).count();
        if close > 0 {
            eprintln!("{what}: the two highest logits lie closer than {TOLERANCE} at {close} tokens");
        }
        let common = self.tokens.iter().zip(told).take_while(|(a, b)| a == b).count();
        if common == self.tokens.len() && common == told.len() {
            return;
        }
        let margin = self.margins.get(common).copied().unwrap_or(f32::INFINITY);
        assert!(
            margin < TOLERANCE,
            "{what}: token {common} differs, where the highest logit lay {margin} above the next: {:?} {told:?}",
            self.tokens
        );
        eprintln!("{what}: goes another way at token {common}, where the two highest lay {margin} apart");
    }
}
