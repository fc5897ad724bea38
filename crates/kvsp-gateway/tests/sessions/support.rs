//! A gateway under test, and a client that reads its events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, Request};
use kvsp_client::{Client, ClientConfig, StreamedBody};
use kvsp_engine::{ChatMessage, Tokenizer, TokenizerError};
use kvsp_gateway::{GatewayConfig, GatewayModel, GatewayParts, serve};
use kvsp_net::Failure;
use kvsp_net::random::SystemRandom;
use kvsp_net::service::{ServeError, ServiceConfig};
use kvsp_proto::problem::ProblemType;
use kvsp_proto::uri::BaseUri;
use kvsp_testkit::generate::{descriptor, scope_key};
use kvsp_testkit::run::bind;
use kvsp_testkit::{Geometry, Running};
use serde_json::{Value, json};

use crate::controller::Controller;

/// Longest wait for anything that must happen.
pub(crate) const WAIT: Duration = Duration::from_secs(20);
pub(crate) const MODEL: &str = "test/octets";
pub(crate) const PROMPT: &str = "prompt";

/// A problem, as a service of the protocol answers it.
pub(crate) fn problem(kind: ProblemType) -> Response {
    Failure::new(kind, "scripted").into_response()
}

/// One octet a token.
struct Octets;

impl Tokenizer for Octets {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        let octets: Result<Vec<u8>, _> = tokens.iter().map(|&token| u8::try_from(token)).collect();
        let octets = octets.map_err(|e| TokenizerError::Convert(e.to_string()))?;
        Ok(String::from_utf8_lossy(&octets).into_owned())
    }

    fn chat(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, TokenizerError> {
        self.encode(&messages.iter().map(|message| message.content.as_str()).collect::<String>())
    }
}

pub(crate) struct Gateway {
    pub(crate) base: BaseUri,
    pub(crate) admin: BaseUri,
    running: Running<Result<(), ServeError>>,
}

impl Gateway {
    pub(crate) async fn start(controller: &Controller) -> Self {
        Self::start_with(controller, |_| {}).await
    }

    /// With other settings than the tests' usual ones, which are impatient.
    pub(crate) async fn start_with(controller: &Controller, change: impl FnOnce(&mut GatewayConfig)) -> Self {
        let mut config = GatewayConfig {
            controller: Some(controller.base.clone()),
            reconnect_ms: 10_000,
            keep_alive_ms: 20,
            ..GatewayConfig::default()
        };
        change(&mut config);
        let bound = bind(ServiceConfig { drain_timeout_ms: 0, ..ServiceConfig::default() }).await;
        let (base, admin) = (bound.base(), bound.admin());
        let parts = GatewayParts {
            model: GatewayModel {
                descriptor: Arc::new(descriptor(MODEL, Geometry::default())),
                tokenizer: Arc::new(Octets),
                max_context: 5000,
            },
            scope: Some(Arc::new(scope_key(7))),
            client: Client::new(ClientConfig {
                timeout: Duration::from_secs(2),
                idle_timeout: Duration::from_secs(10),
                ..ClientConfig::default()
            }),
            random: Arc::new(SystemRandom),
        };
        let running = Running::spawn(|stop| serve(config, bound, parts, || {}, stop));
        Self { base, admin, running }
    }

    /// The process ends; nobody is told.
    pub(crate) async fn stop(self) {
        self.running.stop().await.unwrap();
    }

    /// A streamed completion with the usage.
    pub(crate) async fn completion(&self, changes: &Value) -> Events {
        self.stream("v1/completions", &completion(changes)).await
    }

    pub(crate) async fn stream(&self, path: &str, body: &Value) -> Events {
        let (status, headers, body) = self.send("POST", path, body.to_string(), &[]).await;
        assert_eq!((status, &headers["content-type"]), (200, &"text/event-stream".parse().unwrap()));
        Events::new(&headers, body)
    }

    /// An answer that is JSON.
    pub(crate) async fn whole(&self, path: &str, body: &Value) -> (u16, HeaderMap, Value) {
        let (status, headers, body) = self.send("POST", path, body.to_string(), &[]).await;
        (status, headers, json_of(body).await)
    }

    /// Comes back to a session.
    pub(crate) async fn follow(&self, session: &str, last: Option<&str>) -> Events {
        let (status, headers, body) = self.get_stream(session, last).await;
        assert_eq!(status, 200);
        Events::new(&headers, body)
    }

    /// Comes back to a session, where that is not refused.
    pub(crate) async fn try_follow(&self, session: &str, last: Option<&str>) -> Option<Events> {
        let (status, headers, body) = self.get_stream(session, last).await;
        (status == 200).then(|| Events::new(&headers, body))
    }

    /// A streamed answer, or status and code of what it was refused with.
    pub(crate) async fn try_stream(&self, path: &str, body: &Value) -> Result<Events, (u16, Value)> {
        let (status, headers, body) = self.send("POST", path, body.to_string(), &[]).await;
        if status == 200 {
            return Ok(Events::new(&headers, body));
        }
        Err((status, json_of(body).await["error"]["code"].clone()))
    }

    /// A request to come back that is refused: status and code.
    pub(crate) async fn not_followed(&self, session: &str, last: Option<&str>) -> (u16, Value) {
        let (status, _, body) = self.get_stream(session, last).await;
        (status, json_of(body).await["error"]["code"].clone())
    }

