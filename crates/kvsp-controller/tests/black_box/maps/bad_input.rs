//! What is wrong gets its problem type, and the next good request works.

use http::Method;
use kvsp_controller::ControllerConfig;
use serde_json::{Value, json};

use super::member::Member;
use super::{DEADLINE_MS, Fixture, MAP, body, path, reshard_path, shards, three};

fn shard(a: i64, b: i64, member: &Member) -> Value {
    json!({"tokens": [a, b], "instance": member.uri()})
}

/// Lists of shards that are no split of tokens from 0 on, whatever total they are to have.
fn no_splits(a: &Member, b: &Member) -> Vec<(&'static str, Value)> {
    let many: Vec<Value> = (0..1025).map(|n| shard(n, n + 1, a)).collect();
    vec![
        ("empty", json!([])),
        ("a gap", json!([shard(0, 100, a), shard(101, 300, b)])),
        ("an overlap", json!([shard(0, 100, a), shard(99, 300, b)])),
        ("an empty range", json!([shard(0, 100, a), shard(100, 100, a), shard(100, 300, b)])),
        ("an inverted range", json!([shard(0, 100, a), shard(300, 100, b)])),
        ("not from 0", json!([shard(1, 300, a)])),
        ("out of order", json!([shard(100, 300, a), shard(0, 100, b)])),
        ("too many", json!(many)),
    ]
}

/// Lists of shards of the wrong JSON type, or with members missing.
fn malformed(a: &Member) -> Vec<Value> {
    vec![
        json!(null),
        json!({}),
        json!("x"),
        json!([1]),
        json!([{"tokens": [0, 300]}]),
        json!([{"instance": a.uri()}]),
        json!([{"tokens": [0], "instance": a.uri()}]),
        json!([{"tokens": [0, 1, 2], "instance": a.uri()}]),
        json!([{"tokens": ["0", "300"], "instance": a.uri()}]),
        json!([{"tokens": [0, 1.5], "instance": a.uri()}]),
        json!([shard(-1, 300, a)]),
        json!([{"tokens": [0, 300], "instance": 7}]),
    ]
}

const INVALID: (u16, &str) = (422, "kvsp-invalid-shard-map");
const MALFORMED: (u16, &str) = (400, "kvsp-malformed-json");
const BAD_IDENTIFIER: (u16, &str) = (400, "kvsp-bad-identifier");

