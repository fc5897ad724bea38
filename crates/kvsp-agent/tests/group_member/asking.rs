//! Members that ask the controller what became of a plan, and of a map.

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
use kvsp_proto::message::{MapId, MapView, PendingReshard, Phase, Shard};
use kvsp_proto::problem::ProblemType;
use kvsp_testkit::TestService;
use serde_json::{Value, json};

use crate::support::{Instance, Setup, eventually, scope};
use crate::team::*;

type Views = Arc<Mutex<BTreeMap<MapId, MapView>>>;

/// A controller that knows maps alone.
struct Desk {
    service: TestService,
    views: Views,
}

async fn view(State(views): State<Views>, PathOf(map): PathOf<MapId>) -> Response {
    match views.lock().unwrap().get(&map) {
        Some(view) => reply::json(StatusCode::OK, view),
        None => Failure::new(ProblemType::MapUnknown, "no such map").into_response(),
    }
}

async fn status(body: Bytes) -> Response {
    let status: Value = serde_json::from_slice(&body).unwrap();
    reply::json(StatusCode::OK, &json!({"state": status["state"]}))
}

impl Desk {
    async fn start() -> Self {
        let views = Views::default();
        let routes = Router::new()
            .route("/instances/{instance}/status", put(status))
            .route("/instances", get(async || reply::json(StatusCode::OK, &json!({"instances": []}))))
            .route("/descriptors/{compat}", put(async || StatusCode::CREATED))
            .route("/maps/{map}", get(view))
            .with_state(views.clone());
        Self { service: TestService::start(routes).await, views }
    }

    async fn member(&self) -> Instance {
        let mut setup = Setup::alone();
        setup.agent.controller = Some(self.service.base.clone());
        Instance::start(setup).await
    }

    fn tell(&self, member: &Instance, version: u64, shards: Vec<Shard>, pending: Option<PendingReshard>) {
        let view = MapView {
            map: map(),
            version,
            shards,
            compat_id: member.compat(),
            scope_id: scope(),
            session: None,
            pending,
            attempt: None,
        };
        self.views.lock().unwrap().insert(map(), view);
    }
}

/// A member with [0, 37) that has acknowledged to take [37, 60) too, and was told no more.
async fn prepared(desk: &Desk) -> (Instance, Instance) {
    let (member, other) = (desk.member().await, member().await);
    let split = shards(&[(37, &member.base), (100, &other.base)]);
    let pending = PendingReshard {
        to: 2,
        shards: shards(&[(100, &member.base)]),
        phase: Phase::Preparing,
        acks: Vec::new(),
        attempt: None,
    };
    desk.tell(&member, 1, split.clone(), Some(pending));
    for instance in [&member, &other] {
        instance.open(0, 60, split.clone()).await;
    }
    member.fill(range(0, 37)).await;
    other.fill(range(37, 60)).await;
    let plan = Plan::new().retain(0, 37).fetch(37, 100, &other.base).length(60).within(200);
    member.plan(plan).await.unwrap();
    (member, other)
}

#[tokio::test]
async fn past_the_deadline_the_controller_tells_of_its_commit() {
    let desk = Desk::start().await;
    let (member, _other) = prepared(&desk).await;
    assert_eq!(problem(member.tokens(2, range(0, 60)).await).0, 409, "it does not decide alone");
    desk.tell(&member, 2, shards(&[(100, &member.base)]), None);
    let served = eventually("the commit", async || member.tokens(2, range(0, 60)).await.ok()).await;
    assert_eq!(served, sections(&member.descriptor, range(0, 60)));
    assert_eq!(member.commit(2).await.unwrap().version, 2, "the commit itself, late");
}

#[tokio::test]
async fn past_the_deadline_the_controller_tells_of_its_abort() {
    let desk = Desk::start().await;
    let (member, other) = prepared(&desk).await;
    desk.tell(&member, 1, shards(&[(37, &member.base), (100, &other.base)]), None);
    eventually("the abort", async || (member.metric(RESERVED).await == 37).then_some(())).await;
    assert_eq!(member.held().await, [range(0, 37)]);
    assert_eq!(problem(member.commit(2).await), (409, "kvsp-reshard-conflict"));
    assert_eq!(member.abort(2).await.unwrap().version, 1);
}

#[tokio::test]
async fn without_an_answer_a_prepared_member_waits() {
    let desk = Desk::start().await;
    let (member, _other) = prepared(&desk).await;
    let Desk { service, .. } = desk;
    service.stop().await;
    // Asked at the deadline and a while after it, nobody answers.
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    assert_eq!(member.held().await, [range(0, 60)]);
    assert_eq!(member.commit(2).await.unwrap().version, 2);
}

#[tokio::test]
async fn a_map_that_the_controller_does_not_know_is_forgotten() {
    let desk = Desk::start().await;
    let (member, _other) = prepared(&desk).await;
    desk.views.lock().unwrap().clear();
    eventually("the memory of the map", async || (member.metric(RESERVED).await == 0).then_some(())).await;
    assert_eq!(problem(member.tokens(1, range(0, 37)).await), (404, "kvsp-map-unknown"));
}
