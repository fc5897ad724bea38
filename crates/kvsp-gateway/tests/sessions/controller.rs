//! A controller of the test's own making: it places, tells epochs, and does what the test says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use kvsp_net::service::ServiceConfig;
use kvsp_proto::message::SessionState;
use kvsp_proto::problem::ProblemType;
use kvsp_proto::uri::BaseUri;
use kvsp_testkit::TestService;
use serde_json::{Value, json};
use tokio::sync::watch;
use uuid::Uuid;

use crate::support::{WAIT, problem};

/// What the controller knows and has seen; a restart of its service loses nothing.
pub(crate) struct Facts {
    /// Where the next placements go.
    pub(crate) places: VecDeque<BaseUri>,
    pub(crate) offers_sessions: bool,
    /// Placements come with a shard map.
    pub(crate) splits: bool,
    pub(crate) session: Uuid,
    pub(crate) epoch: u64,
    pub(crate) instance: Option<BaseUri>,
    pub(crate) state: SessionState,
    pub(crate) output_offset: u64,
    pub(crate) reason: Option<String>,
    /// What the next reports of a broken stream lead to: a failover, or nothing.
    pub(crate) on_report: VecDeque<Option<BaseUri>>,
    pub(crate) placements: Vec<Value>,
    /// Epochs reported as broken.
    pub(crate) reports: Vec<u64>,
    pub(crate) deleted: Vec<Uuid>,
    /// Views asked for without a wait.
    pub(crate) looks: usize,
}

type Shared = watch::Sender<Facts>;

pub(crate) struct Controller {
    pub(crate) base: BaseUri,
    facts: Arc<Shared>,
    service: Mutex<Option<TestService>>,
}

impl Controller {
    pub(crate) async fn start() -> Self {
        let facts = Arc::new(Shared::new(Facts {
            places: VecDeque::new(),
            offers_sessions: true,
            splits: false,
            session: Uuid::nil(),
            epoch: 0,
            instance: None,
            state: SessionState::Running,
            output_offset: 0,
            reason: None,
            on_report: VecDeque::new(),
            placements: Vec::new(),
            reports: Vec::new(),
            deleted: Vec::new(),
            looks: 0,
        }));
        let service = serve(Arc::clone(&facts), ServiceConfig::default()).await;
        Self { base: service.base.clone(), facts, service: Mutex::new(Some(service)) }
    }

    /// Changes what the controller knows.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Facts)) {
        self.facts.send_modify(change);
    }

    /// The next placement goes there.
    pub(crate) fn places_at(&self, instance: &BaseUri) {
        self.set(|facts| facts.places.push_back(instance.clone()));
    }

    /// The next report of a broken stream leads to a failover to that instance.
    pub(crate) fn fails_over_to(&self, instance: &BaseUri) {
        self.set(|facts| facts.on_report.push_back(Some(instance.clone())));
    }

    /// The session moves.
    pub(crate) fn raise(&self, instance: &BaseUri) {
        self.set(|facts| facts.raise(instance));
    }

    /// Reads what the controller knows.
    pub(crate) fn get<T>(&self, read: impl FnOnce(&Facts) -> T) -> T {
        read(&self.facts.borrow())
    }

    /// Waits until something has happened.
    pub(crate) async fn until(&self, what: &str, happened: impl FnMut(&Facts) -> bool) {
        let mut facts = self.facts.subscribe();
        let waiting = tokio::time::timeout(WAIT, facts.wait_for(happened));
        assert!(waiting.await.is_ok(), "the controller waits in vain: {what}");
    }

    /// Waits until the session is ended.
    pub(crate) async fn until_deleted(&self) {
        self.until("the end of the session", |facts| facts.deleted.contains(&facts.session)).await;
    }

    /// The controller goes away; its connections break.
    pub(crate) async fn go(&self) {
        let service = self.service.lock().unwrap().take().unwrap();
        service.stop().await;
    }

    /// It comes back at the same address.
    pub(crate) async fn come_back(&self) {
        let authority = self.base.as_str().trim_start_matches("http://").split('/').next().unwrap();
        let listen = authority.parse().unwrap();
        let config = ServiceConfig { listen, ..ServiceConfig::default() };
        let service = serve(Arc::clone(&self.facts), config).await;
        *self.service.lock().unwrap() = Some(service);
    }
}

