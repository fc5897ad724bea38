//! Leases over sockets: draft section 6.6, profile section 5 "Holder".

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use kvsp_blocks::BlocksConfig;
use kvsp_net::auth::Authenticator;
use kvsp_net::clock::ManualClock;
use kvsp_net::principal::{Grant, Principal, Role};
use kvsp_proto::problem::{Problem, ProblemType};
use serde_json::{Value, json};
use support::{Answer, COMPAT, Holder, JSON, SCOPE, assert_problem, config, container, key, path};

fn ask(keys: &[u8], ttl_ms: u64) -> Value {
    let keys: Vec<_> = keys.iter().map(|n| key(*n)).collect();
    json!({"compat_id": COMPAT, "scope_id": SCOPE, "block_keys": keys, "ttl_ms": ttl_ms})
}

/// The path of a lease, relative to the base.
fn lease_path(answer: &Answer) -> String {
    format!("leases/{}", answer.value()["lease"].as_str().unwrap())
}

async fn holding(keys: &[u8], blocks: BlocksConfig) -> (Holder, Arc<ManualClock>) {
    let (holder, clock) = Holder::with_clock(blocks).await;
    for n in keys {
        assert_eq!(holder.put(&path(*n), container(*n, 1, 2500).bytes()).await.status, 201);
    }
    (holder, clock)
}

#[tokio::test]
async fn a_lease_is_created_read_renewed_and_released() {
    let (holder, clock) = holding(&[1, 2], config()).await;
    let made = holder.json("POST", "leases", &ask(&[1, 9, 2, 1], 5000)).await;
    assert_eq!(made.status, 201);
    let body = made.value();
    assert_eq!(body["block_keys"], json!([key(1), key(2)]));
    assert_eq!(body["missing"], json!([key(9)]));
    assert_eq!(body["ttl_ms"], 5000);
    let target = lease_path(&made);
    assert_eq!(made.header("location"), holder.base.join(&target));

    clock.advance(Duration::from_millis(1500));
    let read = holder.get(&target).await;
    assert_eq!((read.status, &read.value()["ttl_ms"]), (200, &json!(3500)));
    assert_eq!(read.value()["block_keys"], body["block_keys"]);
    let renewed = holder.json("PUT", &target, &json!({"ttl_ms": 9000})).await;
    assert_eq!((renewed.status, &renewed.value()["ttl_ms"]), (200, &json!(9000)));
    let renewed = holder.json("PUT", &target, &json!({"ttl_ms": 9_007_199_254_740_991_u64})).await;
    assert_eq!(renewed.value()["ttl_ms"], 300_000, "a TTL is cut to the maximum");

    assert_problem(&holder.send("DELETE", &path(1), &[], b"").await, 409, "kvsp-block-leased");
    assert_eq!(holder.send("DELETE", &target, &[], b"").await.status, 204);
    assert_problem(&holder.send("DELETE", &target, &[], b"").await, 404, "kvsp-lease-unknown");
    assert_problem(&holder.get(&target).await, 404, "kvsp-lease-unknown");
    let renewed = holder.json("PUT", &target, &json!({"ttl_ms": 1})).await;
    assert_problem(&renewed, 404, "kvsp-lease-unknown");
    assert_eq!(holder.send("DELETE", &path(1), &[], b"").await.status, 204);
    holder.stop().await;
}

#[tokio::test]
async fn a_lease_ends_by_the_monotonic_clock_and_protects_until_then() {
    let blocks = BlocksConfig { host_octets: 27_000, lease_quota_octets: Some(u64::MAX), ..config() };
    let (holder, clock) = holding(&[1, 2, 3], blocks).await;
    let made = holder.json("POST", "leases", &ask(&[1], 1000)).await;
    assert_eq!(made.status, 201);
    clock.advance(Duration::from_micros(999_999));
    for n in [2, 3] {
        assert_eq!(holder.get(&path(n)).await.status, 200);
    }
    // The leased block was used longest ago, and stays.
    holder.put(&path(4), container(4, 1, 2500).bytes()).await;
    assert_eq!(holder.get(&path(1)).await.status, 200);
    assert_problem(&holder.get(&path(2)).await, 404, "kvsp-block-not-found");
    assert_eq!(holder.get(&path(3)).await.status, 200);
    assert_eq!(holder.get(&path(4)).await.status, 200);
    clock.advance(Duration::from_micros(1));
    assert_problem(&holder.get(&lease_path(&made)).await, 404, "kvsp-lease-unknown");
    holder.put(&path(5), container(5, 1, 2500).bytes()).await;
    assert_problem(&holder.get(&path(1)).await, 404, "kvsp-block-not-found");
    holder.stop().await;
}

