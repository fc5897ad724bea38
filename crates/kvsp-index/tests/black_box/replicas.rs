//! Publishing and withdrawing over real sockets (profile sections 3 and 5).

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Server, compat, key, path_of, record, scope, uri64};
use http::Method;
use kvsp_index::IndexServiceConfig;
use kvsp_net::auth::Development;
use serde_json::{Value, json};

const H1: &str = "https://h1.example/kvsp/";
const H2: &str = "https://h2.example/kvsp/";

fn is(answer: &crate::support::Answer, status: u16, name: &str) {
    assert_eq!(answer.problem(), (status, name.to_owned()));
}

#[tokio::test]
async fn a_record_is_put_read_listed_and_withdrawn() {
    let server = Server::start().await;
    let (first, second) = (record(1, H2), record(1, H1));
    let answer = server.put(&path_of(&first), &first).await;
    assert_eq!((answer.status.as_u16(), answer.json()), (201, json!({"ttl_ms": 60_000})));
    assert_eq!(answer.media, "application/kvsp+json");
    let answer = server.put(&path_of(&first), &first).await;
    assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({"ttl_ms": 60_000})));
    server.put(&path_of(&second), &second).await;

    let got = server.get(&path_of(&first)).await;
    let mut body = got.json();
    let left = body["ttl_ms"].as_u64().unwrap();
    assert!((1..=60_000).contains(&left));
    body["ttl_ms"] = json!(60_000);
    assert_eq!(body, first);

    let block = format!("replicas/{}/{}/{}", compat(), scope(), key(1));
    let list = server.get(&block).await.json();
    let holders: Vec<&str> =
        list["replicas"].as_array().unwrap().iter().map(|r| r["holder"].as_str().unwrap()).collect();
    assert_eq!(holders, [H1, H2]);

    for _ in 0..2 {
        let answer = server.delete(&path_of(&first)).await;
        assert_eq!((answer.status.as_u16(), answer.body.len()), (204, 0));
    }
    is(&server.get(&path_of(&first)).await, 404, "kvsp-block-not-found");
    let none = format!("replicas/{}/{}/{}", compat(), scope(), key(9));
    let answer = server.get(&none).await;
    assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({"replicas": []})));
}