impl Facts {
    fn raise(&mut self, instance: &BaseUri) {
        self.epoch += 1;
        self.instance = Some(instance.clone());
        self.state = SessionState::Running;
    }

    fn view(&self) -> Value {
        let mut view = json!({
            "session": self.session, "epoch": self.epoch, "instance": self.instance,
            "state": self.state, "output_offset": self.output_offset,
        });
        if let Some(reason) = &self.reason {
            view["reason"] = json!(reason);
        }
        view
    }

    fn knows(&self, session: Uuid) -> bool {
        session == self.session && !self.deleted.contains(&session)
    }
}

async fn serve(facts: Arc<Shared>, config: ServiceConfig) -> TestService {
    let router = Router::new()
        .route("/placements", post(place))
        .route("/sessions/{session}", get(view).delete(end))
        .route("/sessions/{session}/continuation", get(continuation))
        .route("/sessions/{session}/failover", post(failover))
        .with_state(facts);
    TestService::start_with(router, ServiceConfig { drain_timeout_ms: 0, ..config }).await
}

async fn place(State(facts): State<Arc<Shared>>, body: Bytes) -> Response {
    let request: Value = serde_json::from_slice(&body).unwrap();
    let mut answer = Err(StatusCode::SERVICE_UNAVAILABLE);
    facts.send_modify(|facts| {
        facts.placements.push(request.clone());
        let Some(instance) = facts.places.pop_front() else { return };
        let mut placed = json!({"instance": instance, "request_ref": "as-placed", "candidates": []});
        if facts.offers_sessions && request["session"] == true {
            (facts.session, facts.epoch, facts.instance) = (Uuid::new_v4(), 1, Some(instance));
            placed["session"] = json!({"session": facts.session, "epoch": 1});
            if facts.splits {
                placed["map"] = json!({"map": facts.session, "version": 1});
            }
        }
        answer = Ok(placed);
    });
    match answer {
        Ok(placed) => kvsp_net::reply::json(StatusCode::OK, &placed),
        Err(_) => problem(ProblemType::NoCapacity),
    }
}

#[derive(serde::Deserialize)]
struct Poll {
    after_epoch: Option<u64>,
    wait_ms: Option<u64>,
}

async fn view(
    State(facts): State<Arc<Shared>>,
    Path(session): Path<Uuid>,
    Query(poll): Query<Poll>,
) -> Response {
    if !facts.borrow().knows(session) {
        return problem(ProblemType::SessionUnknown);
    }
    if let Some(after) = poll.after_epoch {
        let mut changes = facts.subscribe();
        let news = changes.wait_for(|facts| facts.epoch > after || !facts.knows(session));
        let _ = tokio::time::timeout(Duration::from_millis(poll.wait_ms.unwrap_or(0)), news).await;
    } else {
        facts.send_modify(|facts| facts.looks += 1);
    }
    let facts = facts.borrow();
    if !facts.knows(session) {
        return problem(ProblemType::SessionUnknown);
    }
    kvsp_net::reply::json(StatusCode::OK, &facts.view())
}

async fn continuation(State(facts): State<Arc<Shared>>, Path(session): Path<Uuid>) -> Response {
    let facts = facts.borrow();
    match facts.placements.last() {
        Some(placement) if facts.knows(session) => {
            kvsp_net::reply::json(StatusCode::OK, &placement["continuation"])
        }
        _ => problem(ProblemType::SessionUnknown),
    }
}

async fn failover(
    State(facts): State<Arc<Shared>>,
    Path(session): Path<Uuid>,
    Json(report): Json<Value>,
) -> Response {
    let epoch = report["epoch"].as_u64().unwrap();
    let mut known = false;
    facts.send_modify(|facts| {
        facts.reports.push(epoch);
        known = facts.knows(session);
        if known
            && epoch == facts.epoch
            && let Some(instance) = facts.on_report.pop_front().flatten()
        {
            facts.raise(&instance);
        }
    });
    let facts = facts.borrow();
    match known {
        false => problem(ProblemType::SessionUnknown),
        true if epoch < facts.epoch && !facts.reports.ends_with(&[epoch]) => problem(ProblemType::StaleEpoch),
        true => kvsp_net::reply::json(StatusCode::ACCEPTED, &facts.view()),
    }
}

async fn end(State(facts): State<Arc<Shared>>, Path(session): Path<Uuid>) -> StatusCode {
    facts.send_modify(|facts| facts.deleted.push(session));
    StatusCode::NO_CONTENT
}
