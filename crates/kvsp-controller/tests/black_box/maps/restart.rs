//! What the controller decided and promised outlives its process.

use std::time::Duration;

use kvsp_controller::ControllerConfig;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::member::{Kind, Member, Reply};
use super::{DEADLINE_MS, Fixture, MAP, TTL, all_asked, halves, kept_in, path, shards, thirds};

async fn three_in(config: ControllerConfig) -> (Fixture, [Member; 3]) {
    let fixture = Fixture::start(config).await;
    let members = [Member::start(), Member::start(), Member::start()];
    fixture.create(&thirds(&members)).await;
    (fixture, members)
}

#[tokio::test]
async fn maps_survive_a_restart() {
    let folder = TempDir::new().unwrap();
    let (fixture, members) = three_in(kept_in(folder.path())).await;
    fixture.reshard(1, &halves(&members)).await;
    let before = fixture.settles(2).await;
    let ended = path("ended");
    fixture.server.put(&ended, &super::body(&shards(&[(5, &members[0])]))).await;
    assert_eq!(fixture.server.delete(&ended).await.status, 204);
    fixture.server.stop().await.unwrap();

    let fixture = Fixture::start(kept_in(folder.path())).await;
    assert_eq!(fixture.view().await, before);
    assert_eq!(fixture.server.get(&ended).await.problem(), (404, "kvsp-map-unknown".into()));
    assert_eq!(fixture.server.get("maps").await.ok(), json!({"maps": [before]}));
    fixture.reshard(2, &thirds(&members)).await;
    fixture.settles(3).await;
}

#[tokio::test]
async fn a_change_that_was_not_decided_is_aborted() {
    let folder = TempDir::new().unwrap();
    let (fixture, mut members) = three_in(kept_in(folder.path())).await;
    members[1].will(Kind::Plan, Reply::Silence);
    fixture.reshard(1, &halves(&members)).await;
    all_asked(&mut members, Kind::Plan).await;
    let acked = |view: &Value| view["pending"]["acks"].as_array().is_some_and(|acks| acks.len() == 2);
    fixture.reaches("two of three", acked).await;
    fixture.server.stop().await.unwrap();

    // Acknowledgements are not remembered, so nobody can know that all were there.
    let fixture = Fixture::start(kept_in(folder.path())).await;
    for abort in all_asked(&mut members, Kind::Abort).await {
        assert_eq!((&abort["map"], &abort["abort"]), (&json!(MAP), &json!(2)));
    }
    assert_eq!(fixture.settles(1).await["shards"], thirds(&members));
    // And the next one is a new one.
    fixture.reshard(1, &halves(&members)).await;
    all_asked(&mut members, Kind::Plan).await;
    all_asked(&mut members, Kind::Commit).await;
    fixture.settles(2).await;
}

#[tokio::test]
async fn a_decision_is_told_on_by_the_next_process() {
    for kind in [Kind::Commit, Kind::Abort] {
        let folder = TempDir::new().unwrap();
        let (fixture, mut members) = three_in(kept_in(folder.path())).await;
        // One member takes the decision, one answers that it cannot now, one never answers.
        members[1].will(kind, Reply::problem(503, "kvsp-overloaded"));
        members[2].will(kind, Reply::Silence);
        if kind == Kind::Abort {
            members[0].will(Kind::Plan, Reply::problem(507, "kvsp-storage-full"));
        }
        fixture.reshard_unhurried(1, &halves(&members)).await;
        let mut first = Vec::new();
        for member in &mut members {
            first.push(member.until(kind).await);
        }
        let version = if kind == Kind::Commit { 2 } else { 1 };
        let told = |view: &Value| view["pending"]["acks"] == json!([members[0].uri()]);
        let view = fixture.reaches("one has taken it", told).await;
        assert_eq!(view["version"], version);
        fixture.server.stop().await.unwrap();
        members.iter_mut().for_each(|member| drop(member.rest()));

        let fixture = Fixture::start(kept_in(folder.path())).await;
        for n in [1, 2] {
            assert_eq!(fixture.goes_on_until(members[n].next(kind)).await, first[n], "the same decision");
        }
        let view = fixture.goes_on_until(fixture.settles(version)).await;
        assert_eq!(view["shards"], if kind == Kind::Commit { halves(&members) } else { thirds(&members) });
        let other = if kind == Kind::Commit { Kind::Abort } else { Kind::Commit };
        for member in &mut members {
            assert!(member.rest().iter().all(|asked| asked.kind != other), "never both");
        }
        fixture.server.stop().await.unwrap();

        // Once all have taken it, it is told no more.
        let fixture = Fixture::start(kept_in(folder.path())).await;
        fixture.settles(version).await;
        fixture.clock.advance(Duration::from_millis(DEADLINE_MS));
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert!(members.iter_mut().all(|member| member.rest().is_empty()));
    }
}

