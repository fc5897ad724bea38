//! Who may do what with a map (profile sections 4 and 8).

use std::collections::BTreeSet;
use std::sync::Arc;

use http::Method;
use kvsp_controller::ControllerConfig;
use kvsp_net::auth::Authenticator;
use kvsp_net::principal::{Grant, Principal, Role};
use kvsp_proto::problem::Problem;
use serde_json::{Value, json};

use super::member::Member;
use super::{MAP, body, path, reshard_path, shards};
use crate::support::{Answer, Server};

/// `Authorization` is a role, a blank, and the principal's name; `elsewhere` has another scope.
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
        let scope = if name == "elsewhere" { "00".repeat(16) } else { crate::support::scope() };
        let scopes = Grant::Only(BTreeSet::from([scope.parse().unwrap()]));
        Ok(Principal::new(name, roles, scopes, Grant::Only(BTreeSet::new())))
    }
}

struct Asking(Server);

impl Asking {
    async fn start() -> Self {
        Self(Server::with(ControllerConfig::default(), Arc::new(ByName)).await)
    }

    async fn ask(&self, who: &str, method: Method, path: &str, body: Option<Value>) -> Answer {
        self.0.send_as(who, method, &self.0.base.join(path), body.map(|body| body.to_string().into())).await
    }
}

#[tokio::test]
async fn a_map_is_for_those_who_have_its_scope() {
    let server = Asking::start().await;
    let (a, b) = (Member::start(), Member::start());
    let wanted = body(&shards(&[(9, &a)]));
    let denied = (403, "kvsp-scope-denied".to_owned());
    for (method, at, sent) in [
        (Method::PUT, path(MAP), Some(wanted.clone())),
        (Method::GET, path(MAP), None),
        (Method::DELETE, path(MAP), None),
    ] {
        let answer = server.ask("nobody n", method.clone(), &at, sent).await;
        assert_eq!(answer.problem(), (403, "about:blank".into()), "{method} {at} without a role");
    }
    let answer = server.ask("client elsewhere", Method::PUT, &path(MAP), Some(wanted.clone())).await;
    assert_eq!(answer.problem(), denied);
    assert_eq!(server.ask("client c1", Method::PUT, &path(MAP), Some(wanted.clone())).await.status, 201);
    assert_eq!(server.ask("client c2", Method::GET, &path(MAP), None).await.status, 200, "the scope decides");
    assert_eq!(server.ask("instance i", Method::GET, &path(MAP), None).await.status, 200);
    for who in ["client elsewhere", "admin elsewhere"] {
        assert_eq!(server.ask(who, Method::GET, &path(MAP), None).await.problem(), denied, "{who}");
    }
    let mine = server.ask("client c1", Method::GET, "maps", None).await.ok();
    assert_eq!(mine["maps"].as_array().unwrap().len(), 1);
    let none = server.ask("client elsewhere", Method::GET, "maps", None).await.ok();
    assert_eq!(none, json!({"maps": []}), "and the list shows no more");

    let change = json!({"from": 1, "shards": shards(&[(9, &b)]), "deadline_ms": 500});
    for (who, problem) in [
        ("client elsewhere", "kvsp-scope-denied"),
        ("instance i", "about:blank"),
        ("holder h", "about:blank"),
    ] {
        let answer = server.ask(who, Method::POST, &reshard_path(MAP), Some(change.clone())).await;
        assert_eq!(answer.problem(), (403, problem.into()), "{who} splits it anew");
        let answer = server.ask(who, Method::DELETE, &path(MAP), None).await;
        assert_eq!(answer.problem(), (403, problem.into()), "{who} ends it");
    }
    assert_eq!(server.ask("client c2", Method::POST, &reshard_path(MAP), Some(change)).await.status, 202);
    assert_eq!(server.ask("admin a", Method::DELETE, &path(MAP), None).await.status, 204);
}

#[tokio::test]
async fn a_session_s_map_is_changed_by_its_principal_alone() {
    let server = Asking::start().await;
    let a = Member::start();
    let status = crate::support::status(a.uri(), 1);
    let own = format!("instance {}", a.uri());
    let reported = server.ask(&own, Method::PUT, &crate::support::status_path(a.uri()), Some(status)).await;
    assert_eq!(reported.status, 200);
    let mut placement = crate::support::placement(0, 5);
    placement["session"] = json!(true);
    let placed = server.ask("client c1", Method::POST, "placements", Some(placement)).await.ok();
    let mut wanted = body(&shards(&[(9, &a)]));
    wanted["session"] = placed["session"]["session"].clone();
    let foreign = (403, "about:blank".to_owned());
    let answer = server.ask("client c2", Method::PUT, &path(MAP), Some(wanted.clone())).await;
    assert_eq!(answer.problem(), foreign);
    assert_eq!(server.ask("client c1", Method::PUT, &path(MAP), Some(wanted)).await.status, 201);
    let change = json!({"from": 1, "shards": shards(&[(9, &a)]), "deadline_ms": 500});
    let answer = server.ask("client c2", Method::POST, &reshard_path(MAP), Some(change.clone())).await;
    assert_eq!(answer.problem(), foreign);
    assert_eq!(server.ask("client c2", Method::DELETE, &path(MAP), None).await.problem(), foreign);
    assert_eq!(server.ask("client c1", Method::POST, &reshard_path(MAP), Some(change)).await.status, 202);
    assert_eq!(server.ask("admin a", Method::DELETE, &path(MAP), None).await.status, 204);
}
