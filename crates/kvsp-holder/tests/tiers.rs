//! Three tiers over sockets: what is cold goes down by layers, what is read comes up, nothing is lost on the
//! way, and no tier is overrun.

#![allow(clippy::unwrap_used)]

mod support;

use std::path::Path;
use std::sync::Arc;

use kvsp_blocks::{BlocksConfig, Demotion, ObjectTier, ScopeFloor};
use kvsp_holder::{HolderConfig, serve};
use kvsp_net::auth::Development;
use kvsp_net::clock::SystemClock;
use kvsp_net::service::{Service, ServiceConfig};
use kvsp_proto::container::{Container, LayerRange};
use kvsp_proto::id::ScopeId;
use kvsp_proto::path;
use serde_json::json;
use support::{COMPAT, Holder, SCOPE, assert_problem, config, container, key, on_disk, path as at};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

fn three(dir: &Path, host: u64, disk: u64, object: u64) -> BlocksConfig {
    BlocksConfig {
        host_octets: host,
        object: Some(ObjectTier {
            url: format!("file://{}", dir.join("object").display()),
            octets: object,
            owner: Some("the tests".into()),
            ..ObjectTier::default()
        }),
        demotion: Demotion { high: 600, low: 400, copies: 2 },
        ..on_disk(&dir.join("disk"), disk)
    }
}

/// Puts blocks one after the other. As much is copied down as the marks ask for before more comes: else that
/// would be the demoter's race to win, not this test's.
async fn put_all(holder: &Holder, blocks: &[Container], most_on_disk_only: u64) {
    for (n, block) in (0..).zip(blocks) {
        assert_eq!(holder.put(&at(n), block.bytes()).await.status, 201, "{n}");
        holder.until("disk_only_octets", |octets| octets <= most_on_disk_only).await;
    }
}

#[tokio::test]
async fn what_is_cold_goes_down_and_nothing_is_lost() {
    let dir = TempDir::new().unwrap();
    let disk = 64 << 10;
    let holder = Holder::start(three(dir.path(), 16 << 10, disk, 1 << 20)).await;
    let blocks: Vec<_> = (0..40).map(|n| container(n, 4, 500)).collect();
    put_all(&holder, &blocks, disk * 6 / 10).await;
    assert_eq!(holder.metric("evictions_total").await, 0);
    assert_eq!(holder.metric("blocks").await, 40);
    for tier in ["host", "disk", "object"] {
        assert!(holder.metric(&format!("octets{{tier=\"{tier}\"}}")).await > 0, "{tier}");
    }
    assert!(holder.metric("octets{tier=\"disk\"}").await <= disk - disk / 16);
    for (n, block) in (0..).zip(&blocks) {
        let got = holder.get(&at(n)).await;
        assert_eq!((got.status, &got.body), (200, block.bytes()), "{n}");
        assert_eq!(got.header("repr-digest"), block.repr_digest().to_string());
        let range = LayerRange::new(1, 3).unwrap();
        let part = holder.get(&format!("{}?layers=1-3", at(n))).await;
        assert_eq!(part.body, block.slice(range).unwrap().join().bytes());
    }
    assert!(holder.metric("promotions_total").await > 0);
    let ask = json!({"block_keys": (0..40).map(key).collect::<Vec<_>>(), "layers": [0, 3]});
    let stream = holder.json("POST", &path::blocks(COMPAT, SCOPE), &ask).await;
    assert_eq!((stream.status, stream.header("kvsp-blocks")), (200, "40"));

    holder.stop().await;
    let holder = Holder::start(three(dir.path(), 16 << 10, disk, 1 << 20)).await;
    assert_eq!(holder.metric("blocks").await, 40);
    for (n, block) in (0..).zip(&blocks) {
        assert_eq!(holder.get(&at(n)).await.body, block.bytes(), "{n}");
    }
    for n in 0..40 {
        assert_eq!(holder.send("DELETE", &at(n), &[], b"").await.status, 204);
    }
    for tier in ["host", "disk", "object"] {
        assert_eq!(holder.metric(&format!("octets{{tier=\"{tier}\"}}")).await, 0, "{tier}");
    }
    assert_eq!(holder.metric("buffer_octets").await, 0);
    holder.stop().await;
}

#[tokio::test]
async fn a_full_object_tier_ends_the_coldest() {
    let dir = TempDir::new().unwrap();
    let holder = Holder::start(three(dir.path(), 0, 48 << 10, 40 << 10)).await;
    let blocks: Vec<_> = (0..60).map(|n| container(n, 4, 500)).collect();
    for (n, block) in (0..).zip(&blocks) {
        assert_eq!(holder.put(&at(n), block.bytes()).await.status, 201, "{n}");
        assert!(holder.metric("octets{tier=\"object\"}").await <= 40 << 10);
    }
    assert!(holder.metric("evictions_total").await > 0);
    assert!(holder.metric("octets{tier=\"object\"}").await <= 40 << 10);
    let mut held = 0;
    for (n, block) in (0..).zip(&blocks) {
        let got = holder.get(&at(n)).await;
        if got.status == 200 {
            assert_eq!(got.body, block.bytes());
            held += 1;
        } else {
            assert_problem(&got, 404, "kvsp-block-not-found");
        }
    }
    assert_eq!(holder.metric("blocks").await, held);
    assert!(held >= 10, "{held}");
    assert_eq!(holder.get(&at(59)).await.status, 200);
    assert_problem(&holder.get(&at(0)).await, 404, "kvsp-block-not-found");
    holder.stop().await;
}