#[tokio::test]
async fn a_map_is_not_created_of_nonsense() {
    let fixture = Fixture::start(ControllerConfig::default()).await;
    let server = &fixture.server;
    let (a, b) = (Member::start(), Member::start());
    let good = body(&shards(&[(100, &a), (300, &b)]));
    let with = |member: &str, value: Value| {
        let mut body = good.clone();
        body[member] = value;
        body
    };
    let mut cases: Vec<(String, Value, (u16, &str))> = Vec::new();
    for (what, shards) in no_splits(&a, &b) {
        cases.push((what.into(), with("shards", shards), INVALID));
    }
    for shards in malformed(&a) {
        cases.push((shards.to_string(), with("shards", shards), MALFORMED));
    }
    for uri in ["", "nowhere", "http://127.0.0.1:1/kvsp", "http://u@127.0.0.1:1/", "moqt://127.0.0.1:1/"] {
        let shards = json!([{"tokens": [0, 300], "instance": uri}]);
        cases.push((uri.into(), with("shards", shards), BAD_IDENTIFIER));
    }
    for uri in ["http://169.254.169.254/latest/", "https://somewhere.example/kvsp/", "http://10.0.0.1/kvsp/"]
    {
        let shards = json!([shard(0, 100, &a), {"tokens": [100, 300], "instance": uri}]);
        cases.push((uri.into(), with("shards", shards), (403, "kvsp-source-forbidden")));
    }
    cases.extend([
        ("another map".into(), with("map", json!("context-2")), INVALID),
        ("another version".into(), with("version", json!(2)), INVALID),
        ("no map".into(), with("map", json!("a b")), BAD_IDENTIFIER),
        ("no scope".into(), with("scope_id", json!("AB")), BAD_IDENTIFIER),
        ("no compatibility".into(), with("compat_id", json!("AB")), BAD_IDENTIFIER),
        ("no session".into(), with("session", json!("x")), BAD_IDENTIFIER),
        ("a session of a type".into(), with("session", json!(1)), MALFORMED),
        ("a scope of a type".into(), with("scope_id", json!(1)), MALFORMED),
    ]);
    for member in ["compat_id", "scope_id", "shards"] {
        let mut without = good.clone();
        without.as_object_mut().unwrap().remove(member);
        cases.push((format!("without {member}"), without, MALFORMED));
    }
    for (what, body, (status, name)) in cases {
        let answer = server.put(&path(MAP), &body).await;
        assert_eq!(answer.problem(), (status, name.into()), "{what}");
    }
    let twice = good.to_string().replacen('{', "{\"compat_id\":\"\",", 1);
    for (what, text) in [("twice", twice), ("an array", "[]".into()), ("no JSON", "{".into())] {
        let answer = server.send(Method::PUT, &server.base.join(&path(MAP)), Some(text.into())).await;
        assert_eq!(answer.problem(), (400, "kvsp-malformed-json".into()), "{what}");
    }
    assert_eq!(server.get("maps").await.ok(), json!({"maps": []}), "none of it came to be");
    assert_eq!(server.put(&path(MAP), &good).await.status, 201, "the next good one");
}

#[tokio::test]
async fn a_map_s_name_is_of_a_small_set() {
    let fixture = Fixture::start(ControllerConfig::default()).await;
    let server = &fixture.server;
    let a = Member::start();
    let good = body(&shards(&[(9, &a)]));
    for map in ["a%20b", "%C3%A4", &"x".repeat(129), "a%2Fb", "a~b"] {
        for (method, path, body) in [
            (Method::PUT, path(map), Some(good.clone())),
            (Method::GET, path(map), None),
            (Method::DELETE, path(map), None),
            (Method::POST, reshard_path(map), Some(json!({}))),
        ] {
            let body = body.map(|body| body.to_string().into());
            let answer = server.send(method, &server.base.join(&path), body).await;
            assert_eq!(answer.problem(), (400, "kvsp-bad-identifier".into()), "{path}");
        }
    }
    for map in [&*"x".repeat(128), "...", "-", "_"] {
        assert_eq!(server.put(&path(map), &good).await.status, 201, "{map}");
    }
    let wrong = server.send(Method::PATCH, &server.base.join(&path(MAP)), None).await;
    assert_eq!(wrong.status, 405);
    let allowed = wrong.headers["allow"].to_str().unwrap().to_owned();
    assert!(["GET", "PUT", "DELETE"].iter().all(|method| allowed.contains(method)), "{allowed}");
    assert_eq!(server.get(&reshard_path(MAP)).await.status, 405);
}

