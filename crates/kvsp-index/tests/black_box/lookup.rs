//! Lookup, estimates, descriptors and statuses over real sockets (profile sections 5 and 11).

use crate::support::{Server, compat, descriptor, key, lookup_of, path_of, record, scope, status, uri64};
use kvsp_proto::descriptor::Descriptor;
use serde_json::{Value, json};

const H1: &str = "https://h1.example/kvsp/";
const H2: &str = "https://h2.example/kvsp/";
const I1: &str = "https://i1.example/kvsp/";

async fn publish(server: &Server, record: &Value) {
    assert_eq!(server.put(&path_of(record), record).await.status, 201);
}

async fn report(server: &Server, status: &Value) -> crate::support::Answer {
    let instance = uri64(status["instance"].as_str().unwrap());
    server.put(&format!("instances/{instance}/status"), status).await
}

fn with_residency(n: u32, holder: &str, residency: Value) -> Value {
    let mut record = record(n, holder);
    record["residency"] = residency;
    record
}

#[tokio::test]
async fn a_lookup_stops_at_the_first_miss_and_filters() {
    let server = Server::start().await;
    for n in [1, 2, 4] {
        publish(&server, &record(n, H2)).await;
    }
    publish(&server, &record(1, H1)).await;
    publish(&server, &with_residency(2, H1, json!([{"tier": "disk", "layers": [0, 0]}]))).await;
    let body = server.post("lookup", &lookup_of(&[1, 2, 3, 4])).await.json();
    assert_eq!((body["matched"].clone(), body["complete"].clone()), (json!(2), json!(2)));
    let blocks = body["blocks"].as_array().unwrap();
    assert_eq!(blocks.iter().map(|b| b["block_key"].clone()).collect::<Vec<_>>(), [key(1), key(2)]);
    let holders: Vec<&Value> =
        blocks[0]["replicas"].as_array().unwrap().iter().map(|r| &r["holder"]).collect();
    assert_eq!(holders, [H1, H2]);
    assert!(body.get("targets").is_none());

    let mut other = lookup_of(&[1]);
    other["scope_id"] = json!("00".repeat(16));
    let body = server.post("lookup", &other).await.json();
    assert_eq!(body, json!({"matched": 0, "complete": 0, "blocks": []}));
    let body = server.post("lookup", &lookup_of(&[])).await.json();
    assert_eq!(body, json!({"matched": 0, "complete": 0, "blocks": []}));
}

#[tokio::test]
async fn complete_needs_every_layer_of_one_computation() {
    let server = Server::start().await;
    publish(&server, &with_residency(1, H1, json!([{"tier": "host", "layers": [0, 0]}]))).await;
    let counts = async || {
        let body = server.post("lookup", &lookup_of(&[1])).await.json();
        (body["matched"].as_u64().unwrap(), body["complete"].as_u64().unwrap())
    };
    assert_eq!(counts().await, (1, 0));
    publish(&server, &with_residency(1, H2, json!([{"tier": "device", "layers": [1, 1]}]))).await;
    assert_eq!(counts().await, (1, 1));
}

#[tokio::test]
async fn detail_says_how_much_is_answered() {
    let server = Server::start().await;
    publish(&server, &record(1, H1)).await;
    let ask = async |detail: &str| {
        let mut request = lookup_of(&[1]);
        request["detail"] = json!(detail);
        server.post("lookup", &request).await
    };
    let full = ask("full").await.json();
    assert_eq!(full["blocks"][0]["replicas"][0]["layer_digests"].as_array().unwrap().len(), 2);
    let location = ask("location").await.json();
    let replica = &location["blocks"][0]["replicas"][0];
    assert!(replica.get("layer_digests").is_none());
    assert_eq!(replica["digest"], full["blocks"][0]["replicas"][0]["digest"]);
    assert_eq!(ask("none").await.json(), json!({"matched": 1, "complete": 1}));
    assert_eq!(ask("some").await.problem(), (400, "kvsp-malformed-json".into()));
}

