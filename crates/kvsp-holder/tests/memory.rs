//! Memory for what is read from disk and object store is bounded: who finds none waits for a time, is refused
//! then, and can come again.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use http_body_util::BodyExt as _;
use kvsp_blocks::{BlocksConfig, ObjectTier};
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::digest::ReprDigest;
use kvsp_proto::path;
use serde_json::json;
use support::{
    BLOCK, COMPAT, Holder, JSON, SCOPE, assert_problem, config, container, key, on_disk, path as at,
};
use tempfile::TempDir;

/// Octets of a section: of four in a block, so large that no socket takes one in.
const SECTION: usize = 2 << 20;
const READ: u64 = 20 << 20;
const READERS: usize = 50;

fn bounded(blocks: BlocksConfig) -> BlocksConfig {
    BlocksConfig {
        ingest_octets: 9 << 20,
        read_octets: READ,
        transcode_octets: 0,
        scrub_octets_per_s: 0,
        ingest_wait_ms: 300,
        ..blocks
    }
}

fn in_objects(dir: &Path) -> BlocksConfig {
    let url = format!("file://{}", dir.display());
    let object =
        ObjectTier { url, octets: 1 << 30, owner: Some("the tests".into()), ..ObjectTier::default() };
    BlocksConfig { host_octets: 0, object: Some(object), ..config() }
}

/// 50 peers ask for large blocks and read nothing.
async fn slow_readers_take_no_more_than_their_share(blocks: BlocksConfig) {
    let holder = Holder::start(bounded(blocks)).await;
    let large = [container(0, 2, SECTION), container(1, 2, SECTION)];
    for (n, block) in (0..).zip(&large) {
        assert_eq!(holder.put(&at(n), block.bytes()).await.status, 201);
    }
    holder.until("buffer_octets", |octets| octets == 0).await;
    let readers = (0..READERS).map(|n| {
        let holder = &holder;
        async move {
            let which = n % 2;
            let mut connection = holder.connect().await;
            let answer = connection.begin("GET", &at(which as u8), &[], b"").await;
            assert!(holder.metric("buffer_octets").await <= READ);
            (which, connection, answer)
        }
    });
    let mut readers = join_all(readers).await;
    let held = holder.metric("buffer_octets").await;
    let served = readers.iter().filter(|(_, _, answer)| answer.status() == 200).count() as u64;
    assert!(served >= 1 && held >= served * large[0].bytes().len() as u64, "{served} served, {held} octets");
    assert!(held <= READ, "{held}");
    for (_, _, answer) in readers.iter().filter(|(_, _, answer)| answer.status() != 200) {
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["retry-after"]),
            (503, &"1".parse().unwrap())
        );
    }
    // One more is refused, and a block that comes in is not.
    assert_problem(&holder.get(&at(0)).await, 503, "kvsp-overloaded");
    assert_eq!(holder.put(&at(2), container(2, 2, SECTION).bytes()).await.status, 201);
    // What was begun is exact for whoever reads on; the others hang up.
    let first = readers.iter().position(|(_, _, answer)| answer.status() == 200).unwrap();
    let (which, _connection, answer) = readers.swap_remove(first);
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), large[which].bytes());
    drop(readers);
    holder.until("buffer_octets", |octets| octets == 0).await;
    assert_eq!(holder.get(&at(1)).await.body, large[1].bytes());
    holder.stop().await;
}

#[tokio::test]
async fn slow_readers_of_a_disk_are_bounded() {
    let dir = TempDir::new().unwrap();
    slow_readers_take_no_more_than_their_share(on_disk(dir.path(), 1 << 30)).await;
}

#[tokio::test]
async fn slow_readers_of_an_object_store_are_bounded() {
    let dir = TempDir::new().unwrap();
    slow_readers_take_no_more_than_their_share(in_objects(dir.path())).await;
}

