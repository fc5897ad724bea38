//! A member of maps of the test's own making: it takes plans and decisions as told, and tells the test.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, post};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use kvsp_proto::uri::BaseUri;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc};

use crate::support::TYPE_PREFIX;

/// How long a test waits for something that must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a member is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Plan,
    Commit,
    Abort,
    Length,
    Forget,
    Resume,
}

/// Something that a member was asked, and the body of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub(crate) kind: Kind,
    pub(crate) body: Value,
}

/// How it answers once.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// With this status and body.
    Json(u16, Value),
    /// As it should, but only once it is let.
    Held(Arc<Notify>),
    /// Never.
    Silence,
}

impl Reply {
    /// A problem.
    pub(crate) fn problem(status: u16, name: &str) -> Self {
        Self::Json(status, json!({"type": format!("{TYPE_PREFIX}{name}"), "status": status}))
    }

    /// As it should, once the other is notified.
    pub(crate) fn held() -> (Self, Arc<Notify>) {
        let gate = Arc::new(Notify::new());
        (Self::Held(Arc::clone(&gate)), gate)
    }
}

/// A process that does what it is told.
pub(crate) struct Member {
    pub(crate) base: BaseUri,
    asked: mpsc::UnboundedReceiver<Asked>,
    script: Arc<Script>,
    /// Its own, so that it can be ended with all its connections.
    process: Option<Runtime>,
}

struct Script {
    replies: Mutex<HashMap<Kind, VecDeque<Reply>>>,
    /// How long the contexts are that it leads, where it leads any.
    length: Mutex<Option<u64>>,
    to_test: mpsc::UnboundedSender<Asked>,
}

impl Member {
    /// It takes everything, until told otherwise.
    pub(crate) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let base = format!("http://{}/kvsp/", listener.local_addr().unwrap()).parse().unwrap();
        let (to_test, asked) = mpsc::unbounded_channel();
        let script = Arc::new(Script { replies: Mutex::default(), length: Mutex::default(), to_test });
        let router = Router::new()
            .route("/kvsp/reshard", post(reshard))
            .route("/kvsp/maps/{map}", delete(forget))
            .route("/kvsp/maps/{map}/{version}/length", post(length))
            .route("/kvsp/sessions/{session}/resume", post(resume))
            .with_state(Arc::clone(&script));
        let process =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        process.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
        Self { base, asked, script, process: Some(process) }
    }

    pub(crate) fn uri(&self) -> &str {
        self.base.as_str()
    }

    /// How the next question of this kind is answered that no earlier reply is for.
    pub(crate) fn will(&self, kind: Kind, reply: Reply) {
        self.script.will(kind, reply);
    }

    /// How long it says that contexts are that it leads.
    pub(crate) fn leads(&self, length: u64) {
        *self.script.length.lock().unwrap() = Some(length);
    }

    /// The next thing that it is asked, which must be of this kind. Questions for a length are passed over unless they
    /// are what is waited for: who does not lead is asked, too, where the leader is not known.
    pub(crate) async fn next(&mut self, kind: Kind) -> Value {
        let next = async {
            loop {
                let next = self.asked.recv().await.unwrap();
                if next.kind != Kind::Length || kind == Kind::Length {
                    return next;
                }
            }
        };
        let next = tokio::time::timeout(PATIENCE, next).await;
        let next = next.unwrap_or_else(|_| panic!("{} is never asked {kind:?}", self.base));
        assert_eq!(next.kind, kind, "{next:?} at {}", self.base);
        next.body
    }

    /// The next thing of this kind; what else it is asked before is passed over.
    pub(crate) async fn until(&mut self, kind: Kind) -> Value {
        let wanted = async {
            loop {
                let asked = self.asked.recv().await.unwrap();
                if asked.kind == kind {
                    return asked.body;
                }
            }
        };
        tokio::time::timeout(PATIENCE, wanted).await.unwrap_or_else(|_| panic!("is never asked {kind:?}"))
    }

    /// What it was asked up to now and the test has not looked at, but for lengths.
    pub(crate) fn rest(&mut self) -> Vec<Asked> {
        let all = std::iter::from_fn(|| self.asked.try_recv().ok());
        all.filter(|asked| asked.kind != Kind::Length).collect()
    }

    /// Ends the process: connections are refused from now on.
    pub(crate) async fn kill(&mut self) {
        let Some(process) = self.process.take() else { return };
        tokio::task::spawn_blocking(move || process.shutdown_timeout(Duration::from_secs(5))).await.unwrap();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.shutdown_background();
        }
    }
}

impl Script {
    fn will(&self, kind: Kind, reply: Reply) {
        self.replies.lock().unwrap().entry(kind).or_default().push_back(reply);
    }

    async fn answer(&self, kind: Kind, body: Value, good: Value) -> Response {
        let reply = self.replies.lock().unwrap().get_mut(&kind).and_then(VecDeque::pop_front);
        let _gone = self.to_test.send(Asked { kind, body });
        let (status, body) = match reply {
            Some(Reply::Json(status, body)) => (status, body),
            Some(Reply::Silence) => std::future::pending().await,
            Some(Reply::Held(gate)) => {
                gate.notified().await;
                (200, good)
            }
            None => (200, good),
        };
        let media = if status < 400 { "application/kvsp+json" } else { "application/problem+json" };
        (StatusCode::from_u16(status).unwrap(), [(CONTENT_TYPE, media)], body.to_string()).into_response()
    }
}

async fn reshard(State(script): State<Arc<Script>>, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let map = body["map"].clone();
    let (kind, good) = if let Some(version) = body["commit"].as_u64() {
        (Kind::Commit, json!({"map": map, "version": version}))
    } else if let Some(version) = body["abort"].as_u64() {
        (Kind::Abort, json!({"map": map, "version": version - 1}))
    } else {
        (Kind::Plan, json!({"map": map, "version": body["from"], "prepared": body["to"]}))
    };
    script.answer(kind, body, good).await
}

async fn forget(State(script): State<Arc<Script>>, Path(map): Path<String>) -> Response {
    script.answer(Kind::Forget, json!(map), json!({})).await
}

async fn length(
    State(script): State<Arc<Script>>,
    Path((map, version)): Path<(String, u64)>,
    body: Bytes,
) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let length = *script.length.lock().unwrap();
    if length.is_none() {
        script.will(Kind::Length, Reply::problem(404, "kvsp-map-unknown"));
    }
    let asked = json!({"map": map, "version": version, "to": body["to"], "shards": body["shards"]});
    script.answer(Kind::Length, asked, json!({"length": length})).await
}

async fn resume(State(script): State<Arc<Script>>, Path(session): Path<String>, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let taken = json!({"session": session, "epoch": body["epoch"]});
    script.answer(Kind::Resume, body, taken).await
}
