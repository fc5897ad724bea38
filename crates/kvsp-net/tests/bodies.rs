//! Bodies: media types, limits, slowness, and connections that live on after a refusal.

mod common;

use std::time::Duration;

use common::{MAX_JSON, Wire, bare, json, router};
use kvsp_net::service::ServiceConfig;
use kvsp_testkit::TestService;

#[tokio::test]
async fn media_types_are_checked() {
    let service = TestService::start(router()).await;
    let mut wire = Wire::open(&service).await;
    for media in ["application/json", "application/kvsp+json", "Application/JSON; charset=utf-8"] {
        let request = format!(
            "POST /kvsp/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media}\r\nContent-Length: 2\r\n\r\n{{}}"
        );
        assert_eq!(wire.ask(&request).await.status, 200, "{media}");
    }
    for fields in
        ["X: y", "Content-Type: text/plain", "Content-Type: application/json\r\nContent-Encoding: gzip"]
    {
        let request = format!(
            "POST /kvsp/lookup HTTP/1.1\r\nHost: localhost\r\n{fields}\r\nContent-Length: 2\r\n\r\n{{}}"
        );
        let answer = wire.ask(&request).await;
        assert_eq!(answer.status, 415, "{fields}");
        answer.problem("blank");
    }
    let answer = wire.ask(&json("POST", "/kvsp/lookup", r#"{"a":1,"a":2}"#)).await;
    assert_eq!(answer.status, 400);
    answer.problem("kvsp-malformed-json");
    service.stop().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_the_connection_lives_on() {
    let service = TestService::start(router()).await;
    let mut wire = Wire::open(&service).await;
    let long = format!("\"{}\"", "x".repeat(MAX_JSON as usize));
    let answer = wire.ask(&json("POST", "/kvsp/lookup", &long)).await;
    assert_eq!(answer.status, 413);
    answer.problem("kvsp-limit-exceeded");
    assert_eq!(wire.ask(&json("POST", "/kvsp/lookup", "{}")).await.status, 200);
    service.stop().await;
}

#[tokio::test]
async fn a_chunked_body_over_the_limit_is_refused_too() {
    let service = TestService::start(router()).await;
    let mut wire = Wire::open(&service).await;
    wire.send("POST /kvsp/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    for _ in 0..11 {
        wire.send(format!("64\r\n{}\r\n", "1".repeat(100))).await;
    }
    let answer = wire.answer().await.unwrap();
    assert_eq!(answer.status, 413);
    wire.send("0\r\n\r\n").await;
    assert_eq!(wire.ask(&json("POST", "/kvsp/lookup", "{}")).await.status, 200);
    service.stop().await;
}

#[tokio::test]
async fn a_client_that_sends_all_before_it_reads_sees_the_refusal() {
    let service = TestService::start(router()).await;
    let mut wire = Wire::open(&service).await;
    let length = 80 << 20;
    wire.send(format!("PUT /kvsp/blocks/k HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/kvsp-block\r\nContent-Length: {length}\r\n\r\n")).await;
    let piece = vec![7; 1 << 20];
    for _ in 0..80 {
        wire.send(&piece).await;
    }
    let answer = wire.answer().await.expect("the answer is not lost to a reset");
    assert_eq!(answer.status, 413);
    assert_eq!(wire.ask(&json("POST", "/kvsp/lookup", "{}")).await.status, 200);
    service.stop().await;
}

#[tokio::test]
async fn an_unwanted_body_is_read_only_so_long() {
    let config = ServiceConfig { linger_octets: 1 << 20, ..ServiceConfig::default() };
    let service = TestService::start_with(router(), config).await;
    let mut wire = Wire::open(&service).await;
    wire.send("PUT /kvsp/blocks/k HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/kvsp-block\r\nContent-Length: 1000000000000\r\n\r\n").await;
    assert_eq!(wire.answer().await.unwrap().status, 413);
    let piece = vec![7; 1 << 20];
    let mut sent = 0;
    while wire.try_send(&piece).await.is_ok() {
        sent += 1;
        assert!(sent < 1000, "the server reads without end");
    }
    let mut wire = Wire::open(&service).await;
    assert_eq!(wire.ask(&json("POST", "/kvsp/lookup", "{}")).await.status, 200);
    service.stop().await;
}

#[tokio::test]
async fn a_large_body_arrives_whole() {
    let service = TestService::start(router()).await;
    let mut wire = Wire::open(&service).await;
    let length = 5_000_001;
    wire.send(format!("PUT /kvsp/blocks/k HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/kvsp-block\r\nContent-Length: {length}\r\n\r\n")).await;
    wire.send(vec![7; length]).await;
    let answer = wire.answer().await.unwrap();
    assert_eq!((answer.status, answer.body.as_slice()), (201, b"5000001".as_slice()));
    service.stop().await;
}

#[tokio::test]
async fn expect_continue_is_answered_where_the_body_is_wanted() {
    let service = TestService::start(router()).await;
    let mut wire = Wire::open(&service).await;
    let head = |media: &str, length: u64| {
        format!(
            "POST /kvsp/lookup HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Type: {media}\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    wire.send(head("application/json", 2)).await;
    assert_eq!(wire.answer().await.unwrap().status, 100);
    wire.send("{}").await;
    assert_eq!(wire.answer().await.unwrap().status, 200);
    wire.send(head("text/plain", 2)).await;
    assert_eq!(wire.answer().await.unwrap().status, 415, "no 100 goes before a refusal");
    let mut wire = Wire::open(&service).await;
    wire.send(head("application/json", 1 << 40)).await;
    assert_eq!(wire.answer().await.unwrap().status, 413);
    service.stop().await;
}

#[tokio::test]
async fn a_slow_body_is_given_up() {
    let config =
        ServiceConfig { body_idle_timeout_ms: 100, linger_timeout_ms: 100, ..ServiceConfig::default() };
    let service = TestService::start_with(router(), config).await;
    let mut wire = Wire::open(&service).await;
    let request = json("POST", "/kvsp/lookup", "[1,2,3]");
    wire.send(&request[..request.len() - 3]).await;
    let answer = wire.answer().await.expect("an answer");
    assert_eq!(answer.status, 408);
    answer.problem("blank");
    assert!(wire.answer().await.is_none(), "what comes on that connection can no longer be told apart");
    service.stop().await;
}

#[tokio::test]
async fn a_trickling_body_has_a_deadline() {
    let config = ServiceConfig { body_timeout_ms: 200, linger_timeout_ms: 50, ..ServiceConfig::default() };
    let service = TestService::start_with(router(), config).await;
    let mut wire = Wire::open(&service).await;
    wire.send("POST /kvsp/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n").await;
    let trickle = async {
        let mut pause = tokio::time::interval(Duration::from_millis(10));
        for _ in 0..800 {
            pause.tick().await;
            if wire.try_send(b"1").await.is_err() {
                break;
            }
        }
        wire
    };
    let start = std::time::Instant::now();
    trickle.await;
    assert!(start.elapsed() < Duration::from_secs(5), "the peer was cut off");
    service.stop().await;
}

#[tokio::test]
async fn a_body_that_breaks_off_harms_nobody_else() {
    let service = TestService::start(router()).await;
    for _ in 0..20 {
        let mut wire = Wire::open(&service).await;
        let request = json("POST", "/kvsp/lookup", "[1,2,3]");
        wire.send(&request[..request.len() - 3]).await;
    }
    let mut wire = Wire::open(&service).await;
    assert_eq!(wire.ask(&bare("GET", "/kvsp/")).await.status, 200);
    service.stop().await;
}
