//! An answer as a client hears it, event by event.

use std::collections::VecDeque;

use bytes::Bytes;
use http::{HeaderMap, Request};
use kvsp_client::{Client, ClientConfig, StreamedBody};
use kvsp_proto::uri::BaseUri;
use serde_json::{Value, json};

use crate::support::{JSON, MODEL, PATIENCE};

/// How tokens are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sampling {
    Sampled,
    Greedy,
}

pub(crate) const BOTH: [Sampling; 2] = [Sampling::Sampled, Sampling::Greedy];

/// Output tokens of an answer, unless it ends before.
pub(crate) const TOKENS: u64 = 160;

/// A question, the same every time.
pub(crate) fn question(sampling: Sampling) -> Value {
    let prompt = "A session outlives its instance, and a replica is a copy of a block. ".repeat(3);
    let temperature = if sampling == Sampling::Greedy { 0.0 } else { 0.8 };
    json!({
        "model": MODEL, "prompt": prompt, "max_tokens": TOKENS, "temperature": temperature, "seed": 20_260,
        "stream": true, "stream_options": {"include_usage": true},
    })
}

/// A question with other members.
pub(crate) fn changed(mut question: Value, changes: &Value) -> Value {
    question.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    question
}

/// The text of an answer.
pub(crate) fn text(heard: &[Event]) -> String {
    heard.iter().map(|event| event.essence().1).filter(|text| text != "[DONE]").collect()
}

/// One event: its identifier and its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) data: String,
}

impl Event {
    /// Output tokens that a client has with it.
    pub(crate) fn tokens(&self) -> u64 {
        self.id.split(':').next().unwrap().parse().unwrap_or_else(|_| panic!("no place: {self:?}"))
    }

    /// What depends on the tokens alone: the place, the text and the reason of the end.
    fn essence(&self) -> (String, String, Value) {
        if self.data == "[DONE]" {
            return (self.id.clone(), self.data.clone(), Value::Null);
        }
        let value: Value = serde_json::from_str(&self.data).unwrap_or_else(|_| panic!("{self:?}"));
        assert!(value.get("error").is_none(), "{self:?}");
        let choice = &value["choices"][0];
        let text = choice["text"].as_str().or(choice["delta"]["content"].as_str());
        let text = text.unwrap_or_default().to_owned();
        let usage = &value["usage"];
        let end = json!([choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"]]);
        (self.id.clone(), text, end)
    }
}

/// A stream that is being read.
pub(crate) struct Stream {
    body: StreamedBody,
    line: Vec<u8>,
    event: Event,
    ready: VecDeque<Event>,
    /// All that was heard.
    pub(crate) heard: Vec<Event>,
    /// Lines of comments.
    pub(crate) comments: u64,
    pub(crate) headers: HeaderMap,
}

impl Stream {
    /// Asks.
    pub(crate) async fn ask(gateway: &BaseUri, body: &Value) -> Self {
        let path = if body.get("messages").is_some() { "v1/chat/completions" } else { "v1/completions" };
        let request = Request::post("/").header(JSON.0, JSON.1).body(Bytes::from(body.to_string()));
        Self::open(gateway, path, request.unwrap()).await
    }

    /// Goes on with a session after the last event that was heard.
    pub(crate) async fn again(gateway: &BaseUri, session: &str, heard: Vec<Event>) -> Self {
        let request = Request::get("/").header("last-event-id", &heard.last().unwrap().id);
        let request = request.body(Bytes::new()).unwrap();
        let stream = Self::open(gateway, &format!("v1/streams/{session}"), request).await;
        Self { heard, ..stream }
    }

    async fn open(gateway: &BaseUri, path: &str, request: Request<Bytes>) -> Self {
        let config = ClientConfig { timeout: PATIENCE, idle_timeout: PATIENCE, ..ClientConfig::default() };
        let answer = Client::new(config).forward(gateway, path, request).await.unwrap();
        let (head, mut body) = answer.into_parts();
        if head.status != 200 {
            let text = body.chunk().await.unwrap().unwrap_or_default();
            panic!("{}: {}", head.status, String::from_utf8_lossy(&text));
        }
        Self {
            body,
            line: Vec::new(),
            event: Event { id: String::new(), data: String::new() },
            ready: VecDeque::new(),
            heard: Vec::new(),
            comments: 0,
            headers: head.headers,
        }
    }

    /// The session that serves it.
    pub(crate) fn session(&self) -> String {
        self.headers["kvsp-session"].to_str().unwrap().to_owned()
    }

    /// The next event; `None` where the stream ends or breaks.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.heard.push(event.clone());
                return Some(event);
            }
            let octets = self.body.chunk().await.ok()??;
            for octet in octets {
                if octet == b'\n' { self.end_line() } else { self.line.push(octet) }
            }
        }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8(std::mem::take(&mut self.line)).unwrap();
        match line.split_once(':') {
            Some(("", _)) => self.comments += 1,
            Some(("id", value)) => value.trim().clone_into(&mut self.event.id),
            Some(("data", value)) => value.trim().clone_into(&mut self.event.data),
            _ if !self.event.data.is_empty() => {
                // An event without an identifier keeps that of the one before it.
                let next = Event { id: self.event.id.clone(), data: String::new() };
                self.ready.push_back(std::mem::replace(&mut self.event, next));
            }
            _ => {}
        }
    }

    /// Reads until the client has so many tokens.
    pub(crate) async fn until(&mut self, tokens: u64) {
        while self.tokens() < tokens {
            let event = self.next().await.expect("the answer is longer");
            assert_ne!(event.data, "[DONE]", "the answer is longer");
        }
    }

    /// Output tokens that the client has.
    pub(crate) fn tokens(&self) -> u64 {
        self.heard.last().map_or(0, Event::tokens)
    }

    /// Reads to the end, which must be told.
    pub(crate) async fn whole(mut self) -> Vec<Event> {
        while self.next().await.is_some() {}
        assert_eq!(self.heard.last().map(|event| event.data.as_str()), Some("[DONE]"), "it broke off");
        self.heard
    }
}

/// Every index once, in order, none altered: the events are those of the answer that nothing interrupted.
#[track_caller]
pub(crate) fn assert_equal(heard: &[Event], whole: &[Event], what: &str) {
    let essence = |events: &[Event]| events.iter().map(Event::essence).collect::<Vec<_>>();
    let (heard, whole) = (essence(heard), essence(whole));
    let differ = heard.iter().zip(&whole).position(|(one, two)| one != two);
    if let Some(at) = differ {
        panic!("{what}: event {at} is {:?} and should be {:?}", heard[at], whole[at]);
    }
    assert_eq!(heard.len(), whole.len(), "{what}");
}