#[tokio::test]
async fn a_map_is_not_split_anew_into_nonsense() {
    let (fixture, [mut a, mut b, mut c]) = three().await;
    let server = &fixture.server;
    let good = json!({
        "from": 1, "shards": [shard(0, 150, &a), shard(150, 300, &b)], "deadline_ms": DEADLINE_MS
    });
    let with = |member: &str, value: Value| {
        let mut body = good.clone();
        body[member] = value;
        body
    };
    let mut cases: Vec<(String, Value, (u16, &str))> = Vec::new();
    for (what, shards) in no_splits(&a, &b) {
        cases.push((what.into(), with("shards", shards), INVALID));
    }
    for (what, end) in [("a smaller total", 299), ("a larger total", 301)] {
        cases.push((what.into(), with("shards", json!([shard(0, end, &a)])), INVALID));
    }
    for shards in malformed(&a) {
        cases.push((shards.to_string(), with("shards", shards), MALFORMED));
    }
    for (member, value) in [
        ("from", json!(-1)),
        ("from", json!("1")),
        ("from", json!(null)),
        ("deadline_ms", json!(0)),
        ("deadline_ms", json!(-1)),
        ("deadline_ms", json!("1")),
        ("deadline_ms", json!(null)),
    ] {
        cases.push((format!("{member} {value}"), with(member, value), MALFORMED));
    }
    for from in [0, 2, 7] {
        cases.push((format!("from {from}"), with("from", json!(from)), (409, "kvsp-reshard-conflict")));
    }
    let forbidden = json!([{"tokens": [0, 300], "instance": "http://169.254.169.254/"}]);
    cases.push(("forbidden".into(), with("shards", forbidden), (403, "kvsp-source-forbidden")));
    let nowhere = json!([{"tokens": [0, 300], "instance": "nowhere"}]);
    cases.push(("no URI".into(), with("shards", nowhere), BAD_IDENTIFIER));
    for member in ["from", "shards", "deadline_ms"] {
        let mut without = good.clone();
        without.as_object_mut().unwrap().remove(member);
        cases.push((format!("without {member}"), without, MALFORMED));
    }
    for (what, body, (status, name)) in cases {
        let answer = server.post(&reshard_path(MAP), &body).await;
        assert_eq!(answer.problem(), (status, name.into()), "{what}");
    }
    let unknown = server.post(&reshard_path("another"), &good).await;
    assert_eq!(unknown.problem(), (404, "kvsp-map-unknown".into()));
    let media = http::Request::builder().method(Method::POST).uri(server.base.join(&reshard_path(MAP)));
    let media = server.send_raw(media.header("content-type", "text/plain"), "{}").await;
    assert_eq!(media.status, 415);
    let rest: Vec<_> = [&mut a, &mut b, &mut c].into_iter().flat_map(Member::rest).collect();
    assert_eq!(rest, [], "members were told nothing");
    assert_eq!(server.post(&reshard_path(MAP), &good).await.status, 202, "the next good one");
    fixture.settles(2).await;
}

#[tokio::test]
async fn a_deadline_beyond_the_longest_is_cut() {
    let (fixture, mut members) = three().await;
    let body =
        json!({"from": 1, "shards": super::halves(&members), "deadline_ms": 9_007_199_254_740_991_u64});
    assert_eq!(fixture.server.post(&reshard_path(MAP), &body).await.status, 202);
    let plan = members[0].next(super::Kind::Plan).await;
    let deadline = plan["deadline_ms"].as_u64().unwrap();
    assert!((599_000..=600_000).contains(&deadline), "{plan}");
}

#[tokio::test]
async fn an_instance_that_has_registered_may_be_a_member() {
    let fixture = Fixture::start(ControllerConfig::default()).await;
    let elsewhere = "https://i1.example/kvsp/";
    let shards = json!([{"tokens": [0, 9], "instance": elsewhere}]);
    let refused = fixture.server.put(&path(MAP), &body(&shards)).await;
    assert_eq!(refused.problem(), (403, "kvsp-source-forbidden".into()));
    fixture.server.report(&crate::support::status(elsewhere, 1)).await.ok();
    assert_eq!(fixture.server.put(&path(MAP), &body(&shards)).await.status, 201);
}

#[tokio::test]
async fn too_long_uris_are_refused_before_they_are_recorded() {
    let fixture = Fixture::start(ControllerConfig::default()).await;
    let long = format!("http://127.0.0.1:1/{}/", "x".repeat(1000));
    let many: Vec<Value> = (0..100).map(|n| json!({"tokens": [n, n + 1], "instance": long})).collect();
    let answer = fixture.server.put(&path(MAP), &body(&json!(many))).await;
    assert_eq!(answer.problem(), (413, "kvsp-limit-exceeded".into()));
}
