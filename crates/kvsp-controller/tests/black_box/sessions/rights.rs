//! Who may do what with a session (profile section 4).

use std::collections::BTreeSet;
use std::sync::Arc;

use http::Method;
use kvsp_controller::ControllerConfig;
use kvsp_net::auth::Authenticator;
use kvsp_net::principal::{Grant, Principal, Role};
use kvsp_proto::problem::Problem;
use serde_json::{Value, json};

use super::{append, checkpoint, checkpoint_path, config, path, wanted};
use crate::support::{Answer, Server, status, status_path};

const I1: &str = "https://i1.example/kvsp/";
const I2: &str = "https://i2.example/kvsp/";

/// `Authorization` is a role, a blank, and the principal's name.
struct ByName;

impl Authenticator for ByName {
    fn authenticate(
        &self,
        parts: &http::request::Parts,
        _peer: std::net::SocketAddr,
    ) -> Result<Principal, Problem> {
        let who = parts.headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or("");
        let (role, name) = who.split_once(' ').unwrap_or((who, ""));
        let roles = Role::ALL.into_iter().filter(|known| known.as_str() == role);
        let scopes = match name {
            "elsewhere" => Grant::Only(BTreeSet::new()),
            _ => Grant::Only(BTreeSet::from([crate::support::scope().parse().unwrap()])),
        };
        Ok(Principal::new(name, roles, scopes, Grant::Only(BTreeSet::new())))
    }
}

struct Asking(Server);

impl Asking {
    async fn start(config: ControllerConfig) -> Self {
        Self(Server::with(config, Arc::new(ByName)).await)
    }

    async fn ask(&self, who: &str, method: Method, path: &str, body: Option<Value>) -> Answer {
        self.0.send_as(who, method, &self.0.base.join(path), body.map(|body| body.to_string().into())).await
    }

    async fn report(&self, instance: &str, epoch: u64) {
        let who = format!("instance {instance}");
        let answer = self.ask(&who, Method::PUT, &status_path(instance), Some(status(instance, epoch))).await;
        assert_eq!(answer.status, 200);
    }

