//! Who may do what (profile section 4), with principals chosen by the bearer token.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::support::{Server, compat, key, lookup_of, path_of, record, scope, status, uri64};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kvsp_index::IndexServiceConfig;
use kvsp_net::auth::Authenticator;
use kvsp_net::principal::{Grant, Principal, Role};
use kvsp_proto::problem::Problem;
use kvsp_proto::uri::HolderUri;
use serde_json::{Value, json};

const H1: &str = "https://h1.example/kvsp/";
const I1: &str = "https://i1.example/kvsp/";

/// `Authorization` names one of a few principals.
struct Named;

impl Authenticator for Named {
    fn authenticate(&self, parts: &http::request::Parts, _peer: SocketAddr) -> Result<Principal, Problem> {
        let name = parts.headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or("");
        let scopes = Grant::Only(BTreeSet::from([scope().parse().unwrap()]));
        let none = || Grant::Only(BTreeSet::new());
        let h1: HolderUri = H1.parse().unwrap();
        Ok(match name {
            "holder" => Principal::new(H1, [Role::Holder], scopes, none()),
            "delegate" => {
                Principal::new("https://d/", [Role::Holder], scopes, Grant::Only(BTreeSet::from([h1])))
            }
            "other" => Principal::new("https://o/", [Role::Holder], scopes, none()),
            "instance" => Principal::new(I1, [Role::Instance], scopes, none()),
            "client" => Principal::new("https://c/", [Role::Client], scopes, none()),
            "foreign" => Principal::new(H1, [Role::Holder], Grant::Only(BTreeSet::new()), none()),
            _ => Principal::anonymous(),
        })
    }
}

async fn ask(server: &Server, who: &str, method: Method, path: &str, body: &Value) -> (u16, String) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let request = Request::builder()
        .method(method)
        .uri(server.base.join(path))
        .header("authorization", who)
        .header("content-type", "application/kvsp+json")
        .body(Full::new(Bytes::from(body.to_string())))
        .unwrap();
    let response = client.request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let name = body["type"].as_str().unwrap_or_default();
    let name = if status < 400 { "" } else { name.strip_prefix(crate::support::TYPE_PREFIX).unwrap_or(name) };
    (status, name.to_owned())
}

#[tokio::test]
async fn only_holders_and_their_delegates_publish_in_their_scopes() {
    let server = Server::with(IndexServiceConfig::default(), Arc::new(Named)).await;
    let record = record(1, H1);
    let path = path_of(&record);
    for (who, want) in [
        ("client", (403, "about:blank")),
        ("foreign", (403, "kvsp-scope-denied")),
        ("other", (403, "kvsp-not-holder")),
        ("holder", (201, "")),
        ("delegate", (200, "")),
    ] {
        let got = ask(&server, who, Method::PUT, &path, &record).await;
        assert_eq!((got.0, got.1.as_str()), want, "{who}");
    }
    // The path is judged before the body is read.
    assert_eq!(ask(&server, "other", Method::PUT, &path, &json!("x")).await.1, "kvsp-not-holder");
    assert_eq!(ask(&server, "other", Method::DELETE, &path, &json!(null)).await.1, "kvsp-not-holder");
    let holder = format!("holders/{}", uri64(H1));
    assert_eq!(ask(&server, "other", Method::DELETE, &holder, &json!(null)).await.1, "kvsp-not-holder");
    assert_eq!(ask(&server, "delegate", Method::DELETE, &holder, &json!(null)).await.0, 204);
}

#[tokio::test]
async fn reading_needs_the_scope_whether_or_not_anything_is_there() {
    let server = Server::with(IndexServiceConfig::default(), Arc::new(Named)).await;
    let record = record(1, H1);
    ask(&server, "holder", Method::PUT, &path_of(&record), &record).await;
    let block = format!("replicas/{}/{}/{}", compat(), scope(), key(1));
    let absent = format!("replicas/{}/{}/{}", compat(), scope(), key(2));
    for path in [&block, &absent, &path_of(&record)] {
        assert_eq!(ask(&server, "foreign", Method::GET, path, &json!(null)).await.1, "kvsp-scope-denied");
    }
    assert_eq!(ask(&server, "client", Method::GET, &block, &json!(null)).await.0, 200);
    assert_eq!(
        ask(&server, "foreign", Method::POST, "lookup", &lookup_of(&[1])).await.1,
        "kvsp-scope-denied"
    );
    assert_eq!(ask(&server, "nobody", Method::POST, "lookup", &lookup_of(&[1])).await.0, 403);
    assert_eq!(ask(&server, "client", Method::POST, "lookup", &lookup_of(&[1])).await.0, 200);
}

#[tokio::test]
async fn only_the_holder_itself_raises_its_epoch_and_items_are_judged_alone() {
    let server = Server::with(IndexServiceConfig::default(), Arc::new(Named)).await;
    let mut raised = record(1, H1);
    raised["holder_epoch"] = json!(2);
    let path = path_of(&raised);
    assert_eq!(ask(&server, "delegate", Method::PUT, &path, &raised).await.1, "kvsp-not-holder");
    assert_eq!(ask(&server, "holder", Method::PUT, &path, &raised).await.0, 201);
    assert_eq!(ask(&server, "delegate", Method::PUT, &path, &raised).await.0, 200);
    let batch = json!({"put": [record(2, H1), record(2, "https://o/")]});
    assert_eq!(ask(&server, "client", Method::POST, "replicas", &batch).await.0, 403);
    assert_eq!(ask(&server, "other", Method::POST, "replicas", &batch).await.0, 200);
    assert_eq!(
        ask(&server, "client", Method::GET, &path_of(&record(2, "https://o/")), &json!(0)).await.0,
        200
    );
    assert_eq!(ask(&server, "client", Method::GET, &path_of(&record(2, H1)), &json!(0)).await.0, 404);
}

#[tokio::test]
async fn an_instance_reports_for_itself() {
    let server = Server::with(IndexServiceConfig::default(), Arc::new(Named)).await;
    let path = format!("instances/{}/status", uri64(I1));
    assert_eq!(ask(&server, "holder", Method::PUT, &path, &status(I1, 1)).await, (403, "about:blank".into()));
    assert_eq!(ask(&server, "instance", Method::PUT, &path, &status(I1, 1)).await.0, 200);
    let other = format!("instances/{}/status", uri64("https://i2/"));
    assert_eq!(ask(&server, "instance", Method::PUT, &other, &status(I1, 1)).await.1, "kvsp-not-holder");
}
