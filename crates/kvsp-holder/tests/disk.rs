//! The disk tier over sockets: durability, restarts, rot, caps.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvsp_blocks::BlocksConfig;
use serde_json::json;
use support::{COMPAT, Holder, SCOPE, assert_problem, container, key, on_disk, path};
use tempfile::TempDir;

fn files(dir: &Path) -> Vec<PathBuf> {
    let shards = fs::read_dir(dir.join("blocks")).unwrap();
    let mut files: Vec<_> = shards
        .flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn octets(dir: &Path) -> u64 {
    files(dir).iter().map(|file| fs::metadata(file).unwrap().len()).sum()
}

#[tokio::test]
async fn blocks_survive_a_restart() {
    let dir = TempDir::new().unwrap();
    let blocks: Vec<_> = (1..=3).map(|n| container(n, 3, 500)).collect();
    let holder = Holder::start(on_disk(dir.path(), 1 << 20)).await;
    for (n, block) in (1..).zip(&blocks) {
        assert_eq!(holder.put(&path(n), block.bytes()).await.status, 201);
    }
    assert_eq!(holder.send("DELETE", &path(2), &[], b"").await.status, 204);
    holder.stop().await;

    let holder = Holder::start(on_disk(dir.path(), 1 << 20)).await;
    for n in [1, 3] {
        let block = &blocks[usize::from(n) - 1];
        let got = holder.get(&path(n)).await;
        assert_eq!((got.status, &got.body), (200, block.bytes()));
        assert_eq!(got.header("repr-digest"), block.repr_digest().to_string());
        let part = holder.get(&format!("{}?layers=1-2", path(n))).await;
        assert_eq!(part.status, 200);
    }
    assert_problem(&holder.get(&path(2)).await, 404, "kvsp-block-not-found");
    assert_problem(&holder.put(&path(1), blocks[1].bytes()).await, 412, "kvsp-block-exists");
    holder.stop().await;
}

#[tokio::test]
async fn rot_is_never_served() {
    let dir = TempDir::new().unwrap();
    let block = container(1, 3, 500);
    let holder = Holder::start(on_disk(dir.path(), 1 << 20)).await;
    for target in [path(1), format!("{}?layers=2-2", path(1))] {
        assert_eq!(holder.put(&path(1), block.bytes()).await.status, 201);
        let file = files(dir.path()).remove(0);
        let mut rotten = fs::read(&file).unwrap();
        *rotten.last_mut().unwrap() ^= 1;
        fs::write(&file, rotten).unwrap();
        assert_problem(&holder.get(&target).await, 404, "kvsp-block-not-found");
        assert_problem(&holder.get(&path(1)).await, 404, "kvsp-block-not-found");
        assert!(files(dir.path()).is_empty());
    }
    let metrics = holder.metrics().await;
    assert!(metrics.contains("kvsp_holder_quarantined_total 2\n"), "{metrics}");
    assert!(metrics.contains("kvsp_holder_octets{tier=\"disk\"} 0\n"), "{metrics}");
    assert_eq!(holder.put(&path(1), block.bytes()).await.status, 201);
    assert_eq!(holder.get(&path(1)).await.body, block.bytes());
    holder.stop().await;
}

#[tokio::test]
async fn the_cap_of_the_disk_holds_headers_included() {
    let dir = TempDir::new().unwrap();
    let cap = 64 << 10;
    let blocks = BlocksConfig { host_octets: 8 << 10, ..on_disk(dir.path(), cap) };
    let holder = Holder::start(blocks).await;
    for n in 0..40 {
        let block = container(n, 2, 300 + 97 * usize::from(n));
        assert_eq!(holder.put(&path(n), block.bytes()).await.status, 201, "{n}");
        assert!(octets(dir.path()) <= cap - cap / 16, "{n}");
        assert_eq!(holder.get(&path(n)).await.body, block.bytes());
    }
    assert_problem(&holder.get(&path(0)).await, 404, "kvsp-block-not-found");
    let held = files(dir.path()).len();
    let metrics = holder.metrics().await;
    assert!(metrics.contains(&format!("kvsp_holder_blocks {held}\n")), "{metrics}");
    assert!(metrics.contains(&format!("kvsp_holder_evictions_total {}\n", 40 - held)), "{metrics}");
    assert!(metrics.contains(&format!("{{tier=\"disk\"}} {}\n", octets(dir.path()))), "{metrics}");
    holder.stop().await;
}

#[tokio::test]
async fn host_memory_is_a_cache_of_the_disk() {
    let dir = TempDir::new().unwrap();
    let blocks = BlocksConfig { host_octets: 8 << 10, ..on_disk(dir.path(), 1 << 20) };
    let holder = Holder::start(blocks).await;
    let held: Vec<_> = (0..5).map(|n| container(n, 1, 1500)).collect();
    for (n, block) in (0..).zip(&held) {
        holder.put(&path(n), block.bytes()).await;
    }
    for (n, block) in (0..).zip(&held) {
        assert_eq!(holder.get(&path(n)).await.body, block.bytes());
    }
    // Served from memory, whatever became of the file; what left memory is read and found missing.
    for file in files(dir.path()) {
        fs::remove_file(file).unwrap();
    }
    assert_eq!(holder.get(&path(4)).await.body, held[4].bytes());
    assert_problem(&holder.get(&path(0)).await, 404, "kvsp-block-not-found");
    holder.stop().await;
}

#[tokio::test]
async fn what_an_earlier_process_may_have_leased_is_not_evicted() {
    let dir = TempDir::new().unwrap();
    let cap = 12 << 10;
    let first = Holder::start(on_disk(dir.path(), cap)).await;
    assert_eq!(first.put(&path(1), container(1, 1, 4000).bytes()).await.status, 201);
    let lease = json!({
        "compat_id": COMPAT, "scope_id": SCOPE, "block_keys": [key(1)], "ttl_ms": 300_000
    });
    // A quarter of the tier is each principal's quota, which this one block exceeds.
    assert_problem(&first.json("POST", "leases", &lease).await, 429, "kvsp-lease-quota");
    first.stop().await;

    let (holder, clock) = Holder::with_clock(on_disk(dir.path(), cap)).await;
    let large = container(2, 1, 4000);
    assert_problem(&holder.put(&path(2), large.bytes()).await, 507, "kvsp-storage-full");
    clock.advance(Duration::from_millis(299_999));
    assert_problem(&holder.put(&path(2), large.bytes()).await, 507, "kvsp-storage-full");
    clock.advance(Duration::from_millis(1));
    assert_eq!(holder.put(&path(2), large.bytes()).await.status, 201);
    assert_problem(&holder.get(&path(1)).await, 404, "kvsp-block-not-found");
    holder.stop().await;
}

#[tokio::test]
async fn a_full_holder_that_never_lent_takes_blocks_right_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let first = Holder::start(on_disk(dir.path(), 12 << 10)).await;
    assert_eq!(first.put(&path(1), container(1, 1, 4000).bytes()).await.status, 201);
    first.stop().await;
    let holder = Holder::start(on_disk(dir.path(), 12 << 10)).await;
    assert_eq!(holder.put(&path(2), container(2, 1, 4000).bytes()).await.status, 201);
    assert_problem(&holder.get(&path(1)).await, 404, "kvsp-block-not-found");
    holder.stop().await;
}

