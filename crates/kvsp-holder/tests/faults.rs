//! A holder whose disk fails: full, refusing to delete, rotten unseen.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use kvsp_blocks::{BlocksConfig, Stores};
use kvsp_store::fs::LocalFileSystem;
use kvsp_store::testing::{FailingFileSystem, Faults, Operation};
use kvsp_store::{DiskConfig, DiskStore};
use support::{Holder, assert_problem, container, on_disk, path};
use tempfile::TempDir;

const ENOUGH: Faults = Faults { first: 0, count: u64::MAX, only: None, kind: ErrorKind::Other };

async fn failing(dir: &Path, octets: u64) -> (Holder, FailingFileSystem) {
    let fs = FailingFileSystem::new(Arc::new(LocalFileSystem));
    let config = DiskConfig { dir: dir.to_owned(), quarantine_octets: 1 << 20 };
    let disk = DiskStore::open_on(config, Arc::new(fs.clone())).await.unwrap();
    let stores = Stores { disk: Some(Arc::new(disk)), object: None };
    let blocks = BlocksConfig { scrub_octets_per_s: 0, ..on_disk(dir, octets) };
    (Holder::start_on(stores, blocks).await, fs)
}

fn files(dir: &Path, sub: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.join(sub)];
    while let Some(dir) = dirs.pop() {
        for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() { dirs.push(path) } else { found.push(path) }
        }
    }
    found
}

#[tokio::test]
async fn a_full_disk_refuses_blocks_and_serves_those_it_has() {
    let dir = TempDir::new().unwrap();
    let (holder, fs) = failing(dir.path(), 1 << 20).await;
    let blocks: Vec<_> = (1..=3).map(|n| container(n, 2, 500)).collect();
    assert_eq!(holder.put(&path(1), blocks[0].bytes()).await.status, 201);
    let charged = holder.metric("octets{tier=\"disk\"}").await;
    fs.fail(Faults { only: Some(Operation::Grow), kind: ErrorKind::StorageFull, ..ENOUGH });
    for n in 2..=3 {
        assert_problem(&holder.put(&path(n), blocks[1].bytes()).await, 507, "kvsp-storage-full");
        assert_problem(&holder.get(&path(n)).await, 404, "kvsp-block-not-found");
        assert_eq!(holder.get(&path(1)).await.body, blocks[0].bytes());
    }
    assert!(files(dir.path(), "tmp").is_empty(), "no temporary file stays");
    assert_eq!(holder.metric("octets{tier=\"disk\"}").await, charged);
    assert_eq!(holder.send("DELETE", &path(1), &[], b"").await.status, 204);
    fs.heal();
    assert_eq!(holder.put(&path(2), blocks[1].bytes()).await.status, 201);
    assert_eq!(holder.get(&path(2)).await.body, blocks[1].bytes());
    holder.stop().await;
}

#[tokio::test]
async fn what_cannot_be_deleted_stays_charged_and_is_deleted_later() {
    let dir = TempDir::new().unwrap();
    let (holder, fs) = failing(dir.path(), 1 << 20).await;
    let block = container(1, 2, 500);
    assert_eq!(holder.put(&path(1), block.bytes()).await.status, 201);
    let charged = holder.metric("octets{tier=\"disk\"}").await;
    fs.fail(Faults { only: Some(Operation::Shrink), kind: ErrorKind::Other, ..ENOUGH });
    assert_problem(&holder.send("DELETE", &path(1), &[], b"").await, 500, "about:blank");
    assert_problem(&holder.get(&path(1)).await, 404, "kvsp-block-not-found");
    assert_eq!(holder.metric("octets{tier=\"disk\"}").await, charged, "the file is there");
    let again = holder.put(&path(1), block.bytes()).await;
    assert_problem(&again, 503, "kvsp-overloaded");
    assert_eq!(again.header("retry-after"), "1");
    fs.heal();
    holder.until("octets{tier=\"disk\"}", |octets| octets == 0).await;
    assert!(files(dir.path(), "blocks").is_empty());
    assert_eq!(holder.put(&path(1), block.bytes()).await.status, 201);
    holder.stop().await;
}

#[tokio::test]
async fn an_eviction_that_is_refused_admits_nothing_in_its_place() {
    let dir = TempDir::new().unwrap();
    let (holder, fs) = failing(dir.path(), 8 << 10).await;
    assert_eq!(holder.put(&path(1), container(1, 2, 1000).bytes()).await.status, 201);
    fs.fail(Faults { only: Some(Operation::Shrink), kind: ErrorKind::Other, ..ENOUGH });
    let second = container(2, 2, 1000);
    assert_problem(&holder.put(&path(2), second.bytes()).await, 500, "about:blank");
    let on_disk: u64 = files(dir.path(), "blocks").iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(on_disk <= 8 << 10);
    fs.heal();
    holder.until("octets{tier=\"disk\"}", |octets| octets == 0).await;
    assert_eq!(holder.put(&path(2), second.bytes()).await.status, 201);
    holder.stop().await;
}

#[tokio::test]
async fn a_failed_read_is_an_error_and_the_block_is_kept() {
    let dir = TempDir::new().unwrap();
    let (holder, fs) = failing(dir.path(), 1 << 20).await;
    let block = container(1, 2, 500);
    assert_eq!(holder.put(&path(1), block.bytes()).await.status, 201);
    fs.fail(Faults { only: Some(Operation::Look), kind: ErrorKind::Other, ..ENOUGH });
    assert_problem(&holder.get(&path(1)).await, 500, "about:blank");
    assert_eq!(holder.send("HEAD", &path(1), &[], b"").await.status, 200, "that needs no octets");
    let tag = format!("\"{}\"", block.repr_digest().0);
    let same = holder.send("GET", &path(1), &[("if-none-match", &tag)], b"").await;
    assert_eq!((same.status, same.body.len()), (304, 0));
    fs.heal();
    assert_eq!(holder.get(&path(1)).await.body, block.bytes());
    holder.stop().await;
}

#[tokio::test]
async fn rot_is_found_before_anybody_asks() {
    let dir = TempDir::new().unwrap();
    let blocks = BlocksConfig { scrub_octets_per_s: 100 << 20, ..on_disk(dir.path(), 1 << 20) };
    let holder = Holder::start(blocks).await;
    for n in 1..=3 {
        assert_eq!(holder.put(&path(n), container(n, 2, 500).bytes()).await.status, 201);
    }
    let file = files(dir.path(), "blocks").pop().unwrap();
    let mut rotten = std::fs::read(&file).unwrap();
    *rotten.last_mut().unwrap() ^= 1;
    std::fs::write(&file, rotten).unwrap();
    holder.until("quarantined_total", |count| count == 1).await;
    assert_eq!(holder.metric("blocks").await, 2);
    assert!(holder.metric("scrubbed_octets_total").await > 0);
    assert_eq!(files(dir.path(), "quarantine").len(), 1);
    let mut served = 0;
    for n in 1..=3 {
        served += usize::from(holder.get(&path(n)).await.status == 200);
    }
    assert_eq!(served, 2);
    holder.stop().await;
}
