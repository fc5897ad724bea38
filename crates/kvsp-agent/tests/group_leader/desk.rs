//! A controller that knows maps and takes every checkpoint, and nothing more.

use std::collections::BTreeMap;
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
use kvsp_proto::message::{CheckpointAppend, MapId, MapView, SessionAck};
use kvsp_proto::problem::ProblemType;
use kvsp_proto::record::SessionCheckpoint;
use kvsp_proto::uri::BaseUri;
use kvsp_testkit::TestService;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::eventually;

#[derive(Default)]
struct Papers {
    maps: Mutex<BTreeMap<MapId, MapView>>,
    checkpoints: Mutex<BTreeMap<Uuid, SessionCheckpoint>>,
}

/// The controller.
pub(crate) struct Desk {
    service: TestService,
    papers: Arc<Papers>,
}

impl Desk {
    pub(crate) async fn start() -> Self {
        let papers = Arc::new(Papers::default());
        let routes = Router::new()
            .route("/instances/{instance}/status", put(status))
            .route("/instances", get(async || reply::json(StatusCode::OK, &json!({"instances": []}))))
            .route("/descriptors/{compat}", put(async || StatusCode::CREATED))
            .route("/sessions/{session}/checkpoint", put(whole).patch(append))
            .route("/maps/{map}", get(map))
            .with_state(papers.clone());
        Self { service: TestService::start(routes).await, papers }
    }

    pub(crate) fn base(&self) -> BaseUri {
        self.service.base.clone()
    }

    /// Has the map stand like this from now on.
    pub(crate) fn publish(&self, view: MapView) {
        self.papers.maps.lock().unwrap().insert(view.map.clone(), view);
    }

    pub(crate) fn view(&self, map: &MapId) -> MapView {
        self.papers.maps.lock().unwrap()[map].clone()
    }

    /// Waits for a checkpoint of so many tokens.
    pub(crate) async fn recorded_to(&self, session: Uuid, offset: u64) -> SessionCheckpoint {
        eventually("a recorded checkpoint", async || {
            let known = self.papers.checkpoints.lock().unwrap().get(&session).cloned();
            known.filter(|checkpoint| checkpoint.output_offset >= offset)
        })
        .await
    }
}

async fn status(body: Bytes) -> Response {
    let status: Value = serde_json::from_slice(&body).unwrap();
    reply::json(StatusCode::OK, &json!({"state": status["state"]}))
}

async fn map(State(papers): State<Arc<Papers>>, PathOf(map): PathOf<MapId>) -> Response {
    match papers.maps.lock().unwrap().get(&map) {
        Some(view) => reply::json(StatusCode::OK, view),
        None => Failure::new(ProblemType::MapUnknown, "no such map").into_response(),
    }
}

async fn whole(State(papers): State<Arc<Papers>>, PathOf(id): PathOf<Uuid>, body: Bytes) -> Response {
    let checkpoint = SessionCheckpoint::from_json(&body).unwrap();
    papers.record(id, checkpoint.epoch, |_| checkpoint.clone())
}

async fn append(State(papers): State<Arc<Papers>>, PathOf(id): PathOf<Uuid>, body: Bytes) -> Response {
    let append: CheckpointAppend = json::from_slice(&body).unwrap();
    papers.record(id, append.epoch, |recorded| {
        let mut checkpoint = recorded.expect("an append to a checkpoint").clone();
        checkpoint.generated.truncate(usize::try_from(append.from_offset).unwrap());
        checkpoint.generated.extend(&append.append);
        checkpoint.output_offset = checkpoint.generated.len() as u64;
        checkpoint.epoch = append.epoch;
        checkpoint.sampler = append.sampler.clone();
        checkpoint
    })
}

impl Papers {
    fn record(
        &self,
        id: Uuid,
        epoch: u64,
        now: impl FnOnce(Option<&SessionCheckpoint>) -> SessionCheckpoint,
    ) -> Response {
        let mut all = self.checkpoints.lock().unwrap();
        if all.get(&id).is_some_and(|known| known.epoch > epoch) {
            return Failure::new(ProblemType::StaleEpoch, "the session is at a higher epoch").into_response();
        }
        let now = now(all.get(&id));
        assert!(!now.sampler.deterministic, "splits change the rounding");
        let output_offset = now.output_offset;
        all.insert(id, now);
        reply::json(StatusCode::OK, &SessionAck { epoch, output_offset })
    }
}
