//! Bad input gets its problem type, and the next good request works.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use kvsp_net::auth::Authenticator;
use kvsp_net::principal::{Grant, Principal, Role};
use kvsp_proto::attention::{AttentionPartial, AttentionQuery};
use kvsp_proto::container;
use kvsp_proto::id::ScopeId;
use kvsp_proto::path::{MEDIA_ATTENTION, MEDIA_BLOCK};
use kvsp_proto::problem::Problem;
use kvsp_proto::registry::Codec;
use serde_json::{Value, json};

use crate::support::{Instance, Setup, client, scope, send};
use crate::team::*;

fn plan() -> Value {
    json!({"map": "m", "from": 1, "to": 2, "deadline_ms": 1000, "retain": [[0, 37]], "fetch": [], "release": []})
}

fn with(member: &str, value: Value) -> Value {
    let mut plan = plan();
    plan[member] = value;
    plan
}

#[tokio::test]
async fn messages_that_are_none() {
    let (a, _b) = pair().await;
    let fetch = |a: u64, b: u64| json!([{"tokens": [a, b], "from": "http://127.0.0.1:1/kvsp/"}]);
    for (body, expected) in [
        (json!({"map": "m"}), (400, "kvsp-malformed-json")),
        (json!({"commit": 2}), (400, "kvsp-malformed-json")),
        (json!({"map": "m", "commit": "2"}), (400, "kvsp-malformed-json")),
        (with("deadline_ms", json!(0)), (400, "kvsp-malformed-json")),
        (with("retain", json!(5)), (400, "kvsp-malformed-json")),
        (json!({"map": "a/b", "commit": 2}), (400, "kvsp-bad-identifier")),
        (json!({"map": "", "abort": 2}), (400, "kvsp-bad-identifier")),
        (with("fetch", json!([{"tokens": [37, 38], "from": "nowhere"}])), (400, "kvsp-bad-identifier")),
        (json!({"map": "m", "commit": 2, "abort": 2}), (422, "kvsp-invalid-shard-map")),
        (with("commit", json!(2)), (422, "kvsp-invalid-shard-map")),
        (with("to", json!(3)), (422, "kvsp-invalid-shard-map")),
        (with("to", json!(1)), (422, "kvsp-invalid-shard-map")),
        (with("retain", json!([[37, 0]])), (422, "kvsp-invalid-shard-map")),
        (with("retain", json!([[0, 0]])), (422, "kvsp-invalid-shard-map")),
        (with("fetch", fetch(36, 40)), (422, "kvsp-invalid-shard-map")),
        (with("release", json!([[36, 37]])), (422, "kvsp-invalid-shard-map")),
        (with("retain", json!([[0, 36]])), (422, "kvsp-invalid-shard-map")),
        (with("compat_id", json!("00".repeat(32))), (422, "kvsp-compat-mismatch")),
        (with("map", json!("n")), (200, "")),
        (
            json!({"map": "m", "from": 2, "to": 3, "deadline_ms": 1, "retain": [], "fetch": [], "release": []}),
            (409, "kvsp-reshard-conflict"),
        ),
    ] {
        let answer = send(&a.base, "POST", "reshard", &body.to_string()).await;
        if expected.0 == 200 {
            assert_eq!(answer.status, 200, "{body}: {answer:?}");
            continue;
        }
        let (status, name) = answer.problem();
        assert_eq!((status, name.as_str()), expected, "{body}");
    }
    assert_eq!(send(&a.base, "POST", "reshard", "[]").await.problem(), (400, "kvsp-malformed-json".into()));
    let text = send_octets(&a.base, "POST", "reshard", ("text/plain", Bytes::from_static(b"{}")), &[]).await;
    assert_eq!(text.status, 415);
    assert_eq!(send(&a.base, "GET", "reshard", "").await.status, 405);
}