#[tokio::test]
async fn estimates_are_exact_or_absent() {
    let server = Server::start().await;
    for n in [1, 2] {
        publish(&server, &record(n, H1)).await;
    }
    let ask = async |keys: &[u32], block_tokens: Option<u32>| {
        let mut request = lookup_of(keys);
        request["targets"] = json!([I1, "https://unknown.example/"]);
        request["detail"] = json!("none");
        if let Some(n) = block_tokens {
            request["block_tokens"] = json!(n);
        }
        server.post("lookup", &request).await.json()["targets"].clone()
    };
    let unknown = json!({"instance": "https://unknown.example/"});
    assert_eq!(ask(&[1, 2], Some(16)).await, json!([{"instance": I1}, unknown]));
    let answer = report(&server, &status(I1, 1)).await;
    assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({"state": "active"})));
    // 12 + 2 · 8 · 10^6 / 1000; 2 · 16 tokens at 1000 a second.
    let known = json!({"instance": I1, "fetch_us": 16_012, "recompute_us": 32_000});
    assert_eq!(ask(&[1, 2, 3], Some(16)).await, json!([known, unknown]));
    let untold = json!({"instance": I1, "fetch_us": 16_012});
    assert_eq!(ask(&[1, 2], None).await, json!([untold, unknown]));
    publish(&server, &record(1, I1)).await;
    publish(&server, &record(2, I1)).await;
    let resident = json!({"instance": I1, "fetch_us": 0, "recompute_us": 32_000});
    assert_eq!(ask(&[1, 2], Some(16)).await, json!([resident, unknown]));
    publish(&server, &record(3, H2)).await;
    let unlinked = json!({"instance": I1, "recompute_us": 48_000});
    assert_eq!(ask(&[1, 2, 3], Some(16)).await, json!([unlinked, unknown]));
    let mut slow = status(I1, 1);
    slow["prefill_tokens_per_s"] = json!(0);
    report(&server, &slow).await;
    let unrated = json!({"instance": I1, "fetch_us": 0});
    assert_eq!(ask(&[1, 2], Some(16)).await, json!([unrated, unknown]));
}

#[tokio::test]
async fn a_registered_descriptor_decides() {
    let server = Server::start().await;
    let descriptor = descriptor();
    let compat = Descriptor::from_value(descriptor.clone()).unwrap().compat_id().to_string();
    let path = format!("descriptors/{compat}");
    assert_eq!(server.get(&path).await.problem(), (404, "kvsp-descriptor-unknown".into()));
    let other = format!("descriptors/{}", "00".repeat(32));
    assert_eq!(server.put(&other, &descriptor).await.problem(), (422, "kvsp-compat-mismatch".into()));
    let mut bad = descriptor.clone();
    bad["layers"] = json!(0);
    assert_eq!(server.put(&path, &bad).await.problem(), (422, "kvsp-descriptor-invalid".into()));
    bad["layers"] = json!("2");
    assert_eq!(server.put(&path, &bad).await.problem(), (400, "kvsp-malformed-json".into()));
    let upper = format!("descriptors/{}", compat.to_uppercase());
    assert_eq!(server.put(&upper, &descriptor).await.problem(), (400, "kvsp-bad-identifier".into()));
    assert_eq!(server.put(&path, &descriptor).await.status, 201);
    assert_eq!(server.put(&path, &descriptor).await.status, 200);
    assert_eq!(server.get(&path).await.json(), descriptor);

    let of = |n: u32, codec: u16, size: u64| {
        let mut record = record(n, H1);
        record["compat_id"] = json!(compat);
        record["codec"] = json!(codec);
        record["size"] = json!(size);
        record
    };
    let whole = 20 + 2 * (16 + 2 * 16 * 2 * 4 * 2);
    publish(&server, &of(1, 1, whole)).await;
    publish(&server, &of(2, 2, 99)).await;
    let wrong = of(3, 1, whole + 1);
    assert_eq!(server.put(&path_of(&wrong), &wrong).await.problem(), (422, "kvsp-invalid-record".into()));
    let mut fewer = of(3, 1, whole);
    let digest = kvsp_proto::id::Digest([1; 32]);
    fewer["layer_digests"] = json!([digest]);
    fewer["digest"] = json!(kvsp_proto::id::NamedDigest(kvsp_proto::digest::replica_digest(&[digest])));
    fewer["residency"] = json!([{"tier": "host", "layers": [0, 0]}]);
    assert_eq!(server.put(&path_of(&fewer), &fewer).await.problem(), (422, "kvsp-invalid-record".into()));

    report(&server, &status(I1, 1)).await;
    let mut request = lookup_of(&[1, 2]);
    request["compat_id"] = json!(compat);
    request["targets"] = json!([I1]);
    let targets = server.post("lookup", &request).await.json()["targets"].clone();
    assert_eq!(targets[0]["recompute_us"], 32_000, "16 tokens a block by the descriptor");
}

