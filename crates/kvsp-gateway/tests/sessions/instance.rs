//! An instance of the test's own making: each connection gets the next answer of its script.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use axum::routing::{get, post};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use kvsp_net::random::{Random as _, SeededRandom};
use kvsp_net::service::ServiceConfig;
use kvsp_proto::problem::ProblemType;
use kvsp_proto::uri::BaseUri;
use kvsp_testkit::TestService;
use serde_json::{Value, json};
use tokio::sync::watch;
use uuid::Uuid;

use crate::support::{WAIT, problem};

/// What a stream does next.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// A token: epoch, index, octet.
    Token(u64, u64, u8),
    /// The first token, with what the instance tells of the prompt: epoch, octet, tokens reused.
    First(u64, u8, u64),
    /// The end of the output: reason, epoch, tokens reused.
    Done(&'static str, u64, u64),
    Comment,
    /// The connection breaks.
    Cut,
    /// The body ends as if it were whole.
    End,
    /// Silence until the test says a word.
    Hang,
}

/// What a connection is answered.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Stream(Vec<Act>),
    /// Whatever a seed makes of a text in an epoch, from the index asked for: repetitions, old epochs, gaps,
    /// comments, and a break somewhere; or the rest of the text.
    Noisy {
        text: &'static str,
        epoch: u64,
        seed: u64,
    },
    /// First the prompt must be given.
    NeedsPrompt(Vec<Act>),
    Problem(ProblemType),
    /// Events as they are given, and `[DONE]`.
    Raw(Vec<Value>),
    /// An error in the form of the OpenAI API.
    Error(u16, Value),
}

/// What an instance was sent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sent {
    Begin { session: String, epoch: String, map: Option<String>, body: Value },
    Plain(Value),
    Tokens { session: Uuid, from: u64 },
    Prompt(Value),
    Delete(Uuid),
}

#[derive(Default)]
struct Facts {
    replies: VecDeque<Reply>,
    sent: Vec<Sent>,
    /// Silent streams go on.
    goes_on: bool,
    /// Streams that are open.
    open: usize,
}

type Shared = watch::Sender<Facts>;

pub(crate) struct Instance {
    pub(crate) base: BaseUri,
    facts: Arc<Shared>,
    service: Option<TestService>,
}

impl Instance {
    pub(crate) async fn start(replies: Vec<Reply>) -> Self {
        let facts = Arc::new(Shared::new(Facts { replies: replies.into(), ..Facts::default() }));
        let router = Router::new()
            .route("/v1/completions", post(begin))
            .route("/sessions/{session}", axum::routing::delete(end))
            .route("/sessions/{session}/tokens", get(tokens))
            .route("/sessions/{session}/prompt", post(prompt))
            .with_state(Arc::clone(&facts));
        let config = ServiceConfig { drain_timeout_ms: 0, ..ServiceConfig::default() };
        let service = TestService::start_with(router, config).await;
        Self { base: service.base.clone(), facts, service: Some(service) }
    }

    /// The next connection gets this.
    pub(crate) fn replies(&self, reply: Reply) {
        self.facts.send_modify(|facts| facts.replies.push_back(reply));
    }

    /// Streams that hang go on.
    pub(crate) fn goes_on(&self) {
        self.facts.send_modify(|facts| facts.goes_on = true);
    }

    /// All that was sent so far.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.facts.borrow().sent.clone()
    }

    /// The indices from which tokens were asked for.
    pub(crate) fn asked_from(&self) -> Vec<u64> {
        let of = |sent| if let Sent::Tokens { from, .. } = sent { Some(from) } else { None };
        self.sent().into_iter().filter_map(of).collect()
    }

    /// Waits until something was sent.
    pub(crate) async fn until(&self, what: &str, mut was: impl FnMut(&Sent) -> bool) {
        let mut facts = self.facts.subscribe();
        let waiting = tokio::time::timeout(WAIT, facts.wait_for(|facts| facts.sent.iter().any(&mut was)));
        assert!(waiting.await.is_ok(), "an instance waits in vain: {what}");
    }

    /// Waits until nobody reads from it.
    pub(crate) async fn until_left(&self) {
        let mut facts = self.facts.subscribe();
        let waiting = tokio::time::timeout(WAIT, facts.wait_for(|facts| facts.open == 0));
        assert!(waiting.await.is_ok(), "a stream stays open");
    }

    /// Waits until the session is ended here.
    pub(crate) async fn until_deleted(&self) {
        self.until("the end of the session", |sent| matches!(sent, Sent::Delete(_))).await;
    }

    /// The process dies.
    pub(crate) async fn die(&mut self) {
        self.service.take().unwrap().stop().await;
    }
}

/// The octets of `text` from index `from` on, as tokens of an epoch.
pub(crate) fn tokens_of(text: &str, epoch: u64, from: usize) -> Vec<Act> {
    let octets = text.bytes().enumerate().skip(from);
    octets.map(|(index, octet)| Act::Token(epoch, index as u64, octet)).collect()
}

/// The same, and the end of the output.
pub(crate) fn rest_of(text: &str, epoch: u64, from: usize) -> Vec<Act> {
    let mut acts = tokens_of(text, epoch, from);
    acts.push(Act::Done("length", epoch, 0));
    acts
}

/// `from..to` of the text, and then another act.
pub(crate) fn part_of(text: &str, epoch: u64, from: usize, to: usize, then: Act) -> Vec<Act> {
    let mut acts = tokens_of(&text[..to], epoch, from);
    acts.push(then);
    acts
}

