//! What the controller remembers of instances over its own restart, and what they may not do by themselves.

use kvsp_controller::ControllerConfig;
use kvsp_net::auth::Development;
use serde_json::json;
use std::sync::Arc;
use tempfile::TempDir;

use super::{in_state, path, state_path};
use crate::peer::{Peer, Sent};
use crate::support::{Server, placement, status, status_path};

const I1: &str = "https://i1.example/kvsp/";
const I2: &str = "https://i2.example/kvsp/";

async fn start(folder: &TempDir) -> Server {
    // Nothing answers at these instances; that must not hold up the tests.
    let config = ControllerConfig {
        state: Some(folder.path().join("state")),
        state_timeout_ms: 200,
        ..ControllerConfig::default()
    };
    Server::with(config, Arc::new(Development::new())).await
}

#[tokio::test]
async fn an_epoch_that_was_answered_is_remembered() {
    let folder = TempDir::new().unwrap();
    let server = start(&folder).await;
    server.report(&status(I1, 5)).await.ok();
    server.report(&status(I1, 7)).await.ok();
    server.report(&status(I2, 3)).await.ok();
    server.stop().await.unwrap();
    for _ in 0..2 {
        let server = start(&folder).await;
        assert_eq!(server.get("instances").await.ok(), json!({"instances": []}), "nobody has reported yet");
        assert_eq!(server.get(&path(I1)).await.problem(), (404, "kvsp-instance-unknown".into()));
        for epoch in [5, 6] {
            let answer = server.report(&status(I1, epoch)).await;
            assert_eq!(answer.problem(), (409, "kvsp-stale-epoch".into()), "{epoch}");
            assert_eq!(answer.json()["epoch"], 7);
        }
        assert_eq!(server.report(&status(I1, 7)).await.ok(), json!({"state": "active"}));
        assert_eq!(server.report(&status(I2, 2)).await.problem(), (409, "kvsp-stale-epoch".into()));
        server.stop().await.unwrap();
    }
    let server = start(&folder).await;
    assert_eq!(server.report(&status(I1, 8)).await.ok(), json!({"state": "active"}), "a new start");
    assert_eq!(server.report(&status(I1, 7)).await.problem(), (409, "kvsp-stale-epoch".into()));
}

#[tokio::test]
async fn orders_are_remembered() {
    let folder = TempDir::new().unwrap();
    let server = start(&folder).await;
    let (mut one, mut two) = (Peer::start().await, Peer::start().await);
    let (a, b) = (one.base.as_str().to_owned(), two.base.as_str().to_owned());
    server.report(&status(&a, 1)).await.ok();
    server.report(&status(&b, 1)).await.ok();
    server.put(&state_path(&a), &json!({"state": "draining"})).await.ok();
    server.put(&state_path(&b), &json!({"state": "sleeping"})).await.ok();
    assert_eq!(one.next().await, Sent::State(json!({"state": "draining"})));
    assert_eq!(two.next().await, Sent::State(json!({"state": "sleeping"})));
    server.stop().await.unwrap();

    let server = start(&folder).await;
    assert_eq!(server.report(&status(&a, 1)).await.ok(), json!({"state": "draining"}));
    let view = server.get(&path(&a)).await.ok();
    assert_eq!((&view["state"], &view["wanted"]), (&json!("draining"), &json!("draining")));
    // Before it has reported an instance takes orders all the same; it is known.
    assert_eq!(
        server.put(&state_path(&b), &json!({"state": "active"})).await.ok(),
        json!({"state": "active"})
    );
    assert_eq!(server.report(&in_state(&b, 1, "sleeping")).await.ok(), json!({"state": "active"}));
    server.put(&state_path(&b), &json!({"state": "sleeping"})).await.ok();
    server.stop().await.unwrap();

    let server = start(&folder).await;
    assert_eq!(server.report(&status(&b, 1)).await.ok(), json!({"state": "sleeping"}));
    assert_eq!(
        server.report(&status(&a, 2)).await.ok(),
        json!({"state": "active"}),
        "a new start is a new one"
    );
}

#[tokio::test]
async fn a_sleeping_instance_does_not_wake_itself() {
    let folder = TempDir::new().unwrap();
    let mut server = start(&folder).await;
    server.report(&in_state(I1, 1, "sleeping")).await.ok();
    for _ in 0..2 {
        assert_eq!(server.report(&status(I1, 1)).await.ok(), json!({"state": "sleeping"}));
        assert_eq!(server.get(&path(I1)).await.ok()["wanted"], "sleeping");
        for asks in ["active", "draining", "failed", "awake"] {
            let mut status = in_state(I1, 1, "sleeping");
            status["requested_state"] = json!(asks);
            let answer = server.put(&status_path(I1), &status).await;
            assert_eq!(answer.problem(), (422, "kvsp-invalid-record".into()), "{asks}");
        }
        let mut status = status(I1, 1);
        status["requested_state"] = json!(7);
        let answer = server.put(&status_path(I1), &status).await;
        assert_eq!(answer.problem(), (400, "kvsp-malformed-json".into()));
        let placed = server.post("placements", &placement(0, 1)).await;
        assert_eq!(placed.problem(), (503, "kvsp-no-capacity".into()));
        // That it slept is remembered, too.
        server.stop().await.unwrap();
        server = start(&folder).await;
    }
}

#[tokio::test]
async fn nobody_falls_asleep_while_the_others_are_busy() {
    let folder = TempDir::new().unwrap();
    let server = start(&folder).await;
    let mut asks = status(I1, 1);
    asks["requested_state"] = json!("sleeping");
    let mut busy = status(I2, 1);
    busy["running"] = json!(5);
    server.report(&busy).await.ok();
    assert_eq!(server.report(&asks).await.ok(), json!({"state": "active"}), "5 of 8 is above one half");
    busy["running"] = json!(4);
    server.report(&busy).await.ok();
    assert_eq!(server.report(&asks).await.ok(), json!({"state": "draining"}));
}

#[tokio::test]
async fn an_order_names_a_known_state_and_a_known_instance() {
    let folder = TempDir::new().unwrap();
    let server = start(&folder).await;
    let unknown = server.put(&state_path(I1), &json!({"state": "sleeping"})).await;
    assert_eq!(unknown.problem(), (404, "kvsp-instance-unknown".into()));
    server.report(&status(I1, 1)).await.ok();
    for (body, problem) in [
        (json!({"state": "draining", "migrate": "yes"}), (400, "kvsp-malformed-json")),
        (json!({"migrate": true}), (400, "kvsp-malformed-json")),
        (json!({"state": "waking"}), (422, "kvsp-invalid-record")),
        (json!({"state": "failed", "migrate": true}), (422, "kvsp-invalid-record")),
    ] {
        let answer = server.put(&state_path(I1), &body).await;
        assert_eq!(answer.problem(), (problem.0, problem.1.to_owned()), "{body}");
    }
    let bad = server.put("instances/xx/state", &json!({"state": "active"})).await;
    assert_eq!(bad.problem(), (400, "kvsp-bad-identifier".into()));
    let view = server.get(&path(I1)).await.ok();
    assert_eq!(
        (&view["state"], &view["wanted"], &view["sessions"]),
        (&json!("active"), &json!("active"), &json!(0))
    );
}
