//! Codecs of every kind over sockets: transcoded once, private ones kept as they come, MLA.

#![allow(clippy::unwrap_used)]

mod support;

use kvsp_proto::container::Container;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::digest::ReprDigest;
use kvsp_proto::registry::Codec;
use serde_json::{Value, json};
use support::{Holder, SCOPE, assert_problem, build, config, container, key, path};

/// A descriptor's compat_id and text: two layers, one head of eight elements of two octets.
fn descriptor(layout: &str) -> (String, Value) {
    let digest = format!("sha-256:{}", "ab".repeat(32));
    let value = json!({
        "model": "m", "model_digest": digest, "tokenizer_digest": digest, "layers": 2, "kv_heads": 1,
        "head_dim": 8, "kv_dtype": "bfloat16", "positional": "none", "block_tokens": 4, "layout": layout
    });
    (Descriptor::from_value(value.clone()).unwrap().compat_id().to_string(), value)
}

#[tokio::test]
async fn a_representation_is_made_once_for_all_who_ask() {
    let holder = Holder::start(config()).await;
    let (compat, value) = descriptor("kvsp-layout-1");
    let target = format!("blocks/{compat}/{SCOPE}/{}", key(1));
    assert_eq!(holder.json("PUT", &format!("descriptors/{compat}"), &value).await.status, 201);
    assert_eq!(holder.put(&target, container(1, 2, 64).bytes()).await.status, 201);
    let ask = format!("{target}?codec=2");
    let answers = futures_util::future::join_all((0..8).map(|_| holder.get(&ask))).await;
    let first = &answers[0];
    assert_eq!(first.header("repr-digest"), ReprDigest::of(&first.body).to_string());
    assert!(answers.iter().all(|got| (got.status, &got.body) == (200, &first.body)));
    assert_eq!(holder.metric("transcodes_total").await, 1);
    assert_eq!(holder.metric("transcode_hits_total").await, 7);
    let head = holder.send("HEAD", &ask, &[], b"").await;
    assert_eq!(head.header("content-length"), first.body.len().to_string());
    let tag = first.header("etag").to_owned();
    let same = holder.send("GET", &ask, &[("if-none-match", &tag)], b"").await;
    assert_eq!((same.status, same.body.len(), same.header("etag")), (304, 0, tag.as_str()));
    assert_eq!(holder.metric("transcodes_total").await, 1);
    holder.stop().await;
}

#[tokio::test]
async fn private_sections_are_opaque_and_come_back_as_they_went() {
    let holder = Holder::start(config()).await;
    for number in [0xFF00, 0xFFFE] {
        let private = build(Codec::new(number).unwrap(), 0, 3, 2, 33);
        assert_eq!(holder.put(&path(1), private.bytes()).await.status, 201, "{number}");
        let got = holder.get(&path(1)).await;
        assert_eq!(&got.body, private.bytes());
        let part = holder.get(&format!("{}?layers=1-1&codec={number}", path(1))).await;
        assert_eq!(part.status, 200);
        assert_problem(&holder.get(&format!("{}?codec=1", path(1))).await, 406, "kvsp-codec-unavailable");
        assert_eq!(holder.send("DELETE", &path(1), &[], b"").await.status, 204);
    }
    for number in [3, 0xFEFF] {
        let unknown = build(Codec::new(number).unwrap(), 0, 3, 2, 33);
        assert_problem(&holder.put(&path(1), unknown.bytes()).await, 415, "kvsp-unsupported-codec");
    }
    holder.stop().await;
}

#[tokio::test]
async fn an_mla_block_has_no_values_and_is_kept_so() {
    let holder = Holder::start(config()).await;
    let (compat, value) = descriptor("kvsp-mla-1");
    assert_eq!(holder.json("PUT", &format!("descriptors/{compat}"), &value).await.status, 201);
    let at = |n: u8| format!("blocks/{compat}/{SCOPE}/{}", key(n));
    let latent: Vec<_> = (0..2_u8).map(|layer| (vec![layer; 64], Vec::new())).collect();
    let block = Container::build(Codec::RAW, 0, 4, &latent).unwrap();
    assert_eq!(holder.put(&at(1), block.bytes()).await.status, 201);
    assert_eq!(&holder.get(&at(1)).await.body, block.bytes());
    assert_eq!(holder.get(&format!("{}?codec=2", at(1))).await.status, 200);
    let with_values = container(1, 2, 64);
    assert_problem(&holder.put(&at(2), with_values.bytes()).await, 422, "kvsp-container-mismatch");
    holder.stop().await;
}
