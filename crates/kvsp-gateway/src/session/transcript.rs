//! The answer of a session as far as it is known: one driver writes it, any number of readers read it.

use kvsp_openai::{FinishReason, Usage};

use super::place::Place;

/// Octets that one piece takes beside its text.
const MARK_OCTETS: u64 = size_of::<Mark>() as u64;

/// Text and end of an answer. It only ever grows, and is a function of the output tokens alone.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    /// The text of all pieces.
    text: String,
    /// Where pieces end, in order.
    marks: Vec<Mark>,
    /// Output tokens taken.
    tokens: u64,
    end: Option<End>,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    /// Output tokens taken once the piece was there.
    after: u64,
    /// Where its text ends.
    end: usize,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself.
    Finished {
        /// Text that was held back until no stop string could begin in it any more.
        rest: String,
        /// Why.
        reason: FinishReason,
        /// Prompt tokens whose KV cache was reused, where the instance told.
        cached: Option<u64>,
    },
    /// It cannot go on; the text is for the client.
    Failed(String),
}

/// What a reader finds at its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    /// A piece of text, and the place after it.
    Text(&'a str, Place),
    /// Why the output ended.
    Finish(FinishReason, Place),
    /// The usage: output tokens, prompt tokens reused.
    Usage(u64, Option<u64>, Place),
    /// The end of everything.
    Done(Place),
    /// The answer broke off.
    Failed(&'a str),
    /// Nothing yet.
    Nothing,
}

impl Transcript {
    /// Takes in the next token's text, which may be empty; the octets that this takes up.
    pub(crate) fn push(&mut self, text: &str) -> u64 {
        self.tokens += 1;
        if text.is_empty() {
            return 0;
        }
        self.text.push_str(text);
        self.marks.push(Mark { after: self.tokens, end: self.text.len() });
        text.len() as u64 + MARK_OCTETS
    }

    /// The answer is over. A second end changes nothing.
    pub(crate) fn finish(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    /// How the answer ended.
    pub(crate) const fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// What comes after a place; `None` once nothing does.
    pub(crate) fn after(&self, place: Place) -> Option<Found<'_>> {
        if let Place::Tokens(n) = place {
            let next = self.marks.partition_point(|mark| mark.after <= n);
            if let Some(mark) = self.marks.get(next) {
                let begin = next.checked_sub(1).and_then(|i| self.marks.get(i)).map_or(0, |mark| mark.end);
                return Some(Found::Text(&self.text[begin..mark.end], Place::Tokens(mark.after)));
            }
        }
        let (rest, reason, cached) = match &self.end {
            None => return (!matches!(place, Place::Done(_))).then_some(Found::Nothing),
            Some(End::Failed(why)) => {
                return (!matches!(place, Place::Done(_))).then_some(Found::Failed(why));
            }
            Some(End::Finished { rest, reason, cached }) => (rest, *reason, *cached),
        };
        let n = self.tokens;
        Some(match place {
            Place::Tokens(_) if !rest.is_empty() => Found::Text(rest, Place::Rest(n)),
            Place::Tokens(_) | Place::Rest(_) => Found::Finish(reason, Place::End(n)),
            Place::End(_) => Found::Usage(n, cached, Place::Usage(n)),
            Place::Usage(_) => Found::Done(Place::Done(n)),
            Place::Done(_) => return None,
        })
    }

    /// The text of all pieces, without what a finished answer held back.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Output tokens taken.
    pub(crate) const fn tokens(&self) -> u64 {
        self.tokens
    }
}

/// The usage of an answer. What is not known is left out, not told as 0.
pub(crate) fn usage(prompt: u64, output: u64, cached: Option<u64>) -> Usage {
    let mut usage = Usage::new(prompt, output, cached.unwrap_or_default());
    if cached.is_none() {
        usage.prompt_tokens_details = None;
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let mut transcript = Transcript::default();
        for text in ["a", "", "bc", ""] {
            transcript.push(text);
        }
        transcript
    }

    fn walk(transcript: &Transcript, mut place: Place) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            let Some(found) = transcript.after(place) else { return seen };
            place = match found {
                Found::Text(text, next) => {
                    seen.push(format!("{next} {text}"));
                    next
                }
                Found::Finish(_, next) | Found::Usage(_, _, next) | Found::Done(next) => {
                    seen.push(next.to_string());
                    next
                }
                Found::Failed(why) => {
                    seen.push(why.to_owned());
                    return seen;
                }
                Found::Nothing => return seen,
            };
        }
    }

    #[test]
    fn a_reader_goes_on_from_any_place() {
        let mut transcript = transcript();
        assert_eq!(walk(&transcript, Place::Tokens(0)), ["1 a", "3 bc"]);
        transcript.finish(End::Finished { rest: "d".into(), reason: FinishReason::Length, cached: None });
        let all = ["1 a", "3 bc", "4:rest d", "4:end", "4:usage", "4:done"];
        let places = ["0", "1", "2", "3", "4", "4:rest", "4:end", "4:usage", "4:done"];
        let skipped = [0, 1, 1, 2, 2, 3, 4, 5, 6];
        for (place, skipped) in places.iter().zip(skipped) {
            assert_eq!(walk(&transcript, Place::parse(place).unwrap()), all[skipped..], "{place}");
        }
        transcript.finish(End::Failed("late".into()));
        assert_eq!(walk(&transcript, Place::Tokens(9)).len(), 4);
    }

    #[test]
    fn a_place_beyond_what_is_known_waits() {
        let mut transcript = transcript();
        for place in [Place::Tokens(7), Place::End(7), Place::Usage(7)] {
            assert_eq!(transcript.after(place), Some(Found::Nothing));
        }
        transcript.finish(End::Failed("broken".into()));
        assert_eq!(walk(&transcript, Place::Tokens(1)), ["3 bc", "broken"]);
        assert_eq!(transcript.after(Place::Done(7)), None);
    }
}
