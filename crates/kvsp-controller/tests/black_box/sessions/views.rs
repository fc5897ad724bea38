//! How sessions stand, long polls, and the end of a session.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::json;

use super::{Fixture, append, checkpoint, checkpoint_path, config, path, place, wanted};
use crate::support::Server;

const I1: &str = "https://i1.example/kvsp/";
const I2: &str = "https://i2.example/kvsp/";
const NOBODY: &str = "6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11";

#[tokio::test]
async fn extensions_are_told_and_a_session_only_comes_where_it_was_wanted() {
    let fixture = Fixture::start(config()).await;
    fixture.report(I1, 1).await;
    let root = fixture.server.get("").await.ok();
    let extensions = ["checkpoint-append", "session-failover", "session-continuation", "shard-maps"];
    assert_eq!(root["extensions"], json!(extensions));
    let mut plain = wanted();
    plain["session"] = json!(false);
    assert!(fixture.server.post("placements", &plain).await.ok().get("session").is_none());
    let placed = fixture.server.post("placements", &wanted()).await.ok();
    assert_eq!((&placed["instance"], &placed["session"]["epoch"]), (&json!(I1), &json!(1)));
}

#[tokio::test]
async fn the_end_of_a_session_erases_it() {
    let fixture = Fixture::start(config()).await;
    let server = &fixture.server;
    fixture.report(I1, 1).await;
    let session = place(server).await;
    server.put(&checkpoint_path(&session), &checkpoint(&session, 1, 70)).await.ok();
    assert_eq!(server.get(&format!("{}/continuation", path(&session))).await.ok(), wanted()["continuation"]);
    for _ in 0..2 {
        assert_eq!(server.delete(&path(&session)).await.status, 204, "idempotent");
    }
    let view = server.get(&path(&session)).await.ok();
    assert_eq!((&view["state"], &view["output_offset"]), (&json!("done"), &json!(70)));
    let unknown = (404, "kvsp-session-unknown".to_owned());
    assert_eq!(server.get(&checkpoint_path(&session)).await.problem(), unknown);
    assert_eq!(server.get(&format!("{}/continuation", path(&session))).await.problem(), unknown);
    assert_eq!(server.put(&checkpoint_path(&session), &checkpoint(&session, 1, 71)).await.problem(), unknown);
    assert_eq!(server.patch(&checkpoint_path(&session), &append(1, 70, 71)).await.problem(), unknown);
    let report = server.post(&format!("{}/failover", path(&session)), &json!({"epoch": 1})).await;
    assert_eq!(report.problem(), unknown);
}

#[tokio::test]
async fn unknown_sessions_have_no_view() {
    let Fixture { server, .. } = Fixture::start(config()).await;
    let unknown = (404, "kvsp-session-unknown".to_owned());
    assert_eq!(server.get(&path(NOBODY)).await.problem(), unknown);
    assert_eq!(server.get(&format!("{}?after_epoch=0&wait_ms=9", path(NOBODY))).await.problem(), unknown);
    assert_eq!(server.delete(&path(NOBODY)).await.problem(), unknown);
    assert_eq!(server.get(&format!("{}/continuation", path(NOBODY))).await.problem(), unknown);
    let failover = format!("{}/failover", path(NOBODY));
    assert_eq!(server.post(&failover, &json!({"epoch": 1})).await.problem(), unknown);
    assert_eq!(
        server.post(&failover, &json!({"epoch": "1"})).await.problem(),
        (400, "kvsp-malformed-json".into())
    );
    assert_eq!(server.get(&path("nobody")).await.problem(), (400, "kvsp-bad-identifier".into()));
    let answer = server.send(Method::PUT, &server.base.join(&path(NOBODY)), None).await;
    assert_eq!((answer.status.as_u16(), answer.headers["allow"].to_str().unwrap()), (405, "GET,HEAD,DELETE"));
}

#[tokio::test]
async fn bad_queries_are_told_why() {
    let fixture = Fixture::start(config()).await;
    fixture.report(I1, 1).await;
    let session = place(&fixture.server).await;
    for query in
        ["after_epoch=x", "after_epoch=", "after_epoch=-1", "wait_ms=1.5", "after_epoch=1&after_epoch=2"]
    {
        let answer = fixture.server.get(&format!("{}?{query}", path(&session))).await;
        assert_eq!(answer.problem(), (400, "kvsp-bad-identifier".into()), "{query}");
    }
    assert_eq!(fixture.server.get("sessions?limit=x").await.problem(), (400, "kvsp-bad-identifier".into()));
    for query in ["after_epoch=0", "after_epoch=9", "wait_ms=30000", "other=1", "after_epoch=1&wait_ms=0"] {
        let answer = fixture.server.get(&format!("{}?{query}", path(&session))).await.ok();
        assert_eq!(answer["epoch"], 1, "{query}: at once");
    }
}