#[tokio::test]
async fn a_block_that_may_be_leased_is_not_deleted_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let first = Holder::start(on_disk(dir.path(), 64 << 10)).await;
    assert_eq!(first.put(&path(1), container(1, 1, 1000).bytes()).await.status, 201);
    let lease = json!({
        "compat_id": COMPAT, "scope_id": SCOPE, "block_keys": [key(1)], "ttl_ms": 60_000
    });
    assert_eq!(first.json("POST", "leases", &lease).await.status, 201);
    first.stop().await;
    let holder = Holder::start(on_disk(dir.path(), 64 << 10)).await;
    let refused = holder.send("DELETE", &path(1), &[], &[]).await;
    assert_problem(&refused, 409, "kvsp-block-leased");
    assert_eq!(holder.get(&path(1)).await.status, 200);
    holder.stop().await;
}

/// `KVSP_SOAK_OPS` makes it ten thousand blocks; then what it prints is worth reading.
#[tokio::test]
async fn a_restart_with_many_blocks_serves_them_all() {
    let count: u32 = std::env::var("KVSP_SOAK_OPS").map_or(200, |text| text.parse::<u32>().unwrap() / 10);
    let dir = TempDir::new().unwrap();
    let at = |n: u32| {
        let mut name = [0; 32];
        name[..4].copy_from_slice(&n.to_be_bytes().map(|octet| octet.rotate_left(3)));
        kvsp_proto::path::block(COMPAT, SCOPE, kvsp_proto::id::BlockKey(name))
    };
    let holder = Holder::start(on_disk(dir.path(), 4 << 30)).await;
    let block = container(7, 32, 100);
    let mut connection = holder.connect().await;
    let headers = [("content-type", support::BLOCK), ("if-none-match", "*")];
    for n in 0..count {
        assert_eq!(connection.send("PUT", &at(n), &headers, block.bytes()).await.status, 201);
    }
    drop(connection);
    holder.stop().await;
    let begin = std::time::Instant::now();
    let holder = Holder::start(on_disk(dir.path(), 4 << 30)).await;
    assert_eq!(holder.get(&at(count - 1)).await.body, block.bytes());
    eprintln!("{count} blocks: the first GET is answered after {:?}", begin.elapsed());
    assert_eq!(holder.metric("blocks").await, u64::from(count));
    holder.stop().await;
}