#[tokio::test]
async fn ranges_and_versions_that_are_not_there() {
    let (a, _b) = pair().await;
    for (path, expected) in [
        ("maps/m/1/tokens", (400, "kvsp-invalid-range")),
        ("maps/m/1/tokens?range=", (400, "kvsp-invalid-range")),
        ("maps/m/1/tokens?range=5", (400, "kvsp-invalid-range")),
        ("maps/m/1/tokens?range=5-5", (400, "kvsp-invalid-range")),
        ("maps/m/1/tokens?range=6-5", (400, "kvsp-invalid-range")),
        ("maps/m/1/tokens?range=+1-5", (400, "kvsp-invalid-range")),
        ("maps/m/1/tokens?range=1-5&range=1-5", (400, "kvsp-invalid-range")),
        ("maps/m/1/tokens?range=1-4294967296", (400, "kvsp-invalid-range")),
        ("maps/m/1/tokens?range=0-4294967295", (413, "kvsp-limit-exceeded")),
        ("maps/m/01/tokens?range=0-5", (400, "kvsp-bad-identifier")),
        ("maps/m/1/tokens?range=0-38", (404, "kvsp-layers-unavailable")),
        ("maps/m/2/tokens?range=0-5", (409, "kvsp-reshard-conflict")),
        ("maps/m/x/tokens?range=0-5", (400, "kvsp-bad-identifier")),
        ("maps/n/1/tokens?range=0-5", (404, "kvsp-map-unknown")),
        ("maps/%20/1/tokens?range=0-5", (400, "kvsp-bad-identifier")),
        ("maps/n", (404, "kvsp-map-unknown")),
    ] {
        let (status, name) = send(&a.base, "GET", path, "").await.problem();
        assert_eq!((status, name.as_str()), expected, "{path}");
        a.tokens(1, range(0, 37)).await.unwrap();
    }
}

#[tokio::test]
async fn octets_that_are_not_to_be_stored() {
    let (a, b) = pair().await;
    a.open(1, 20, shards(&[(37, &a.base), (100, &b.base)])).await;
    assert_eq!(a.held().await, [range(0, 20)], "what is not certain is forgotten");
    let good = sections(&a.descriptor, range(20, 30)).bytes().clone();
    let epoch = |n: u64| ("kvsp-session-epoch", n.to_string());
    let put = async |path: &str, octets: &Bytes, headers: &[(&str, String)]| {
        send_octets(&a.base, "PUT", path, (MEDIA_BLOCK, octets.clone()), headers).await
    };
    let path = "maps/m/1/tokens?range=20-30";
    let shorter = sections(&a.descriptor, range(20, 29)).bytes().clone();
    let layers = |count: u32, codec| {
        let whole = sections(&a.descriptor, range(20, 30));
        let sections: Vec<_> = (0..count).map(|l| whole.layer(l).unwrap()).map(|s| (s.k, s.v)).collect();
        container::encode(codec, 0, 10, &sections).unwrap()
    };
    for (path, octets, headers, expected) in [
        (path, &good, vec![epoch(1)], (400, "about:blank")),
        (path, &good, vec![epoch(1), ("repr-digest", "sha-256=x".into())], (400, "about:blank")),
        (path, &good, vec![epoch(1), digest(b"others")], (422, "kvsp-digest-mismatch")),
        (path, &good, vec![epoch(0), digest(&good)], (409, "kvsp-stale-epoch")),
        (path, &good, vec![digest(&good)], (409, "kvsp-stale-epoch")),
        (path, &good, vec![("kvsp-session-epoch", "x".into()), digest(&good)], (400, "kvsp-bad-identifier")),
        ("maps/m/2/tokens?range=20-30", &good, vec![epoch(1), digest(&good)], (409, "kvsp-reshard-conflict")),
        (
            "maps/m/1/tokens?range=30-40",
            &good,
            vec![epoch(1), digest(&good)],
            (422, "kvsp-invalid-shard-map"),
        ),
        (
            "maps/m/1/tokens?range=20-31",
            &good,
            vec![epoch(1), digest(&good)],
            (422, "kvsp-container-mismatch"),
        ),
        ("maps/m/1/tokens", &good, vec![epoch(1), digest(&good)], (400, "kvsp-invalid-range")),
        ("maps/n/1/tokens?range=20-30", &good, vec![epoch(1), digest(&good)], (404, "kvsp-map-unknown")),
        (path, &shorter, vec![epoch(1), digest(&shorter)], (422, "kvsp-container-mismatch")),
        (path, &good.slice(..99), vec![epoch(1), digest(&good[..99])], (400, "kvsp-malformed-container")),
        (
            path,
            &layers(1, Codec::RAW),
            vec![epoch(1), digest(&layers(1, Codec::RAW))],
            (422, "kvsp-container-mismatch"),
        ),
        (
            path,
            &layers(2, Codec::SPLIT_ZSTD),
            vec![epoch(1), digest(&layers(2, Codec::SPLIT_ZSTD))],
            (415, "kvsp-unsupported-codec"),
        ),
    ] {
        let (status, name) = put(path, octets, &headers).await.problem();
        assert_eq!((status, name.as_str()), expected, "{path} {headers:?}");
        assert_eq!(a.held().await, [range(0, 20)]);
    }
    let stored = a.metric(STORED).await;
    assert_eq!(put(path, &good, &[epoch(1), digest(&good)]).await.status, 204);
    assert_eq!(a.held().await, [range(0, 30)]);
    assert_eq!(a.metric(STORED).await - stored, octets_of(&a.descriptor, 10));
    assert_eq!(a.tokens(1, range(0, 30)).await.unwrap(), sections(&a.descriptor, range(0, 30)));
}

