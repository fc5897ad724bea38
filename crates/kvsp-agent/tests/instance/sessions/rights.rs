//! Who may do what with a session (profile section 4).

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http::request::Parts;
use kvsp_net::auth::Authenticator;
use kvsp_net::principal::{Grant, Principal, Role};
use kvsp_proto::id::ScopeId;
use kvsp_proto::problem::Problem;
use serde_json::json;
use uuid::Uuid;

use super::controller::Controller;
use super::work::{Job, setup};
use crate::support::{Instance, client, eventually, prompt, scope};

/// Everyone is who he says he is.
struct Credulous;

impl Authenticator for Credulous {
    fn authenticate(&self, parts: &Parts, _peer: SocketAddr) -> Result<Principal, Problem> {
        let name = parts.headers.get("test-principal").map_or("", |value| value.to_str().unwrap());
        let (role, scopes) = match name {
            "alice" | "bob" => (Role::Client, [scope()].into()),
            "stranger" => (Role::Client, [ScopeId([9; 16])].into()),
            "controller" => (Role::Controller, [scope()].into()),
            _ => (Role::Holder, [scope()].into()),
        };
        Ok(Principal::new(name, [role], Grant::Only(scopes), Grant::Only([].into())))
    }
}

async fn ask(instance: &Instance, name: &str, method: &str, path: &str, body: &str) -> u16 {
    let request = Request::builder()
        .method(method)
        .header("content-type", "application/kvsp+json")
        .header("test-principal", name)
        .body(Bytes::copy_from_slice(body.as_bytes()))
        .unwrap();
    client().forward(&instance.base, path, request).await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_its_owners_and_only_the_controller_resumes() {
    let controller = Controller::start().await;
    let a = Instance::start_with(setup(&controller, None), Arc::new(Credulous)).await;
    let job = Job::new(1, prompt(1, 20), 5);
    let mut request = job.request();
    request.headers_mut().insert("test-principal", "alice".parse().unwrap());
    assert_eq!(client().forward(&a.base, "v1/completions", request).await.unwrap().status(), 200);
    eventually("its end", async || controller.recorded(job.id).filter(|c| c.output_offset == 5)).await;

    let tokens = format!("sessions/{}/tokens", job.id);
    for (name, status) in [("alice", 200), ("controller", 200), ("bob", 403), ("stranger", 403)] {
        assert_eq!(ask(&a, name, "GET", &tokens, "").await, status, "{name}");
    }
    let checkpoint = super::work::cut(&controller.recorded(job.id).unwrap(), 2, 2);
    let resume = json!({"epoch": 2, "checkpoint": checkpoint}).to_string();
    let path = format!("sessions/{}/resume", Uuid::from_u128(2));
    for (name, status) in [("alice", 403), ("holder", 403), ("controller", 202)] {
        assert_eq!(ask(&a, name, "POST", &path, &resume).await, status, "{name}");
    }
    // Who placed a resumed session only the controller knows: the scope decides here.
    let tokens = format!("sessions/{}/tokens", Uuid::from_u128(2));
    for (name, status) in [("alice", 200), ("bob", 200), ("stranger", 403)] {
        assert_eq!(ask(&a, name, "GET", &tokens, "").await, status, "{name}");
    }
    let session = format!("sessions/{}", job.id);
    for (name, status) in [("bob", 403), ("stranger", 403), ("alice", 204), ("bob", 204)] {
        assert_eq!(ask(&a, name, "DELETE", &session, "").await, status, "{name}");
    }
}
