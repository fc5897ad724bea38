//! Statuses, epochs and states (draft section 6.3).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use kvsp_controller::ControllerConfig;
use kvsp_net::auth::Authenticator;
use kvsp_net::principal::{Grant, Principal, Role};
use kvsp_proto::problem::Problem;
use serde_json::{Value, json};

use crate::peer::{Peer, Sent};
use crate::support::{Server, nowhere, placement, status, status_path, uri64};

const I1: &str = "https://i1.example/kvsp/";
const I2: &str = "https://i2.example/kvsp/";

#[tokio::test]
async fn a_status_makes_an_instance_known() {
    let server = Server::start(None).await;
    let path = format!("instances/{}", uri64(I1));
    assert_eq!(server.get(&path).await.problem(), (404, "kvsp-instance-unknown".into()));
    assert_eq!(server.get("instances").await.ok(), json!({"instances": []}));
    assert_eq!(server.report(&status(I2, 3)).await.ok(), json!({"state": "active"}));
    assert_eq!(server.report(&status(I1, 3)).await.ok(), json!({"state": "active"}));
    let list = server.get("instances").await.ok();
    let names: Vec<&Value> = list["instances"].as_array().unwrap().iter().map(|i| &i["instance"]).collect();
    assert_eq!(names, [I1, I2]);
    let one = server.get(&path).await.ok();
    assert_eq!((one["epoch"].clone(), one["state"].clone()), (json!(3), json!("active")));
    assert_eq!(server.get("").await.ok()["roles"], json!(["controller"]));
}

#[tokio::test]
async fn stale_and_false_statuses_are_refused() {
    let server = Server::start(None).await;
    let with = |member: &str, value: Value| {
        let mut status = status(I1, 5);
        status[member] = value;
        status
    };
    assert_eq!(server.report(&with("seq", json!(7))).await.status, 200);
    assert_eq!(server.report(&status(I1, 4)).await.problem(), (409, "kvsp-stale-epoch".into()));
    assert_eq!(server.report(&with("seq", json!(6))).await.problem(), (409, "kvsp-stale-record".into()));
    let path = status_path(I1);
    for (member, value) in [
        ("state", json!("failed")),
        ("state", json!("busy")),
        ("kv_utilization", json!(-0.1)),
        ("requested_state", json!("failed")),
        ("instance", json!(I2)),
        ("instance", json!("https://i1.example")),
    ] {
        let answer = server.put(&path, &with(member, value)).await;
        assert_eq!(answer.problem(), (422, "kvsp-invalid-record".into()), "{member}");
    }
    for (member, value) in [("epoch", json!("5")), ("ttl_ms", json!(0)), ("links", json!({}))] {
        let answer = server.put(&path, &with(member, value)).await;
        assert_eq!(answer.problem(), (400, "kvsp-malformed-json".into()), "{member}");
    }
    let bad = server.put("instances/xx/status", &status(I1, 5)).await;
    assert_eq!(bad.problem(), (400, "kvsp-bad-identifier".into()));
    assert_eq!(server.report(&with("prefill_tokens_per_s", json!(-1))).await.status, 200, "unknown");
}

#[tokio::test]
async fn an_instance_whose_status_expires_has_failed() {
    let server = Server::start(None).await;
    let mut short = status(I1, 1);
    short["ttl_ms"] = json!(150);
    server.report(&short).await;
    assert_eq!(server.post("placements", &placement(0, 1)).await.ok()["instance"], I1);
    let path = format!("instances/{}", uri64(I1));
    let failed = async {
        while server.get(&path).await.ok()["state"] != "failed" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), failed).await.expect("it fails");
    let answer = server.post("placements", &placement(0, 1)).await;
    assert_eq!(answer.problem(), (503, "kvsp-no-capacity".into()));
    let state = format!("{path}/state");
    let answer = server.put(&state, &json!({"state": "active"})).await;
    assert_eq!(answer.problem(), (409, "kvsp-instance-not-active".into()));
    let counted = async {
        while !server.metrics().await.contains("kvsp_controller_instances{state=\"failed\"} 1") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), counted).await.expect("it is counted");
}