#[tokio::test]
async fn the_next_version_takes_tokens_before_it_holds() {
    let (a, b) = pair().await;
    a.plan(Plan::new().retain(0, 37).fetch(37, 100, &b.base).length(60)).await.unwrap();
    let appended = range(60, 63);
    let octets = sections(&a.descriptor, appended).bytes().clone();
    client().put_tokens(&a.base, &map(), 2, 4, (appended, octets.clone())).await.unwrap();
    let refused = client().put_tokens(&a.base, &map(), 1, 4, (appended, octets.clone())).await;
    assert_eq!(problem(refused), (422, "kvsp-invalid-shard-map"), "it is not ours at version 1");
    a.commit(2).await.unwrap();
    assert_eq!(a.tokens(2, range(30, 63)).await.unwrap(), sections(&a.descriptor, range(30, 63)));
    let refused = client().put_tokens(&a.base, &map(), 2, 3, (appended, octets)).await;
    assert_eq!(problem(refused), (409, "kvsp-stale-epoch"));
}

#[tokio::test]
async fn contexts_that_cannot_be_opened() {
    let (a, b) = pair().await;
    let split = shards(&[(37, &a.base), (100, &b.base)]);
    let put = async |path: &str, body: Value| {
        let (status, name) = send(&a.base, "PUT", path, &body.to_string()).await.problem();
        (status, name)
    };
    let body = |change: fn(&mut Value)| {
        let mut body = serde_json::to_value(opening(&a, 1, 37, split.clone())).unwrap();
        change(&mut body);
        body
    };
    a.open(1, 37, split.clone()).await;
    for (path, body, expected) in [
        ("maps/m", body(|b| b["epoch"] = json!(0)), (409, "kvsp-stale-epoch")),
        ("maps/m", body(|b| b["version"] = json!(0)), (409, "kvsp-reshard-conflict")),
        ("maps/m", body(|b| b["length"] = json!(101)), (422, "kvsp-invalid-shard-map")),
        ("maps/m", body(|b| b["shards"] = json!([])), (422, "kvsp-invalid-shard-map")),
        ("maps/m", body(|b| b["shards"][0]["tokens"] = json!([0, 36])), (422, "kvsp-invalid-shard-map")),
        ("maps/m", body(|b| b["compat_id"] = json!("00".repeat(32))), (422, "kvsp-compat-mismatch")),
        ("maps/m", body(|b| b["epoch"] = json!(-1)), (400, "kvsp-malformed-json")),
        ("maps/m", body(|b| drop(b.as_object_mut().unwrap().remove("length"))), (400, "kvsp-malformed-json")),
        (
            "maps/n",
            body(|b| b["shards"] = json!([{"tokens": [0, 9], "instance": "http://127.0.0.1:1/kvsp/"}])),
            (422, "kvsp-invalid-shard-map"),
        ),
        ("maps/%21", body(|_| ()), (400, "kvsp-bad-identifier")),
    ] {
        let (status, name) = put(path, body.clone()).await;
        assert_eq!((status, name.as_str()), expected, "{path} {body}");
        assert_eq!(a.held().await, [range(0, 37)]);
    }
    // Other ranges of ours at the version that we know.
    let other = serde_json::to_value(opening(&a, 1, 30, shards(&[(30, &a.base), (100, &b.base)]))).unwrap();
    assert_eq!(put("maps/m", other).await, (409, "kvsp-reshard-conflict".into()));
    assert_eq!(a.open(2, 30, split.clone()).await, [range(0, 30)]);
    assert_eq!(a.open(4, 30, split).await, [], "a leader between may have had other tokens");
}