#[tokio::test]
async fn a_restart_right_after_the_request_leaves_one_version() {
    let folder = TempDir::new().unwrap();
    let (fixture, mut members) = three_in(kept_in(folder.path())).await;
    let mut fixture = Some(fixture);
    let mut version = 1;
    for round in 0..6 {
        let running = fixture.take().unwrap();
        let to = if round % 2 == 0 { halves(&members) } else { thirds(&members) };
        running.reshard_unhurried(version, &to).await;
        // As far as it comes.
        tokio::time::sleep(Duration::from_millis(3 * round)).await;
        running.server.stop().await.unwrap();
        let next = Fixture::start(kept_in(folder.path())).await;
        let view = next.goes_on_until(next.reaches("settled", |view| view.get("pending").is_none())).await;
        let now = view["version"].as_u64().unwrap();
        assert!(now == version || (now == version + 1 && view["shards"] == to), "{view}");
        for member in &mut members {
            let told = member.rest();
            let decisions: Vec<Kind> = told
                .iter()
                .filter(|asked| asked.kind != Kind::Plan && asked.kind != Kind::Forget)
                .map(|asked| asked.kind)
                .collect();
            let expected = if now == version { Kind::Abort } else { Kind::Commit };
            assert!(decisions.iter().all(|kind| *kind == expected), "{decisions:?} at {now}");
        }
        version = now;
        fixture = Some(next);
    }
}

#[tokio::test]
async fn a_member_that_started_again_meanwhile_has_lost_its_part() {
    let folder = TempDir::new().unwrap();
    let fixture = Fixture::start(kept_in(folder.path())).await;
    let mut members = [Member::start(), Member::start(), Member::start()];
    for member in &members {
        fixture.report(member, 1).await;
    }
    fixture.create(&thirds(&members)).await;
    fixture.server.stop().await.unwrap();

    let fixture = Fixture::start(kept_in(folder.path())).await;
    fixture.report(&members[0], 1).await;
    fixture.report(&members[2], 1).await;
    fixture.clock.advance(Duration::from_millis(100));
    assert_eq!(fixture.view().await["version"], 1, "each has one TTL to report");
    fixture.report(&members[1], 2).await;
    let plan = members[1].next(Kind::Plan).await;
    assert_eq!((&plan["retain"], &plan["rebuild"]), (&json!([]), &json!([[100, 200]])));
    assert_eq!(fixture.settles(2).await["shards"], thirds(&members));
}

#[tokio::test]
async fn a_member_that_died_with_the_controller_is_found_lost_after_its_ttl() {
    let folder = TempDir::new().unwrap();
    let fixture = Fixture::start(kept_in(folder.path())).await;
    let members = [Member::start(), Member::start(), Member::start()];
    for member in &members {
        fixture.report(member, 1).await;
    }
    fixture.create(&thirds(&members)).await;
    fixture.server.stop().await.unwrap();

    let fixture = Fixture::start(kept_in(folder.path())).await;
    fixture.clock.advance(TTL - Duration::from_millis(100));
    fixture.report(&members[0], 1).await;
    fixture.report(&members[2], 1).await;
    assert_eq!(fixture.view().await["version"], 1);
    fixture.clock.advance(Duration::from_millis(100));
    let view = fixture.settles(2).await;
    assert!(!view["shards"].to_string().contains(members[1].uri()), "{view}");
}

#[tokio::test]
async fn nothing_of_a_map_is_in_clear_on_the_disk() {
    let folder = TempDir::new().unwrap();
    let fixture = Fixture::start(kept_in(folder.path())).await;
    let a = Member::start();
    let secret = "a-map-of-somebody";
    assert_eq!(fixture.server.put(&path(secret), &super::body(&shards(&[(5, &a)]))).await.status, 201);
    fixture.server.stop().await.unwrap();
    let host = a.base.as_str().trim_start_matches("http://").trim_end_matches("/kvsp/").to_owned();
    let state = folder.path().join("state");
    let files: Vec<_> = std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty());
    for file in files.iter().filter(|file| file.is_file()) {
        let octets = std::fs::read(file).unwrap();
        for text in [secret.as_bytes(), host.as_bytes()] {
            assert!(!octets.windows(text.len()).any(|part| part == text), "in {}", file.display());
        }
    }
}
