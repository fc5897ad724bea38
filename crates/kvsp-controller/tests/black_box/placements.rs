//! Placement by cost, and the directive that follows (draft sections 6.4 and 6.5).

use std::time::{Duration, Instant};

use http::Method;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::digest::replica_digest;
use kvsp_proto::id::{Digest, NamedDigest};
use kvsp_proto::uri::{BaseUri, HolderUri};
use serde_json::{Value, json};

use crate::peer::{Answering, Peer, Sent};
use crate::support::{Server, compat, index, key, nowhere, placement, scope, status};

const H1: &str = "https://h1.example/kvsp/";

/// Publishes a block of 8 Mbit in the host memory of a holder.
async fn publish(server: &Server, index: &BaseUri, n: usize, holder: &str) {
    let digests = [Digest([n as u8; 32]), Digest([1; 32])];
    let record = json!({
        "block_key": key(n), "compat_id": compat(), "scope_id": scope(), "holder": holder,
        "codec": 1, "size": 1_000_000, "digest": NamedDigest(replica_digest(&digests)),
        "layer_digests": digests, "residency": [{"tier": "host", "layers": [0, 1]}], "ttl_ms": 60_000
    });
    let holder = holder.parse::<HolderUri>().unwrap().to_uri64();
    let uri = index.join(&format!("replicas/{}/{}/{}/{holder}", compat(), scope(), key(n)));
    assert_eq!(server.send(Method::PUT, &uri, Some(record.to_string().into())).await.status, 201);
}

fn slow(instance: &str, prefill: u64) -> Value {
    let mut status = status(instance, 1);
    status["prefill_tokens_per_s"] = json!(prefill);
    status
}

#[tokio::test]
async fn without_instances_there_is_no_capacity() {
    let server = Server::start(None).await;
    let answer = server.post("placements", &placement(1, 16)).await;
    assert_eq!(answer.problem(), (503, "kvsp-no-capacity".into()));
    assert_eq!(answer.headers["retry-after"], "1");
    let mut other = status("https://i1.example/", 1);
    other["compat_ids"] = json!(["00".repeat(32)]);
    server.report(&other).await;
    let answer = server.post("placements", &placement(1, 16)).await;
    assert_eq!(answer.problem(), (503, "kvsp-no-capacity".into()), "none of this compatibility");
}

#[tokio::test]
async fn the_answer_has_the_costs_and_the_directive() {
    let (index, _guard) = index().await;
    let server = Server::start(Some(index.clone())).await;
    let mut near = Peer::start().await;
    let mut status_of = status(near.base.as_str(), 1);
    status_of["queued"] = json!(2);
    status_of["mean_service_us"] = json!(250);
    server.report(&status_of).await;
    server.report(&slow("https://far.example/", 1)).await;
    for n in 0..2 {
        publish(&server, &index, n, H1).await;
    }
    let mut request = placement(3, 48);
    request["request_ref"] = json!("mine");
    let answer = server.post("placements", &request).await.ok();
    assert_eq!(
        (answer["instance"].as_str(), answer["request_ref"].as_str()),
        (Some(near.base.as_str()), Some("mine"))
    );
    // wait 2 · 250; fetch 10 + 2 · 8000; 48 tokens 48,000; the 16 unmatched 16,000.
    let first = &answer["candidates"][0];
    let want = json!({
        "instance": near.base, "wait_us": 500, "fetch_us": 16_010, "recompute_us": 48_000, "cost_us": 32_510
    });
    assert_eq!((first, &answer["cost_us"]), (&want, &json!(32_510)));
    assert_eq!(answer["candidates"][1]["instance"], "https://far.example/");
    assert!(answer.get("session").is_none());

    let Some(Sent::Prefetch(directive)) = near.sent.recv().await else { panic!("a directive") };
    let uri = format!("{}prefetch/{}", near.base, directive["directive"].as_str().unwrap());
    assert_eq!(answer["prefetch"], uri);
    let blocks = json!([
        {"block_key": key(0), "sources": [H1]}, {"block_key": key(1), "sources": [H1]}
    ]);
    assert_eq!((&directive["blocks"], &directive["request_ref"]), (&blocks, &json!("mine")));
    assert_eq!((&directive["scope_id"], &directive["compat_id"]), (&json!(scope()), &json!(compat())));
    assert_eq!((&directive["layer_order"], &directive["deadline_ms"]), (&json!("ascending"), &json!(100)));
    assert!(server.metrics().await.contains("kvsp_controller_placements_total{outcome=\"prefetched\"} 1"));
}

#[tokio::test]
async fn what_is_resident_is_not_prefetched_and_attracts() {
    let (index, _guard) = index().await;
    let server = Server::start(Some(index.clone())).await;
    let mut owner = Peer::start().await;
    server.report(&slow(owner.base.as_str(), 100)).await;
    server.report(&slow("https://fast.example/", 1000)).await;
    publish(&server, &index, 0, owner.base.as_str()).await;
    let answer = server.post("placements", &placement(1, 16)).await.ok();
    assert_eq!(answer["instance"], owner.base.as_str());
    assert_eq!((&answer["cost_us"], answer.get("prefetch")), (&json!(0), None));
    assert!(!answer["request_ref"].as_str().unwrap().is_empty());
    assert!(owner.sent.try_recv().is_err());
}

#[tokio::test]
async fn without_the_index_requests_are_placed_all_the_same() {
    let server = Server::start(Some(nowhere().await)).await;
    server.report(&status("https://i1.example/", 1)).await;
    let answer = server.post("placements", &placement(2, 32)).await.ok();
    let want = json!([{
        "instance": "https://i1.example/", "wait_us": 0, "recompute_us": 32_000, "cost_us": 32_000
    }]);
    assert_eq!(answer["candidates"], want);
    assert!(server.metrics().await.contains("kvsp_controller_placements_total{outcome=\"blind\"} 1"));
}