fn query(step: u64) -> AttentionQuery {
    let (heads, head_dim) = heads();
    AttentionQuery {
        step,
        layer: 0,
        position: 36,
        keys: range(0, 37),
        rows: 1,
        heads,
        head_dim,
        values: vec![0.25; (heads * head_dim) as usize],
    }
}

/// Query heads of the tiny model.
fn heads() -> (u32, u32) {
    (TINY_HEADS, TINY_HEAD_DIM)
}

const TINY_HEADS: u32 = 4;
const TINY_HEAD_DIM: u32 = 16;

#[tokio::test]
async fn queries_that_cannot_be_answered() {
    let (a, _b) = pair().await;
    let ask = async |path: &str, octets: Bytes, headers: &[(&str, String)]| {
        send_octets(&a.base, "POST", path, (MEDIA_ATTENTION, octets), headers).await
    };
    let path = "maps/m/1/attention";
    let encoded = |change: fn(&mut AttentionQuery)| {
        let mut query = query(1);
        change(&mut query);
        query.encode()
    };
    for (path, octets, expected) in [
        ("maps/m/2/attention", encoded(|_| ()), (409, "kvsp-reshard-conflict")),
        ("maps/n/1/attention", encoded(|_| ()), (404, "kvsp-map-unknown")),
        (path, Bytes::from_static(b"KVQ1"), (400, "kvsp-malformed-container")),
        (path, encoded(|_| ()).slice(1..), (400, "kvsp-malformed-container")),
        (path, encoded(|q| q.rows = 2), (400, "kvsp-malformed-container")),
        (path, encoded(|q| q.values[3] = f32::NAN), (400, "kvsp-malformed-container")),
        (
            path,
            encoded(|q| {
                q.heads *= 2;
                q.head_dim /= 2;
            }),
            (422, "kvsp-container-mismatch"),
        ),
        (path, encoded(|q| q.position = 1 << 40), (422, "kvsp-container-mismatch")),
        (
            path,
            encoded(|q| {
                q.position = 90;
                q.keys = range(0, 38);
            }),
            (404, "kvsp-layers-unavailable"),
        ),
        (path, encoded(|q| q.layer = 99), (404, "kvsp-layers-unavailable")),
        (
            path,
            encoded(|q| {
                q.rows = 5000;
                q.values = vec![0.0; 5000 * (TINY_HEADS * TINY_HEAD_DIM) as usize];
            }),
            (413, "kvsp-limit-exceeded"),
        ),
    ] {
        let (status, name) = ask(path, octets.clone(), &[digest(&octets)]).await.problem();
        assert_eq!((status, name.as_str()), expected, "{path}");
        let partial = client().partial_attention(&a.base, &map(), 1, 0, &query(9)).await.unwrap();
        assert!(partial.lse.iter().all(|lse| lse.is_finite()));
    }
    let good = encoded(|_| ());
    let without = ask(path, good.clone(), &[]).await;
    assert_eq!(without.problem(), (400, "about:blank".into()));
    let (status, name) = ask(path, good.clone(), &[digest(b"others")]).await.problem();
    assert_eq!((status, name.as_str()), (422, "kvsp-digest-mismatch"));
    let answered = ask(path, good.clone(), &[digest(&good)]).await;
    assert_eq!(
        (answered.status, &answered.headers["content-type"]),
        (200, &MEDIA_ATTENTION.parse().unwrap())
    );
    assert_eq!(answered.headers["repr-digest"], digest(&answered.body).1);
    assert!(AttentionPartial::decode(&answered.body).unwrap().answers(&query(1)));
    // A leader of a higher epoch fences the one before, and says what is certain before it asks.
    let unopened = client().partial_attention(&a.base, &map(), 1, 1, &query(2)).await;
    assert_eq!(problem(unopened), (409, "kvsp-reshard-conflict"));
    let stale = client().partial_attention(&a.base, &map(), 1, 0, &query(3)).await;
    assert_eq!(problem(stale), (409, "kvsp-stale-epoch"));
}