    async fn get_stream(&self, session: &str, last: Option<&str>) -> (u16, HeaderMap, StreamedBody) {
        let headers: Vec<_> = last.map(|last| ("last-event-id", last)).into_iter().collect();
        self.send("GET", &format!("v1/streams/{session}"), String::new(), &headers).await
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: String,
        headers: &[(&str, &str)],
    ) -> (u16, HeaderMap, StreamedBody) {
        let mut request =
            Request::builder().method(method).uri("/").header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let client = Client::new(ClientConfig { timeout: WAIT, ..ClientConfig::default() });
        let answer = client.forward(&self.base, path, request.body(body.into()).unwrap()).await.unwrap();
        let (head, body) = answer.into_parts();
        (head.status.as_u16(), head.headers, body)
    }

    /// The value of a metric.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let client = Client::new(ClientConfig::default());
        let request = Request::get("/").body(Default::default()).unwrap();
        let body = client.forward(&self.admin, "metrics", request).await.unwrap().into_body();
        let text = String::from_utf8(octets(body).await).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }
}

async fn octets(mut body: StreamedBody) -> Vec<u8> {
    let mut octets = Vec::new();
    while let Some(chunk) = body.chunk().await.unwrap() {
        octets.extend_from_slice(&chunk);
    }
    octets
}

async fn json_of(body: StreamedBody) -> Value {
    serde_json::from_slice(&octets(body).await).unwrap()
}

/// A completion; without changes streamed, with the usage.
pub(crate) fn completion(changes: &Value) -> Value {
    changed(json!({"prompt": PROMPT}), changes)
}

/// A chat, likewise.
pub(crate) fn chat(changes: &Value) -> Value {
    changed(json!({"messages": [{"role": "user", "content": PROMPT}]}), changes)
}

fn changed(mut body: Value, changes: &Value) -> Value {
    let common = json!({
        "model": MODEL, "max_tokens": 100, "stream": true, "stream_options": {"include_usage": true},
    });
    for change in [&common, changes] {
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    }
    body.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    body
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) data: String,
}

impl Event {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap()
    }

    /// The text that it adds, in either form.
    pub(crate) fn text(&self) -> String {
        if self.data == "[DONE]" {
            return String::new();
        }
        let json = self.json();
        let text = json.pointer("/choices/0/text").or(json.pointer("/choices/0/delta/content"));
        text.and_then(Value::as_str).unwrap_or_default().to_owned()
    }
}

/// The events of an answer as they come.
pub(crate) struct Events {
    pub(crate) session: String,
    body: StreamedBody,
    pending: String,
    ready: VecDeque<Event>,
    /// Comments so far.
    pub(crate) comments: usize,
}

impl Events {
    fn new(headers: &HeaderMap, body: StreamedBody) -> Self {
        let session = headers.get("kvsp-session").map(|value| value.to_str().unwrap().to_owned());
        let session = session.unwrap_or_default();
        Self { session, body, pending: String::new(), ready: VecDeque::new(), comments: 0 }
    }

    /// The next event; `None` after the last, also where the connection breaks.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            self.read().await?;
        }
    }

    /// Reads a piece of the body, which may hold comments alone.
    pub(crate) async fn read(&mut self) -> Option<()> {
        let chunk = tokio::time::timeout(WAIT, self.body.chunk()).await.expect("no event comes");
        let chunk = chunk.ok().flatten()?;
        self.pending.push_str(std::str::from_utf8(&chunk).unwrap());
        while let Some((message, rest)) = self.pending.split_once("\n\n") {
            let (mut id, mut data) = (None, None);
            for line in message.lines() {
                match line.split_once(": ") {
                    Some(("id", value)) => id = Some(value.to_owned()),
                    Some(("data", value)) => data = Some(value.to_owned()),
                    _ => assert!(line.starts_with(':'), "{line:?}"),
                }
            }
            match data {
                Some(data) => self.ready.push_back(Event { id, data }),
                None => self.comments += 1,
            }
            self.pending = rest.to_owned();
        }
        Some(())
    }

    /// The next `count` events.
    pub(crate) async fn take(&mut self, count: usize) -> Vec<Event> {
        let mut events = Vec::new();
        while events.len() < count {
            events.push(self.next().await.expect("the stream ends early"));
        }
        events
    }

    /// All events that are left.
    pub(crate) async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

/// The text of events.
pub(crate) fn text_of(events: &[Event]) -> String {
    events.iter().map(Event::text).collect()
}

/// The identifiers of events.
pub(crate) fn ids(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.id.as_deref().unwrap_or_default()).collect()
}

/// The identifiers of a whole answer of `text`, each octet a token.
pub(crate) fn all_ids(text: &str) -> Vec<String> {
    let n = text.len();
    let ends = ["end", "usage", "done"].map(|kind| format!("{n}:{kind}"));
    (1..=n).map(|i| i.to_string()).chain(ends).collect()
}

/// The error that a broken answer ends with; nothing follows it.
pub(crate) fn error_of(events: &[Event]) -> String {
    let last = events.last().expect("an event");
    last.json()["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {events:?}")).to_owned()
}
