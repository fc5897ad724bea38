//! Maps begin, are shown, and end.

use kvsp_controller::ControllerConfig;
use serde_json::json;

use super::member::{Kind, Member};
use super::{Fixture, MAP, body, path, shards};
use crate::support::{compat, scope};

#[tokio::test]
async fn a_map_is_created_once() {
    let fixture = Fixture::start(ControllerConfig::default()).await;
    let server = &fixture.server;
    let (a, b) = (Member::start(), Member::start());
    let missing = server.get(&path(MAP)).await;
    assert_eq!(missing.problem(), (404, "kvsp-map-unknown".into()));
    let wanted = shards(&[(100, &a), (300, &b)]);
    let view = json!({
        "map": MAP, "version": 1, "shards": wanted, "compat_id": compat(), "scope_id": scope()
    });
    assert_eq!(fixture.create(&wanted).await, view);
    assert_eq!(server.get(&path(MAP)).await.ok(), view);

    let again = server.put(&path(MAP), &body(&wanted)).await;
    assert_eq!((again.status.as_u16(), again.json()), (200, view.clone()), "the same again");
    let named = {
        let mut named = body(&wanted);
        named["map"] = json!(MAP);
        named["version"] = json!(1);
        named["unknown"] = json!({"x": 1});
        named
    };
    assert_eq!(server.put(&path(MAP), &named).await.status, 200, "with what it says of itself");

    for (member, value) in [
        ("shards", shards(&[(100, &b), (300, &a)])),
        ("shards", shards(&[(101, &a), (300, &b)])),
        ("shards", shards(&[(300, &a)])),
        ("compat_id", json!("00".repeat(32))),
        ("scope_id", json!("00".repeat(16))),
        ("session", json!("6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11")),
    ] {
        let mut other = body(&wanted);
        other[member] = value;
        let answer = server.put(&path(MAP), &other).await;
        assert_eq!(answer.problem(), (409, "kvsp-reshard-conflict".into()), "another {member}");
    }
    assert_eq!(server.get(&path(MAP)).await.ok(), view, "what was refused changed nothing");
    assert_eq!(
        server.get("").await.ok()["extensions"].as_array().unwrap().last(),
        Some(&json!("shard-maps"))
    );
}

#[tokio::test]
async fn two_that_create_the_same_map_at_once_make_one() {
    let fixture = Fixture::start(ControllerConfig::default()).await;
    let (a, b) = (Member::start(), Member::start());
    let (one, other) = (body(&shards(&[(9, &a)])), body(&shards(&[(9, &b)])));
    let path = path(MAP);
    let server = &fixture.server;
    let (first, second, third) =
        tokio::join!(server.put(&path, &one), server.put(&path, &other), server.put(&path, &one));
    let mut statuses = [first, second, third].map(|answer| answer.status.as_u16());
    statuses.sort_unstable();
    // The first of the same two makes it and the second finds it, or the other one makes it and both are refused.
    assert!(statuses == [200, 201, 409] || statuses == [201, 409, 409], "{statuses:?}");
}

#[tokio::test]
async fn maps_are_listed_in_order() {
    let fixture = Fixture::start(ControllerConfig::default()).await;
    let server = &fixture.server;
    let a = Member::start();
    assert_eq!(server.get("maps").await.ok(), json!({"maps": []}));
    for map in ["c", "A.1", "b_2-x"] {
        assert_eq!(server.put(&path(map), &body(&shards(&[(7, &a)]))).await.status, 201);
    }
    let listed = async |query: &str| -> Vec<String> {
        let list = server.get(&format!("maps{query}")).await.ok();
        let maps = list["maps"].as_array().unwrap();
        maps.iter().map(|view| view["map"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed("").await, ["A.1", "b_2-x", "c"]);
    assert_eq!(listed("?limit=2").await, ["A.1", "b_2-x"]);
    let bad = server.get("maps?limit=-1").await;
    assert_eq!(bad.problem(), (400, "kvsp-bad-identifier".into()));
    let counted = async {
        while !server.metrics().await.contains("kvsp_controller_maps{state=\"settled\"} 3") {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), counted).await.expect("they are counted");
}

#[tokio::test]
async fn a_map_that_ends_is_gone_and_its_members_forget_it() {
    let fixture = Fixture::start(ControllerConfig::default()).await;
    let server = &fixture.server;
    let (mut a, mut b) = (Member::start(), Member::start());
    fixture.create(&shards(&[(100, &a), (300, &b)])).await;
    assert_eq!(server.delete(&path(MAP)).await.status, 204);
    assert_eq!(server.get(&path(MAP)).await.problem(), (404, "kvsp-map-unknown".into()));
    assert_eq!(a.next(Kind::Forget).await, json!(MAP));
    assert_eq!(b.next(Kind::Forget).await, json!(MAP));
    assert_eq!(server.get("maps").await.ok(), json!({"maps": []}));
    let again = server.delete(&path(MAP)).await;
    assert!([204, 404].contains(&again.status.as_u16()), "{again:?}");
}
