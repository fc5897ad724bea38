//! An instance of the test's own making: it takes directives and states, and tells the test.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::{post, put};
use http::StatusCode;
use http::header::LOCATION;
use kvsp_proto::uri::BaseUri;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

/// What an instance was sent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sent {
    Prefetch(Value),
    State(Value),
}

pub(crate) struct Peer {
    pub(crate) base: BaseUri,
    pub(crate) sent: mpsc::Receiver<Sent>,
    answer: Arc<Mutex<Answering>>,
    states: watch::Sender<States>,
}

/// How an instance answers an order of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum States {
    /// It takes it up.
    Takes,
    /// It says that it sleeps.
    Sleeps,
    /// Not before it is told something else.
    Holds,
}

/// How the instance answers a directive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answering {
    Accepts,
    Refuses,
    Hangs,
}

#[derive(Clone)]
struct Shared {
    to_test: mpsc::Sender<Sent>,
    answer: Arc<Mutex<Answering>>,
    states: watch::Receiver<States>,
}

impl Peer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/kvsp/", listener.local_addr().unwrap()).parse().unwrap();
        let (to_test, sent) = mpsc::channel(64);
        let answer = Arc::new(Mutex::new(Answering::Accepts));
        let (states, receiver) = watch::channel(States::Takes);
        let shared = Shared { to_test, answer: Arc::clone(&answer), states: receiver };
        let router = Router::new()
            .route("/kvsp/prefetch", post(prefetch))
            .route("/kvsp/state", put(state))
            .with_state(shared);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { base, sent, answer, states }
    }

    pub(crate) fn answers_states(&self, how: States) {
        self.states.send_replace(how);
    }

    /// The next thing that it is sent.
    pub(crate) async fn next(&mut self) -> Sent {
        let next = tokio::time::timeout(Duration::from_secs(20), self.sent.recv()).await;
        next.expect("it is sent something in time").unwrap()
    }

    pub(crate) fn answers(&self, how: Answering) {
        *self.answer.lock().unwrap() = how;
    }
}

async fn prefetch(
    State(shared): State<Shared>,
    body: Bytes,
) -> (StatusCode, [(http::HeaderName, String); 1]) {
    let directive: Value = serde_json::from_slice(&body).unwrap();
    let location = format!("prefetch/{}", directive["directive"].as_str().unwrap());
    shared.to_test.send(Sent::Prefetch(directive)).await.unwrap();
    let how = *shared.answer.lock().unwrap();
    match how {
        Answering::Accepts => (StatusCode::ACCEPTED, [(LOCATION, location)]),
        Answering::Refuses => (StatusCode::CONFLICT, [(LOCATION, location)]),
        Answering::Hangs => std::future::pending().await,
    }
}

async fn state(
    State(mut shared): State<Shared>,
    body: Bytes,
) -> ([(http::HeaderName, &'static str); 1], Bytes) {
    shared.to_test.send(Sent::State(serde_json::from_slice(&body).unwrap())).await.unwrap();
    let how = *shared.states.wait_for(|how| *how != States::Holds).await.unwrap();
    let body = if how == States::Takes { body } else { Bytes::from_static(br#"{"state":"sleeping"}"#) };
    ([(http::header::CONTENT_TYPE, "application/kvsp+json")], body)
}
