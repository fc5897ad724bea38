//! From an instance that is lost to one that goes on.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Fixture, TTL, append, checkpoint, checkpoint_path, config, path, place, raised, reaches, wanted,
};
use crate::instance::{Answer, Instance, Sent};

/// An instance that nobody ever reaches; the session is placed there, because it is the only one then.
const LOST: &str = "https://lost.example/kvsp/";

/// A session at [`LOST`] with three tokens recorded, and its instance about to be found failed.
async fn losing(fixture: &Fixture, others: &[&Instance]) -> String {
    fixture.report(LOST, 1).await;
    let session = place(&fixture.server).await;
    fixture.server.put(&checkpoint_path(&session), &checkpoint(&session, 1, 3)).await.ok();
    fixture.clock.advance(TTL / 2);
    for other in others {
        fixture.report(other.base.as_str(), 1).await;
    }
    fixture.clock.advance(TTL / 2);
    session
}

#[tokio::test]
async fn a_session_goes_on_with_its_latest_checkpoint_under_a_fresh_epoch() {
    let fixture = Fixture::start(config()).await;
    let mut other = Instance::start();
    let session = losing(&fixture, &[&other]).await;
    let resume = other.resumed(&session).await;
    let want = json!({
        "epoch": 2, "checkpoint": checkpoint(&session, 1, 3), "continuation": wanted()["continuation"]
    });
    assert_eq!(resume, want);
    let view = reaches(&fixture.server, &session, "running").await;
    assert_eq!((&view["epoch"], &view["instance"]), (&json!(2), &json!(other.base)));
    let at = checkpoint_path(&session);
    for body in [checkpoint(&session, 1, 4), checkpoint(&session, 1, 3)] {
        assert_eq!(fixture.server.put(&at, &body).await.problem(), (409, "kvsp-stale-epoch".into()));
    }
    assert_eq!(fixture.server.patch(&at, &append(1, 3, 4)).await.problem(), (409, "kvsp-stale-epoch".into()));
    let same = fixture.server.put(&at, &checkpoint(&session, 2, 2)).await.ok();
    assert_eq!(same, json!({"epoch": 2, "output_offset": 3}), "right after a resume");
    assert_eq!(fixture.server.patch(&at, &append(2, 3, 9)).await.ok()["output_offset"], 9);
    let metrics = fixture.server.metrics().await;
    for line in [
        "kvsp_controller_failovers_total 1\n",
        "kvsp_controller_resumes_total{outcome=\"taken\"} 1\n",
        "kvsp_controller_failover_seconds_count 1\n",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

#[tokio::test]
async fn each_attempt_has_an_epoch_of_its_own() {
    let fixture = Fixture::start(config()).await;
    let (mut one, mut two) = (Instance::start(), Instance::start());
    one.will_answer(Answer::problem(409, "kvsp-instance-not-active"));
    two.will_answer(Answer::problem(409, "kvsp-instance-not-active"));
    let session = losing(&fixture, &[&one, &two]).await;
    let (a, b) = tokio::join!(one.resumed(&session), two.resumed(&session));
    let mut epochs = [a["epoch"].as_u64().unwrap(), b["epoch"].as_u64().unwrap()];
    epochs.sort_unstable();
    assert_eq!(epochs, [2, 3], "each refuses once");
    // Nobody is left: after a while all are asked again.
    let again = async {
        loop {
            fixture.report(one.base.as_str(), 1).await;
            fixture.report(two.base.as_str(), 1).await;
            fixture.clock.advance(Duration::from_millis(50));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let view = tokio::select! {
        view = reaches(&fixture.server, &session, "running") => view,
        () = again => unreachable!(),
    };
    assert_eq!(view["epoch"], 4);
    let resume = tokio::select! {
        resume = one.resumed(&session) => resume,
        resume = two.resumed(&session) => resume,
    };
    assert_eq!((&resume["epoch"], &resume["checkpoint"]["epoch"]), (&json!(4), &json!(1)));
}

#[tokio::test]
async fn the_second_takes_what_the_first_does_not() {
    for how in [Answer::Silence, Answer::Json(500, json!({})), Answer::problem(503, "kvsp-overloaded")] {
        let fixture = Fixture::start(config()).await;
        let (mut one, mut two) = (Instance::start(), Instance::start());
        // Whichever comes first does not take it.
        one.will_answer(how.clone());
        let session = losing(&fixture, &[&one]).await;
        let first = one.resumed(&session).await;
        assert_eq!(first["epoch"], 2);
        let base = two.base.clone();
        let time = async {
            loop {
                fixture.report(base.as_str(), 1).await;
                fixture.clock.advance(Duration::from_millis(20));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let second = tokio::select! {
            second = two.resumed(&session) => second,
            () = time => unreachable!(),
        };
        assert_eq!(second["epoch"], 3, "{how:?}");
        let view = reaches(&fixture.server, &session, "running").await;
        assert_eq!((&view["epoch"], &view["instance"]), (&json!(3), &json!(two.base)));
    }
}

#[tokio::test]
async fn a_session_that_nobody_can_go_on_with_fails_with_a_reason() {
    let mut short = config();
    short.sessions.give_up_ms = 600;
    let fixture = Fixture::start(short).await;
    let session = losing(&fixture, &[]).await;
    reaches(&fixture.server, &session, "resuming").await;
    let time = async {
        loop {
            fixture.clock.advance(Duration::from_millis(50));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let view = tokio::select! {
        view = reaches(&fixture.server, &session, "failed") => view,
        () = time => unreachable!(),
    };
    assert!(view["reason"].as_str().is_some_and(|reason| reason.contains("instance")), "{view}");
    let stale = fixture.server.put(&checkpoint_path(&session), &checkpoint(&session, 1, 4)).await;
    assert_eq!(stale.problem(), (409, "kvsp-stale-epoch".into()), "its old instance is fenced");
    let poll = format!("{}?after_epoch=99&wait_ms=30000", path(&session));
    assert_eq!(fixture.server.get(&poll).await.ok()["state"], "failed", "at once");
    assert_eq!(fixture.server.delete(&path(&session)).await.status, 204);
}

#[tokio::test]
async fn a_restart_within_the_ttl_is_a_failover_at_once() {
    let fixture = Fixture::start(config()).await;
    let mut one = Instance::start();
    fixture.report(one.base.as_str(), 1).await;
    let session = place(&fixture.server).await;
    fixture.server.put(&checkpoint_path(&session), &checkpoint(&session, 1, 5)).await.ok();
    fixture.report(one.base.as_str(), 1).await;
    assert_eq!(fixture.server.get(&path(&session)).await.ok()["epoch"], 1, "the same incarnation");
    fixture.report(one.base.as_str(), 2).await;
    let resume = one.resumed(&session).await;
    assert_eq!((&resume["epoch"], &resume["checkpoint"]["output_offset"]), (&json!(2), &json!(5)));
    let view = reaches(&fixture.server, &session, "running").await;
    assert_eq!(view["instance"], json!(one.base), "the new incarnation may take it");
}

#[tokio::test]
async fn without_a_checkpoint_nothing_is_resumed_but_the_epoch_is_raised() {
    let fixture = Fixture::start(config()).await;
    let mut other = Instance::start();
    fixture.report(LOST, 1).await;
    let session = place(&fixture.server).await;
    fixture.clock.advance(TTL / 2);
    fixture.report(other.base.as_str(), 1).await;
    fixture.clock.advance(TTL / 2);
    let view = raised(&fixture.server, &session, 1).await;
    assert_eq!((&view["epoch"], &view["instance"]), (&json!(2), &json!(other.base)));
    assert_eq!(reaches(&fixture.server, &session, "running").await["epoch"], 2);
    let stale = fixture.server.put(&checkpoint_path(&session), &checkpoint(&session, 1, 1)).await;
    assert_eq!(stale.problem(), (409, "kvsp-stale-epoch".into()));
    assert_eq!(fixture.server.put(&checkpoint_path(&session), &checkpoint(&session, 2, 1)).await.status, 200);
    assert!(other.sent.try_recv().is_err());
}

#[tokio::test]
async fn what_a_resumed_instance_needs_is_told() {
    let fixture = Fixture::start(config()).await;
    let mut other = Instance::start();
    other.will_answer(Answer::Json(202, json!({"needs": "prompt"})));
    let session = losing(&fixture, &[&other]).await;
    other.resumed(&session).await;
    let view = reaches(&fixture.server, &session, "running").await;
    assert_eq!(view["needs"], "prompt");
    fixture.server.put(&checkpoint_path(&session), &checkpoint(&session, 2, 4)).await.ok();
    assert!(fixture.server.get(&path(&session)).await.ok().get("needs").is_none(), "it has got it");
}

#[tokio::test]
async fn the_cheapest_instance_goes_on() {
    let fixture = Fixture::start(config()).await;
    let (mut fast, mut slow) = (Instance::start(), Instance::start());
    fixture.report(LOST, 1).await;
    let session = place(&fixture.server).await;
    fixture.server.put(&checkpoint_path(&session), &checkpoint(&session, 1, 3)).await.ok();
    fixture.clock.advance(TTL / 2);
    for (instance, rate) in [(&slow, 10), (&fast, 10_000)] {
        let mut status = crate::support::status(instance.base.as_str(), 1);
        status["prefill_tokens_per_s"] = json!(rate);
        fixture.server.report(&status).await.ok();
    }
    fixture.clock.advance(TTL / 2);
    assert_eq!(fast.resumed(&session).await["epoch"], 2);
    assert!(slow.sent.try_recv().is_err());
}

#[tokio::test]
async fn all_sessions_of_an_instance_fail_over_once_for_one_expiry() {
    let fixture = Fixture::start(config()).await;
    let mut other = Instance::start();
    fixture.report(LOST, 1).await;
    let mut sessions = Vec::new();
    for _ in 0..20 {
        let session = place(&fixture.server).await;
        fixture.server.put(&checkpoint_path(&session), &checkpoint(&session, 1, 3)).await.ok();
        sessions.push(session);
    }
    fixture.clock.advance(TTL / 2);
    fixture.report(other.base.as_str(), 1).await;
    fixture.clock.advance(TTL / 2);
    for session in &sessions {
        raised(&fixture.server, session, 1).await;
        assert_eq!(reaches(&fixture.server, session, "running").await["epoch"], 2);
    }
    let mut resumed = Vec::new();
    for _ in &sessions {
        let Sent::Resume { session, body } = other.next().await else { panic!("a resume") };
        assert_eq!(body["epoch"], 2);
        resumed.push(session);
    }
    resumed.sort();
    sessions.sort();
    assert_eq!(resumed, sessions);
    assert!(other.sent.try_recv().is_err(), "each once");
}

#[tokio::test]
async fn a_stall_of_the_controller_itself_fails_nobody() {
    let fixture = Fixture::start(config()).await;
    let (mut alive, lost) = (Instance::start(), Instance::start());
    fixture.report(lost.base.as_str(), 1).await;
    let at_lost = place(&fixture.server).await;
    fixture.server.put(&checkpoint_path(&at_lost), &checkpoint(&at_lost, 1, 3)).await.ok();
    let mut busy = crate::support::status(lost.base.as_str(), 1);
    busy["queued"] = json!(1_000);
    busy["mean_service_us"] = json!(1_000_000);
    busy["ttl_ms"] = json!(super::TTL_MS);
    fixture.server.report(&busy).await.ok();
    fixture.report(alive.base.as_str(), 1).await;
    let at_alive = place(&fixture.server).await;
    assert_eq!(fixture.server.get(&path(&at_alive)).await.ok()["instance"], json!(alive.base));

    fixture.clock.advance(Duration::from_secs(600));
    fixture.report(alive.base.as_str(), 1).await;
    fixture.clock.advance(TTL / 2);
    fixture.report(alive.base.as_str(), 1).await;
    let views =
        async |session: &str| -> Value { fixture.server.get(&path(session)).await.ok()["epoch"].clone() };
    assert_eq!((views(&at_lost).await, views(&at_alive).await), (json!(1), json!(1)), "nobody is failed");
    // A full TTL after the stall without a status is a failure again.
    fixture.clock.advance(TTL / 2);
    assert_eq!(alive.resumed(&at_lost).await["epoch"], 2);
    assert_eq!(views(&at_alive).await, 1);
}