async fn begin(State(facts): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let sent = match (header("kvsp-session"), header("kvsp-session-epoch")) {
        (Some(session), Some(epoch)) => {
            let map = header("kvsp-map");
            Sent::Begin { session, epoch, map, body }
        }
        (session, epoch) => {
            assert_eq!((session, epoch, header("kvsp-map")), (None, None, None));
            Sent::Plain(body)
        }
    };
    answer(&facts, sent, ProblemType::Overloaded)
}

#[derive(serde::Deserialize)]
struct From {
    from: u64,
}

async fn tokens(
    State(facts): State<Arc<Shared>>,
    Path(session): Path<Uuid>,
    Query(From { from }): Query<From>,
) -> Response {
    answer(&facts, Sent::Tokens { session, from }, ProblemType::SessionUnknown)
}

async fn prompt(State(facts): State<Arc<Shared>>, body: Bytes) -> Response {
    let body = serde_json::from_slice(&body).unwrap();
    facts.send_modify(|facts| facts.sent.push(Sent::Prompt(body)));
    kvsp_net::reply::json(StatusCode::ACCEPTED, &json!({}))
}

async fn end(State(facts): State<Arc<Shared>>, Path(session): Path<Uuid>) -> StatusCode {
    facts.send_modify(|facts| facts.sent.push(Sent::Delete(session)));
    StatusCode::NO_CONTENT
}

fn answer(facts: &Arc<Shared>, sent: Sent, otherwise: ProblemType) -> Response {
    let from = if let Sent::Tokens { from, .. } = &sent { *from } else { 0 };
    let mut reply = None;
    facts.send_modify(|facts| {
        facts.sent.push(sent);
        reply = facts.replies.pop_front();
    });
    match reply {
        Some(Reply::Stream(acts)) => stream(facts, acts, false),
        Some(Reply::Noisy { text, epoch, seed }) => {
            stream(facts, noisy(text, epoch, usize::try_from(from).unwrap(), seed), false)
        }
        Some(Reply::NeedsPrompt(acts)) => stream(facts, acts, true),
        Some(Reply::Problem(kind)) => problem(kind),
        Some(Reply::Raw(events)) => {
            let events: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
            let mut response = Response::new(Body::from(format!("{events}data: [DONE]\n\n")));
            response.headers_mut().insert(CONTENT_TYPE, "text/event-stream".parse().unwrap());
            response
        }
        Some(Reply::Error(status, body)) => {
            let mut response = kvsp_net::reply::json(StatusCode::from_u16(status).unwrap(), &body);
            response.headers_mut().insert(CONTENT_TYPE, "application/json".parse().unwrap());
            response
        }
        None => problem(otherwise),
    }
}

fn noisy(text: &str, epoch: u64, from: usize, seed: u64) -> Vec<Act> {
    let random = SeededRandom::new(seed);
    let one_in = |n: u64| random.u64().is_multiple_of(n);
    let mut acts = Vec::new();
    for (index, octet) in text.bytes().enumerate().skip(from) {
        if one_in(4) {
            acts.push(Act::Comment);
        }
        if one_in(4) && index > 0 {
            let old = usize::try_from(random.u64()).unwrap_or(0) % index;
            acts.push(Act::Token(epoch, old as u64, text.as_bytes()[old]));
        }
        if one_in(4) && epoch > 1 {
            acts.push(Act::Token(epoch - 1, random.u64() % text.len() as u64, b'#'));
        }
        if one_in(30) && index + 1 < text.len() {
            // The token is missing, as the next one shows.
            continue;
        }
        if one_in(12) {
            acts.push(if one_in(2) { Act::Cut } else { Act::End });
            return acts;
        }
        acts.push(Act::Token(epoch, index as u64, octet));
    }
    if one_in(8) {
        acts.push(Act::Cut);
    }
    acts.push(Act::Done("length", epoch, 0));
    acts
}

/// An open stream, counted.
struct Open(Arc<Shared>);

impl Open {
    fn new(facts: &Arc<Shared>) -> Self {
        facts.send_modify(|facts| facts.open += 1);
        Self(Arc::clone(facts))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|facts| facts.open -= 1);
    }
}

fn stream(facts: &Arc<Shared>, acts: Vec<Act>, needs_prompt: bool) -> Response {
    let facts = Arc::clone(facts);
    let open = Open::new(&facts);
    let body = async_stream::stream! {
        let _open = open;
        let mut changes = facts.subscribe();
        if needs_prompt {
            let given = |facts: &Facts| facts.sent.iter().any(|sent| matches!(sent, Sent::Prompt(_)));
            changes.wait_for(given).await.map(|_| ()).unwrap();
        }
        for act in acts {
            let event = match act {
                Act::Token(epoch, index, octet) => {
                    format!("data: {}\n\n", json!({"index": index, "epoch": epoch, "token": octet}))
                }
                Act::First(epoch, octet, reused) => {
                    let event = json!({"index": 0, "epoch": epoch, "token": octet, "reused": reused});
                    format!("data: {event}\n\n")
                }
                Act::Done(reason, epoch, reused) => {
                    format!("data: {}\n\n", json!({"done": reason, "epoch": epoch, "reused": reused}))
                }
                Act::Comment => ": keep-alive\n\n".to_owned(),
                Act::Cut => {
                    // What was sent before must be on its way.
                    tokio::task::yield_now().await;
                    yield Err(io::Error::other("cut"));
                    return;
                }
                Act::End => return,
                Act::Hang => {
                    changes.wait_for(|facts| facts.goes_on).await.map(|_| ()).unwrap();
                    continue;
                }
            };
            yield Ok(Bytes::from(event));
        }
    };
    let mut response = Response::new(Body::from_stream(body));
    response.headers_mut().insert(CONTENT_TYPE, "text/event-stream".parse().unwrap());
    if needs_prompt {
        response.headers_mut().insert("kvsp-session-needs", "prompt".parse().unwrap());
    }
    response
}
