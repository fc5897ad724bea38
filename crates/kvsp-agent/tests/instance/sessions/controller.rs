//! A controller that does with checkpoints what a test tells it to.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, put};
use bytes::Bytes;
use http::StatusCode;
use kvsp_net::extract::PathOf;
use kvsp_net::{Failure, reply};
use kvsp_proto::json;
use kvsp_proto::message::{CheckpointAppend, SessionAck};
use kvsp_proto::problem::ProblemType;
use kvsp_proto::record::SessionCheckpoint;
use kvsp_testkit::TestService;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use uuid::Uuid;

use crate::support::eventually;

/// What becomes of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Does {
    Acknowledge,
    Refuse(ProblemType),
    /// 500, as a server does that has trouble.
    Break,
}

struct Desk {
    does: watch::Sender<Does>,
    /// Answers that may be given.
    permits: Semaphore,
    /// Offsets whose acknowledgement was sent, or is just being sent, by session.
    acknowledged: Mutex<BTreeMap<Uuid, SessionCheckpoint>>,
    highest: AtomicU64,
    arrived: watch::Sender<u64>,
    whole: AtomicU64,
    /// Statuses of a draining instance.
    draining: AtomicU64,
}

#[derive(Clone)]
pub(super) struct Controller {
    service: Arc<TestService>,
    desk: Arc<Desk>,
}

impl Controller {
    /// One that acknowledges everything at once.
    pub(super) async fn start() -> Self {
        let controller = Self::gated().await;
        controller.open();
        controller
    }

    /// One that answers no checkpoint before [`Self::permit`] or [`Self::open`].
    pub(super) async fn gated() -> Self {
        let desk = Arc::new(Desk {
            does: watch::Sender::new(Does::Acknowledge),
            permits: Semaphore::new(0),
            acknowledged: Mutex::default(),
            highest: AtomicU64::new(0),
            arrived: watch::Sender::new(0),
            whole: AtomicU64::new(0),
            draining: AtomicU64::new(0),
        });
        let routes = Router::new()
            .route("/instances/{instance}/status", put(status))
            .route("/instances", get(async || reply::json(StatusCode::OK, &json!({"instances": []}))))
            .route("/descriptors/{compat}", put(async || StatusCode::CREATED))
            .route("/sessions/{session}/checkpoint", put(whole).patch(append))
            .with_state(desk.clone());
        Self { service: Arc::new(TestService::start(routes).await), desk }
    }

    pub(super) fn base(&self) -> kvsp_proto::uri::BaseUri {
        self.service.base.clone()
    }

    /// Let so many more checkpoints be answered.
    pub(super) fn permit(&self, answers: usize) {
        self.desk.permits.add_permits(answers);
    }

    /// Answer all of them at once from now on.
    pub(super) fn open(&self) {
        self.desk.permits.close();
    }

    pub(super) fn does(&self, what: Does) {
        self.desk.does.send_replace(what);
    }

    /// Waits until so many checkpoints have arrived in all.
    pub(super) async fn arrived(&self, count: u64) {
        let mut arrived = self.desk.arrived.subscribe();
        tokio::time::timeout(crate::support::PATIENCE, arrived.wait_for(|n| *n >= count))
            .await
            .expect("checkpoints arrive")
            .unwrap();
    }

    /// Checkpoints that arrived, and those of them that were whole.
    pub(super) fn count(&self) -> (u64, u64) {
        (*self.desk.arrived.borrow(), self.desk.whole.load(Ordering::SeqCst))
    }

    /// Statuses that reported a draining instance.
    pub(super) fn draining(&self) -> u64 {
        self.desk.draining.load(Ordering::SeqCst)
    }

    /// The highest offset acknowledged of any session.
    pub(super) fn highest(&self) -> u64 {
        self.desk.highest.load(Ordering::SeqCst)
    }

    /// What is recorded of a session.
    pub(super) fn recorded(&self, session: Uuid) -> Option<SessionCheckpoint> {
        self.desk.acknowledged.lock().unwrap().get(&session).cloned()
    }

    /// Waits for a recorded checkpoint of so many tokens.
    pub(super) async fn recorded_to(&self, session: Uuid, offset: u64) -> SessionCheckpoint {
        eventually("a recorded checkpoint", async || {
            self.recorded(session).filter(|checkpoint| checkpoint.output_offset >= offset)
        })
        .await
    }
}

async fn status(State(desk): State<Arc<Desk>>, body: Bytes) -> Response {
    let status: Value = serde_json::from_slice(&body).unwrap();
    if status["state"] == "draining" {
        desk.draining.fetch_add(1, Ordering::SeqCst);
    }
    reply::json(StatusCode::OK, &json!({"state": status["state"]}))
}

async fn whole(State(desk): State<Arc<Desk>>, PathOf(id): PathOf<Uuid>, body: Bytes) -> Response {
    desk.whole.fetch_add(1, Ordering::SeqCst);
    let checkpoint = SessionCheckpoint::from_json(&body).unwrap();
    assert_eq!(checkpoint.session, id);
    desk.answer(id, checkpoint.epoch, |_| Some(checkpoint.clone())).await
}

async fn append(State(desk): State<Arc<Desk>>, PathOf(id): PathOf<Uuid>, body: Bytes) -> Response {
    let append: CheckpointAppend = json::from_slice(&body).unwrap();
    desk.answer(id, append.epoch, |recorded| {
        let mut checkpoint = recorded?.clone();
        let from = usize::try_from(append.from_offset).unwrap();
        assert!(from <= checkpoint.generated.len(), "a gap before {from}");
        let overlap = (checkpoint.generated.len() - from).min(append.append.len());
        let known = &checkpoint.generated[from..from + overlap];
        assert_eq!(known, &append.append[..overlap], "tokens that contradict");
        if from + append.append.len() <= checkpoint.generated.len() {
            return Some(checkpoint);
        }
        checkpoint.generated.extend(&append.append[overlap..]);
        checkpoint.output_offset = checkpoint.generated.len() as u64;
        checkpoint.epoch = append.epoch;
        checkpoint.sampler = append.sampler.clone();
        assert_eq!(checkpoint.sampler.step, checkpoint.output_offset);
        Some(checkpoint)
    })
    .await
}

impl Desk {
    async fn answer(
        &self,
        id: Uuid,
        epoch: u64,
        recorded: impl Fn(Option<&SessionCheckpoint>) -> Option<SessionCheckpoint>,
    ) -> Response {
        self.arrived.send_modify(|n| *n += 1);
        // A closed gate answers at once.
        if let Ok(permit) = self.permits.acquire().await {
            permit.forget();
        }
        let does = *self.does.borrow();
        match does {
            Does::Acknowledge => {
                let mut all = self.acknowledged.lock().unwrap();
                let Some(now) = recorded(all.get(&id)) else {
                    let detail = "an append to nothing";
                    return Failure::new(ProblemType::CheckpointConflict, detail).into_response();
                };
                let output_offset = now.output_offset;
                self.highest.fetch_max(output_offset, Ordering::SeqCst);
                all.insert(id, now);
                reply::json(StatusCode::OK, &SessionAck { epoch, output_offset })
            }
            Does::Refuse(problem) => Failure::new(problem, "as the test has it").into_response(),
            Does::Break => Failure::blank(StatusCode::INTERNAL_SERVER_ERROR, "trouble").into_response(),
        }
    }
}
