//! Status reports and states (draft section 6.3).

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::routing::{get, put};
use bytes::Bytes;
use kvsp_net::reply;
use kvsp_proto::record::InstanceState;
use kvsp_testkit::TestService;
use serde_json::{Value, json};

use crate::support::{Ask, Index, Instance, Setup, client, eventually, prompt, send};

/// A controller that notes every status and answers with the state it is told to.
pub(crate) struct Controller {
    service: TestService,
    seen: Seen,
}

#[derive(Clone, Default)]
pub(crate) struct Seen {
    statuses: Arc<Mutex<Vec<(Instant, Value)>>>,
    /// `None`: the state that the status reports.
    answer: Arc<Mutex<Option<&'static str>>>,
}

impl Controller {
    pub(crate) async fn start() -> Self {
        let seen = Seen::default();
        let routes = Router::new()
            .route("/instances/{instance}/status", put(status))
            .route("/instances", get(async || reply::json(http::StatusCode::OK, &json!({"instances": []}))))
            .route("/descriptors/{compat}", put(async || http::StatusCode::CREATED))
            .with_state(seen.clone());
        Self { service: TestService::start(routes).await, seen }
    }

    pub(crate) fn setup(&self, ttl_ms: u64) -> Setup {
        let mut setup = Setup::default();
        setup.agent.controller = Some(self.service.base.clone());
        setup.agent.status_ttl_ms = ttl_ms;
        setup.agent.max_running = 4;
        setup
    }

    async fn instance(&self, ttl_ms: u64) -> Instance {
        Instance::start(self.setup(ttl_ms)).await
    }

    pub(crate) fn statuses(&self) -> Vec<(Instant, Value)> {
        self.seen.statuses.lock().unwrap().clone()
    }

    pub(crate) fn answer(&self, state: &'static str) {
        *self.seen.answer.lock().unwrap() = Some(state);
    }
}

async fn status(State(seen): State<Seen>, body: Bytes) -> axum::response::Response {
    let status: Value = serde_json::from_slice(&body).unwrap();
    let state = seen.answer.lock().unwrap().map_or_else(|| status["state"].clone(), Value::from);
    seen.statuses.lock().unwrap().push((Instant::now(), status));
    reply::json(http::StatusCode::OK, &json!({"state": state}))
}