#[tokio::test]
async fn an_object_tier_alone_is_the_home() {
    let dir = TempDir::new().unwrap();
    let blocks = BlocksConfig { host_octets: 6 << 10, disk: None, ..three(dir.path(), 0, 0, 1 << 20) };
    let holder = Holder::start(blocks.clone()).await;
    let held: Vec<_> = (0..6).map(|n| container(n, 2, 500)).collect();
    for (n, block) in (0..).zip(&held) {
        assert_eq!(holder.put(&at(n), block.bytes()).await.status, 201);
    }
    for (n, block) in (0..).zip(&held) {
        assert_eq!(holder.get(&at(n)).await.body, block.bytes());
    }
    holder.stop().await;
    let holder = Holder::start(blocks).await;
    for (n, block) in (0..).zip(&held) {
        assert_eq!(holder.get(&at(n)).await.body, block.bytes());
    }
    holder.stop().await;
}

#[tokio::test]
async fn the_rest_of_a_trim_whose_whole_is_lost_is_not_served() {
    let dir = TempDir::new().unwrap();
    let config = || three(dir.path(), 0, 48 << 10, 1 << 20);
    let holder = Holder::start(config()).await;
    let blocks: Vec<_> = (0..20).map(|n| container(n, 4, 500)).collect();
    put_all(&holder, &blocks, 28 << 10).await;
    let below = holder.metric("blocks").await;
    holder.stop().await;
    std::fs::remove_dir_all(dir.path().join("object")).unwrap();
    let holder = Holder::start(config()).await;
    let held = holder.metric("blocks").await;
    assert!(held < below);
    let mut whole = 0;
    for (n, block) in (0..).zip(&blocks) {
        let got = holder.get(&at(n)).await;
        if got.status == 200 {
            assert_eq!(got.body, block.bytes());
            whole += 1;
        }
    }
    assert_eq!(whole, held);
    holder.stop().await;
}

#[tokio::test]
async fn without_its_object_store_a_holder_does_not_start_and_says_what_to_do() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("object"), "not a directory").unwrap();
    let bound = Service::bind(ServiceConfig::default(), Arc::new(Development::new())).await.unwrap();
    let deps = support::deps(Arc::new(SystemClock::new()));
    let config = HolderConfig { blocks: three(dir.path(), 0, 48 << 10, 1 << 20) };
    let served = serve(config, bound, deps, || {}, CancellationToken::new()).await;
    let text = served.unwrap_err().to_string();
    assert!(text.contains(&format!("file://{}", dir.path().display())), "{text}");
    assert!(text.contains("start again once it can be reached"), "{text}");
}

#[tokio::test]
async fn a_scope_keeps_its_floor_whatever_others_put() {
    let other = ScopeId([0x33; 16]);
    let blocks = BlocksConfig {
        host_octets: 40_000,
        floors: vec![ScopeFloor { scope_id: SCOPE, octets: 20_000 }],
        ..config()
    };
    let holder = Holder::start(blocks.clone()).await;
    for n in 0..4 {
        assert_eq!(holder.put(&at(n), container(n, 1, 2500).bytes()).await.status, 201);
    }
    for n in 10..40 {
        let target = path::block(COMPAT, other, key(n));
        assert_eq!(holder.put(&target, container(n, 1, 2500).bytes()).await.status, 201);
    }
    let mut statuses = Vec::new();
    for n in 0..4 {
        statuses.push(holder.get(&at(n)).await.status);
    }
    assert_eq!(statuses, [404, 200, 200, 200], "the floor is of three blocks and a part of a fourth");
    let target = path::block(COMPAT, other, key(100));
    let large = container(9, 1, 11_500);
    assert_problem(&holder.put(&target, large.bytes()).await, 507, "kvsp-storage-full");
    assert_eq!(holder.put(&at(100), large.bytes()).await.status, 201, "for its own sake it may");
    holder.stop().await;

    let floors = vec![ScopeFloor { scope_id: other, octets: 40_001 }];
    let callers = Arc::new(Development::new());
    let bound = Service::bind(ServiceConfig::default(), callers).await.unwrap();
    let deps = support::deps(Arc::new(SystemClock::new()));
    let config = HolderConfig { blocks: BlocksConfig { floors, ..blocks } };
    let served = serve(config, bound, deps, || {}, CancellationToken::new()).await;
    assert!(served.unwrap_err().to_string().contains("40001"));
}
