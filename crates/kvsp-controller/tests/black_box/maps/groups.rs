//! Contexts that the controller splits by itself, for sessions with long prompts.

use std::time::Duration;

use kvsp_controller::{ControllerConfig, GroupSettings};
use serde_json::{Value, json};

use super::member::{Kind, Member};
use super::{Fixture, TTL, path, reaches};
use crate::support::{Server, compat, key, placement, scope, uri64};

/// Prompt tokens of a long prompt.
const LONG: u64 = 64;

fn config() -> ControllerConfig {
    let groups = GroupSettings { min_tokens: LONG, max_members: 3, ..GroupSettings::default() };
    ControllerConfig { groups, ..ControllerConfig::default() }
}

/// Three instances that have reported.
async fn three() -> (Fixture, [Member; 3]) {
    let fixture = Fixture::start(config()).await;
    let members = [Member::start(), Member::start(), Member::start()];
    for member in &members {
        fixture.report(member, 1).await;
    }
    (fixture, members)
}

fn wanted(tokens: u64) -> Value {
    let mut wanted = placement(0, tokens);
    wanted["session"] = json!(true);
    wanted["continuation"] = json!({"max_tokens": 36});
    wanted
}

/// Places a long prompt; the answer and its session.
async fn place(server: &Server) -> (Value, String) {
    let answer = server.post("placements", &wanted(LONG)).await.ok();
    let session = answer["session"]["session"].as_str().unwrap().to_owned();
    assert_eq!(answer["map"], json!({"map": session, "version": 1}), "{answer}");
    (answer, session)
}

/// The leader among the members, and the others.
fn leader_of<'a>(members: &'a mut [Member; 3], placed: &Value) -> (&'a mut Member, Vec<&'a mut Member>) {
    let is_leader = |member: &&mut Member| placed["instance"] == member.uri();
    let (mut leader, others): (Vec<_>, Vec<_>) = members.iter_mut().partition(is_leader);
    (leader.pop().unwrap(), others)
}

fn checkpoint(session: &str, epoch: u64, tokens: u32) -> Value {
    json!({
        "session": session, "epoch": epoch, "compat_id": compat(), "scope_id": scope(),
        "prompt_blocks": [key(0), key(1)], "prompt_tail": [],
        "generated": (100..100 + tokens).collect::<Vec<_>>(), "output_offset": tokens,
        "sampler": {
            "method": "top-p", "params": {"p": 0.9}, "seed": 7, "step": tokens, "deterministic": false
        }
    })
}

async fn record(fixture: &Fixture, session: &str, tokens: u32) {
    let at = format!("sessions/{session}/checkpoint");
    fixture.server.put(&at, &checkpoint(session, 1, tokens)).await.ok();
}

fn instances_of(view: &Value) -> Vec<&str> {
    view["shards"].as_array().unwrap().iter().map(|shard| shard["instance"].as_str().unwrap()).collect()
}

async fn settles(fixture: &Fixture, map: &str, version: u64) -> Value {
    let settled = |view: &Value| view["version"] == version && view.get("pending").is_none();
    reaches(&fixture.server, map, "settled", settled).await
}

#[tokio::test]
async fn a_long_prompt_is_computed_by_many() {
    let (fixture, members) = three().await;
    let (placed, session) = place(&fixture.server).await;
    let view = fixture.server.get(&path(&session)).await.ok();
    assert_eq!((&view["version"], &view["session"]), (&json!(1), &json!(session)));
    assert_eq!((&view["compat_id"], &view["scope_id"]), (&json!(compat()), &json!(scope())));
    let owners = instances_of(&view);
    assert_eq!(owners.last().copied(), placed["instance"].as_str(), "the leader has the end");
    let mut each = owners.clone();
    each.sort_unstable();
    let mut all: Vec<&str> = members.iter().map(Member::uri).collect();
    all.sort_unstable();
    assert_eq!(each, all, "a part each");
    let ends: Vec<u64> =
        view["shards"].as_array().unwrap().iter().map(|shard| shard["tokens"][1].as_u64().unwrap()).collect();
    assert_eq!(ends.last(), Some(&(LONG + 36)), "room for the output");
    let count = async |member: &Member| {
        let view = fixture.server.get(&format!("instances/{}", uri64(member.uri()))).await.ok();
        view["shards"].clone()
    };
    assert_eq!(count(&members[0]).await, json!(1));
}

