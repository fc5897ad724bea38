//! Commit or abort: one of them, told until it is taken (draft section 6.9, profile section 8).

use std::time::Duration;

use serde_json::{Value, json};

use super::member::{Kind, Member, Reply};
use super::{DEADLINE_MS, MAP, all_asked, halves, thirds, three};

fn is_aborting(view: &Value) -> bool {
    view["pending"]["phase"] == "aborting"
}

#[track_caller]
fn assert_aborts_of_2(bodies: &[Value]) {
    for body in bodies {
        assert_eq!((&body["map"], &body["abort"], body.get("commit")), (&json!(MAP), &json!(2), None));
    }
}

#[tokio::test]
async fn a_member_that_does_not_answer_in_time_ends_the_change() {
    let (fixture, mut members) = three().await;
    members[1].will(Kind::Plan, Reply::Silence);
    fixture.reshard(1, &halves(&members)).await;
    all_asked(&mut members, Kind::Plan).await;
    let acked = |view: &Value| view["pending"]["acks"].as_array().is_some_and(|acks| acks.len() == 2);
    fixture.reaches("two of three", acked).await;
    fixture.clock.advance(Duration::from_millis(DEADLINE_MS - 1));
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(fixture.view().await["pending"]["phase"], "preparing", "it has until the deadline");
    fixture.clock.advance(Duration::from_millis(1));
    assert_aborts_of_2(&all_asked(&mut members, Kind::Abort).await);
    let view = fixture.settles(1).await;
    assert_eq!(view["shards"], thirds(&members));
    let metrics = fixture.server.metrics().await;
    assert!(metrics.contains("kvsp_controller_reshards_total{outcome=\"aborted\"} 1"), "{metrics}");
    // The same change may be tried again.
    fixture.reshard(1, &halves(&members)).await;
    all_asked(&mut members, Kind::Plan).await;
    all_asked(&mut members, Kind::Commit).await;
    assert_eq!(fixture.settles(2).await["shards"], halves(&members));
}

#[tokio::test]
async fn an_answer_that_comes_late_changes_nothing() {
    let (fixture, mut members) = three().await;
    let (late, gate) = Reply::held();
    members[1].will(Kind::Plan, late);
    let (held, abort_gate) = Reply::held();
    members[0].will(Kind::Abort, held);
    fixture.reshard(1, &halves(&members)).await;
    all_asked(&mut members, Kind::Plan).await;
    fixture.clock.advance(Duration::from_millis(DEADLINE_MS));
    members[0].next(Kind::Abort).await;
    fixture.reaches("aborting", is_aborting).await;
    gate.notify_one();
    let told = |view: &Value| view["pending"]["acks"].as_array().is_some_and(|acks| acks.len() == 2);
    let view = fixture.reaches("two have taken the abort", told).await;
    assert_eq!((&view["version"], &view["pending"]["phase"]), (&json!(1), &json!("aborting")));
    abort_gate.notify_one();
    fixture.settles(1).await;
    let commits =
        members.iter_mut().flat_map(Member::rest).filter(|asked| asked.kind == Kind::Commit).count();
    assert_eq!(commits, 0);
}

#[tokio::test]
async fn a_refusal_ends_the_change_at_once() {
    for refusal in [
        Reply::problem(507, "kvsp-storage-full"),
        Reply::problem(409, "kvsp-reshard-conflict"),
        Reply::problem(422, "kvsp-invalid-shard-map"),
        Reply::problem(403, "kvsp-scope-denied"),
    ] {
        let (fixture, mut members) = three().await;
        members[1].will(Kind::Plan, refusal.clone());
        fixture.reshard(1, &halves(&members)).await;
        // The clock stands: it is not the deadline.
        for member in &mut members {
            assert_aborts_of_2(&[member.until(Kind::Abort).await]);
        }
        fixture.settles(1).await;
    }
}

#[tokio::test]
async fn a_member_that_cannot_answer_now_is_asked_again() {
    for trouble in
        [Reply::problem(503, "kvsp-overloaded"), Reply::problem(429, "x"), Reply::problem(500, "x")]
    {
        let (fixture, mut members) = three().await;
        for _ in 0..2 {
            members[1].will(Kind::Plan, trouble.clone());
        }
        fixture.reshard_unhurried(1, &halves(&members)).await;
        let mut plans = vec![members[1].next(Kind::Plan).await];
        for _ in 0..2 {
            let again = fixture.goes_on_until(members[1].next(Kind::Plan)).await;
            plans.push(again);
        }
        assert!(plans.iter().all(|plan| super::moves(plan) == super::moves(&plans[0])), "{plans:?}");
        fixture.goes_on_until(fixture.settles(2)).await;
        let once: Vec<_> = members[0].rest().into_iter().filter(|asked| asked.kind == Kind::Plan).collect();
        assert_eq!(once.len(), 1, "who has acknowledged is not asked again");
    }
}

#[tokio::test]
async fn a_decision_is_told_until_it_is_taken() {
    for kind in [Kind::Commit, Kind::Abort] {
        let (fixture, mut members) = three().await;
        for _ in 0..3 {
            members[2].will(kind, Reply::problem(503, "kvsp-overloaded"));
        }
        if kind == Kind::Abort {
            members[0].will(Kind::Plan, Reply::problem(507, "kvsp-storage-full"));
        }
        fixture.reshard_unhurried(1, &halves(&members)).await;
        let first = members[2].until(kind).await;
        for _ in 0..3 {
            let again = fixture.goes_on_until(members[2].next(kind)).await;
            assert_eq!(again, first);
        }
        fixture.settles(if kind == Kind::Commit { 2 } else { 1 }).await;
        let other = if kind == Kind::Commit { Kind::Abort } else { Kind::Commit };
        for member in &mut members {
            assert!(member.rest().iter().all(|asked| asked.kind != other), "never both");
        }
    }
}

#[tokio::test]
async fn a_200_alone_acknowledges() {
    let (fixture, mut members) = three().await;
    // Of its body the texts say nothing.
    members[0].will(Kind::Plan, Reply::Json(200, json!({})));
    members[0].will(Kind::Commit, Reply::Json(200, json!([])));
    members[1].will(Kind::Plan, Reply::Json(202, json!({"map": MAP, "version": 1})));
    fixture.reshard_unhurried(1, &halves(&members)).await;
    members[1].next(Kind::Plan).await;
    fixture.goes_on_until(members[1].next(Kind::Plan)).await;
    fixture.goes_on_until(fixture.settles(2)).await;
}
