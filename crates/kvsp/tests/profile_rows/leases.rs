//! Leases of a holder.

use serde_json::{Value, json};

use crate::rows::{ok, row, try_all};
use crate::support::{COMPAT, JSON, Process, SCOPE, block_path, container, eventually, hex, key};

fn holder(dir: &tempfile::TempDir, more: &str) -> Process {
    let config = dir.path().join("holder.toml");
    std::fs::write(&config, format!("[holder]\nhost_octets = 1048576\n{more}")).unwrap();
    let service = Process::serve(dir.path(), &["holder", "--config", config.to_str().unwrap()]);
    for n in 1..=3 {
        assert_eq!(service.put_block(&block_path(n), &container(0, 1, 64, n)).status, 201);
    }
    service
}

fn body(blocks: &[u64], ttl_ms: u64) -> Value {
    let keys: Vec<_> = blocks.iter().copied().map(key).collect();
    json!({"compat_id": hex(&COMPAT), "scope_id": hex(&SCOPE), "block_keys": keys, "ttl_ms": ttl_ms})
}

#[test]
fn a_lease_protects_its_blocks_until_it_ends() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = holder(&dir, "");
    let answer = service.json("POST", "leases", &body(&[1, 9, 2], 60_000));
    assert_eq!(answer.status, 201, "{answer:?}");
    let lease = answer.value();
    let id = lease["lease"].as_str().unwrap();
    assert_eq!(answer.header("location"), format!("{}leases/{id}", service.base));
    assert_eq!((&lease["block_keys"], &lease["missing"]), (&json!([key(1), key(2)]), &json!([key(9)])));
    assert!((1..=60_000).contains(&lease["ttl_ms"].as_u64().unwrap()));
    let path = format!("leases/{id}");
    let refused = service.send("DELETE", &block_path(1), &[], b"");
    assert_eq!((refused.status, refused.problem().as_str()), (409, "kvsp-block-leased"));
    assert_eq!(service.get(&block_path(1)).status, 200);
    let seen = service.get(&path);
    assert_eq!((seen.status, &seen.value()["lease"]), (200, &json!(id)));
    assert_eq!(service.get(&format!("leases/{}", id.to_uppercase())).status, 200, "UUIDs have no case");
    let renewed = ok(&service, "PUT", &path, &json!({"ttl_ms": 120_000}), 200);
    assert!(renewed["ttl_ms"].as_u64().unwrap() > 60_000, "{renewed}");
    assert_eq!(service.send("DELETE", &path, &[], b"").status, 204);
    assert_eq!(service.get(&path).problem(), "kvsp-lease-unknown");
    assert_eq!(service.send("DELETE", &block_path(1), &[], b"").status, 204);
}

#[test]
fn an_expired_lease_is_not_renewed() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = holder(&dir, "");
    let lease = ok(&service, "POST", "leases", &body(&[1], 50), 201);
    let path = format!("leases/{}", lease["lease"].as_str().unwrap());
    eventually("the lease ends", || (service.get(&path).status == 404).then_some(()));
    let renewed = service.json("PUT", &path, &json!({"ttl_ms": 1000}));
    assert_eq!((renewed.status, renewed.problem().as_str()), (404, "kvsp-lease-unknown"));
    assert_eq!(service.send("DELETE", &block_path(1), &[], b"").status, 204);
}

#[test]
fn a_ttl_is_cut_and_only_octets_meet_the_quota() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = holder(&dir, "lease_quota_octets = 10000\n[holder.limits]\nmax_lease_ttl_ms = 5000\n");
    assert_eq!(service.get("").value()["limits"]["max_lease_ttl_ms"], 5000);
    let lease = ok(&service, "POST", "leases", &body(&[1], 1 << 40), 201);
    assert!(lease["ttl_ms"].as_u64().unwrap() <= 5000, "{lease}");
    assert_eq!(service.put_block(&block_path(8), &container(0, 1, 8000, 8)).status, 201);
    let refused = service.json("POST", "leases", &body(&[8], 1000));
    assert_eq!((refused.status, refused.problem().as_str()), (429, "kvsp-lease-quota"));
    ok(&service, "POST", "leases", &body(&[2], 1000), 201);
}

#[test]
fn all_leases_together_cover_half_of_a_tier_at_most() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = holder(&dir, "lease_quota_octets = 1048576\n");
    let big = |n| container(0, 1, 150_000, n);
    for n in 10..12 {
        assert_eq!(service.put_block(&block_path(n), &big(n)).status, 201);
    }
    ok(&service, "POST", "leases", &body(&[10], 60_000), 201);
    let refused = service.json("POST", "leases", &body(&[11], 60_000));
    assert_eq!((refused.status, refused.problem().as_str()), (429, "kvsp-lease-quota"));
}

#[test]
fn a_retry_finds_the_first_lease() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = holder(&dir, "");
    let post = |body: &Value| {
        let headers = [("content-type", JSON), ("idempotency-key", "\"retry-1\"")];
        service.send("POST", "leases", &headers, body.to_string().as_bytes())
    };
    let first = post(&body(&[1], 60_000));
    let again = post(&body(&[1], 60_000));
    assert_eq!((first.status, again.status), (201, 201), "{again:?}");
    assert_eq!(first.value()["lease"], again.value()["lease"]);
    let other = post(&body(&[2], 60_000));
    assert_eq!((other.status, other.problem().as_str()), (409, "kvsp-directive-conflict"));
}

