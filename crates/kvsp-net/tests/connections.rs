//! Connections: slow and malformed heads, too many of them, and the stop.

mod common;

use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{Wire, bare, begin, json, router};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kvsp_net::service::{BindError, Service, ServiceConfig};
use kvsp_testkit::TestService;

#[tokio::test]
async fn only_loopback_is_bound_without_credentials() {
    let auth = || std::sync::Arc::new(kvsp_net::auth::Development::new());
    let open = ServiceConfig { listen: "0.0.0.0:0".parse().unwrap(), ..ServiceConfig::default() };
    assert!(matches!(Service::bind(open.clone(), auth()).await, Err(BindError::NotLoopback(_))));
    let admin = ServiceConfig { admin_listen: "0.0.0.0:0".parse().unwrap(), ..ServiceConfig::default() };
    assert!(matches!(Service::bind(admin, auth()).await, Err(BindError::NotLoopback(_))));
    let bound = Service::bind(ServiceConfig { insecure: true, ..open }, auth()).await.unwrap();
    assert!(bound.base().as_str().starts_with("http://127.0.0.1:"));
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_the_connection() {
    let config = ServiceConfig { header_timeout_ms: 150, ..ServiceConfig::default() };
    let service = TestService::start_with(router(), config).await;
    // Nothing, a beginning of HTTP/2, a beginning of HTTP/1, and silence after a request.
    for beginning in ["", "PRI * HT", "GET /kvsp/ HTTP/1.1\r\nHost: loc"] {
        let mut wire = Wire::open(&service).await;
        wire.send(beginning).await;
        assert!(wire.answer().await.is_none(), "{beginning:?}");
    }
    let mut wire = Wire::open(&service).await;
    assert_eq!(wire.ask(&bare("GET", "/kvsp/")).await.status, 200);
    assert!(wire.answer().await.is_none());
    service.stop().await;
}

#[tokio::test]
async fn malformed_and_huge_heads_are_refused() {
    let service = TestService::start(router()).await;
    let many = format!("GET /kvsp/ HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "a: b\r\n".repeat(200));
    let long = format!("GET /kvsp/ HTTP/1.1\r\nHost: localhost\r\na: {}\r\n\r\n", "b".repeat(200_000));
    for head in [
        "\0\0\0\0\r\n\r\n",
        "GET  /kvsp/ HTTP/1.1\r\n\r\n",
        "GET /kvsp/ HTTP/9.9\r\n\r\n",
        "GET /kvsp/ HTTP/1.1\r\nHost localhost\r\n\r\n",
        "POST /kvsp/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        "POST /kvsp/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        &many,
        &long,
    ] {
        let mut wire = Wire::open(&service).await;
        // The server may answer and close before all of it is sent.
        let _ = wire.try_send(head.as_bytes()).await;
        if let Some(answer) = wire.answer().await {
            assert!((400..500).contains(&answer.status), "{answer:?}");
        }
        let mut wire = Wire::open(&service).await;
        assert_eq!(wire.ask(&bare("GET", "/kvsp/")).await.status, 200);
    }
    // Forms of a target that are not a path.
    for target in ["*", "localhost:80", "http://localhost/nothing"] {
        let mut wire = Wire::open(&service).await;
        for method in ["OPTIONS", "CONNECT", "GET"] {
            wire.send(format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
            match wire.answer().await {
                Some(answer) => assert!((400..500).contains(&answer.status), "{method} {target}: {answer:?}"),
                None => break,
            }
        }
    }
    service.stop().await;
}

#[tokio::test]
async fn too_many_connections_wait_or_are_closed() {
    let config =
        ServiceConfig { max_connections: 2, max_connection_wait_ms: 100, ..ServiceConfig::default() };
    let service = TestService::start_with(router(), config).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut wire = Wire::open(&service).await;
        assert_eq!(wire.ask(&bare("GET", "/kvsp/")).await.status, 200);
        held.push(wire);
    }
    let mut refused = Wire::open(&service).await;
    let _ = refused.try_send(bare("GET", "/kvsp/").as_bytes()).await;
    assert!(refused.answer().await.is_none());
    held.pop();
    let mut wire = Wire::open(&service).await;
    assert_eq!(wire.ask(&bare("GET", "/kvsp/")).await.status, 200);
    assert!(service.metrics.encode().contains("kvsp_connections_refused_total 1"));
    service.stop().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let service = TestService::start(router()).await;
    let mut wire = Wire::open(&service).await;
    let body = |i: usize| format!("{{\"a\":{i}}}");
    let pipeline: String = (0..20).map(|i| json("POST", "/kvsp/lookup", &body(i))).collect();
    wire.send(pipeline).await;
    for i in 0..20 {
        assert_eq!(wire.answer().await.unwrap().body, body(i).as_bytes());
    }
    service.stop().await;
}

#[tokio::test]
async fn http_2_is_served_too() {
    let service = TestService::start(router()).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    let ask = async |method: &str, path: &str, body: &str| {
        let request = Request::builder().method(method).uri(format!("http://{}{path}", service.authority()));
        let request = request.header("content-type", "application/json").body(Full::from(body.to_owned()));
        let response = client.request(request.unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let problem =
            parts.headers.get("content-type").is_some_and(|media| media == "application/problem+json");
        (parts.status.as_u16(), problem, body.collect().await.unwrap().to_bytes())
    };
    assert_eq!(ask("POST", "/kvsp/lookup", "{}").await, (200, false, "{}".into()));
    for (method, path, body, status) in [
        ("GET", "/kvsp/nothing", "", 404),
        ("GET", "/kvsp/lookup", "", 405),
        ("GET", "/kvsp/panic", "", 500),
        ("POST", "/kvsp/lookup", &*"1".repeat(100_000), 413),
    ] {
        let (got, problem, _) = ask(method, path, body).await;
        assert_eq!((got, problem), (status, true), "{method} {path}");
    }
    assert_eq!(ask("GET", "/kvsp/", "").await.0, 200);
    drop(client);
    service.stop().await;
}

#[tokio::test]
async fn a_stop_lets_requests_in_flight_finish() {
    let service = TestService::start(router()).await;
    let mut idle = Wire::open(&service).await;
    assert_eq!(idle.ask(&bare("GET", "/kvsp/")).await.status, 200);
    let mut busy = begin(&service, "/kvsp/lookup", 2).await;
    let (authority, start) = (service.authority(), Instant::now());
    service.begin_stop();
    assert!(idle.answer().await.is_none(), "idle connections do not hold the stop up");
    busy.send("{}").await;
    assert_eq!(busy.answer().await.expect("the answer").body, b"{}");
    service.stop().await;
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(tokio::net::TcpStream::connect(authority).await.is_err());
}

#[tokio::test]
async fn a_stop_does_not_wait_beyond_the_drain_timeout() {
    let config = ServiceConfig { drain_timeout_ms: 100, ..ServiceConfig::default() };
    let service = TestService::start_with(router(), config).await;
    let mut wire = begin(&service, "/kvsp/lookup", 2).await;
    let start = Instant::now();
    service.stop().await;
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(wire.answer().await.is_none());
}