#[tokio::test]
async fn a_put_that_only_leased_blocks_could_make_room_for_is_refused() {
    let blocks = BlocksConfig { host_octets: 18_000, lease_quota_octets: Some(u64::MAX), ..config() };
    let (holder, clock) = holding(&[1], blocks).await;
    assert_eq!(holder.json("POST", "leases", &ask(&[1], 1000)).await.status, 201);
    let large = container(2, 1, 5000);
    assert_problem(&holder.put(&path(2), large.bytes()).await, 507, "kvsp-storage-full");
    clock.advance(Duration::from_secs(1));
    assert_eq!(holder.put(&path(2), large.bytes()).await.status, 201);
    holder.stop().await;
}

#[tokio::test]
async fn quotas_are_of_octets() {
    let blocks = BlocksConfig { lease_quota_octets: Some(18_000), ..config() };
    let (holder, _clock) = holding(&[1, 2, 3], blocks).await;
    let first = holder.json("POST", "leases", &ask(&[1, 2], 2500)).await;
    assert_eq!(first.status, 201);
    let refused = holder.json("POST", "leases", &ask(&[3], 1000)).await;
    assert_problem(&refused, 429, "kvsp-lease-quota");
    assert_eq!(refused.header("retry-after"), "3");
    assert_eq!(holder.json("POST", "leases", &ask(&[1, 2], 1000)).await.status, 201, "no more octets");
    let metrics = holder.metrics().await;
    assert!(metrics.contains("kvsp_holder_leases 2\n"), "{metrics}");
    holder.stop().await;

    // All leases together cover at most half of the tier.
    let blocks = BlocksConfig { host_octets: 27_000, lease_quota_octets: Some(u64::MAX), ..config() };
    let (holder, _clock) = holding(&[1, 2, 3], blocks).await;
    assert_eq!(holder.json("POST", "leases", &ask(&[1], 1000)).await.status, 201);
    let refused = holder.json("POST", "leases", &ask(&[2, 3], 1000)).await;
    assert_problem(&refused, 429, "kvsp-lease-quota");
    holder.stop().await;
}

#[tokio::test]
async fn bad_requests_are_refused() {
    let mut blocks = config();
    blocks.limits.max_lookup_keys = 3;
    let (holder, _clock) = holding(&[1], blocks).await;
    assert_problem(&holder.json("POST", "leases", &ask(&[8, 9], 1)).await, 404, "kvsp-block-not-found");
    assert_problem(&holder.json("POST", "leases", &ask(&[], 1)).await, 404, "kvsp-block-not-found");
    assert_problem(&holder.json("POST", "leases", &ask(&[1], 0)).await, 400, "kvsp-malformed-json");
    assert_problem(&holder.json("POST", "leases", &ask(&[1; 4], 1)).await, 413, "kvsp-limit-exceeded");
    let mut bad = ask(&[1], 1);
    bad["block_keys"] = json!(["AB"]);
    assert_problem(&holder.json("POST", "leases", &bad).await, 400, "kvsp-bad-identifier");
    let sent = holder.send("POST", "leases", &[("content-type", "text/plain")], b"{}").await;
    assert_problem(&sent, 415, "about:blank");
    for id in ["x", "6f1d0a9e2c554d7e9a0e5b7f2f9f6a11"] {
        assert_problem(&holder.get(&format!("leases/{id}")).await, 400, "kvsp-bad-identifier");
    }
    let unknown = "leases/6F1D0A9E-2c55-4d7e-9a0e-5b7f2f9f6a11";
    assert_problem(&holder.get(unknown).await, 404, "kvsp-lease-unknown");
    holder.stop().await;
}

#[tokio::test]
async fn a_retry_with_the_same_key_returns_the_first_lease() {
    let (holder, clock) = holding(&[1, 2], config()).await;
    let send = async |body: &Value, key: &str| {
        let headers = [("content-type", JSON), ("idempotency-key", key)];
        holder.send("POST", "leases", &headers, body.to_string().as_bytes()).await
    };
    let first = send(&ask(&[1], 1000), "\"k1\"").await;
    clock.advance(Duration::from_millis(100));
    let retry = send(&ask(&[1], 1000), "\"k1\"").await;
    assert_eq!((retry.status, &retry.value()["lease"]), (201, &first.value()["lease"]));
    assert_eq!(retry.value()["ttl_ms"], 900);
    assert_problem(&send(&ask(&[2], 1000), "\"k1\"").await, 409, "kvsp-directive-conflict");
    assert_ne!(send(&ask(&[1], 1000), "\"k2\"").await.value()["lease"], first.value()["lease"]);
    clock.advance(Duration::from_millis(900));
    assert_ne!(send(&ask(&[2], 1000), "\"k1\"").await.value()["lease"], first.value()["lease"]);
    assert_problem(&send(&ask(&[1], 1000), "").await, 400, "about:blank");
    holder.stop().await;
}

