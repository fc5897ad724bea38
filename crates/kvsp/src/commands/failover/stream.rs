//! One streamed answer, with the time of every event.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http::header::CONTENT_TYPE;
use kvsp_client::{Client, StreamedBody};
use kvsp_openai::{ChatChunk, ErrorBody, sse};
use kvsp_proto::path::{CHAT_COMPLETIONS, SESSION_HEADER};
use kvsp_proto::uri::BaseUri;
use serde_json::json;
use uuid::Uuid;

use super::FailoverError;
use super::events::{Raw, Reader};

/// Events of a run over which the time of a token is taken.
const RUN: usize = 8;
/// Longest error body that is shown.
const MAX_ERROR_OCTETS: usize = 4096;

/// What is asked: sampled, so that nothing but the sampler's state makes two answers equal.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    /// The model's name.
    pub(crate) model: String,
    /// What the user says.
    pub(crate) text: String,
    /// Most output tokens.
    pub(crate) max_tokens: u32,
    /// The sampler's temperature.
    pub(crate) temperature: f64,
    /// The sampler's seed.
    pub(crate) seed: u64,
}

/// One event as it came.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// When it came.
    pub(crate) at: Instant,
    /// Output tokens that the client has with it; without a session, events.
    pub(crate) tokens: u64,
    /// Whether its text was held back until the answer was over, since a stop string could have begun in it.
    is_rest: bool,
    /// The text that it brings.
    pub(crate) text: String,
}

/// All that came.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heard {
    pub(crate) events: Vec<Event>,
    /// Whether the end was told.
    whole: bool,
}

impl Heard {
    /// The whole text.
    pub(crate) fn text(&self) -> String {
        self.events.iter().map(|event| event.text.as_str()).collect()
    }

    /// Output tokens.
    pub(crate) fn tokens(&self) -> u64 {
        self.events.last().map_or(0, |event| event.tokens)
    }

    /// Whether every event tells of more tokens than the one before it: none comes again, none goes back.
    pub(crate) fn is_in_order(&self) -> bool {
        self.events.windows(2).all(|pair| match pair {
            [one, next] => one.tokens < next.tokens || (one.tokens == next.tokens && next.is_rest),
            _ => true,
        })
    }

    /// Text and place of every event, which depend on the tokens alone.
    pub(crate) fn is_equal(&self, other: &Self) -> bool {
        let same = |one: &Event, two: &Event| (one.tokens, &one.text) == (two.tokens, &two.text);
        self.events.len() == other.events.len()
            && self.events.iter().zip(&other.events).all(|(one, two)| same(one, two))
    }

    /// The longest time between two events of which the later came at `from` or afterwards.
    pub(crate) fn longest_gap(&self, from: Instant) -> Duration {
        self.gaps()
            .filter(|gap| gap.1 >= from)
            .map(|gap| gap.1.duration_since(gap.0))
            .max()
            .unwrap_or_default()
    }

    /// The longest time between two events that has a moment of `span` in it.
    pub(crate) fn longest_gap_in(&self, span: std::ops::RangeInclusive<Instant>) -> Duration {
        let within = self.gaps().filter(|gap| gap.1 >= *span.start() && gap.0 <= *span.end());
        within.map(|gap| gap.1.duration_since(gap.0)).max().unwrap_or_default()
    }

    /// How long a token usually takes: the median over runs of a few events, for what is recorded together comes at
    /// once.
    pub(crate) fn usual_gap(&self) -> Duration {
        let run = (self.events.len() / 4).clamp(1, RUN);
        let ends = self.events.iter().zip(self.events.iter().skip(run));
        let mut all: Vec<Duration> = ends
            .map(|(one, last)| last.at.duration_since(one.at) / u32::try_from(run).unwrap_or(1))
            .collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or_default()
    }

    /// Every two events that follow each other.
    fn gaps(&self) -> impl Iterator<Item = (Instant, Instant)> {
        self.events.iter().zip(self.events.iter().skip(1)).map(|(one, next)| (one.at, next.at))
    }
}

/// An answer that is being streamed.
pub(crate) struct Stream {
    body: StreamedBody,
    reader: Reader,
    ready: VecDeque<Raw>,
    /// The session that serves it.
    pub(crate) session: Option<Uuid>,
}

