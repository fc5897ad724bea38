//! A front end reports that its stream broke.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Fixture, TTL, checkpoint, checkpoint_path, config, path, place, reaches};
use crate::instance::{Answer, Instance, Sent};

/// A session at one of two instances, with something recorded; that instance, and the other.
async fn session(fixture: &Fixture) -> (String, Instance, Instance) {
    let (one, two) = (Instance::start(), Instance::start());
    fixture.report(one.base.as_str(), 1).await;
    let session = place(&fixture.server).await;
    fixture.server.put(&checkpoint_path(&session), &checkpoint(&session, 1, 3)).await.ok();
    fixture.report(two.base.as_str(), 1).await;
    (session, one, two)
}

async fn report(fixture: &Fixture, session: &str, epoch: u64) -> Value {
    let answer = fixture.server.post(&format!("{}/failover", path(session)), &json!({"epoch": epoch})).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    answer.json()
}

#[tokio::test]
async fn a_refused_connection_is_a_failover_at_once() {
    let fixture = Fixture::start(config()).await;
    let (session, mut one, mut two) = session(&fixture).await;
    one.kill().await;
    let view = report(&fixture, &session, 1).await;
    assert_eq!((&view["session"], &view["epoch"]), (&json!(session), &json!(1)));
    assert_eq!(two.resumed(&session).await["epoch"], 2);
    let view = reaches(&fixture.server, &session, "running").await;
    assert_eq!((&view["epoch"], &view["instance"]), (&json!(2), &json!(two.base)));
    assert!(fixture.server.metrics().await.contains("kvsp_controller_probes_total{verdict=\"lost\"} 1"));
}

#[tokio::test]
async fn an_instance_that_does_not_have_the_session_has_lost_it() {
    for (status, name) in [(404, "kvsp-session-unknown"), (409, "kvsp-stale-epoch")] {
        let fixture = Fixture::start(config()).await;
        let (session, one, mut two) = session(&fixture).await;
        one.answers_tokens(Answer::problem(status, name));
        report(&fixture, &session, 1).await;
        assert_eq!(two.resumed(&session).await["epoch"], 2, "{name}");
    }
}

#[tokio::test]
async fn an_instance_that_has_it_keeps_it() {
    let fixture = Fixture::start(config()).await;
    let (session, mut one, mut two) = session(&fixture).await;
    report(&fixture, &session, 1).await;
    assert_eq!(one.next().await, Sent::Tokens { session: session.clone() });
    let settled = async {
        while !fixture.server.metrics().await.contains("kvsp_controller_probes_total{verdict=\"alive\"} 1") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), settled).await.expect("it answers");
    let view = fixture.server.get(&path(&session)).await.ok();
    assert_eq!((&view["epoch"], &view["state"]), (&json!(1), &json!("running")));
    assert!(two.sent.try_recv().is_err());
}

#[tokio::test]
async fn silence_is_left_to_the_ttl() {
    let fixture = Fixture::start(config()).await;
    let (session, mut one, mut two) = session(&fixture).await;
    one.answers_tokens(Answer::Silence);
    report(&fixture, &session, 1).await;
    assert_eq!(one.next().await, Sent::Tokens { session: session.clone() });
    let settled = async {
        while !fixture.server.metrics().await.contains("kvsp_controller_probes_total{verdict=\"silent\"} 1") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), settled).await.expect("it is given up");
    assert_eq!(fixture.server.get(&path(&session)).await.ok()["epoch"], 1);
    fixture.clock.advance(TTL / 2);
    fixture.report(two.base.as_str(), 1).await;
    fixture.clock.advance(TTL / 2);
    assert_eq!(two.resumed(&session).await["epoch"], 2);
}

#[tokio::test]
async fn reports_in_a_row_are_one_question() {
    let fixture = Fixture::start(config()).await;
    let (session, mut one, _two) = session(&fixture).await;
    one.answers_tokens(Answer::Silence);
    for _ in 0..5 {
        report(&fixture, &session, 1).await;
    }
    assert_eq!(one.next().await, Sent::Tokens { session: session.clone() });
    assert!(one.sent.try_recv().is_err());
}

#[tokio::test]
async fn a_report_of_another_epoch_starts_nothing() {
    let fixture = Fixture::start(config()).await;
    let (session, mut one, mut two) = session(&fixture).await;
    one.kill().await;
    let failover = format!("{}/failover", path(&session));
    let early = fixture.server.post(&failover, &json!({"epoch": 2})).await;
    assert_eq!(early.problem(), (409, "kvsp-unknown-epoch".into()));
    report(&fixture, &session, 1).await;
    assert_eq!(two.resumed(&session).await["epoch"], 2);
    reaches(&fixture.server, &session, "running").await;
    let late = fixture.server.post(&failover, &json!({"epoch": 1})).await;
    assert!([202, 409].contains(&late.status.as_u16()), "{late:?}");
    assert_eq!(fixture.server.get(&path(&session)).await.ok()["epoch"], 2);
    for bad in [json!({}), json!({"epoch": -1}), json!([1])] {
        assert_eq!(fixture.server.post(&failover, &bad).await.problem(), (400, "kvsp-malformed-json".into()));
    }
}
