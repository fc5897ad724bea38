//! Routes, methods and problems over a real socket.

mod common;

use common::{Wire, bare, json, router};
use kvsp_proto::message::ServiceRoot;
use kvsp_testkit::TestService;

const SCOPE: &str = "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a";

#[tokio::test]
async fn the_root_document_tells_what_the_service_is() {
    let service = TestService::start(router()).await;
    let mut wire = Wire::open(&service).await;
    for path in ["/kvsp/", "/kvsp"] {
        let answer = wire.ask(&bare("GET", path)).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/kvsp+json")));
        let root: ServiceRoot = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((root.kvsp, root.roles), (1, vec!["holder".to_owned()]));
    }
    service.stop().await;
}

#[tokio::test]
async fn unknown_paths_are_404_and_unknown_methods_405_with_allow() {
    let service = TestService::start(router()).await;
    let mut wire = Wire::open(&service).await;
    let long = format!("/kvsp/{}", "a/".repeat(2000));
    for path in [
        "/",
        "/kvsp/nothing",
        "/kvsp/lookup/",
        "/kvsp//lookup",
        "//kvsp/lookup",
        "/kvsp%2Flookup",
        "/kvsp/scopes/",
        "/kvsp/scopes/a/b",
        "/kvsp/../kvsp/lookup",
        "/kvsp/%00",
        "/kvsp/%ff%fe",
        "/other/lookup",
        &long,
    ] {
        let answer = wire.ask(&bare("GET", path)).await;
        assert_eq!(answer.status, 404, "{path}");
        answer.problem("blank");
    }
    for method in ["GET", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "BREW"] {
        let answer = wire.ask(&bare(method, "/kvsp/lookup")).await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")), "{method}");
        answer.problem("blank");
    }
    for method in ["POST", "DELETE"] {
        let answer = wire.ask(&bare(method, &format!("/kvsp/scopes/{SCOPE}"))).await;
        assert_eq!(answer.status, 405);
        let allow = answer.header("allow").unwrap();
        assert!(["GET", "HEAD", "PUT"].iter().all(|name| allow.contains(name)), "{allow}");
        let answer = wire.ask(&bare(method, "/kvsp/")).await;
        assert_eq!(answer.status, 405);
    }
    service.stop().await;
}

#[tokio::test]
async fn head_is_get_without_its_body() {
    let service = TestService::start(router()).await;
    let mut wire = Wire::open(&service).await;
    wire.send(format!("HEAD /kvsp/scopes/{SCOPE} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
        .await;
    let (head, body) =
        wire.rest().await.split_once("\r\n\r\n").map(|(h, b)| (h.to_owned(), b.to_owned())).unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("content-length: 34"), "{head}");
    assert_eq!(body, "");
    service.stop().await;
}

#[tokio::test]
async fn paths_are_checked_before_bodies() {
    let service = TestService::start(router()).await;
    let mut wire = Wire::open(&service).await;
    let bad = SCOPE.to_uppercase();
    for path in [&bad, "a", "%30a", &format!("{SCOPE}00"), "%ff"] {
        let answer = wire.ask(&bare("GET", &format!("/kvsp/scopes/{path}"))).await;
        assert_eq!(answer.status, 400, "{path}");
        answer.problem("kvsp-bad-identifier");
    }
    assert_eq!(wire.ask(&bare("GET", &format!("/kvsp/scopes/{SCOPE}"))).await.status, 200);
    service.stop().await;
}

#[tokio::test]
async fn authentication_comes_first_even_where_there_is_nothing() {
    let service = TestService::start(router()).await;
    let mut wire = Wire::open(&service).await;
    for path in ["/kvsp/", "/kvsp/lookup", "/nothing"] {
        for fields in ["Host: localhost\r\nOrigin: http://localhost", "Host: evil.example"] {
            let answer = wire.ask(&format!("GET {path} HTTP/1.1\r\n{fields}\r\n\r\n")).await;
            assert_eq!(answer.status, 403, "{path} {fields}");
            answer.problem("blank");
        }
        let answer = wire.ask(&format!("GET {path} HTTP/1.1\r\n\r\n")).await;
        assert_eq!(answer.status, 400);
    }
    // The same connection serves the next good request.
    assert_eq!(wire.ask(&json("POST", "/kvsp/lookup", "{}")).await.status, 200);
    service.stop().await;
}

#[tokio::test]
async fn a_panic_is_a_problem_and_the_server_lives_on() {
    let service = TestService::start(router()).await;
    let mut wire = Wire::open(&service).await;
    for _ in 0..3 {
        let answer = wire.ask(&bare("GET", "/kvsp/panic")).await;
        assert_eq!(answer.status, 500);
        assert!(!answer.problem("blank").contains("told to"));
    }
    assert_eq!(wire.ask(&json("POST", "/kvsp/lookup", "{}")).await.status, 200);
    service.stop().await;
}

#[tokio::test]
async fn the_admin_listener_tells_health_and_metrics() {
    let service = TestService::start(router()).await;
    let mut wire = Wire::open(&service).await;
    wire.ask(&json("POST", "/kvsp/lookup", "{}")).await;
    wire.ask(&bare("GET", "/kvsp/nothing")).await;
    let authority = service.admin.as_str().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut admin = Wire::to(&authority).await;
    assert_eq!(admin.ask(&bare("GET", "/livez")).await.status, 200);
    assert_eq!(admin.ask(&bare("GET", "/readyz")).await.status, 200);
    service.ready.store(false, std::sync::atomic::Ordering::Release);
    let answer = admin.ask(&bare("GET", "/readyz")).await;
    assert_eq!(answer.status, 503);
    answer.problem("blank");
    let text = String::from_utf8(admin.ask(&bare("GET", "/metrics")).await.body).unwrap();
    assert!(text.contains(r#"kvsp_requests_total{role="holder",method="POST",status="200"} 1"#), "{text}");
    assert!(text.contains(r#"kvsp_requests_total{role="holder",method="GET",status="404"} 1"#), "{text}");
    service.stop().await;
}
