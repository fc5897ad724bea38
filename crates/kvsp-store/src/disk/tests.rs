mod crash;
mod faults;
mod history;

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;
use crate::conformance::{self, sample};

async fn open(dir: &Path) -> Result<DiskStore, StoreError> {
    DiskStore::open(DiskConfig { dir: dir.to_owned(), quarantine_octets: 1000 }).await
}

fn only_file(dir: &Path) -> PathBuf {
    let shards = fs::read_dir(dir.join("blocks")).unwrap();
    let mut files: Vec<_> = shards
        .flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap())
        .map(|e| e.unwrap().path())
        .collect();
    assert_eq!(files.len(), 1);
    files.remove(0)
}

#[tokio::test]
async fn disk_conforms() {
    let parent = TempDir::new().unwrap();
    let count = std::cell::Cell::new(0);
    let fresh = || {
        count.set(count.get() + 1);
        let dir = parent.path().join(count.get().to_string());
        async move { open(&dir).await.unwrap() }
    };
    conformance::run(fresh).await;
}

#[tokio::test]
async fn reads_take_no_memory_but_the_arena_s() {
    let dir = TempDir::new().unwrap();
    conformance::reads_into_an_arena(&open(dir.path()).await.unwrap()).await;
}

#[tokio::test]
async fn blocks_are_there_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let block = sample(1, 200, 40);
    open(dir.path()).await.unwrap().put(block.clone()).await.unwrap();
    let store = open(dir.path()).await.unwrap();
    let octets = fs::metadata(only_file(dir.path())).unwrap().len();
    assert_eq!(store.list().await.unwrap(), [Held { meta: block.meta.clone(), layers: 200, octets }]);
    assert_eq!(store.get(block.meta.name).await.unwrap().unwrap().container.bytes(), block.container.bytes());
}

#[tokio::test]
async fn one_process_has_the_directory() {
    let dir = TempDir::new().unwrap();
    let first = open(dir.path()).await.unwrap();
    assert!(matches!(open(dir.path()).await, Err(StoreError::Unusable(_))));
    drop(first);
    open(dir.path()).await.unwrap();
    fs::write(dir.path().join("FORMAT"), "KVSPDISK 1\n").unwrap();
    assert!(matches!(open(dir.path()).await, Err(StoreError::Unusable(_))));
}