pub(crate) async fn state(instance: &Instance) -> String {
    send(&instance.base, "GET", "status", "").await.json()["state"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_comes_every_third_of_its_ttl_also_under_full_load() {
    const TTL_MS: u64 = 3000;
    let controller = Controller::start().await;
    let instance = Arc::new(controller.instance(TTL_MS).await);
    let mut load = tokio::task::JoinSet::new();
    for n in 0..8 {
        let instance = instance.clone();
        load.spawn(async move {
            for round in 0.. {
                instance.ask(&Ask::new(&prompt(n * 1000 + round, 700), 300)).await;
            }
        });
    }
    eventually("full load", async || {
        let status = send(&instance.base, "GET", "status", "").await.json();
        (status["running"] == 4 && status["queued"].as_u64() > Some(0)).then_some(())
    })
    .await;
    let begin = controller.statuses().len();
    eventually("four more statuses", async || (controller.statuses().len() >= begin + 4).then_some(())).await;
    let statuses = controller.statuses();
    for pair in statuses[begin.saturating_sub(1)..].windows(2) {
        let gap = pair[1].0 - pair[0].0;
        // A little more than the third is the wire's and this test's doing on a machine that has no time.
        assert!(gap <= Duration::from_millis(TTL_MS / 3 + 150), "{gap:?} between two statuses");
    }
    let (_, last) = statuses.last().unwrap();
    assert_eq!(last["instance"], instance.base.as_str());
    assert_eq!(
        (&last["state"], &last["ttl_ms"], &last["batch_size"]),
        (&json!("active"), &json!(TTL_MS), &json!(4))
    );
    assert_eq!(last["requested_state"], Value::Null);
    assert!(last["kv_utilization"].as_f64().unwrap() > 0.0 && last["links"].is_array());
    assert!(last["prefill_tokens_per_s"].as_f64().unwrap() > 0.0);
    let orders: Vec<_> = statuses.iter().map(|(_, s)| (s["epoch"].as_u64(), s["seq"].as_u64())).collect();
    assert!(orders.windows(2).all(|pair| pair[0] < pair[1] && pair[0].0 == pair[1].0), "{orders:?}");
    load.abort_all();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_instance_finishes_takes_nothing_new_and_sleeps() {
    let controller = Controller::start().await;
    let instance = controller.instance(600).await;
    let ask = Ask::new(&prompt(1, 40), 300);
    let whole = instance.ask(&ask).await;
    let mut session = instance.stream(&ask).await;
    let first = session.next().await.unwrap();
    let taken = client().put_state(&instance.base, InstanceState::Draining).await.unwrap();
    assert_eq!(taken.state, InstanceState::Draining);

    let directive = instance.directive(&instance.keys(&prompt(2, 40)), &[&instance.base], 1000);
    let refused = send(&instance.base, "POST", "prefetch", &serde_json::to_string(&directive).unwrap()).await;
    assert_eq!(refused.problem(), (409, "kvsp-instance-not-active".into()));
    let body = json!({"model": "kvsp/tiny", "prompt": [1, 2]}).to_string();
    let refused = send(&instance.base, "POST", "v1/completions", &body).await;
    assert_eq!(refused.problem(), (409, "kvsp-instance-not-active".into()));

    let mut text = first.choices[0].text.clone();
    while let Some(chunk) = session.next().await {
        text.extend(chunk.choices.iter().map(|c| c.text.as_str()));
    }
    assert_eq!(text, whole.text, "the session that ran was finished");
    eventually("sleep", async || (state(&instance).await == "sleeping").then_some(())).await;
    eventually("the report of it", async || {
        controller.statuses().last().filter(|(_, s)| s["state"] == "sleeping").map(drop)
    })
    .await;

    // Asleep it still serves what it holds, and an order to drain does not wake it.
    let key = instance.keys(&prompt(1, 40))[0];
    instance.block(key).await;
    for wanted in [InstanceState::Draining, InstanceState::Sleeping] {
        let taken = client().put_state(&instance.base, wanted).await.unwrap();
        assert_eq!(taken.state, InstanceState::Sleeping);
    }
    let taken = client().put_state(&instance.base, InstanceState::Active).await.unwrap();
    assert_eq!(taken.state, InstanceState::Active);
    assert_eq!(instance.ask(&ask).await.text, whole.text);
    assert_eq!(state(&instance).await, "active");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_a_status_is_an_order_too() {
    let controller = Controller::start().await;
    let instance = controller.instance(300).await;
    controller.answer("draining");
    eventually("sleep", async || (state(&instance).await == "sleeping").then_some(())).await;
    controller.answer("active");
    eventually("waking", async || (state(&instance).await == "active").then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_states_can_be_ordered() {
    let index = Index::start().await;
    let instance = Instance::start(Setup::at(&index)).await;
    for body in [r#"{"state":"failed"}"#, r#"{"state":"tired"}"#] {
        let answer = send(&instance.base, "PUT", "state", body).await;
        assert_eq!(answer.problem(), (422, "kvsp-invalid-record".into()), "{body}");
    }
    for body in [r#"{"state":1}"#, "{}", "", "[]"] {
        let answer = send(&instance.base, "PUT", "state", body).await;
        assert_eq!(answer.problem(), (400, "kvsp-malformed-json".into()), "{body}");
    }
    let answer = send(&instance.base, "POST", "state", r#"{"state":"active"}"#).await;
    assert_eq!((answer.status, &answer.headers["allow"]), (405, &"PUT".parse().unwrap()));
    assert_eq!(state(&instance).await, "active");
}

/// Room for one request that runs and one that waits: the third is shed, and a client that goes away makes
/// room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_the_queue_holds_is_shed_and_who_goes_away_makes_room() {
    let mut setup = Setup::alone();
    setup.agent.max_running = 1;
    setup.agent.max_queued = 1;
    let instance = Instance::start(setup).await;
    let endless = Ask::new(&prompt(3, 20), 4000);
    let mut running = instance.stream(&endless).await;
    running.next().await.unwrap();
    let waiting = instance.stream(&endless).await;
    let body = json!({"model": "kvsp/tiny", "prompt": [1, 2], "max_tokens": 1}).to_string();
    let shed = send(&instance.base, "POST", "v1/completions", &body).await;
    assert_eq!(shed.status, 503, "{shed:?}");
    assert!(shed.headers.contains_key("retry-after"));
    let status = send(&instance.base, "GET", "status", "").await.json();
    assert_eq!((&status["running"], &status["queued"]), (&json!(1), &json!(1)));

    drop((running, waiting));
    eventually("room", async || {
        let answer = send(&instance.base, "POST", "v1/completions", &body).await;
        (answer.status == 200).then_some(())
    })
    .await;
    eventually("rest", async || {
        let status = send(&instance.base, "GET", "status", "").await.json();
        (status["running"] == 0 && status["queued"] == 0 && status["kv_utilization"] == 0.0).then_some(())
    })
    .await;
}