#[tokio::test]
async fn statuses_are_ordered_and_a_restart_drops_memory() {
    let server = Server::start().await;
    let path = format!("instances/{}/status", uri64(I1));
    assert_eq!(report(&server, &status(I1, 5)).await.status, 200);
    publish(&server, &record(1, I1)).await;
    publish(&server, &with_residency(2, I1, json!([{"tier": "disk", "layers": [0, 1]}]))).await;
    assert_eq!(report(&server, &status(I1, 4)).await.problem(), (409, "kvsp-stale-epoch".into()));
    let mut wrong = status(I1, 5);
    wrong["kv_utilization"] = json!(1.5);
    assert_eq!(server.put(&path, &wrong).await.problem(), (422, "kvsp-invalid-record".into()));
    wrong["kv_utilization"] = json!("x");
    assert_eq!(server.put(&path, &wrong).await.problem(), (400, "kvsp-malformed-json".into()));
    let other = status("https://other.example/", 5);
    assert_eq!(server.put(&path, &other).await.problem(), (422, "kvsp-invalid-record".into()));
    let mut failed = status(I1, 5);
    failed["state"] = json!("failed");
    assert_eq!(server.put(&path, &failed).await.problem(), (422, "kvsp-invalid-record".into()));
    assert_eq!(report(&server, &status(I1, 6)).await.status, 200);
    assert_eq!(server.get(&path_of(&record(1, I1))).await.status, 404);
    assert_eq!(server.get(&path_of(&record(2, I1))).await.status, 200);
}

#[tokio::test]
async fn long_lookups_are_answered_and_longer_ones_refused() {
    let server = Server::start().await;
    let puts: Vec<Value> = (0..3_000).map(|n| record(n, H1)).collect();
    let answer = server.post("replicas", &json!({"put": puts})).await.json();
    assert!(answer["put"].as_array().unwrap().iter().all(|item| item["status"] == 201));
    let mut request = lookup_of(&(0..65_536).collect::<Vec<_>>());
    request["detail"] = json!("location");
    let body = server.post("lookup", &request).await.json();
    assert_eq!((body["matched"].clone(), body["complete"].clone()), (json!(3_000), json!(3_000)));
    assert_eq!(body["blocks"][2_999]["block_key"], key(2_999));

    let too_many = lookup_of(&(0..65_537).collect::<Vec<_>>());
    assert_eq!(server.post("lookup", &too_many).await.problem(), (413, "kvsp-limit-exceeded".into()));
    let keys = format!("\"{}\",", key(1)).repeat(1_000_000);
    let body = format!(
        "{{\"scope_id\":\"{}\",\"compat_id\":\"{}\",\"block_keys\":[{}\"{}\"]}}",
        scope(),
        compat(),
        keys,
        key(1)
    );
    assert_eq!(server.post_text("lookup", body).await.problem(), (413, "kvsp-limit-exceeded".into()));
    let targets: Vec<String> = (0..2_000).map(|n| format!("https://i{n}.example/")).collect();
    let mut request = lookup_of(&[1]);
    request["targets"] = json!(targets);
    assert_eq!(server.post("lookup", &request).await.problem(), (413, "kvsp-limit-exceeded".into()));
    assert_eq!(server.post("lookup", &lookup_of(&[1])).await.status, 200);
}

#[tokio::test]
async fn malformed_lookups_are_told_why() {
    let server = Server::start().await;
    let good = lookup_of(&[1]);
    for (member, value, name) in [
        ("block_keys", json!(["AB".repeat(32)]), "kvsp-bad-identifier"),
        ("block_keys", json!(["ab"]), "kvsp-bad-identifier"),
        ("scope_id", json!("AB".repeat(16)), "kvsp-bad-identifier"),
        ("targets", json!(["nothing"]), "kvsp-bad-identifier"),
        ("block_keys", json!(7), "kvsp-malformed-json"),
        ("block_keys", json!([7]), "kvsp-malformed-json"),
        ("block_tokens", json!(0), "kvsp-malformed-json"),
    ] {
        let mut bad = good.clone();
        bad[member] = value;
        assert_eq!(server.post("lookup", &bad).await.problem(), (400, name.into()), "{bad}");
    }
    let positional = json!([good["scope_id"], good["compat_id"], good["block_keys"]]);
    assert_eq!(server.post("lookup", &positional).await.problem(), (400, "kvsp-malformed-json".into()));
    let mut missing = good;
    missing.as_object_mut().unwrap().remove("compat_id");
    assert_eq!(server.post("lookup", &missing).await.problem(), (400, "kvsp-malformed-json".into()));
}

#[tokio::test]
async fn metrics_tell_what_happened() {
    let server = Server::start().await;
    publish(&server, &record(1, H1)).await;
    server.post("lookup", &lookup_of(&[1, 2])).await;
    let metrics = server.send_to(&server.admin.join("metrics"), http::Method::GET, None).await;
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    for line in [
        "kvsp_index_replicas 1",
        "kvsp_index_lookups_total 1",
        "kvsp_index_lookup_keys_total 2",
        "kvsp_index_matched_keys_total 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
    }
    let ready = server.send_to(&server.admin.join("readyz"), http::Method::GET, None).await;
    assert_eq!(ready.status, 200);
}