    async fn place(&self, who: &str) -> String {
        let answer = self.ask(who, Method::POST, "placements", Some(wanted())).await.ok();
        answer["session"]["session"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn a_checkpoint_is_for_the_session_s_own_instance() {
    let server = Asking::start(config()).await;
    server.report(I1, 1).await;
    let session = server.place("client c1").await;
    let at = checkpoint_path(&session);
    let own = format!("instance {I1}");
    for who in ["client c1", "admin a", "holder h", "controller c", &format!("client {I1}")] {
        for (method, body) in [(Method::PUT, checkpoint(&session, 1, 1)), (Method::PATCH, append(1, 0, 1))] {
            let answer = server.ask(who, method, &at, Some(body)).await;
            assert_eq!(answer.problem(), (403, "about:blank".into()), "{who}");
        }
    }
    let foreign = format!("instance {I2}");
    let not_holder = (403, "kvsp-not-holder".to_owned());
    for body in [checkpoint(&session, 1, 1), checkpoint(&session, 9, 1), json!({})] {
        assert_eq!(server.ask(&foreign, Method::PUT, &at, Some(body)).await.problem(), not_holder);
    }
    assert_eq!(server.ask(&foreign, Method::PATCH, &at, Some(append(1, 0, 1))).await.problem(), not_holder);
    assert_eq!(server.ask(&foreign, Method::GET, &at, None).await.status, 403);
    let mut elsewhere = checkpoint(&session, 1, 1);
    elsewhere["scope_id"] = json!("00".repeat(16));
    assert_eq!(
        server.ask(&own, Method::PUT, &at, Some(elsewhere)).await.problem(),
        (403, "kvsp-scope-denied".into())
    );
    assert_eq!(server.ask(&own, Method::PUT, &at, Some(checkpoint(&session, 1, 1))).await.status, 200);
    assert_eq!(server.ask(&own, Method::PATCH, &at, Some(append(1, 1, 2))).await.status, 200);
    assert_eq!(server.ask(&own, Method::GET, &at, None).await.status, 200);
}

#[tokio::test]
async fn a_former_instance_learns_that_its_epoch_is_over() {
    let server = Asking::start(config()).await;
    server.report(I1, 1).await;
    let session = server.place("client c1").await;
    let at = checkpoint_path(&session);
    // The restarted instance is not told: nothing is recorded yet. Whatever is chosen, the epoch is raised.
    server.report(I2, 1).await;
    server.report(I1, 2).await;
    let poll = format!("{}?after_epoch=1&wait_ms=30000", path(&session));
    let view = server.ask("client c1", Method::GET, &poll, None).await.ok();
    assert_eq!(view["epoch"], 2);
    let (now_at, other) = if view["instance"] == I1 { (I1, I2) } else { (I2, I1) };
    let other = format!("instance {other}");
    let answer = server.ask(&other, Method::PUT, &at, Some(checkpoint(&session, 1, 1))).await;
    assert_eq!(answer.problem(), (409, "kvsp-stale-epoch".into()));
    let answer = server.ask(&other, Method::PATCH, &at, Some(append(1, 0, 1))).await;
    assert_eq!(answer.problem(), (409, "kvsp-stale-epoch".into()));
    let answer = server.ask(&other, Method::PUT, &at, Some(checkpoint(&session, 2, 1))).await;
    assert_eq!(answer.problem(), (403, "kvsp-not-holder".into()));
    let current = format!("instance {now_at}");
    assert_eq!(server.ask(&current, Method::PUT, &at, Some(checkpoint(&session, 2, 1))).await.status, 200);
}

#[tokio::test]
async fn a_session_is_for_the_principal_that_placed_it() {
    let server = Asking::start(config()).await;
    server.report(I1, 1).await;
    let session = server.place("client c1").await;
    let own = format!("instance {I1}");
    let at = checkpoint_path(&session);
    server.ask(&own, Method::PUT, &at, Some(checkpoint(&session, 1, 1))).await.ok();
    let requests = [
        (Method::GET, path(&session), None),
        (Method::GET, format!("{}?after_epoch=0&wait_ms=1", path(&session)), None),
        (Method::GET, format!("{}/continuation", path(&session)), None),
        (Method::GET, at, None),
        (Method::POST, format!("{}/failover", path(&session)), Some(json!({"epoch": 1}))),
        (Method::DELETE, path(&session), None),
    ];
    for who in ["client c2", "holder c2", "controller c2"] {
        for (method, path, body) in requests.clone() {
            let answer = server.ask(who, method.clone(), &path, body).await;
            assert_eq!(answer.status, 403, "{who} {method} {path}");
        }
    }
    for who in ["admin a", "client c1"] {
        for (method, path, body) in &requests[..5] {
            let answer = server.ask(who, method.clone(), path, body.clone()).await;
            assert!(answer.status.is_success(), "{who} {method} {path} {answer:?}");
        }
    }
    assert_eq!(server.ask("client c1", Method::DELETE, &path(&session), None).await.status, 204);
}

#[tokio::test]
async fn a_list_shows_only_what_one_may_see() {
    let server = Asking::start(config()).await;
    server.report(I1, 1).await;
    let (one, two) = (server.place("client c1").await, server.place("client c2").await);
    let listed = async |who: &str| -> BTreeSet<String> {
        let list = server.ask(who, Method::GET, "sessions", None).await.ok();
        list["sessions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v["session"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(listed("client c1").await, BTreeSet::from([one.clone()]));
    assert_eq!(listed("client c2").await, BTreeSet::from([two.clone()]));
    assert_eq!(listed("client c3").await, BTreeSet::new());
    assert_eq!(listed("admin a").await, BTreeSet::from([one, two]));
    assert_eq!(server.ask("nobody n", Method::GET, "sessions", None).await.status, 403);
}
