//! Statuses of instances at the index, and the estimates that come of them (profile section 11).

use serde_json::{Value, json};

use crate::rows::{ok, replica_digest, row, try_all, uri64};
use crate::support::{COMPAT, Process, SCOPE, hex, key, replicas_path};

const INSTANCE: &str = "https://ii7.example/kvsp/";
const HOLDER: &str = "https://h1.example/kvsp/";

fn status(epoch: u64) -> Value {
    json!({
        "instance": INSTANCE, "epoch": epoch, "state": "active", "running": 18, "queued": 3,
        "batch_size": 32, "kv_utilization": 0.71, "prefill_tokens_per_s": 42_000,
        "decode_tokens_per_s": 3100,
        "links": [{"holder": HOLDER, "mbit_per_s": 200_000, "rtt_us": 12}],
        "requested_state": null, "ttl_ms": 60_000
    })
}

fn with(mut body: Value, member: &str, value: Value) -> Value {
    body[member] = value;
    body
}

fn path() -> String {
    format!("instances/{}/status", uri64(INSTANCE))
}

/// A record of a block of four layers: which `holder` has in `tier`.
fn put_record(service: &Process, n: u64, holder: &str, tier: &str) {
    let layers = vec!["01".repeat(32); 4];
    let record = json!({
        "block_key": key(n), "compat_id": hex(&COMPAT), "scope_id": hex(&SCOPE), "holder": holder,
        "codec": 1, "size": 2_097_152, "digest": replica_digest(&layers), "layer_digests": layers,
        "residency": [{"tier": tier, "layers": [0, 3], "read_mbit_per_s": 100_000}], "ttl_ms": 600_000
    });
    ok(service, "PUT", &format!("{}/{}", replicas_path(n), uri64(holder)), &record, 201);
}

fn target(service: &Process, blocks: std::ops::Range<u64>, block_tokens: Option<u32>) -> Value {
    let keys: Vec<_> = blocks.map(key).collect();
    let mut body = json!({
        "compat_id": hex(&COMPAT), "scope_id": hex(&SCOPE), "block_keys": keys, "targets": [INSTANCE],
        "detail": "none"
    });
    if let Some(tokens) = block_tokens {
        body["block_tokens"] = json!(tokens);
    }
    ok(service, "POST", "lookup", &body, 200)["targets"][0].clone()
}

#[test]
fn estimates_are_exact_and_absent_where_something_is_not_known() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = Process::serve(dir.path(), &["index"]);
    put_record(&service, 0, HOLDER, "host");
    ok(&service, "PUT", &path(), &status(1), 200);
    // 12 µs and 8 · 2,097,152 bits at the 100,000 bits a µs of the tier, rounded up; 16 tokens at 42,000 a
    // second.
    let estimate = target(&service, 0..1, Some(16));
    assert_eq!((&estimate["fetch_us"], &estimate["recompute_us"]), (&json!(180), &json!(381)), "{estimate}");
    assert_eq!(estimate["instance"], INSTANCE);
    assert!(target(&service, 0..1, None).get("recompute_us").is_none(), "without block_tokens");
    put_record(&service, 1, "https://far.example/", "host");
    let estimate = target(&service, 0..2, Some(16));
    assert!(estimate.get("fetch_us").is_none(), "without a link: {estimate}");
    assert_eq!(estimate["recompute_us"], 762);
    // What the instance has in host memory itself is resident; what it has on disk it loads from itself.
    put_record(&service, 2, INSTANCE, "host");
    assert_eq!(target(&service, 2..3, Some(16))["fetch_us"], 0);
    put_record(&service, 3, INSTANCE, "disk");
    assert_eq!(target(&service, 3..4, Some(16))["fetch_us"], 168);
    ok(&service, "PUT", &path(), &with(status(1), "prefill_tokens_per_s", json!(0)), 200);
    assert!(target(&service, 0..1, Some(16)).get("recompute_us").is_none(), "a rate of 0 is not known");
}

#[test]
fn a_status_of_a_higher_epoch_ends_what_the_former_process_had_in_memory() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = Process::serve(dir.path(), &["index"]);
    ok(&service, "PUT", &path(), &status(1), 200);
    for (n, tier) in [(0, "host"), (1, "device"), (2, "disk")] {
        put_record(&service, n, INSTANCE, tier);
    }
    ok(&service, "PUT", &path(), &status(2), 200);
    let held =
        [0, 1, 2].map(|n| service.get(&replicas_path(n)).value()["replicas"].as_array().unwrap().len());
    assert_eq!(held, [0, 0, 1]);
}

#[test]
fn each_bad_status_has_its_answer() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = Process::serve(dir.path(), &["index"]);
    ok(&service, "PUT", &path(), &status(5), 200);
    let put = |what, status, problem, body: Value| row(what, "PUT", path(), status, problem).json(&body);
    let rows = vec![
        put("a lower epoch", 409, "kvsp-stale-epoch", status(4)),
        put(
            "a utilisation over 1",
            422,
            "kvsp-invalid-record",
            with(status(5), "kv_utilization", json!(1.5)),
        ),
        put(
            "a negative utilisation",
            422,
            "kvsp-invalid-record",
            with(status(5), "kv_utilization", json!(-0.1)),
        ),
        put(
            "another instance than the path's",
            422,
            "kvsp-invalid-record",
            with(status(5), "instance", json!(HOLDER)),
        ),
        put("an epoch of a string", 400, "kvsp-malformed-json", with(status(5), "epoch", json!("5"))),
        put("no object", 400, "kvsp-malformed-json", json!([])),
        row(
            "an instance that is no URI",
            "PUT",
            format!("instances/{}/status", uri64("x")),
            400,
            "kvsp-bad-identifier",
        )
        .json(&status(5)),
        row("another method", "DELETE", path(), 405, "about:blank"),
    ];
    try_all(&service, "", rows);
    // Members that are not known are ignored.
    ok(&service, "PUT", &path(), &with(status(5), "more", json!({})), 200);
}
