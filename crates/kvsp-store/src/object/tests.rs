mod s3;

use std::path::Path;

use axum::http::Method;
use tempfile::TempDir;

use super::*;
use crate::conformance::{self, sample};
use s3::{S3, Trouble};

const OWNER: &str = "https://holder.example/kvsp/";

/// A server, and how it is reached.
struct Place {
    server: S3,
    config: ObjectConfig,
    _dir: TempDir,
}

impl Place {
    async fn new() -> Self {
        let (server, address) = S3::start().await;
        let dir = TempDir::new().unwrap();
        let credentials = dir.path().join("credentials");
        let text = "[default]\naws_access_key_id = test-key\naws_secret_access_key = test-secret\n";
        std::fs::write(&credentials, text).unwrap();
        let config = ObjectConfig {
            endpoint: Some(format!("http://{address}/")),
            region: Some("eu-north-1".into()),
            credentials_file: Some(credentials),
            quarantine_octets: 10_000,
            ..ObjectConfig::new("s3://bucket/a/prefix", OWNER)
        };
        Self { server, config, _dir: dir }
    }

    async fn open(&self) -> Result<ObjectStore, StoreError> {
        ObjectStore::open(self.config.clone()).await
    }

    /// The keys of the objects of blocks.
    fn blocks(&self) -> Vec<String> {
        self.under("blocks")
    }

    fn under(&self, sub: &str) -> Vec<String> {
        let prefix = format!("bucket/a/prefix/{sub}/");
        self.server.keys().into_iter().filter(|key| key.starts_with(&prefix)).collect()
    }
}

fn in_directory(dir: &Path) -> ObjectConfig {
    let url = format!("file://{}", dir.display());
    ObjectConfig { quarantine_octets: 10_000, ..ObjectConfig::new(url, OWNER) }
}

#[tokio::test]
async fn a_directory_conforms() {
    let parent = TempDir::new().unwrap();
    let count = std::cell::Cell::new(0);
    conformance::run(|| {
        count.set(count.get() + 1);
        let config = in_directory(&parent.path().join(count.get().to_string()));
        async move { ObjectStore::open(config).await.unwrap() }
    })
    .await;
}

#[tokio::test]
async fn s3_conforms() {
    let place = Place::new().await;
    let count = std::cell::Cell::new(0);
    conformance::run(|| {
        count.set(count.get() + 1);
        let url = format!("s3://bucket/{}", count.get());
        let config = ObjectConfig { url, ..place.config.clone() };
        async move { ObjectStore::open(config).await.unwrap() }
    })
    .await;
    assert_eq!(place.server.unsigned(), 0);
}

#[tokio::test]
async fn reads_take_no_memory_but_the_arena_s() {
    let place = Place::new().await;
    conformance::reads_into_an_arena(&place.open().await.unwrap()).await;
    let dir = TempDir::new().unwrap();
    conformance::reads_into_an_arena(&ObjectStore::open(in_directory(dir.path())).await.unwrap()).await;
}

#[tokio::test]
async fn blocks_are_there_after_a_restart() {
    let place = Place::new().await;
    let blocks: Vec<_> = (1..=8).map(|seed| sample(seed, 200, 40).leading(100).unwrap()).collect();
    let store = place.open().await.unwrap();
    for block in &blocks {
        store.put(block.clone()).await.unwrap();
    }
    drop(store);
    let store = place.open().await.unwrap();
    let listed = store.list().await.unwrap();
    assert_eq!(listed.len(), 8);
    for (held, block) in listed.iter().zip(&blocks) {
        let octets =
            place.server.object(&place.blocks()[usize::from(block.meta.name.key.as_bytes()[0]) - 1]).len();
        assert_eq!(*held, Held { meta: block.meta.clone(), layers: 100, octets: octets as u64 });
        let got = store.get(block.meta.name).await.unwrap().unwrap();
        assert_eq!(got.container.bytes(), block.container.bytes());
    }
    assert_eq!(store.quarantined(), 0);
}

