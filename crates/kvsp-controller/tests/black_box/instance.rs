//! An instance of the test's own making: it resumes sessions, serves their tokens and is asked for them, as told.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post, put};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use kvsp_proto::uri::BaseUri;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

/// How an instance answers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    /// With this status and body.
    Json(u16, Value),
    /// As if it were stopped: never.
    Silence,
    /// With a stream of events that goes on.
    Stream,
}

/// What an instance was sent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sent {
    Resume { session: String, body: Value },
    Tokens { session: String },
    State(Value),
}

/// A process that can be told what to answer, and ended.
pub(crate) struct Instance {
    pub(crate) base: BaseUri,
    pub(crate) sent: mpsc::UnboundedReceiver<Sent>,
    script: Arc<Script>,
    /// Its own, so that it can be ended with all its connections.
    process: Option<Runtime>,
}

struct Script {
    resumes: Mutex<VecDeque<Answer>>,
    tokens: Mutex<Answer>,
    to_test: mpsc::UnboundedSender<Sent>,
}

impl Instance {
    /// It takes every resume and has every session, until told otherwise.
    pub(crate) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let base = format!("http://{}/kvsp/", listener.local_addr().unwrap()).parse().unwrap();
        let (to_test, sent) = mpsc::unbounded_channel();
        let script = Arc::new(Script {
            resumes: Mutex::new(VecDeque::new()),
            tokens: Mutex::new(Answer::Stream),
            to_test,
        });
        let router = Router::new()
            .route("/kvsp/sessions/{session}/resume", post(resume))
            .route("/kvsp/sessions/{session}/tokens", get(tokens))
            .route("/kvsp/state", put(state))
            .with_state(Arc::clone(&script));
        let process =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        process.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
        Self { base, sent, script, process: Some(process) }
    }

    /// What the next resume is answered; after those that were told, resumes are taken.
    pub(crate) fn will_answer(&self, resume: Answer) {
        self.script.resumes.lock().unwrap().push_back(resume);
    }

    /// What every question for tokens is answered from now on.
    pub(crate) fn answers_tokens(&self, how: Answer) {
        *self.script.tokens.lock().unwrap() = how;
    }

    /// The next thing that it is sent.
    pub(crate) async fn next(&mut self) -> Sent {
        let next = tokio::time::timeout(Duration::from_secs(20), self.sent.recv()).await;
        next.expect("it is sent something in time").unwrap()
    }

    /// The body of the next resume.
    pub(crate) async fn resumed(&mut self, session: &str) -> Value {
        match self.next().await {
            Sent::Resume { session: of, body } if of == session => body,
            other => panic!("not a resume of {session}: {other:?}"),
        }
    }

    /// Ends the process: connections are refused from now on.
    pub(crate) async fn kill(&mut self) {
        let Some(process) = self.process.take() else { return };
        tokio::task::spawn_blocking(move || process.shutdown_timeout(Duration::from_secs(5))).await.unwrap();
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.shutdown_background();
        }
    }
}

async fn resume(State(script): State<Arc<Script>>, Path(session): Path<String>, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let answer = script.resumes.lock().unwrap().pop_front();
    let taken = Answer::Json(202, json!({"session": session, "epoch": body["epoch"]}));
    let _gone = script.to_test.send(Sent::Resume { session, body });
    answer.unwrap_or(taken).send().await
}

async fn state(State(script): State<Arc<Script>>, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let _gone = script.to_test.send(Sent::State(body.clone()));
    Answer::Json(200, body).send().await
}

async fn tokens(State(script): State<Arc<Script>>, Path(session): Path<String>) -> Response {
    let _gone = script.to_test.send(Sent::Tokens { session });
    let answer = script.tokens.lock().unwrap().clone();
    answer.send().await
}

impl Answer {
    /// The problem of this name.
    pub(crate) fn problem(status: u16, name: &str) -> Self {
        Self::Json(
            status,
            json!({"type": format!("{}{name}", crate::support::TYPE_PREFIX), "status": status}),
        )
    }

    async fn send(self) -> Response {
        match self {
            Self::Json(status, body) => {
                let media = if status < 400 { "application/kvsp+json" } else { "application/problem+json" };
                let status = StatusCode::from_u16(status).unwrap();
                (status, [(CONTENT_TYPE, media)], body.to_string()).into_response()
            }
            Self::Silence => std::future::pending().await,
            Self::Stream => {
                ([(CONTENT_TYPE, "text/event-stream")], axum::body::Body::from(": keep-alive\n\n"))
                    .into_response()
            }
        }
    }
}
