//! Tokens to text as they come: incomplete UTF-8 and possible stop strings are held back.

use std::sync::Arc;

use crate::{Tokenizer, TokenizerError};

/// What a decoder writes for octets that are not (yet) UTF-8.
const REPLACEMENT: char = '\u{FFFD}';

/// Tokens kept for context; an incomplete character spans at most so many.
const CONTEXT: usize = 4;

/// Window length at which even a text that never ends on a character boundary is cut.
const MAX_WINDOW: usize = 64;

/// Turns tokens into text one by one. The concatenation of all deltas and [`Detokenizer::finish`] is the text
/// of all tokens.
pub struct Detokenizer {
    tokenizer: Arc<dyn Tokenizer>,
    /// The last tokens: some whose text is out, for context, and those after them.
    window: Vec<u32>,
    /// Octets of the window's text that are out already.
    emitted: usize,
}

impl Detokenizer {
    /// A detokenizer at the start of a text.
    #[must_use]
    pub fn new(tokenizer: Arc<dyn Tokenizer>) -> Self {
        Self { tokenizer, window: Vec::new(), emitted: 0 }
    }

    /// Take a token; returns the text that no later token can change.
    ///
    /// # Errors
    /// [`TokenizerError::Convert`] for a token outside the vocabulary; the token is then not taken.
    pub fn push(&mut self, token: u32) -> Result<String, TokenizerError> {
        self.window.push(token);
        let text = match self.tokenizer.decode(&self.window) {
            Ok(text) => text,
            Err(error) => {
                self.window.pop();
                return Err(error);
            }
        };
        // An incomplete character is one replacement character, and only at the end.
        let safe = text.strip_suffix(REPLACEMENT).unwrap_or(&text);
        let delta = safe.get(self.emitted..).unwrap_or_default().to_owned();
        self.emitted = self.emitted.max(safe.len());
        let clean = safe.len() == text.len();
        if (clean && self.window.len() > CONTEXT) || self.window.len() >= MAX_WINDOW {
            self.rebase()?;
        }
        Ok(delta)
    }

    /// The text still held back, at the end.
    ///
    /// # Errors
    /// As [`Detokenizer::push`].
    pub fn finish(&mut self) -> Result<String, TokenizerError> {
        let text = self.tokenizer.decode(&self.window)?;
        let rest = text.get(self.emitted..).unwrap_or_default().to_owned();
        self.window.clear();
        self.emitted = 0;
        Ok(rest)
    }

    /// Forget all but the last tokens, so that a push costs the same at any length.
    fn rebase(&mut self) -> Result<(), TokenizerError> {
        self.window.drain(..self.window.len().saturating_sub(CONTEXT));
        let text = self.tokenizer.decode(&self.window)?;
        self.emitted = text.strip_suffix(REPLACEMENT).unwrap_or(&text).len();
        Ok(())
    }
}

/// Finds stop strings in a text that comes in pieces.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// A matcher for these strings; empty ones never match.
    #[must_use]
    pub fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self { stops, held: String::new(), stopped: false }
    }

    /// Take a piece of text; returns what may be shown and whether a stop string ended the text. The stop
    /// string itself and all after it are never shown.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        if self.stopped {
            return (String::new(), true);
        }
        self.held.push_str(text);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.stopped = true;
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// The text held back, at the end of the text; empty after a stop.
    pub fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Octets of the longest suffix of `text` that is a proper prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let ends = stop.char_indices().map(|(at, _)| at).skip(1);
    ends.filter(|&at| text.ends_with(&stop[..at])).last().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ChatMessage;

    /// One octet a token.
    struct Octets;

    impl Tokenizer for Octets {
        fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
            Ok(text.bytes().map(u32::from).collect())
        }

        fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
            let octets: Result<Vec<u8>, _> = tokens.iter().map(|&t| u8::try_from(t)).collect();
            let octets = octets.map_err(|e| TokenizerError::Convert(e.to_string()))?;
            Ok(String::from_utf8_lossy(&octets).into_owned())
        }

        fn chat(&self, _: &[ChatMessage]) -> Result<Vec<u32>, TokenizerError> {
            Err(TokenizerError::Template("none".into()))
        }
    }

    fn deltas(octets: &[u8]) -> (Vec<String>, String) {
        let mut detokenizer = Detokenizer::new(Arc::new(Octets));
        let out = octets.iter().map(|&o| detokenizer.push(u32::from(o)).unwrap()).collect();
        (out, detokenizer.finish().unwrap())
    }

    #[test]
    fn a_character_comes_out_whole() {
        let (out, rest) = deltas("a😀é".as_bytes());
        assert_eq!(out, ["a", "", "", "", "😀", "", "é"]);
        assert_eq!(rest, "");
    }

    #[test]
    fn a_broken_tail_comes_out_at_the_end() {
        let (out, rest) = deltas(&[b'x', 0xF0, 0x9F]);
        assert_eq!(out, ["x", "", ""]);
        assert_eq!(rest, "\u{FFFD}");
    }

    #[test]
    fn an_unknown_token_changes_nothing() {
        let mut detokenizer = Detokenizer::new(Arc::new(Octets));
        assert_eq!(detokenizer.push(u32::from(b'a')).unwrap(), "a");
        assert!(detokenizer.push(1000).is_err());
        assert_eq!(detokenizer.push(u32::from(b'b')).unwrap(), "b");
    }

    #[test]
    fn stops_are_found_across_pieces() {
        let mut matcher = StopMatcher::new(vec!["END".into(), String::new()]);
        assert_eq!(matcher.push("one E"), ("one ".into(), false));
        assert_eq!(matcher.push("N"), (String::new(), false));
        assert_eq!(matcher.push("x E"), ("ENx ".into(), false));
        assert_eq!(matcher.push("ND rest"), (String::new(), true));
        assert_eq!(matcher.push("more"), (String::new(), true));
        assert_eq!(matcher.flush(), "");
    }

    #[test]
    fn what_is_held_comes_out_on_flush() {
        let mut matcher = StopMatcher::new(vec!["\n\n".into()]);
        assert_eq!(matcher.push("a\n"), ("a".into(), false));
        assert_eq!(matcher.flush(), "\n");
    }

    proptest! {
        #[test]
        fn deltas_add_up(octets in proptest::collection::vec(any::<u8>(), 0..300)) {
            let (out, rest) = deltas(&octets);
            prop_assert_eq!(out.concat() + &rest, String::from_utf8_lossy(&octets).into_owned());
        }

        #[test]
        fn pieces_do_not_change_what_is_matched(
            text in "[ab\u{e9}]{0,30}",
            stop in "[ab\u{e9}]{1,4}",
            piece in 1usize..5,
        ) {
            let mut matcher = StopMatcher::new(vec![stop.clone()]);
            let chars: Vec<char> = text.chars().collect();
            let (mut shown, mut stopped) = (String::new(), false);
            for chunk in chars.chunks(piece) {
                let (emit, stop) = matcher.push(&chunk.iter().collect::<String>());
                shown.push_str(&emit);
                stopped |= stop;
            }
            shown.push_str(&matcher.flush());
            prop_assert_eq!(stopped, text.contains(&stop));
            prop_assert_eq!(shown, text.split(&stop).next().unwrap_or_default());
        }
    }
}