#[tokio::test]
async fn a_prefix_has_one_holder() {
    let place = Place::new().await;
    drop(place.open().await.unwrap());
    let other = ObjectConfig { owner: "https://other.example/kvsp/".into(), ..place.config.clone() };
    assert!(matches!(ObjectStore::open(other.clone()).await, Err(StoreError::Unusable(_))));
    place.open().await.unwrap();
    place.server.set("bucket/a/prefix/owner", format!("KVSPOBJECT 2\n{OWNER}\n"));
    assert!(matches!(place.open().await, Err(StoreError::Unusable(_))));
    // Another prefix of the same bucket is another store.
    ObjectStore::open(ObjectConfig { url: "s3://bucket/b".into(), ..other }).await.unwrap();

    let dir = TempDir::new().unwrap();
    let config = in_directory(dir.path());
    drop(ObjectStore::open(config.clone()).await.unwrap());
    let other = ObjectConfig { owner: "https://other.example/kvsp/".into(), ..config.clone() };
    assert!(matches!(ObjectStore::open(other).await, Err(StoreError::Unusable(_))));
    ObjectStore::open(config).await.unwrap();
}

#[tokio::test]
async fn what_is_rotten_is_never_served() {
    let place = Place::new().await;
    let block = sample(1, 2, 300);
    let name = block.meta.name;
    let store = place.open().await.unwrap();
    let octets = format::file_octets(&block.meta, 2) as usize;
    let data = format::head_octets(&block.meta);
    let mut rotten = 0;
    for at in [format::preface_octets(&block.meta), data - 1, data, data + 601, octets - 1] {
        store.put(block.clone()).await.unwrap();
        let key = place.blocks().remove(0);
        let mut changed = place.server.object(&key).to_vec();
        changed[at] ^= 1;
        place.server.set(&key, changed);
        if at > data + 600 {
            let second = LayerRange::new(1, 1).unwrap();
            assert!(matches!(store.part(name, second).await, Err(StoreError::Rotten(_))), "{at}");
        } else {
            assert!(matches!(store.get(name).await, Err(StoreError::Rotten(_))), "{at}");
        }
        rotten += 1;
        assert_eq!(store.quarantined(), rotten);
        assert!(store.get(name).await.unwrap().is_none());
        assert!(store.list().await.unwrap().is_empty() && place.blocks().is_empty());
    }
    let kept: usize = place.under("quarantine").iter().map(|key| place.server.object(key).len()).sum();
    assert!((1..=10_000).contains(&kept), "{kept}");
    // One that is gone, or shorter, is lost as well.
    for left in [None, Some(octets - 1), Some(data)] {
        store.put(block.clone()).await.unwrap();
        let key = place.blocks().remove(0);
        let short = left.map(|left| place.server.object(&key).slice(..left));
        place.server.set(&key, short.unwrap_or_default());
        assert!(matches!(store.get(name).await, Err(StoreError::Rotten(_))), "{left:?}");
        assert!(store.get(name).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn an_opening_adopts_blocks_and_nothing_else() {
    let place = Place::new().await;
    let blocks: Vec<_> = (1..=5).map(|seed| sample(seed, 2, 30)).collect();
    let store = place.open().await.unwrap();
    for block in &blocks {
        store.put(block.clone()).await.unwrap();
    }
    drop(store);
    let keys = place.blocks();
    let whole = place.server.object(&keys[0]);
    place.server.set(&keys[0], whole.slice(..whole.len() - 1));
    place.server.set(&keys[1], whole.slice(..whole.len() - 60));
    place.server.set(&keys[2], place.server.object(&keys[2]).slice(..whole.len() - 60));
    place.server.set(&keys[3], Bytes::new());
    place.server.set("bucket/a/prefix/blocks/00/stranger", Bytes::from_static(b"hello"));
    let store = place.open().await.unwrap();
    let listed: Vec<_> =
        store.list().await.unwrap().iter().map(|held| (held.meta.name, held.layers)).collect();
    assert_eq!(listed, [(blocks[2].meta.name, 1), (blocks[4].meta.name, 2)]);
    assert_eq!(store.quarantined(), 4);
    assert_eq!(place.blocks().len(), 2);
    assert_eq!(place.under("quarantine").len(), 4);
}

#[tokio::test]
async fn an_answer_that_is_lost_loses_no_block() {
    let place = Place::new().await;
    let store = place.open().await.unwrap();
    // Stored, but the server says otherwise; the next try meets the object of the first.
    place.server.trouble(Method::PUT, [Trouble::Lose(503)]);
    let block = sample(1, 2, 300);
    store.put(block.clone()).await.unwrap();
    assert!(store.get(block.meta.name).await.unwrap().is_some());
    assert_eq!(place.blocks().len(), 1);
    place.server.trouble(Method::GET, [Trouble::Refuse(500), Trouble::Refuse(503)]);
    assert!(store.get(block.meta.name).await.unwrap().is_some());
}

#[tokio::test]
async fn a_failure_leaves_nothing_and_keeps_its_kind() {
    let place = Place::new().await;
    let store = place.open().await.unwrap();
    let (first, second) = (sample(1, 2, 300), sample(2, 2, 300));
    store.put(first.clone()).await.unwrap();
    // The server is full, for good.
    place.server.trouble(Method::PUT, [Trouble::Refuse(507); 8]);
    let error = store.put(second.clone()).await.unwrap_err();
    assert!(error.is_full(), "{error:?}");
    assert!(store.get(first.meta.name).await.unwrap().is_some());
    assert!(store.delete(first.meta.name).await.unwrap());
    place.server.calm();
    // Stored four times over, and denied each time; and then it cannot be deleted.
    place.server.trouble(Method::PUT, [Trouble::Lose(400)]);
    place.server.trouble(Method::DELETE, [Trouble::Refuse(403), Trouble::Refuse(403)]);
    assert!(matches!(store.put(second.clone()).await, Err(StoreError::Io(_))));
    assert!(store.list().await.unwrap().is_empty());
    assert!(store.get(second.meta.name).await.unwrap().is_none());
    assert_eq!(place.blocks().len(), 1);
    // It goes before anything else is written.
    assert!(matches!(store.put(first.clone()).await, Err(StoreError::Io(_))));
    assert_eq!(place.blocks().len(), 1);
    store.put(first.clone()).await.unwrap();
    assert_eq!(place.blocks().len(), 1);
    store.put(second.clone()).await.unwrap();
    assert!(store.get(second.meta.name).await.unwrap().is_some());
    // A read that fails is no rot.
    place.server.trouble(Method::GET, [Trouble::Refuse(403)]);
    assert!(matches!(store.get(first.meta.name).await, Err(StoreError::Io(_))));
    assert!(store.get(first.meta.name).await.unwrap().is_some());
    assert_eq!(store.quarantined(), 0);
    // A delete that fails leaves the block, to be deleted again.
    place.server.trouble(Method::DELETE, [Trouble::Refuse(403)]);
    assert!(matches!(store.delete(first.meta.name).await, Err(StoreError::Io(_))));
    assert!(store.get(first.meta.name).await.unwrap().is_some());
    assert!(store.delete(first.meta.name).await.unwrap());
}

/// A layer range reads its octets and no others.
#[tokio::test]
async fn a_part_is_one_request() {
    let place = Place::new().await;
    let store = place.open().await.unwrap();
    let block = sample(1, 4, 5000);
    store.put(block.clone()).await.unwrap();
    let before = place.server.requests(&Method::GET);
    let range = LayerRange::new(1, 2).unwrap();
    assert_eq!(store.part(block.meta.name, range).await.unwrap(), block.part(range));
    assert_eq!(place.server.requests(&Method::GET), before + 1);
}