#[tokio::test]
async fn sleep_is_granted_while_another_is_active() {
    let server = Server::start(None).await;
    server.report(&status(I1, 1)).await;
    let mut asks = status(I2, 1);
    asks["requested_state"] = json!("sleeping");
    assert_eq!(server.report(&asks).await.ok(), json!({"state": "draining"}));
    let mut asks = status(I1, 1);
    asks["requested_state"] = json!("sleeping");
    assert_eq!(server.report(&asks).await.ok(), json!({"state": "active"}), "the last one stays");
    let placed = server.post("placements", &placement(0, 1)).await.ok();
    assert_eq!(placed["candidates"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn states_are_ordered_and_told() {
    let server = Server::start(None).await;
    let mut peer = Peer::start().await;
    let base = peer.base.as_str().to_owned();
    server.report(&status(&base, 1)).await;
    let path = format!("instances/{}/state", uri64(&base));
    assert_eq!(server.put(&path, &json!({"state": "draining"})).await.ok(), json!({"state": "draining"}));
    assert_eq!(peer.sent.recv().await, Some(Sent::State(json!({"state": "draining"}))));
    assert_eq!(server.report(&status(&base, 1)).await.ok(), json!({"state": "draining"}), "an order stands");
    let answer = server.post("placements", &placement(0, 1)).await;
    assert_eq!(answer.problem(), (503, "kvsp-no-capacity".into()));
    assert_eq!(answer.headers["retry-after"], "1");
    for (body, problem) in [
        (json!({"state": "failed"}), (422, "kvsp-invalid-record")),
        (json!({"state": "x"}), (422, "kvsp-invalid-record")),
        (json!({"state": 1}), (400, "kvsp-malformed-json")),
        (json!({}), (400, "kvsp-malformed-json")),
        (json!(["active"]), (400, "kvsp-malformed-json")),
    ] {
        assert_eq!(server.put(&path, &body).await.problem(), (problem.0, problem.1.to_owned()), "{body}");
    }
    let unknown = format!("instances/{}/state", uri64(I1));
    let answer = server.put(&unknown, &json!({"state": "active"})).await;
    assert_eq!(answer.problem(), (404, "kvsp-instance-unknown".into()));
}

#[tokio::test]
async fn an_order_stands_where_the_instance_is_away() {
    let server = Server::start(None).await;
    let base = nowhere().await;
    server.report(&status(base.as_str(), 1)).await;
    let path = format!("instances/{}/state", base.to_uri64());
    assert_eq!(server.put(&path, &json!({"state": "sleeping"})).await.ok(), json!({"state": "sleeping"}));
    assert_eq!(server.report(&status(base.as_str(), 1)).await.ok(), json!({"state": "sleeping"}));
}

/// `Authorization` names a principal by its role.
struct ByRole;

impl Authenticator for ByRole {
    fn authenticate(
        &self,
        parts: &http::request::Parts,
        _peer: std::net::SocketAddr,
    ) -> Result<Principal, Problem> {
        let who = parts.headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or("");
        let role = Role::ALL.into_iter().find(|role| role.as_str() == who);
        let scopes = Grant::Only(BTreeSet::from([crate::support::scope().parse().unwrap()]));
        Ok(Principal::new(I1, role, scopes, Grant::Only(BTreeSet::new())))
    }
}

#[tokio::test]
async fn rights_follow_roles() {
    let server = Server::with(ControllerConfig::default(), Arc::new(ByRole)).await;
    let ask = async |who: &str, method: Method, path: &str, body: Value| {
        let uri = server.base.join(path);
        server.send_as(who, method, &uri, Some(body.to_string().into())).await.status.as_u16()
    };
    let own = status_path(I1);
    assert_eq!(ask("client", Method::PUT, &own, status(I1, 1)).await, 403);
    assert_eq!(ask("instance", Method::PUT, &own, status(I1, 1)).await, 200);
    assert_eq!(ask("instance", Method::PUT, &status_path(I2), status(I2, 1)).await, 403);
    let state = format!("instances/{}/state", uri64(I1));
    assert_eq!(ask("controller", Method::PUT, &state, json!({"state": "active"})).await, 403);
    assert_eq!(ask("client", Method::POST, "placements", placement(0, 1)).await, 200);
    assert_eq!(ask("nobody", Method::POST, "placements", placement(0, 1)).await, 403);
    let mut foreign = placement(0, 1);
    foreign["scope_id"] = json!("00".repeat(16));
    let uri = server.base.join("placements");
    let answer = server.send_as("client", Method::POST, &uri, Some(foreign.to_string().into())).await;
    assert_eq!(answer.problem(), (403, "kvsp-scope-denied".into()));
}