#[tokio::test]
async fn an_instance_that_takes_no_directive_is_placed_without() {
    let (index, _guard) = index().await;
    let server = Server::start(Some(index.clone())).await;
    let peer = Peer::start().await;
    server.report(&status(peer.base.as_str(), 1)).await;
    publish(&server, &index, 0, H1).await;
    for how in [Answering::Refuses, Answering::Hangs] {
        peer.answers(how);
        let start = Instant::now();
        let answer = server.post("placements", &placement(1, 16)).await.ok();
        assert_eq!((answer["instance"].as_str(), answer.get("prefetch")), (Some(peer.base.as_str()), None));
        assert!(start.elapsed() < Duration::from_secs(5), "bounded");
    }
    let gone = nowhere().await;
    let server = Server::start(Some(index)).await;
    server.report(&status(gone.as_str(), 1)).await;
    let answer = server.post("placements", &placement(1, 16)).await.ok();
    assert_eq!((answer["instance"].as_str(), answer.get("prefetch")), (Some(gone.as_str()), None));
    assert!(server.metrics().await.contains("outcome=\"prefetch-failed\"} 1"));
}

#[tokio::test]
async fn requests_do_not_herd() {
    let server = Server::start(None).await;
    let names: Vec<String> = (0..4).map(|n| format!("https://i{n}.example/")).collect();
    for name in &names {
        server.report(&status(name, 1)).await;
    }
    let mut placed = std::collections::BTreeMap::<String, usize>::new();
    for _ in 0..20 {
        let answer = server.post("placements", &placement(0, 16)).await.ok();
        *placed.entry(answer["instance"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(placed.into_values().collect::<Vec<_>>(), [5, 5, 5, 5]);
}

#[tokio::test]
async fn a_descriptor_of_the_index_gives_the_blocks_their_tokens() {
    let (index, _guard) = index().await;
    let server = Server::start(Some(index.clone())).await;
    let digest = format!("sha-256:{}", "ab".repeat(32));
    let descriptor = json!({
        "model": "m", "model_digest": digest, "tokenizer_digest": digest, "layers": 2, "kv_heads": 2,
        "head_dim": 4, "kv_dtype": "bfloat16", "positional": "none", "block_tokens": 16,
        "layout": "kvsp-layout-1"
    });
    let compat = Descriptor::from_value(descriptor.clone()).unwrap().compat_id().to_string();
    let path = format!("descriptors/{compat}");
    assert_eq!(server.get(&path).await.problem(), (404, "kvsp-descriptor-unknown".into()));
    let wrong = format!("descriptors/{}", "00".repeat(32));
    assert_eq!(server.put(&wrong, &descriptor).await.problem(), (422, "kvsp-compat-mismatch".into()));
    assert_eq!(server.put(&path, &descriptor).await.status, 201);
    assert_eq!(server.put(&path, &descriptor).await.status, 200);
    assert_eq!(server.get(&path).await.ok(), descriptor);

    let size = 20 + 2 * (16 + 2 * 16 * 2 * 4 * 2);
    let digests = [Digest([0; 32]), Digest([1; 32])];
    let record = json!({
        "block_key": key(0), "compat_id": compat, "scope_id": scope(), "holder": H1, "codec": 1,
        "size": size, "digest": NamedDigest(replica_digest(&digests)),
        "residency": [{"tier": "host", "layers": [0, 1]}], "ttl_ms": 60_000
    });
    let uri = index.join(&format!(
        "replicas/{compat}/{}/{}/{}",
        scope(),
        key(0),
        H1.parse::<HolderUri>().unwrap().to_uri64()
    ));
    assert_eq!(server.send(Method::PUT, &uri, Some(record.to_string().into())).await.status, 201);
    server.report(&status("https://i1.example/", 1)).await;
    let mut request = placement(1, 20);
    request["compat_id"] = json!(compat);
    let answer = server.post("placements", &request).await.ok();
    // fetch 10 + 8 · 1076 / 1000, and 4 of 20 tokens at 1000 a second.
    assert_eq!((&answer["candidates"][0]["fetch_us"], &answer["cost_us"]), (&json!(19), &json!(4019)));
}

#[tokio::test]
async fn malformed_placements_are_told_why() {
    let server = Server::start(None).await;
    server.report(&status("https://i1.example/", 1)).await;
    let good = placement(1, 16);
    for (member, value, name) in [
        ("block_keys", json!(["AB".repeat(32)]), "kvsp-bad-identifier"),
        ("compat_id", json!("AB"), "kvsp-bad-identifier"),
        ("tokens", json!(-1), "kvsp-malformed-json"),
        ("tokens", Value::Null, "kvsp-malformed-json"),
        ("session", json!(1), "kvsp-malformed-json"),
        ("request_ref", json!("a\nb"), "kvsp-malformed-json"),
        ("request_ref", json!(7), "kvsp-malformed-json"),
    ] {
        let mut bad = good.clone();
        bad[member] = value;
        assert_eq!(server.post("placements", &bad).await.problem(), (400, name.into()), "{member}");
    }
    let mut large = good.clone();
    large["continuation"] = json!("x".repeat(65_536));
    assert_eq!(server.post("placements", &large).await.problem(), (413, "kvsp-limit-exceeded".into()));
    let many = placement(65_537, 16);
    assert_eq!(server.post("placements", &many).await.problem(), (413, "kvsp-limit-exceeded".into()));
    assert_eq!(server.post("placements", &good).await.status, 200, "the next good one");
}