/// Everyone is who the field `caller` says, with the roles in `roles` and one scope.
struct Named;

impl Authenticator for Named {
    fn authenticate(&self, parts: &Parts, _peer: SocketAddr) -> Result<Principal, Problem> {
        let field = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let Some(name) = field("caller") else {
            return Err(Problem::new(ProblemType::Unauthenticated, "no caller"));
        };
        let roles =
            Role::ALL.into_iter().filter(|role| field("roles").unwrap_or("client").contains(role.as_str()));
        let scopes = Grant::Only([SCOPE].into());
        Ok(Principal::new(name, roles, scopes, Grant::Only(BTreeSet::new())))
    }
}

#[tokio::test]
async fn what_a_principal_may_do_is_judged_first() {
    let holder = Holder::start_with(config(), Arc::new(ManualClock::default()), Arc::new(Named)).await;
    let block = container(1, 2, 10);
    let put = async |target: &str, caller: &str, roles: &str| {
        let headers =
            [("content-type", support::BLOCK), ("if-none-match", "*"), ("caller", caller), ("roles", roles)];
        holder.send("PUT", target, &headers, block.bytes()).await
    };
    assert_problem(&holder.get(&path(1)).await, 401, "kvsp-unauthenticated");
    assert_problem(&put(&path(1), "https://a/", "client").await, 403, "about:blank");
    let other_scope = path(1).replace(&SCOPE.to_string(), &"33".repeat(16));
    for method in ["GET", "DELETE"] {
        let answer = holder.send(method, &other_scope, &[("caller", "https://a/")], b"").await;
        assert_problem(&answer, 403, "kvsp-scope-denied");
    }
    assert_problem(&put(&other_scope, "https://a/", "holder").await, 403, "kvsp-scope-denied");
    assert_eq!(put(&path(1), "https://a/", "instance").await.status, 201);
    assert_eq!(holder.send("GET", &path(1), &[("caller", "https://b/")], b"").await.status, 200);

    let delete = async |caller: &str, roles: &str| {
        holder.send("DELETE", &path(1), &[("caller", caller), ("roles", roles)], b"").await
    };
    assert_problem(&delete("https://b/", "instance").await, 403, "kvsp-not-holder");
    assert_eq!(delete("https://a/", "instance").await.status, 204);
    for (caller, roles) in [("https://b/", "admin"), (holder.base.as_str(), "holder")] {
        assert_eq!(put(&path(1), "https://a/", "instance").await.status, 201);
        assert_eq!(delete(caller, roles).await.status, 204);
    }
    holder.stop().await;
}

#[tokio::test]
async fn leases_and_their_keys_belong_to_their_principal() {
    let blocks = BlocksConfig { lease_quota_octets: Some(18_000), ..config() };
    let holder = Holder::start_with(blocks, Arc::new(ManualClock::default()), Arc::new(Named)).await;
    for n in 1..=3 {
        let headers = [
            ("content-type", support::BLOCK),
            ("if-none-match", "*"),
            ("caller", "https://a/"),
            ("roles", "holder"),
        ];
        holder.send("PUT", &path(n), &headers, container(n, 1, 2500).bytes()).await;
    }
    let lease = async |caller: &str, keys: &[u8]| {
        let headers = [("content-type", JSON), ("caller", caller), ("idempotency-key", "same")];
        holder.send("POST", "leases", &headers, ask(keys, 1000).to_string().as_bytes()).await
    };
    let first = lease("https://a/", &[1, 2]).await;
    let second = lease("https://b/", &[2, 3]).await;
    assert_eq!((first.status, second.status), (201, 201), "each has a quota");
    let target = lease_path(&first);
    for method in ["GET", "DELETE"] {
        let answer = holder.send(method, &target, &[("caller", "https://b/")], b"").await;
        assert_problem(&answer, 404, "kvsp-lease-unknown");
        let body = json!({"ttl_ms": 1}).to_string();
        let headers = [("caller", "https://b/"), ("content-type", JSON)];
        let answer = holder.send("PUT", &target, &headers, body.as_bytes()).await;
        assert_problem(&answer, 404, "kvsp-lease-unknown");
    }
    assert_eq!(holder.send("GET", &target, &[("caller", "https://a/")], b"").await.status, 200);
    let mut other_scope = ask(&[1], 1000);
    other_scope["scope_id"] = json!("33".repeat(16));
    let headers = [("content-type", JSON), ("caller", "https://a/")];
    let denied = holder.send("POST", "leases", &headers, other_scope.to_string().as_bytes()).await;
    assert_problem(&denied, 403, "kvsp-scope-denied");
    holder.stop().await;
}