#[tokio::test]
async fn what_is_short_or_nobody_s_session_is_not_split() {
    let (fixture, _members) = three().await;
    let mut no_session = wanted(LONG);
    no_session["session"] = json!(false);
    for request in [wanted(LONG - 1), no_session] {
        let answer = fixture.server.post("placements", &request).await.ok();
        assert_eq!(answer.get("map"), None);
    }
    assert_eq!(fixture.server.get("maps").await.ok(), json!({"maps": []}));
    let alone = Fixture::start(config()).await;
    let member = Member::start();
    alone.report(&member, 1).await;
    assert_eq!(alone.server.post("placements", &wanted(LONG)).await.ok().get("map"), None);
    let never = Fixture::start(ControllerConfig::default()).await;
    let other = Member::start();
    never.report(&member, 1).await;
    never.report(&other, 1).await;
    assert_eq!(never.server.post("placements", &wanted(100_000)).await.ok().get("map"), None);
}

#[tokio::test]
async fn once_the_prompt_is_computed_the_group_shrinks() {
    let (fixture, mut members) = three().await;
    let (placed, session) = place(&fixture.server).await;
    let (leader, mut others) = leader_of(&mut members, &placed);
    leader.leads(61);
    record(&fixture, &session, 0).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(leader.rest(), [], "the prompt is not computed yet");
    record(&fixture, &session, 1).await;
    let asked = leader.next(Kind::Length).await;
    assert_eq!((&asked["map"], &asked["to"], &asked["version"]), (&json!(session), &json!(2), &json!(1)));
    let plan = leader.next(Kind::Plan).await;
    assert_eq!((&plan["length"], &plan["session"]), (&json!(61), &json!(session)));
    for other in &mut others {
        assert_eq!(other.next(Kind::Plan).await["length"], 61);
    }
    let view = settles(&fixture, &session, 2).await;
    assert_eq!(instances_of(&view), [placed["instance"].as_str().unwrap()]);
    record(&fixture, &session, 2).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(leader.rest().iter().all(|asked| asked.kind == Kind::Commit), "once");
}

#[tokio::test]
async fn a_member_short_of_memory_gets_help() {
    let (fixture, mut members) = three().await;
    let (placed, session) = place(&fixture.server).await;
    record(&fixture, &session, 1).await;
    settles(&fixture, &session, 2).await;
    let (leader, others) = leader_of(&mut members, &placed);
    fixture.report_as(others[0], 1, &json!({"kv_utilization": 0.7})).await;
    fixture.report_as(others[1], 1, &json!({"kv_utilization": 0.3})).await;
    fixture.report_as(leader, 1, &json!({"kv_utilization": 0.9})).await;
    let view = settles(&fixture, &session, 3).await;
    let mut owners = instances_of(&view);
    owners.sort_unstable();
    owners.dedup();
    let mut expected = [leader.uri(), others[1].uri()];
    expected.sort_unstable();
    assert_eq!(owners, expected, "the one that has room");
}

#[tokio::test]
async fn a_draining_member_s_parts_go_elsewhere() {
    let (fixture, mut members) = three().await;
    let (placed, session) = place(&fixture.server).await;
    let (_, others) = leader_of(&mut members, &placed);
    let leaving = others[0].uri().to_owned();
    let order = format!("instances/{}/state", uri64(&leaving));
    fixture.server.put(&order, &json!({"state": "draining"})).await.ok();
    let view = settles(&fixture, &session, 2).await;
    assert!(!instances_of(&view).contains(&leaving.as_str()), "{view}");
}

#[tokio::test]
async fn a_map_ends_with_its_session() {
    let (fixture, mut members) = three().await;
    let (_, session) = place(&fixture.server).await;
    assert_eq!(fixture.server.delete(&format!("sessions/{session}")).await.status, 204);
    for member in &mut members {
        assert_eq!(member.next(Kind::Forget).await, json!(session));
    }
    assert_eq!(fixture.server.get(&path(&session)).await.problem(), (404, "kvsp-map-unknown".into()));
}

#[tokio::test]
async fn who_goes_on_with_a_session_leads_its_map() {
    let (fixture, mut members) = three().await;
    let (placed, session) = place(&fixture.server).await;
    record(&fixture, &session, 1).await;
    settles(&fixture, &session, 2).await;
    let (leader, others) = leader_of(&mut members, &placed);
    leader.kill().await;
    fixture.clock.advance(TTL - Duration::from_millis(100));
    for other in &others {
        fixture.report(other, 1).await;
    }
    fixture.clock.advance(Duration::from_millis(100));
    let mut others = others.into_iter();
    let (one, two) = (others.next().unwrap(), others.next().unwrap());
    let resume = tokio::select! {
        resume = one.until(Kind::Resume) => resume,
        resume = two.until(Kind::Resume) => resume,
    };
    assert_eq!((&resume["map"], &resume["epoch"]), (&json!(session), &json!(2)));
    let dead = placed["instance"].as_str().unwrap();
    let without = |view: &Value| view.get("pending").is_none() && !instances_of(view).contains(&dead);
    let view = reaches(&fixture.server, &session, "without the dead", without).await;
    assert!(view["version"].as_u64().unwrap() >= 3, "{view}");
}