impl Stream {
    /// Asks.
    pub(crate) async fn open(
        client: &Client,
        gateway: &BaseUri,
        question: &Question,
    ) -> Result<Self, FailoverError> {
        let body = json!({
            "model": question.model,
            "messages": [{"role": "user", "content": question.text}],
            "temperature": question.temperature,
            "seed": question.seed,
            "max_tokens": question.max_tokens,
            "stream": true,
        });
        let request = Request::post("/")
            .header(CONTENT_TYPE, "application/json")
            .body(Bytes::from(body.to_string()))
            .map_err(|error| FailoverError::Answer(error.to_string()))?;
        let (head, mut body) = client.forward(gateway, CHAT_COMPLETIONS, request).await?.into_parts();
        if !head.status.is_success() {
            let mut text = Vec::new();
            while text.len() < MAX_ERROR_OCTETS
                && let Some(octets) = body.chunk().await?
            {
                text.extend_from_slice(&octets);
            }
            let body = String::from_utf8_lossy(&text).into_owned();
            return Err(FailoverError::Gateway { status: head.status.as_u16(), body });
        }
        let session = head.headers.get(SESSION_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(Self { body, reader: Reader::default(), ready: VecDeque::new(), session })
    }

    /// Waits for what comes next and adds it; `false` after the last.
    pub(crate) async fn hear(&mut self, heard: &mut Heard) -> Result<bool, FailoverError> {
        loop {
            if let Some(raw) = self.ready.pop_front() {
                if raw.data == sse::DONE {
                    heard.whole = true;
                    continue;
                }
                if heard.take(&raw)? {
                    return Ok(true);
                }
                continue;
            }
            match self.body.chunk().await? {
                Some(octets) => self.ready.extend(self.reader.push(&octets)?),
                None if heard.whole => return Ok(false),
                None => return Err(FailoverError::Answer("the stream broke off before its end".to_owned())),
            }
        }
    }
}

impl Heard {
    /// Takes in an event; whether it brought text.
    fn take(&mut self, raw: &Raw) -> Result<bool, FailoverError> {
        let at = Instant::now();
        let unreadable = |error: serde_json::Error| match serde_json::from_str::<ErrorBody>(&raw.data) {
            Ok(body) => FailoverError::Answer(body.error.message),
            Err(_) => FailoverError::Answer(error.to_string()),
        };
        let chunk: ChatChunk = serde_json::from_str(&raw.data).map_err(unreadable)?;
        let text: String = chunk.choices.into_iter().filter_map(|choice| choice.delta.content).collect();
        if text.is_empty() {
            return Ok(false);
        }
        let (tokens, of_end) = raw.id.split_once(':').unwrap_or((&raw.id, ""));
        let tokens = match tokens {
            // Without a session there are no places: an event a token, but for those without text.
            "" => self.tokens() + 1,
            place => place.parse().map_err(|_| FailoverError::Answer(format!("an event at {place:?}")))?,
        };
        self.events.push(Event { at, tokens, is_rest: !of_end.is_empty(), text });
        Ok(true)
    }
}

/// Asks and hears the answer to its end.
pub(crate) async fn listen(
    client: &Client,
    gateway: &BaseUri,
    question: &Question,
) -> Result<Heard, FailoverError> {
    let mut stream = Stream::open(client, gateway, question).await?;
    let mut heard = Heard::default();
    while stream.hear(&mut heard).await? {}
    Ok(heard)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(events: &[(u64, u64)]) -> Heard {
        let begin = Instant::now();
        let event = |&(ms, tokens)| Event {
            at: begin + Duration::from_millis(ms),
            tokens,
            is_rest: tokens == 9,
            text: format!("{tokens};"),
        };
        Heard { events: events.iter().map(event).collect(), whole: true }
    }

    #[test]
    fn order_equality_and_gaps_are_seen() {
        let one = heard(&[(0, 1), (300, 2), (310, 4), (1000, 5), (1010, 6)]);
        assert_eq!((one.text().as_str(), one.tokens(), one.is_in_order()), ("1;2;4;5;6;", 6, true));
        assert!(one.is_equal(&heard(&[(0, 1), (0, 2), (0, 4), (0, 5), (0, 6)])));
        assert!(!one.is_equal(&heard(&[(0, 1), (0, 2), (0, 4), (0, 5)])));
        assert!(!one.is_equal(&heard(&[(0, 1), (0, 2), (0, 4), (0, 5), (0, 7)])));
        assert!(heard(&[(0, 8), (0, 9), (0, 9)]).is_in_order());
        assert!(!heard(&[(0, 1), (1, 1)]).is_in_order() && !heard(&[(0, 2), (1, 1)]).is_in_order());
        assert_eq!(one.longest_gap(one.events[0].at), Duration::from_millis(690));
        assert_eq!(one.longest_gap(one.events[4].at), Duration::from_millis(10));
        assert_eq!(one.longest_gap_in(one.events[0].at..=one.events[1].at), Duration::from_millis(300));
        assert_eq!(one.usual_gap(), Duration::from_millis(300));
    }
}
