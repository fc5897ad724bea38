//! A map that is split anew: what members are told, and when it holds.

use serde_json::json;

use super::member::{Kind, Reply};
use super::{MAP, all_asked, body, halves, moves, path, reshard_path, shards, thirds, three};
use crate::support::{compat, scope};

#[tokio::test]
async fn every_member_of_either_version_is_told_what_is_its_own() {
    let (fixture, mut members) = three().await;
    let gates: Vec<_> = members
        .iter()
        .map(|member| {
            let (reply, gate) = Reply::held();
            member.will(Kind::Plan, reply);
            gate
        })
        .collect();
    let to = halves(&members);
    let begun = fixture.reshard(1, &to).await;
    assert_eq!(begun["version"], 1);
    assert_eq!(begun["shards"], thirds(&members));
    let pending = &begun["pending"];
    assert_eq!((&pending["to"], &pending["shards"]), (&json!(2), &to));
    assert_eq!((&pending["phase"], &pending["acks"]), (&json!("preparing"), &json!([])));

    let plans = all_asked(&mut members, Kind::Plan).await;
    let [_, b, c] = members.each_ref();
    assert_eq!(
        moves(&plans[0]),
        json!({"retain": [[0, 100]], "fetch": [{"tokens": [100, 150], "from": b.uri()}], "release": []})
    );
    assert_eq!(
        moves(&plans[1]),
        json!({
            "retain": [[150, 200]], "fetch": [{"tokens": [200, 300], "from": c.uri()}],
            "release": [[100, 150]]
        })
    );
    assert_eq!(moves(&plans[2]), json!({"retain": [], "fetch": [], "release": [[200, 300]]}));
    for plan in &plans {
        assert_eq!((&plan["map"], &plan["from"], &plan["to"]), (&json!(MAP), &json!(1), &json!(2)));
        let deadline = plan["deadline_ms"].as_u64().unwrap();
        assert!((1..=super::DEADLINE_MS).contains(&deadline), "{plan}");
        assert_eq!(plan["shards"], to);
        assert_eq!((&plan["compat_id"], &plan["scope_id"]), (&json!(compat()), &json!(scope())));
        assert_eq!((plan.get("session"), plan.get("length"), plan.get("rebuild")), (None, None, None));
    }

    // Version 1 holds until the last one has loaded.
    for (n, gate) in [(0, &gates[0]), (2, &gates[2])] {
        gate.notify_one();
        let has = |view: &serde_json::Value| {
            view["pending"]["acks"].as_array().unwrap().contains(&json!(members[n].uri()))
        };
        let view = fixture.reaches("acknowledged", has).await;
        assert_eq!((&view["version"], &view["pending"]["phase"]), (&json!(1), &json!("preparing")));
    }
    let mut acks = [members[0].uri().to_owned(), members[2].uri().to_owned()];
    acks.sort_unstable();
    assert_eq!(fixture.view().await["pending"]["acks"], json!(acks), "in order");
    assert!(members.iter_mut().all(|member| member.rest().is_empty()), "nobody is told more");
    gates[1].notify_one();
    for commit in all_asked(&mut members, Kind::Commit).await {
        assert_eq!((&commit["map"], &commit["commit"], commit.get("abort")), (&json!(MAP), &json!(2), None));
    }
    let view = fixture.settles(2).await;
    assert_eq!(view["shards"], to);
    assert!(members.iter_mut().all(|member| member.rest().is_empty()), "and nobody twice");
    let metrics = fixture.server.metrics().await;
    assert!(metrics.contains("kvsp_controller_reshards_total{outcome=\"committed\"} 1"), "{metrics}");
}

#[tokio::test]
async fn what_stays_is_never_fetched() {
    let (fixture, mut members) = three().await;
    // The same instances, other boundaries, and one that owns two parts.
    let to = shards(&[(50, &members[1]), (100, &members[0]), (250, &members[2]), (300, &members[1])]);
    fixture.reshard(1, &to).await;
    let plans = all_asked(&mut members, Kind::Plan).await;
    let [a, b, c] = members.each_ref();
    assert_eq!(moves(&plans[0]), json!({"retain": [[50, 100]], "fetch": [], "release": [[0, 50]]}));
    assert_eq!(
        moves(&plans[1]),
        json!({
            "retain": [],
            "fetch": [{"tokens": [0, 50], "from": a.uri()}, {"tokens": [250, 300], "from": c.uri()}],
            "release": [[100, 200]]
        })
    );
    assert_eq!(
        moves(&plans[2]),
        json!({
            "retain": [[200, 250]], "fetch": [{"tokens": [100, 200], "from": b.uri()}],
            "release": [[250, 300]]
        })
    );
    fixture.settles(2).await;
}

#[tokio::test]
async fn the_same_shards_again_move_nothing() {
    let (fixture, mut members) = three().await;
    fixture.reshard(1, &thirds(&members)).await;
    for plan in all_asked(&mut members, Kind::Plan).await {
        assert_eq!((&plan["fetch"], &plan["release"]), (&json!([]), &json!([])), "{plan}");
    }
    assert_eq!(fixture.settles(2).await["shards"], thirds(&members));
}