#[tokio::test]
async fn a_stream_has_one_layer_in_memory_or_breaks_off() {
    let dir = TempDir::new().unwrap();
    let holder = Holder::start(bounded(on_disk(dir.path(), 1 << 30))).await;
    let block = container(0, 2, SECTION);
    assert_eq!(holder.put(&at(0), block.bytes()).await.status, 201);
    holder.until("buffer_octets", |octets| octets == 0).await;
    let ask = json!({"block_keys": [key(0)], "layers": [0, 1]}).to_string();
    let whole = holder.json("POST", &path::blocks(COMPAT, SCOPE), &serde_json::from_str(&ask).unwrap()).await;
    let streams = (0..20).map(|_| async {
        let mut connection = holder.connect().await;
        let headers = [("content-type", JSON)];
        let target = path::blocks(COMPAT, SCOPE);
        let answer = connection.begin("POST", &target, &headers, ask.as_bytes()).await;
        assert_eq!(answer.status(), 200);
        (connection, answer.into_body())
    });
    let streams = join_all(streams).await;
    holder.until("buffer_octets", |octets| octets > SECTION as u64).await;
    assert!(holder.metric("buffer_octets").await <= READ);
    let mut exact = 0;
    // Those that broke off are seen to have.
    let bodies = join_all(streams.into_iter().map(|(_open, body)| body.collect())).await;
    for body in bodies.into_iter().flatten() {
        assert_eq!(body.to_bytes(), whole.body);
        exact += 1;
    }
    assert!(exact >= 1);
    holder.until("buffer_octets", |octets| octets == 0).await;
    let again = holder.json("POST", &path::blocks(COMPAT, SCOPE), &serde_json::from_str(&ask).unwrap()).await;
    assert_eq!(again.body, whole.body);
    holder.stop().await;
}

#[tokio::test]
async fn other_codecs_are_made_within_the_same_bounds() {
    let dir = TempDir::new().unwrap();
    // Room for one block of 320 octets at a time.
    let blocks =
        BlocksConfig { read_octets: 700, ingest_wait_ms: 2000, ..bounded(on_disk(dir.path(), 1 << 20)) };
    let holder = Holder::start(blocks).await;
    let digest = format!("sha-256:{}", "ab".repeat(32));
    let value = json!({
        "model": "m", "model_digest": digest, "tokenizer_digest": digest, "layers": 2, "kv_heads": 1,
        "head_dim": 8, "kv_dtype": "bfloat16", "positional": "none", "block_tokens": 4, "layout": "kvsp-layout-1"
    });
    let compat = Descriptor::from_value(value.clone()).unwrap().compat_id();
    assert_eq!(holder.json("PUT", &format!("descriptors/{compat}"), &value).await.status, 201);
    let targets: Vec<_> = (0..4).map(|n| path::block(compat, SCOPE, key(n))).collect();
    for (n, target) in (0..).zip(&targets) {
        let headers = [("content-type", BLOCK), ("if-none-match", "*")];
        assert_eq!(holder.send("PUT", target, &headers, container(n, 2, 64).bytes()).await.status, 201);
    }
    let ask = |n: usize| format!("{}?codec=2&layers={}", targets[n % 4], ["0-1", "0-0", "1-1"][n % 3]);
    let answers = tokio::time::timeout(
        Duration::from_secs(60),
        join_all((0..READERS).map(|n| {
            let (holder, ask) = (&holder, ask(n));
            async move { holder.get(&ask).await }
        })),
    );
    for answer in answers.await.unwrap() {
        if answer.status == 200 {
            assert_eq!(answer.header("repr-digest"), ReprDigest::of(&answer.body).to_string());
        } else {
            assert_problem(&answer, 503, "kvsp-overloaded");
        }
    }
    holder.until("buffer_octets", |octets| octets == 0).await;
    for n in 0..12 {
        assert_eq!(holder.get(&ask(n)).await.status, 200);
    }
    holder.stop().await;
}

#[tokio::test]
async fn a_block_larger_than_all_room_for_reads_is_read_alone() {
    let dir = TempDir::new().unwrap();
    let holder =
        Holder::start(BlocksConfig { read_octets: 0, ..bounded(on_disk(dir.path(), 1 << 20)) }).await;
    let block = container(1, 2, 500);
    assert_eq!(holder.put(&at(1), block.bytes()).await.status, 201);
    for _ in 0..3 {
        assert_eq!(holder.get(&at(1)).await.body, block.bytes());
        assert_eq!(holder.get(&format!("{}?layers=1-1", at(1))).await.status, 200);
    }
    holder.stop().await;
}