#[tokio::test]
async fn a_long_poll_ends_with_its_time() {
    let fixture = Fixture::start(config()).await;
    fixture.report(I1, 1).await;
    let session = place(&fixture.server).await;
    let start = Instant::now();
    let view = fixture.server.get(&format!("{}?after_epoch=1&wait_ms=300", path(&session))).await.ok();
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert_eq!((&view["epoch"], &view["state"]), (&json!(1), &json!("running")));
}

#[tokio::test]
async fn a_long_poll_ends_with_the_epoch_or_the_session() {
    let fixture = Fixture::start(config()).await;
    let Fixture { server, clock } = &fixture;
    fixture.report(I1, 1).await;
    let session = place(server).await;
    fixture.report(I2, 1).await;
    let poll = format!("{}?after_epoch=1&wait_ms=30000", path(&session));
    let waits = server.get(&poll);
    let fails = async {
        polled(server, 1).await;
        clock.advance(super::TTL / 2);
        fixture.report(I2, 1).await;
        clock.advance(super::TTL / 2);
    };
    let (view, ()) = tokio::join!(waits, fails);
    let view = view.ok();
    assert_eq!((&view["epoch"], &view["instance"]), (&json!(2), &json!(I2)));
    let poll = format!("{}?after_epoch=2&wait_ms=60000", path(&session));
    let ends = async {
        polled(server, 1).await;
        server.delete(&path(&session)).await
    };
    let (view, ended) = tokio::join!(server.get(&poll), ends);
    assert_eq!((view.ok()["state"].clone(), ended.status.as_u16()), (json!("done"), 204));
    assert_eq!(server.get(&poll).await.ok()["state"], "done", "at once");
}

#[tokio::test]
async fn long_polls_are_bounded() {
    let mut few = config();
    few.sessions.max_long_polls = 1;
    let fixture = Fixture::start(few).await;
    let server = &fixture.server;
    fixture.report(I1, 1).await;
    let session = place(server).await;
    let poll = format!("{}?after_epoch=1&wait_ms=30000", path(&session));
    let refused = async {
        polled(server, 1).await;
        let answer = server.get(&poll).await;
        assert_eq!(answer.problem(), (503, "kvsp-overloaded".into()));
        assert_eq!(answer.headers["retry-after"], "1");
        assert_eq!(server.put(&checkpoint_path(&session), &checkpoint(&session, 1, 1)).await.status, 200);
        server.delete(&path(&session)).await
    };
    let (view, ended) = tokio::join!(server.get(&poll), refused);
    assert_eq!((view.status.as_u16(), ended.status.as_u16()), (200, 204));
}

/// Waits until so many long polls wait.
async fn polled(server: &Server, count: usize) {
    let want = format!("kvsp_controller_long_polls {count}\n");
    let counted = async {
        while !server.metrics().await.contains(&want) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), counted).await.expect("they wait");
}

#[tokio::test]
async fn sessions_are_listed_in_order() {
    let fixture = Fixture::start(config()).await;
    let server = &fixture.server;
    assert_eq!(server.get("sessions").await.ok(), json!({"sessions": []}));
    fixture.report(I1, 1).await;
    let mut sessions = Vec::new();
    for _ in 0..40 {
        sessions.push(place(server).await);
    }
    sessions.sort();
    let listed = async |query: &str| -> Vec<String> {
        let list = server.get(&format!("sessions{query}")).await.ok();
        list["sessions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v["session"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(listed("").await, sessions);
    assert_eq!(listed("?limit=7").await, sessions[..7]);
    assert_eq!(listed("?limit=0").await, sessions[..0]);
}

#[tokio::test]
async fn a_controller_that_is_full_takes_no_more_sessions_and_goes_on() {
    let mut small = config();
    small.sessions.max_sessions = 2;
    small.sessions.shards = 2;
    let fixture = Fixture::start(small).await;
    let server = &fixture.server;
    fixture.report(I1, 1).await;
    let first = place(server).await;
    place(server).await;
    let answer = server.post("placements", &wanted()).await;
    assert_eq!(answer.problem(), (503, "kvsp-overloaded".into()));
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(server.put(&checkpoint_path(&first), &checkpoint(&first, 1, 1)).await.status, 200);
    assert_eq!(server.delete(&path(&first)).await.status, 204);
    place(server).await;
}
