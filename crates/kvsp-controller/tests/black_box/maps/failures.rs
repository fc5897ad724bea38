//! Members that die or start again (profile section 8).

use std::time::Duration;

use serde_json::{Value, json};

use super::member::{Kind, Member, Reply};
use super::{Fixture, MAP, TTL, all_asked, body, halves, moves, path, reshard_path, thirds, three};

/// Three members, each of which has reported.
async fn three_alive() -> (Fixture, [Member; 3]) {
    let (fixture, members) = three().await;
    for member in &members {
        fixture.report(member, 1).await;
    }
    (fixture, members)
}

/// Lets the statuses of all but these expire.
async fn outlive(fixture: &Fixture, alive: &[&Member]) {
    fixture.clock.advance(TTL - Duration::from_millis(100));
    for member in alive {
        fixture.report(member, 1).await;
    }
    fixture.clock.advance(Duration::from_millis(100));
}

#[tokio::test]
async fn a_member_that_starts_again_has_acknowledged_nothing() {
    let (fixture, mut members) = three_alive().await;
    let (reply, gate) = Reply::held();
    members[1].will(Kind::Plan, reply);
    let halved = json!({"from": 1, "shards": halves(&members), "deadline_ms": 60_000});
    assert_eq!(fixture.server.post(&reshard_path(MAP), &halved).await.status, 202);
    all_asked(&mut members, Kind::Plan).await;
    let acked = |view: &Value| view["pending"]["acks"].as_array().is_some_and(|acks| acks.len() == 2);
    fixture.reaches("two of three", acked).await;
    fixture.report(&members[0], 2).await;
    // The last answer comes after that: without the first member's it decides nothing.
    for member in &mut members[1..] {
        assert_eq!(member.next(Kind::Abort).await["abort"], 2);
    }
    gate.notify_one();
    // What died with the first member is built anew where it was, under a new version.
    let first = members[0].next(Kind::Plan).await;
    assert_eq!((&first["to"], &first["rebuild"]), (&json!(2), &json!([[0, 100]])));
    assert_eq!((&first["retain"], &first["fetch"]), (&json!([]), &json!([])));
    for (n, range) in [(1, json!([[100, 200]])), (2, json!([[200, 300]]))] {
        let plan = members[n].next(Kind::Plan).await;
        assert_eq!(moves(&plan), json!({"retain": range, "fetch": [], "release": []}));
    }
    assert_eq!(fixture.settles(2).await["shards"], thirds(&members));
}

#[tokio::test]
async fn what_died_with_a_member_is_built_anew_elsewhere() {
    let (fixture, mut members) = three_alive().await;
    members[1].kill().await;
    let [a, b, c] = members.each_ref();
    outlive(&fixture, &[a, c]).await;
    let lost = b.uri().to_owned();
    let view = fixture.settles(2).await;
    let shards = view["shards"].as_array().unwrap();
    assert!(shards.iter().all(|shard| shard["instance"] != lost.as_str()), "{view}");
    let mut rebuilt = Vec::new();
    for member in &mut members {
        for asked in member.rest().into_iter().filter(|asked| asked.kind == Kind::Plan) {
            assert!(
                !asked.body["fetch"].to_string().contains(&lost),
                "nothing is fetched from the dead: {asked:?}"
            );
            rebuilt.extend(asked.body["rebuild"].as_array().into_iter().flatten().cloned());
        }
    }
    let tokens: u64 = rebuilt.iter().map(|r| r[1].as_u64().unwrap() - r[0].as_u64().unwrap()).sum();
    assert_eq!(tokens, 100, "all that died, once: {rebuilt:?}");
}

#[tokio::test]
async fn a_member_that_dies_while_a_plan_is_open_ends_it() {
    let (fixture, mut members) = three_alive().await;
    members[1].will(Kind::Plan, Reply::Silence);
    let halved = json!({"from": 1, "shards": halves(&members), "deadline_ms": 60_000});
    assert_eq!(fixture.server.post(&reshard_path(MAP), &halved).await.status, 202);
    all_asked(&mut members, Kind::Plan).await;
    members[1].kill().await;
    let [a, b, c] = members.each_ref();
    let lost = b.uri().to_owned();
    outlive(&fixture, &[a, c]).await;
    assert_eq!(members[0].next(Kind::Abort).await["abort"], 2);
    assert_eq!(members[2].next(Kind::Abort).await["abort"], 2);
    let view = fixture.settles(2).await;
    assert!(!view["shards"].to_string().contains(&lost), "{view}");
}

#[tokio::test]
async fn the_dead_need_not_take_a_decision() {
    let (fixture, mut members) = three_alive().await;
    members[2].will(Kind::Commit, Reply::Silence);
    fixture.reshard(1, &halves(&members)).await;
    members[2].until(Kind::Commit).await;
    let [a, b, _] = members.each_ref();
    outlive(&fixture, &[a, b]).await;
    // The one that died was no member any more: nothing of it is missed.
    assert_eq!(fixture.settles(2).await["shards"], halves(&members));
}

#[tokio::test]
async fn an_instance_that_has_failed_is_no_member_of_a_new_group() {
    let (fixture, mut members) = three_alive().await;
    fixture.reshard(1, &halves(&members)).await;
    fixture.settles(2).await;
    members[2].kill().await;
    let [a, b, _] = members.each_ref();
    outlive(&fixture, &[a, b]).await;
    for (request, wanted) in [(2, thirds(&members)), (2, halves(&members)), (7, halves(&members))] {
        let body = json!({"from": request, "shards": wanted, "deadline_ms": 300});
        let answer = fixture.server.post(&reshard_path(MAP), &body).await;
        match (request, wanted == halves(&members)) {
            (2, false) => assert_eq!(answer.problem(), (409, "kvsp-instance-not-active".into())),
            (2, true) => assert_eq!(answer.status, 202, "the others may"),
            _ => assert_eq!(answer.problem(), (409, "kvsp-reshard-conflict".into())),
        }
    }
    let new = fixture.server.put(&path("another"), &body(&thirds(&members))).await;
    assert_eq!(new.problem(), (409, "kvsp-instance-not-active".into()));
    assert_eq!(fixture.settles(3).await["shards"], halves(&members));
}