#[tokio::test]
async fn every_rotten_octet_of_the_container_is_found() {
    let dir = TempDir::new().unwrap();
    let block = sample(1, 2, 3);
    let name = block.meta.name;
    let range = LayerRange::new(1, 1).unwrap();
    let store = open(dir.path()).await.unwrap();
    for at in 0..block.container.bytes().len() {
        store.put(block.clone()).await.unwrap();
        let path = only_file(dir.path());
        let mut octets = fs::read(&path).unwrap();
        octets[format::preface_octets(&block.meta) + at] ^= 1;
        fs::write(&path, octets).unwrap();
        // The second layer's octets are the last six; a part does not look at the others.
        if at + 6 >= block.container.bytes().len() {
            assert!(matches!(store.part(name, range).await, Err(StoreError::Rotten(_))), "{at}");
        } else {
            assert!(matches!(store.get(name).await, Err(StoreError::Rotten(_))), "{at}");
        }
        assert!(store.get(name).await.unwrap().is_none());
        assert!(!path.exists());
    }
    assert_eq!(store.quarantined(), block.container.bytes().len() as u64);
    let kept: u64 = fs::read_dir(dir.path().join("quarantine"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!((1..=1000).contains(&kept), "{kept}");
}

#[tokio::test]
async fn a_file_cut_short_is_never_adopted_or_served() {
    let dir = TempDir::new().unwrap();
    let block = sample(1, 2, 3);
    let length = {
        let store = open(dir.path()).await.unwrap();
        store.put(block.clone()).await.unwrap();
        let path = only_file(dir.path());
        let octets = fs::read(&path).unwrap();
        fs::write(&path, &octets[..octets.len() - 1]).unwrap();
        assert!(matches!(store.get(block.meta.name).await, Err(StoreError::Rotten(_))));
        octets.len()
    };
    for cut in [0, 1, 100, length / 2, length - 1, length + 1] {
        let store = open(dir.path()).await.unwrap();
        store.put(block.clone()).await.unwrap();
        drop(store);
        let path = only_file(dir.path());
        let mut octets = fs::read(&path).unwrap();
        octets.resize(cut, 0);
        fs::write(&path, octets).unwrap();
        let store = open(dir.path()).await.unwrap();
        assert!(store.list().await.unwrap().is_empty(), "{cut}");
        assert_eq!(store.quarantined(), 1);
    }
}

#[tokio::test]
async fn what_was_half_written_and_what_is_misnamed_is_no_block() {
    let dir = TempDir::new().unwrap();
    let block = sample(1, 2, 3);
    open(dir.path()).await.unwrap().put(block.clone()).await.unwrap();
    fs::write(dir.path().join("tmp/1-1"), b"KVSPBLK").unwrap();
    let path = only_file(dir.path());
    fs::copy(&path, path.with_file_name("other")).unwrap();
    let store = open(dir.path()).await.unwrap();
    assert_eq!(store.list().await.unwrap().len(), 1);
    assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
    assert!(path.exists() && !path.with_file_name("other").exists());
}

#[tokio::test]
async fn epochs_rise_over_restarts_whatever_the_clock() {
    let dir = TempDir::new().unwrap();
    assert_eq!(open(dir.path()).await.unwrap().next_epoch(1000).await.unwrap(), 1000);
    assert_eq!(open(dir.path()).await.unwrap().next_epoch(5).await.unwrap(), 1001);
    assert_eq!(open(dir.path()).await.unwrap().next_epoch(3000).await.unwrap(), 3000);
}

#[tokio::test]
async fn a_file_that_somebody_removed_is_missed() {
    let dir = TempDir::new().unwrap();
    let block = sample(1, 2, 3);
    let store = open(dir.path()).await.unwrap();
    store.put(block.clone()).await.unwrap();
    fs::remove_file(only_file(dir.path())).unwrap();
    assert!(matches!(store.get(block.meta.name).await, Err(StoreError::Rotten(_))));
    assert!(store.list().await.unwrap().is_empty());
    store.put(block.clone()).await.unwrap();
    assert!(store.get(block.meta.name).await.unwrap().is_some());
}

/// What lies under a block's name and is no plain file is rot like any other: nobody waits for a pipe, and
/// nobody follows a link.
#[tokio::test]
async fn what_is_no_plain_file_is_rotten() {
    let lay: [fn(&Path); 3] = [
        |path| assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success()),
        |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
        |path| fs::create_dir(path).unwrap(),
    ];
    for lay in lay {
        let dir = TempDir::new().unwrap();
        let block = sample(1, 2, 3);
        let config = DiskConfig { dir: dir.path().into(), quarantine_octets: 1 << 20 };
        let store = DiskStore::open(config).await.unwrap();
        store.put(block.clone()).await.unwrap();
        let path = only_file(dir.path());
        fs::remove_file(&path).unwrap();
        lay(&path);
        assert!(matches!(store.get(block.meta.name).await, Err(StoreError::Rotten(_))));
        assert!(store.get(block.meta.name).await.unwrap().is_none());
        store.put(block.clone()).await.unwrap();
        assert!(store.get(block.meta.name).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn what_was_cut_is_cut_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let block = sample(1, 4, 30);
    let store = open(dir.path()).await.unwrap();
    store.put(block.clone()).await.unwrap();
    assert!(store.trim(block.meta.name, 2).await.unwrap());
    drop(store);
    let octets = fs::metadata(only_file(dir.path())).unwrap().len();
    let store = open(dir.path()).await.unwrap();
    assert_eq!(store.list().await.unwrap(), [Held { meta: block.meta.clone(), layers: 2, octets }]);
    let got = store.get(block.meta.name).await.unwrap().unwrap();
    assert_eq!(got.container.bytes(), block.leading(2).unwrap().container.bytes());
}

#[tokio::test]
async fn what_is_read_counts_in_the_arena_and_is_refused_without_room() {
    let dir = TempDir::new().unwrap();
    let block = sample(1, 4, 20_000);
    let (name, octets) = (block.meta.name, block.container.bytes().len());
    let store = open(dir.path()).await.unwrap();
    store.put(block.clone()).await.unwrap();
    let arena = Arena::new(kvsp_buffer::footprint(octets));
    store.use_buffers(arena.clone());
    let first = store.get(name).await.unwrap().unwrap();
    assert_eq!(arena.used(), arena.capacity());
    assert_eq!(first.container.bytes().as_ptr().addr() % 4096, 0);
    assert!(matches!(store.get(name).await, Err(StoreError::NoMemory)));
    assert_eq!(arena.used(), arena.capacity());
    drop(first);
    assert_eq!(arena.used(), 0);
    let second = store.get(name).await.unwrap().unwrap();
    assert_eq!(second.container.bytes(), block.container.bytes());
}