#[test]
fn leases_survive_a_restart() {
    let dir = tempfile::TempDir::new().unwrap();
    let tier = dir.path().join("tier");
    // Room for seven of the blocks below, a quarter of it for leases of one principal.
    let args =
        ["holder", "--disk-dir", tier.to_str().unwrap(), "--disk-octets", "2MiB", "--host-octets", "0"];
    let mut service = Process::serve(dir.path(), &args);
    let block = |n| container(0, 1, 125_000, n);
    assert_eq!(service.put_block(&block_path(1), &block(1)).status, 201);
    ok(&service, "POST", "leases", &body(&[1], 60_000), 201);
    for n in 2..6 {
        assert_eq!(service.put_block(&block_path(n), &block(n)).status, 201);
    }
    service.kill();
    let service = Process::serve(dir.path(), &args);
    let mut refused = 0;
    for n in 6..16 {
        let status = service.put_block(&block_path(n), &block(n)).status;
        assert!(matches!(status, 201 | 507), "{status}");
        refused += u32::from(status == 507);
        assert_eq!(service.get(&block_path(1)).body, block(1), "a leased block is evicted after a restart");
    }
    assert!(refused > 0 || service.metric("kvsp_holder_evictions_total") > 0, "there was room for all");
}

#[test]
fn each_bad_request_has_its_answer() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = holder(&dir, "[holder.limits]\nmax_json_octets = 4096\nmax_lookup_keys = 4\n");
    let unknown = "leases/6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11";
    let with = |member: &str, value: Value| {
        let mut body = body(&[1], 1000);
        body[member] = value;
        body
    };
    let post = |what, status, problem| row(what, "POST", "leases", status, problem);
    let deep = format!("{{\"x\":{}1{}}}", "[".repeat(40), "]".repeat(40));
    let media = "application/kvsp+json";
    let rows = vec![
        post("none of the blocks is held", 404, "kvsp-block-not-found").json(&body(&[8, 9], 1000)),
        post("a bad key", 400, "kvsp-bad-identifier").json(&with("block_keys", json!(["AA"]))),
        post("a bad scope", 400, "kvsp-bad-identifier").json(&with("scope_id", json!("22"))),
        post("keys of the wrong type", 400, "kvsp-malformed-json").json(&with("block_keys", json!("x"))),
        post("a negative TTL", 400, "kvsp-malformed-json").json(&with("ttl_ms", json!(-1))),
        post("a TTL of a fraction", 400, "kvsp-malformed-json").json(&with("ttl_ms", json!(1.5))),
        post("a TTL beyond 2^53", 400, "kvsp-malformed-json")
            .body(media, body(&[1], 7).to_string().replace(":7", ":9007199254740993")),
        post("a member is missing", 400, "kvsp-malformed-json").json(&json!({"ttl_ms": 1})),
        post("no JSON", 400, "kvsp-malformed-json").body(media, "{"),
        post("no object", 400, "kvsp-malformed-json").body(media, "[]"),
        post("a member twice", 400, "kvsp-malformed-json").body(media, "{\"ttl_ms\":1,\"ttl_ms\":1}"),
        post("a BOM", 400, "kvsp-malformed-json").body(media, format!("\u{feff}{}", body(&[1], 1))),
        post("no UTF-8", 400, "kvsp-malformed-json").body(media, b"{\"x\":\"\xff\"}".to_vec()),
        post("a lone surrogate", 400, "kvsp-malformed-json").body(media, "{\"x\":\"\\ud800\"}"),
        post("too deep", 400, "kvsp-malformed-json").body(media, deep),
        post("another media type", 415, "about:blank").body("text/plain", "{}"),
        post("no media type", 415, "about:blank").untyped("{}"),
        post("too many octets", 413, "kvsp-limit-exceeded").body(media, vec![b' '; 5000]),
        post("too many keys", 413, "kvsp-limit-exceeded").json(&body(&[1, 2, 3, 4, 5], 1000)),
        row("another method", "DELETE", "leases", 405, "about:blank"),
        row("an id that is none", "GET", "leases/x", 400, "kvsp-bad-identifier"),
        row("an unknown lease", "GET", unknown, 404, "kvsp-lease-unknown"),
        row("an unknown lease released", "DELETE", unknown, 404, "kvsp-lease-unknown"),
        row("an unknown lease renewed", "PUT", unknown, 404, "kvsp-lease-unknown")
            .json(&json!({"ttl_ms": 1})),
    ];
    try_all(&service, &block_path(1), rows);
    // What is not known is ignored, the other media type is taken, and 1000.0 is 1000.
    let mut more = body(&[1], 1000);
    more["more"] = json!({"x": [null]});
    ok(&service, "POST", "leases", &more, 201);
    let text = body(&[1], 1000).to_string().replace(":1000", ":1000.0");
    let answer = service.send("POST", "leases", &[("content-type", "application/json")], text.as_bytes());
    assert_eq!(answer.status, 201, "{answer:?}");
}
