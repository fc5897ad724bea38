//! From output tokens to the text of an answer: detokenised, cut at stop strings and at the limit.

use std::sync::Arc;

use kvsp_engine::{Detokenizer, StopMatcher, Tokenizer, TokenizerError};

/// Renders the output of one session. Equal tokens give equal pieces, in whatever portions they come.
pub(crate) struct Renderer {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// Output tokens that may still come.
    left: u64,
}

/// The text of one token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rendered {
    /// What may be shown; may be empty.
    pub(crate) text: String,
    /// Whether a stop string ended the output.
    pub(crate) stopped: bool,
}

impl Renderer {
    /// A renderer at the start of an output of at most `max_tokens` tokens.
    pub(crate) fn new(tokenizer: Arc<dyn Tokenizer>, stops: Vec<String>, max_tokens: u64) -> Self {
        Self { detokenizer: Detokenizer::new(tokenizer), stops: StopMatcher::new(stops), left: max_tokens }
    }

    /// The next token's text.
    ///
    /// # Errors
    /// [`TokenizerError`] for a token outside the vocabulary.
    pub(crate) fn push(&mut self, token: u32) -> Result<Rendered, TokenizerError> {
        let text = self.detokenizer.push(token)?;
        self.left = self.left.saturating_sub(1);
        let (text, stopped) = self.stops.push(&text);
        Ok(Rendered { text, stopped })
    }

    /// Whether the limit on tokens is reached.
    pub(crate) const fn is_full(&self) -> bool {
        self.left == 0
    }

    /// The text still held back, at the end of the output; a stop string may end in it.
    ///
    /// # Errors
    /// As [`Renderer::push`].
    pub(crate) fn finish(&mut self) -> Result<Rendered, TokenizerError> {
        let rest = self.detokenizer.finish()?;
        let (mut text, stopped) = self.stops.push(&rest);
        if !stopped {
            text.push_str(&self.stops.flush());
        }
        Ok(Rendered { text, stopped })
    }
}
