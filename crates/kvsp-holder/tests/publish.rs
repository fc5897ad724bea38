//! A holder and an Index Service: what the index knows is what the holder holds (draft section 6.1).

#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvsp_blocks::{BlockService, BlocksConfig, BlocksDeps, PutOutcome};
use kvsp_client::{Client, ClientConfig};
use kvsp_index::{Deps, IndexServiceConfig};
use kvsp_net::auth::Development;
use kvsp_net::clock::SystemClock;
use kvsp_net::metrics::Metrics;
use kvsp_net::random::SeededRandom;
use kvsp_net::service::{ServeError, Service, ServiceConfig};
use kvsp_proto::record::{LayerSpan, ReplicaRecord};
use kvsp_proto::registry::{Codec, Tier};
use kvsp_proto::uri::BaseUri;
use support::{COMPAT, Holder, SCOPE, authority, config, container, key, on_disk, path};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct Index {
    base: BaseUri,
    client: Client,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
}

impl Index {
    async fn start() -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into()).await
    }

    async fn start_at(listen: SocketAddr) -> Self {
        let config = ServiceConfig { listen, ..ServiceConfig::default() };
        let bound = Service::bind(config, Arc::new(Development::new())).await.unwrap();
        let (base, stop) = (bound.base(), CancellationToken::new());
        let deps = Deps {
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SeededRandom::new(1)),
            metrics: Metrics::new(),
        };
        let task =
            tokio::spawn(kvsp_index::serve(IndexServiceConfig::default(), bound, deps, || {}, stop.clone()));
        Self { base, client: Client::new(ClientConfig::default()), stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }

    async fn record(&self, n: u8) -> Option<ReplicaRecord> {
        let found = self.client.block_replicas(&self.base, COMPAT, SCOPE, key(n)).await.unwrap();
        assert!(found.len() <= 1);
        found.into_iter().next().map(|record| ReplicaRecord::clone(&record))
    }

    /// The record of a block, once it is as `wanted` says.
    async fn until(&self, n: u8, wanted: impl Fn(Option<&ReplicaRecord>) -> bool) -> Option<ReplicaRecord> {
        let found = tokio::time::timeout(Duration::from_secs(10), async {
            loop {
                let record = self.record(n).await;
                if wanted(record.as_ref()) {
                    return record;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        found.await.unwrap()
    }

    async fn present(&self, n: u8) -> ReplicaRecord {
        self.until(n, |record| record.is_some()).await.unwrap()
    }

    async fn absent(&self, n: u8) {
        self.until(n, |record| record.is_none()).await;
    }
}

fn published(index: &BaseUri, blocks: BlocksConfig) -> BlocksConfig {
    BlocksConfig { index: Some(index.clone()), replica_ttl_ms: 60_000, ..blocks }
}

#[tokio::test]
async fn a_block_is_published_truly_and_withdrawn() {
    let index = Index::start().await;
    let holder = Holder::start(published(&index.base, config())).await;
    let block = container(1, 3, 100);
    holder.put(&path(1), block.bytes()).await;
    let record = index.present(1).await;
    assert_eq!(record.holder.as_str(), holder.base.as_str());
    assert_eq!((record.codec, record.size), (Codec::RAW, block.size()));
    assert_eq!(record.digest, block.digest());
    assert_eq!(record.layer_digests.as_deref(), Some(block.layer_digests().as_slice()));
    assert_eq!(record.residency.len(), 1);
    assert_eq!((record.residency[0].tier, record.residency[0].layers), (Tier::Host, LayerSpan(0, 2)));
    assert_eq!(record.producer.as_deref(), Some("development"));
    assert!(record.seq.is_some() && record.holder_epoch.is_some());
    let fetched = index.client.get_verified(&record, None).await.unwrap();
    assert_eq!(fetched.bytes(), block.bytes());
    let age = holder.get(&path(1)).await.header("cache-control").to_owned();
    let age: u64 = age.rsplit_once("max-age=").unwrap().1.parse().unwrap();
    assert!(age * 1000 <= record.ttl_ms, "{age} {}", record.ttl_ms);

    holder.send("DELETE", &path(1), &[], b"").await;
    index.absent(1).await;
    holder.put(&path(1), block.bytes()).await;
    index.present(1).await;
    holder.stop().await;
    index.absent(1).await;
    index.stop().await;
}

#[tokio::test]
async fn an_evicted_block_is_withdrawn_and_a_demoted_one_says_so() {
    let index = Index::start().await;
    let holder =
        Holder::start(published(&index.base, BlocksConfig { host_octets: 18_000, ..config() })).await;
    for n in 1..=2 {
        holder.put(&path(n), container(n, 1, 2500).bytes()).await;
        index.present(n).await;
    }
    holder.put(&path(3), container(3, 1, 2500).bytes()).await;
    index.absent(1).await;
    index.present(3).await;
    holder.stop().await;

    let dir = tempfile::TempDir::new().unwrap();
    let mut blocks = BlocksConfig { host_octets: 9000, ..on_disk(dir.path(), 1 << 20) };
    blocks.disk.as_mut().unwrap().read_mbit_per_s = Some(8000.0);
    let holder = Holder::start(published(&index.base, blocks)).await;
    let tier = |wanted: Tier| {
        move |record: Option<&ReplicaRecord>| record.is_some_and(|record| record.residency[0].tier == wanted)
    };
    holder.put(&path(4), container(4, 1, 2500).bytes()).await;
    index.until(4, tier(Tier::Host)).await;
    holder.put(&path(5), container(5, 1, 2500).bytes()).await;
    let record = index.until(4, tier(Tier::Disk)).await.unwrap();
    assert_eq!(record.residency[0].read_mbit_per_s, Some(8000.0));
    holder.get(&path(4)).await;
    index.until(4, tier(Tier::Host)).await;
    index.until(5, tier(Tier::Disk)).await;
    holder.stop().await;
    index.stop().await;
}

#[tokio::test]
async fn residency_is_told_by_layer_range() {
    let index = Index::start().await;
    let dir = tempfile::TempDir::new().unwrap();
    let blocks = BlocksConfig { host_octets: 14_000, ..on_disk(dir.path(), 1 << 20) };
    let holder = Holder::start(published(&index.base, blocks)).await;
    let spans = |wanted: &'static [(Tier, u32, u32)]| {
        move |record: Option<&ReplicaRecord>| {
            let spans = |record: &ReplicaRecord| -> Vec<_> {
                record.residency.iter().map(|r| (r.tier, r.layers.0, r.layers.1)).collect()
            };
            record.is_some_and(|record| spans(record) == wanted)
        }
    };
    for n in 1..=2 {
        holder.put(&path(n), container(n, 4, 1000).bytes()).await;
    }
    index.until(1, spans(&[(Tier::Host, 0, 1), (Tier::Disk, 2, 3)])).await;
    index.until(2, spans(&[(Tier::Host, 0, 3)])).await;
    assert_eq!(holder.get(&format!("{}?layers=1-3", path(1))).await.status, 200);
    index.until(1, spans(&[(Tier::Host, 0, 3)])).await;
    // Both copies of what is read take room for a moment, so all of the other one goes.
    index.until(2, spans(&[(Tier::Disk, 0, 3)])).await;
    assert_eq!(holder.get(&path(2)).await.body, container(2, 4, 1000).bytes());
    holder.stop().await;
    index.stop().await;
}

#[tokio::test]
async fn a_restarted_holder_publishes_what_it_finds() {
    let index = Index::start().await;
    let dir = tempfile::TempDir::new().unwrap();
    let holder = Holder::start(published(&index.base, on_disk(dir.path(), 1 << 20))).await;
    for n in 1..=2 {
        holder.put(&path(n), container(n, 2, 100).bytes()).await;
    }
    let before = index.present(1).await;
    holder.stop().await;
    index.absent(1).await;
    let holder = Holder::start(published(&index.base, on_disk(dir.path(), 1 << 20))).await;
    let after = index.present(1).await;
    assert!(after.holder_epoch > before.holder_epoch && after.seq > before.seq);
    assert_eq!(after.residency[0].tier, Tier::Disk);
    index.present(2).await;
    holder.stop().await;
    index.stop().await;
}

#[tokio::test]
async fn records_are_refreshed_before_they_expire() {
    let index = Index::start().await;
    let blocks = BlocksConfig { replica_ttl_ms: 600, ..published(&index.base, config()) };
    let holder = Holder::start(BlocksConfig { replica_ttl_ms: 600, ..blocks }).await;
    holder.put(&path(1), container(1, 1, 10).bytes()).await;
    let first = index.present(1).await;
    // Three refreshes later: the time of two TTLs has not passed without a record.
    let third = index.until(1, |record| record.unwrap().seq.unwrap() >= first.seq.unwrap() + 3).await;
    assert!(third.is_some());
    holder.stop().await;
    index.stop().await;
}

#[tokio::test]
async fn an_index_that_comes_back_empty_is_told_everything() {
    let index = Index::start().await;
    let listen: SocketAddr = authority(&index.base).parse().unwrap();
    let blocks = published(&index.base, config());
    let holder = Holder::start(BlocksConfig { replica_ttl_ms: 1500, ..blocks }).await;
    for n in 1..=20 {
        holder.put(&path(n), container(n, 1, 10).bytes()).await;
    }
    for n in 1..=20 {
        index.present(n).await;
    }
    index.stop().await;
    let index = Index::start_at(listen).await;
    for n in 1..=20 {
        index.present(n).await;
    }
    holder.stop().await;
    index.absent(1).await;
    index.stop().await;
}

#[tokio::test]
async fn what_happens_while_the_index_is_away_is_told_when_it_comes() {
    let index = Index::start().await;
    let listen: SocketAddr = authority(&index.base).parse().unwrap();
    let base = index.base.clone();
    let holder = Holder::start(published(&base, config())).await;
    for n in 1..=3 {
        holder.put(&path(n), container(n, 1, 10).bytes()).await;
        index.present(n).await;
    }
    index.stop().await;
    assert_eq!(holder.send("DELETE", &path(1), &[], b"").await.status, 204);
    assert_eq!(holder.put(&path(4), container(4, 1, 10).bytes()).await.status, 201);
    assert_eq!(holder.get(&path(2)).await.status, 200);
    let failed = tokio::time::timeout(Duration::from_secs(10), async {
        while holder.metrics().await.contains("publish_failures_total 0\n") {}
    });
    failed.await.unwrap();
    let index = Index::start_at(listen).await;
    index.present(4).await;
    assert_eq!(index.record(1).await, None);
    holder.stop().await;
    index.stop().await;
}

#[tokio::test]
async fn an_instance_tells_which_layers_its_engine_has() {
    let index = Index::start().await;
    let deps = BlocksDeps {
        client: Client::new(ClientConfig::default()),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SeededRandom::new(2)),
        metrics: Metrics::new(),
    };
    let base: BaseUri = "http://127.0.0.1:9/kvsp/".parse().unwrap();
    let service = BlockService::open(published(&index.base, config()), base.clone(), "instance", deps);
    let service = service.await.unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(service.clone().run(stop.clone()));
    let block = container(1, 4, 50);

    let put = service.put_local(COMPAT, SCOPE, key(1), block.bytes().clone());
    assert_eq!(put.await.unwrap(), PutOutcome::Stored);
    let put = service.put_local(COMPAT, SCOPE, key(1), block.bytes().clone());
    assert_eq!(put.await.unwrap(), PutOutcome::Exists);
    assert!(service.contains(COMPAT, SCOPE, key(1)) && !service.contains(COMPAT, SCOPE, key(2)));
    assert_eq!(service.get_local(COMPAT, SCOPE, key(1)).await.unwrap().bytes(), block.bytes());
    assert_eq!(index.present(1).await.producer.as_deref(), Some(base.as_str()));

    assert!(service.set_device_layers(COMPAT, SCOPE, key(1), Some(LayerSpan(0, 1))));
    assert!(!service.set_device_layers(COMPAT, SCOPE, key(2), Some(LayerSpan(0, 1))));
    let record = index.until(1, |record| record.unwrap().residency.len() == 2).await.unwrap();
    let tiers: Vec<_> = record.residency.iter().map(|r| (r.tier, r.layers)).collect();
    assert_eq!(tiers, [(Tier::Device, LayerSpan(0, 1)), (Tier::Host, LayerSpan(2, 3))]);
    service.set_device_layers(COMPAT, SCOPE, key(1), None);
    index.until(1, |record| record.unwrap().residency.len() == 1).await;

    assert!(service.delete_local(COMPAT, SCOPE, key(1)).await.unwrap());
    index.absent(1).await;
    stop.cancel();
    running.await.unwrap();
    index.stop().await;
}