#[tokio::test]
async fn ttls_are_capped_and_records_expire() {
    let config = IndexServiceConfig { max_ttl_ms: 5_000, ..IndexServiceConfig::default() };
    let server = Server::with(config, Arc::new(Development::new())).await;
    let long = record(1, H1);
    assert_eq!(server.put(&path_of(&long), &long).await.json(), json!({"ttl_ms": 5_000}));
    let mut short = record(2, H1);
    short["ttl_ms"] = json!(40);
    assert_eq!(server.put(&path_of(&short), &short).await.json(), json!({"ttl_ms": 40}));
    let gone = async {
        while server.get(&path_of(&short)).await.status != 404 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("the record expires");
    assert_eq!(server.get("").await.json()["limits"]["max_ttl_ms"], 5_000);
}

#[tokio::test]
async fn what_contradicts_itself_or_the_path_is_invalid() {
    let server = Server::start().await;
    let good = record(1, H1);
    let path = path_of(&good);
    let cases: &[(&str, Value)] = &[
        ("block_key", json!(key(2))),
        ("scope_id", json!("00".repeat(16))),
        ("compat_id", json!("00".repeat(32))),
        ("holder", json!(H2)),
        ("holder", json!("https://h1.example/kvsp")),
        ("holder", json!("ftp://h1.example/")),
        ("digest", json!(format!("sha-256:{}", "00".repeat(32)))),
        ("layer_digests", json!([])),
        ("residency", json!([])),
        ("residency", json!([{"tier": "host", "layers": [0, 1]}, {"tier": "disk", "layers": [1, 1]}])),
        ("residency", json!([{"tier": "tape", "layers": [0, 1]}])),
        ("residency", json!([{"tier": "host", "layers": [0, 2]}])),
        ("residency", json!([{"tier": "host", "layers": [1, 0]}])),
    ];
    for (member, value) in cases {
        let mut bad = good.clone();
        bad[*member] = value.clone();
        let answer = server.put(&path, &bad).await;
        assert_eq!(answer.problem(), (422, "kvsp-invalid-record".into()), "{member}: {value}");
    }
    let cases: &[(&str, Value, &str)] = &[
        ("block_key", json!("AB".repeat(32)), "kvsp-bad-identifier"),
        ("layer_digests", json!(["AB"]), "kvsp-bad-identifier"),
        ("ttl_ms", json!(0), "kvsp-malformed-json"),
        ("ttl_ms", json!("1"), "kvsp-malformed-json"),
        ("codec", json!(0), "kvsp-malformed-json"),
        ("codec", json!(65_535), "kvsp-malformed-json"),
        ("size", json!(-1), "kvsp-malformed-json"),
        ("size", json!(1.5), "kvsp-malformed-json"),
        ("residency", Value::Null, "kvsp-malformed-json"),
    ];
    for (member, value, name) in cases {
        let mut bad = good.clone();
        bad[*member] = value.clone();
        assert_eq!(server.put(&path, &bad).await.problem(), (400, (*name).into()), "{member}: {value}");
    }
    let mut float = good.clone();
    float["ttl_ms"] = json!(60_000.0);
    assert_eq!(server.put(&path, &float).await.status, 201, "32.0 equals 32");
}

#[tokio::test]
async fn identifiers_in_paths_have_one_form() {
    let server = Server::start().await;
    let good = record(1, H1);
    let (c, s, k, h) = (compat(), scope(), key(0xab), uri64(H1));
    for path in [
        format!("replicas/{}/{s}/{k}/{h}", c.to_uppercase()),
        format!("replicas/{c}/{s}/{}/{h}", k.to_uppercase()),
        format!("replicas/{c}/{s}0/{k}/{h}"),
        format!("replicas/{c}/{s}/{}/{h}", &k[1..]),
        format!("replicas/{c}/{s}/{k}/{h}=="),
        format!("replicas/{c}/{s}/{k}/{}", "aHR0cHM6Ly9IMS8"),
        format!("replicas/{c}/{s}/{k}/!!"),
    ] {
        is(&server.put(&path, &good).await, 400, "kvsp-bad-identifier");
        is(&server.get(&path).await, 400, "kvsp-bad-identifier");
    }
    is(&server.delete("holders/xyz").await, 400, "kvsp-bad-identifier");
    let path = path_of(&good);
    for query in ["seq=", "seq=-1", "seq=1&seq=1", "seq=a", "seq=9007199254740992"] {
        is(&server.delete(&format!("{path}?{query}")).await, 400, "kvsp-bad-identifier");
    }
    assert_eq!(server.delete(&format!("{path}?other=1")).await.status, 204);
}

#[tokio::test]
async fn bodies_that_are_no_i_json_are_refused_and_the_next_is_served() {
    let server = Server::start().await;
    let good = record(1, H1);
    let path = path_of(&good);
    let text = good.to_string();
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let cases = [
        text.replacen('{', "{\"ttl_ms\": 1, ", 1),
        text.replacen('{', &format!("{{\"x\": {deep}, "), 1),
        text.replacen('{', "{\"x\": 9007199254740993, ", 1),
        text.replacen('{', "{\"x\": \"\\ud800\", ", 1),
        format!("\u{feff}{text}"),
        text[1..].to_owned(),
        String::new(),
        "null".to_owned(),
        "[]".to_owned(),
    ];
    for body in cases {
        let answer =
            server.send(Method::PUT, &path, Some(("application/kvsp+json", body.clone().into()))).await;
        let start = body.get(..60).unwrap_or(&body);
        assert_eq!(answer.problem(), (400, "kvsp-malformed-json".into()), "{start}");
    }
    for media in ["text/plain", "application/kvsp-block"] {
        let answer = server.send(Method::PUT, &path, Some((media, text.clone().into()))).await;
        is(&answer, 415, "about:blank");
    }
    assert_eq!(server.put(&path, &good).await.status, 201);
}

#[tokio::test]
async fn unknown_paths_and_methods_are_told_apart() {
    let server = Server::start().await;
    is(&server.get("nothing").await, 404, "about:blank");
    is(&server.get("lookup").await, 405, "about:blank");
    is(&server.send(Method::PATCH, &path_of(&record(1, H1)), None).await, 405, "about:blank");
    let root = server.get("").await.json();
    assert_eq!((root["kvsp"].clone(), root["roles"].clone()), (json!(1), json!(["index"])));
    assert_eq!(root["limits"]["max_lookup_keys"], 65_536);
}

#[tokio::test]
async fn seq_and_epochs_order_records() {
    let server = Server::start().await;
    let with = |n, seq: Option<u64>, epoch: Option<u64>| {
        let mut record = record(n, H1);
        for (member, value) in [("seq", seq), ("holder_epoch", epoch)] {
            if let Some(value) = value {
                record[member] = json!(value);
            }
        }
        record
    };
    let path = path_of(&record(1, H1));
    assert_eq!(server.put(&path, &with(1, Some(5), None)).await.status, 201);
    is(&server.put(&path, &with(1, Some(4), None)).await, 409, "kvsp-stale-record");
    is(&server.put(&path, &with(1, None, None)).await, 409, "kvsp-stale-record");
    is(&server.delete(&path).await, 409, "kvsp-stale-record");
    is(&server.delete(&format!("{path}?seq=4")).await, 409, "kvsp-stale-record");
    assert_eq!(server.delete(&format!("{path}?seq=6")).await.status, 204);
    is(&server.get(&path).await, 404, "kvsp-block-not-found");
    is(&server.put(&path, &with(1, Some(5), None)).await, 409, "kvsp-stale-record");
    assert_eq!(server.put(&path, &with(1, Some(7), None)).await.status, 201);

    let (two, three) = (path_of(&record(2, H1)), path_of(&record(3, H1)));
    assert_eq!(server.put(&two, &with(2, None, Some(10))).await.status, 201);
    assert_eq!(server.put(&three, &with(3, None, Some(11))).await.status, 201);
    assert_eq!(server.get(&two).await.status, 404, "the higher epoch dropped it");
    is(&server.put(&two, &with(2, None, Some(10))).await, 409, "kvsp-stale-record");
    assert_eq!(server.get(&three).await.json()["holder_epoch"], 11);
}

#[tokio::test]
async fn a_holder_is_withdrawn_whole() {
    let server = Server::start().await;
    for (n, holder) in [(1, H1), (2, H1), (1, H2)] {
        let record = record(n, holder);
        server.put(&path_of(&record), &record).await;
    }
    let path = format!("holders/{}", uri64(H1));
    assert_eq!(server.delete(&path).await.status, 204);
    assert_eq!(server.delete(&path).await.status, 204);
    assert_eq!(server.get(&path_of(&record(2, H1))).await.status, 404);
    assert_eq!(server.get(&path_of(&record(1, H2))).await.status, 200);
}

#[tokio::test]
async fn a_batch_judges_every_item_alone_and_in_order() {
    let server = Server::start().await;
    let name = |n, holder: &str| json!({"compat_id": compat(), "scope_id": scope(), "block_key": key(n), "holder": holder});
    let mut invalid = record(2, H1);
    invalid["residency"] = json!([]);
    let batch = json!({
        "put": [record(1, H1), invalid, record(1, H1), {"block_key": "zz"}, 7, record(3, H1)],
        "delete": [name(3, H1), name(9, H1), {"compat_id": "AA"}, {}],
        "other": {}
    });
    let answer = server.post("replicas", &batch).await;
    assert_eq!(answer.status, 200);
    let body = answer.json();
    let statuses = |list: &str| -> Vec<u64> {
        body[list].as_array().unwrap().iter().map(|item| item["status"].as_u64().unwrap()).collect()
    };
    assert_eq!(statuses("put"), [201, 422, 200, 400, 400, 201]);
    assert_eq!(statuses("delete"), [204, 204, 400, 400]);
    assert_eq!(body["put"][0], json!({"status": 201, "ttl_ms": 60_000}));
    assert_eq!(
        body["put"][1]["problem"]["type"],
        format!("{}kvsp-invalid-record", crate::support::TYPE_PREFIX)
    );
    assert_eq!(server.get(&path_of(&record(1, H1))).await.status, 200);
    assert_eq!(server.get(&path_of(&record(3, H1))).await.status, 404);
    assert_eq!(server.post("replicas", &json!({})).await.json(), json!({"put": [], "delete": []}));
    is(&server.post("replicas", &json!({"put": 1})).await, 400, "kvsp-malformed-json");
    is(&server.post("replicas", &json!([])).await, 400, "kvsp-malformed-json");
    let many = json!({"put": vec![1; 5_000], "delete": vec![1; 5_001]});
    is(&server.post("replicas", &many).await, 413, "kvsp-limit-exceeded");
}

#[tokio::test]
async fn a_moqt_holder_is_stored_and_returned() {
    let server = Server::start().await;
    let mut moqt = record(1, "moqt://relay.example/x");
    is(&server.put(&path_of(&moqt), &moqt).await, 422, "kvsp-invalid-record");
    moqt["moqt_namespace"] = json!("AWEBYgFjAWQ");
    is(&server.put(&path_of(&moqt), &moqt).await, 422, "kvsp-invalid-record");
    moqt["moqt_namespace"] = json!("AWEBYgFjAWQBZQ");
    assert_eq!(server.put(&path_of(&moqt), &moqt).await.status, 201);
    assert_eq!(server.get(&path_of(&moqt)).await.json()["moqt_namespace"], "AWEBYgFjAWQBZQ");
    let found = server.post("lookup", &crate::support::lookup_of(&[1])).await.json();
    assert_eq!(found["blocks"][0]["replicas"][0]["holder"], "moqt://relay.example/x");
}

#[tokio::test]
async fn a_full_index_refuses_new_records_and_takes_refreshes() {
    let config = IndexServiceConfig { max_records: 1, ..IndexServiceConfig::default() };
    let server = Server::with(config, Arc::new(Development::new())).await;
    let (one, two) = (record(1, H1), record(2, H1));
    assert_eq!(server.put(&path_of(&one), &one).await.status, 201);
    is(&server.put(&path_of(&two), &two).await, 507, "kvsp-storage-full");
    assert_eq!(server.put(&path_of(&one), &one).await.status, 200);
    server.delete(&path_of(&one)).await;
    assert_eq!(server.put(&path_of(&two), &two).await.status, 201);
}