/// Takes a principal's word for its role, and for whether it has the scope.
struct Credulous;

impl Authenticator for Credulous {
    fn authenticate(&self, parts: &Parts, _peer: SocketAddr) -> Result<Principal, Problem> {
        let of = |name: &str| parts.headers.get(name).map_or("", |value| value.to_str().unwrap());
        let role = Role::ALL.into_iter().filter(|role| role.as_str() == of("role"));
        let scopes = if of("scope").is_empty() { Grant::All } else { Grant::Only([ScopeId([9; 16])].into()) };
        Ok(Principal::new(of("role"), role, scopes, Grant::Only([].into())))
    }
}

#[tokio::test]
async fn roles_and_scopes_decide_who_may_what() {
    let a = Instance::start_with(Setup::alone(), Arc::new(Credulous)).await;
    let open = serde_json::to_vec(&opening(&a, 1, 0, shards(&[(37, &a.base)]))).unwrap();
    let octets = sections(&a.descriptor, range(0, 37)).bytes().clone();
    let asked = query(1).encode();
    let json = "application/kvsp+json";
    let commit = Bytes::from(json!({"map": "m", "commit": 2}).to_string());
    let told = Bytes::from(with("scope_id", json!(scope().to_string())).to_string());
    let epoch = ("kvsp-session-epoch", "1".to_owned());
    let tokens = "maps/m/1/tokens?range=0-37";
    let none = Bytes::new();
    // Each with the role that may, and what it answers; all others may not.
    let requests = [
        ("PUT", "maps/m", (json, Bytes::from(open)), vec!["instance"], 200),
        ("PUT", tokens, (MEDIA_BLOCK, octets.clone()), vec!["instance"], 204),
        ("GET", tokens, (json, none.clone()), vec!["instance", "holder"], 200),
        (
            "GET",
            "maps/m",
            (json, none.clone()),
            vec!["instance", "holder", "controller", "client", "admin"],
            200,
        ),
        ("POST", "maps/m/1/attention", (MEDIA_ATTENTION, asked.clone()), vec!["instance"], 200),
        ("POST", "reshard", (json, told), vec!["controller"], 200),
        ("POST", "reshard", (json, commit), vec!["controller"], 200),
        ("DELETE", "maps/m", (json, none), vec!["instance", "controller", "admin"], 204),
    ];
    for (method, path, (media, body), may, expected) in requests {
        let send = async |role: &str, scope: &str| {
            let headers =
                [("role", role.to_owned()), ("scope", scope.to_owned()), digest(&body), epoch.clone()];
            send_octets(&a.base, method, path, (media, body.clone()), &headers).await.status
        };
        for role in Role::ALL.map(Role::as_str).into_iter().filter(|role| !may.contains(role)) {
            assert_eq!(send(role, "").await, 403, "{role} {method} {path}");
        }
        let first = may[0];
        assert_eq!(send(first, "another").await, 403, "{method} {path} in another scope");
        assert_eq!(send(first, "").await, expected, "{method} {path}");
    }
}