#[tokio::test]
async fn a_group_shrinks_and_grows_again() {
    let (fixture, members) = three().await;
    let one = shards(&[(300, &members[0])]);
    for (from, to) in [(1, halves(&members)), (2, one), (3, thirds(&members)), (4, halves(&members))] {
        fixture.reshard(from, &to).await;
        assert_eq!(fixture.settles(from + 1).await["shards"], to);
    }
    // A member that had everything and kept a part is told so.
    let mut first = members.into_iter().next().unwrap();
    let told = first.rest();
    let to_three = told.iter().find(|asked| asked.kind == Kind::Plan && asked.body["to"] == 4).unwrap();
    assert_eq!(moves(&to_three.body), json!({"retain": [[0, 100]], "fetch": [], "release": [[100, 300]]}));
}

#[tokio::test]
async fn one_change_at_a_time() {
    let (fixture, members) = three().await;
    let (reply, gate) = Reply::held();
    members[1].will(Kind::Plan, reply);
    let to = halves(&members);
    fixture.reshard(1, &to).await;
    for from in [1, 2] {
        for shards in [to.clone(), thirds(&members)] {
            let body = json!({"from": from, "shards": shards, "deadline_ms": 100});
            let answer = fixture.server.post(&reshard_path(MAP), &body).await;
            assert_eq!(answer.problem(), (409, "kvsp-reshard-conflict".into()));
        }
    }
    // Creating it again is judged by what holds.
    let again = fixture.server.put(&path(MAP), &body(&thirds(&members))).await;
    assert_eq!(again.status, 200);
    gate.notify_one();
    fixture.settles(2).await;
    let stale = json!({"from": 1, "shards": to, "deadline_ms": 100});
    let answer = fixture.server.post(&reshard_path(MAP), &stale).await;
    assert_eq!(answer.problem(), (409, "kvsp-reshard-conflict".into()), "another version holds");
    fixture.reshard(2, &thirds(&members)).await;
    fixture.settles(3).await;
}

#[tokio::test]
async fn a_decision_is_pending_until_all_have_taken_it() {
    let (fixture, mut members) = three().await;
    let (reply, gate) = Reply::held();
    members[2].will(Kind::Commit, reply);
    let to = halves(&members);
    fixture.reshard(1, &to).await;
    members[2].until(Kind::Commit).await;
    let told =
        |view: &serde_json::Value| view["pending"]["acks"].as_array().is_some_and(|acks| acks.len() == 2);
    let view = fixture.reaches("two have taken it", told).await;
    assert_eq!((&view["version"], &view["shards"]), (&json!(2), &to), "it holds since it is decided");
    assert_eq!(view["pending"]["phase"], "committing");
    let next = json!({"from": 2, "shards": thirds(&members), "deadline_ms": 100});
    let answer = fixture.server.post(&reshard_path(MAP), &next).await;
    assert_eq!(answer.problem(), (409, "kvsp-reshard-conflict".into()));
    gate.notify_one();
    fixture.settles(2).await;
}

#[tokio::test]
async fn who_leads_is_asked_for_the_length_first() {
    let (fixture, mut members) = three().await;
    let (reply, gate) = Reply::held();
    members[1].will(Kind::Length, reply);
    members[1].leads(123);
    let begun = fixture.reshard(1, &halves(&members)).await;
    assert_eq!(begun["pending"]["phase"], "preparing");
    // Without a session nobody knows who leads: all that may are asked.
    for member in &mut members {
        let asked = member.next(Kind::Length).await;
        let version = (&asked["map"], &asked["version"], &asked["to"]);
        assert_eq!(version, (&json!(MAP), &json!(1), &json!(2)));
        assert_eq!(asked["shards"], begun["pending"]["shards"]);
        assert_eq!(member.rest(), [], "no plan before the length is known");
    }
    gate.notify_one();
    for plan in all_asked(&mut members, Kind::Plan).await {
        assert_eq!(plan["length"], 123);
    }
    fixture.settles(2).await;
}

#[tokio::test]
async fn who_knows_nothing_of_lengths_is_passed_over() {
    for foreign in [
        Reply::Json(200, json!({})),
        Reply::Json(202, json!({"accepted": true})),
        Reply::problem(400, "kvsp-malformed-json"),
        Reply::problem(405, "x"),
        Reply::problem(501, "x"),
    ] {
        let (fixture, mut members) = three().await;
        members.iter().for_each(|member| member.will(Kind::Length, foreign.clone()));
        fixture.reshard(1, &halves(&members)).await;
        for plan in all_asked(&mut members, Kind::Plan).await {
            assert_eq!(plan.get("length"), None, "{foreign:?}");
        }
        fixture.settles(2).await;
    }
}

#[tokio::test]
async fn a_leader_that_cannot_tell_now_is_asked_again() {
    let (fixture, mut members) = three().await;
    members[0].leads(7);
    for _ in 0..2 {
        members[0].will(Kind::Length, Reply::problem(503, "kvsp-overloaded"));
    }
    fixture.reshard_unhurried(1, &halves(&members)).await;
    let plan = fixture.goes_on_until(members[0].next(Kind::Plan)).await;
    assert_eq!(plan["length"], 7);
    fixture.goes_on_until(fixture.settles(2)).await;
}
