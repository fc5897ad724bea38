//! Going on after a restart (profile sections 5 and 6).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvsp_client::{Client, ClientConfig, EventsQuery, IndexEvent};
use kvsp_index::IndexServiceConfig;
use kvsp_net::clock::ManualClock;
use kvsp_net::service::ServeError;
use kvsp_proto::descriptor::Descriptor;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Server, Setup, descriptor, key, lookup_of, path_of, record};

const H1: &str = "https://h1.example/kvsp/";
const BOOT: Uuid = Uuid::from_u128(1);

/// A process on a machine that has been up for `up_s` seconds when it starts.
async fn start(path: &Path, boot: Uuid, up_s: u64) -> (Server, Arc<ManualClock>) {
    let index = IndexServiceConfig { snapshot_path: Some(path.to_owned()), ..IndexServiceConfig::default() };
    let clock = Arc::new(ManualClock::booted(boot, Duration::from_secs(up_s)));
    let setup = Setup { index, clock: clock.clone(), seed: up_s, ..Setup::default() };
    (Server::of(setup).await, clock)
}

async fn publish(server: &Server, record: &Value) {
    assert!(server.put(&path_of(record), record).await.status.is_success());
}

async fn ttl_of(server: &Server, n: u32) -> Option<u64> {
    server.get(&path_of(&record(n, H1))).await.json()["ttl_ms"].as_u64()
}

#[tokio::test]
async fn a_restart_answers_at_once_and_no_record_outlives_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state/index");
    let (server, clock) = start(&path, BOOT, 1_000).await;
    for n in 0..1_000 {
        publish(&server, &record(n, H1)).await;
    }
    let mut short = record(5_000, H1);
    short["ttl_ms"] = json!(25_000);
    publish(&server, &short).await;
    clock.advance(Duration::from_secs(10));
    server.stop().await.unwrap();

    // 20 s later: 10 s of the short one's 25 were left.
    let (server, clock) = start(&path, BOOT, 1_030).await;
    let keys: Vec<u32> = (0..1_000).collect();
    let found = server.post("lookup", &lookup_of(&keys)).await.json();
    assert_eq!((found["matched"].clone(), found["complete"].clone()), (json!(1_000), json!(1_000)));
    let mut first = found["blocks"][0]["replicas"][0].clone();
    assert_eq!(first["ttl_ms"], 30_000);
    first["ttl_ms"] = json!(60_000);
    assert_eq!(first, record(0, H1));
    assert_eq!(server.get(&path_of(&short)).await.status, 404);
    assert_eq!(server.metric("kvsp_index_replicas").await, 1_000);
    clock.advance(Duration::from_millis(29_999));
    assert_eq!(ttl_of(&server, 3).await, Some(1));
    clock.advance(Duration::from_millis(1));
    assert_eq!(ttl_of(&server, 3).await, None);
    // Another restart does not bring it back.
    server.stop().await.unwrap();
    let (server, _) = start(&path, BOOT, 1_060).await;
    assert_eq!(ttl_of(&server, 3).await, None);
}

#[tokio::test]
async fn what_has_been_seen_of_seq_and_epoch_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let (server, _) = start(&path, BOOT, 10).await;
    let with = |n: u32, member: &str, value: u64| {
        let mut record = record(n, H1);
        record[member] = json!(value);
        record
    };
    publish(&server, &with(1, "seq", 5)).await;
    assert_eq!(server.delete(&format!("{}?seq=6", path_of(&record(1, H1)))).await.status, 204);
    publish(&server, &with(2, "seq", 9)).await;
    // An epoch that rises makes `seq` of its holder count anew: this is another's.
    let of_epoch = |n, epoch: u64| {
        let mut record = record(n, "https://h2.example/kvsp/");
        record["holder_epoch"] = json!(epoch);
        record
    };
    publish(&server, &of_epoch(3, 7)).await;
    server.stop().await.unwrap();
    let (server, _) = start(&path, BOOT, 20).await;
    for stale in [with(1, "seq", 5), with(2, "seq", 8), of_epoch(4, 6)] {
        let answer = server.put(&path_of(&stale), &stale).await;
        assert_eq!(answer.problem(), (409, "kvsp-stale-record".into()), "{stale}");
    }
    assert_eq!(server.put(&path_of(&record(1, H1)), &with(1, "seq", 7)).await.status, 201);
}

#[tokio::test]
async fn another_boot_drops_records_and_keeps_what_no_time_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let (server, _) = start(&path, BOOT, 10).await;
    let mut sent = record(1, H1);
    sent["holder_epoch"] = json!(7);
    publish(&server, &sent).await;
    let known = descriptor();
    let compat = Descriptor::from_value(known.clone()).unwrap().compat_id().to_string();
    assert_eq!(server.put(&format!("descriptors/{compat}"), &known).await.status, 201);
    server.stop().await.unwrap();
    let (server, _) = start(&path, Uuid::from_u128(2), 11).await;
    assert_eq!(ttl_of(&server, 1).await, None);
    assert_eq!(server.get(&format!("descriptors/{compat}")).await.json(), known);
    sent["holder_epoch"] = json!(6);
    assert_eq!(server.put(&path_of(&sent), &sent).await.problem(), (409, "kvsp-stale-record".into()));
    sent["holder_epoch"] = json!(7);
    assert_eq!(server.put(&path_of(&sent), &sent).await.status, 201);
}

#[tokio::test]
async fn a_damaged_snapshot_is_set_aside_and_the_next_one_is_good() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let (server, _) = start(&path, BOOT, 10).await;
    for n in 0..50 {
        publish(&server, &record(n, H1)).await;
    }
    server.stop().await.unwrap();
    let good = std::fs::read(&path).unwrap();
    let mut other_version = good.clone();
    other_version[11] = 99;
    let mut rotten = good.clone();
    rotten[good.len() / 2] ^= 1;
    let cut = good[..good.len() - 40].to_vec();
    for (up_s, bad) in [(20, rotten), (30, cut), (40, other_version), (50, b"nothing".to_vec())] {
        std::fs::write(&path, &bad).unwrap();
        let (server, _) = start(&path, BOOT, up_s).await;
        assert_eq!(server.post("lookup", &lookup_of(&[0, 1])).await.json()["matched"], 0);
        assert_eq!(server.metric("kvsp_index_snapshot_failures_total").await, 1);
        assert_eq!(std::fs::read(dir.path().join("index.set-aside")).unwrap(), bad);
        publish(&server, &record(7, H1)).await;
        server.stop().await.unwrap();
        let (server, _) = start(&path, BOOT, up_s + 1).await;
        assert_eq!(ttl_of(&server, 7).await, Some(59_000));
        server.stop().await.unwrap();
    }
}

#[tokio::test]
async fn snapshots_are_taken_while_it_serves() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let index = IndexServiceConfig {
        snapshot_path: Some(path.clone()),
        snapshot_every_ms: 5,
        ..IndexServiceConfig::default()
    };
    let clock = Arc::new(ManualClock::booted(BOOT, Duration::from_secs(10)));
    let server = Server::of(Setup { index, clock, ..Setup::default() }).await;
    let mut events = Client::new(ClientConfig::default())
        .index_events(&server.base, EventsQuery::default())
        .await
        .unwrap();
    publish(&server, &record(1, H1)).await;
    assert!(matches!(events.next().await.unwrap(), IndexEvent::Publish(_)));
    let taken = server.metric("kvsp_index_snapshots_total").await;
    let later = async {
        // The second from now began after the record came.
        while server.metric("kvsp_index_snapshots_total").await < taken + 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), later).await.expect("snapshots go on");
    // What a process finds that comes after a kill.
    let copy = dir.path().join("copy");
    std::fs::copy(&path, &copy).unwrap();
    let (second, _) = start(&copy, BOOT, 20).await;
    assert_eq!(ttl_of(&second, 1).await, Some(50_000));
    // It does not know how far the killed one had told.
    let query = EventsQuery { after: events.cursor().map(ToOwned::to_owned), ..EventsQuery::default() };
    let mut after = Client::new(ClientConfig::default()).index_events(&second.base, query).await.unwrap();
    assert_eq!(after.next().await.unwrap(), IndexEvent::Resync);
}

#[tokio::test]
async fn a_follower_misses_nothing_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let (server, _) = start(&path, BOOT, 10).await;
    let client = Client::new(ClientConfig::default());
    let mut events = client.index_events(&server.base, EventsQuery::default()).await.unwrap();
    for n in 0..3 {
        publish(&server, &record(n, H1)).await;
    }
    let mut cursors = Vec::new();
    for _ in 0..3 {
        events.next().await.unwrap();
        cursors.push(events.cursor().unwrap().to_owned());
    }
    drop(events);
    server.stop().await.unwrap();
    let (server, _) = start(&path, BOOT, 20).await;
    let follow = async |after: &str| {
        let query = EventsQuery { after: Some(after.to_owned()), ..EventsQuery::default() };
        client.index_events(&server.base, query).await.unwrap()
    };
    let (mut behind, mut up_to_date) = (follow(&cursors[1]).await, follow(&cursors[2]).await);
    publish(&server, &record(9, H1)).await;
    let IndexEvent::Publish(name) = up_to_date.next().await.unwrap() else { panic!("no publish") };
    assert_eq!(name.block_key.to_string(), key(9));
    assert_eq!(behind.next().await.unwrap(), IndexEvent::Resync);
    let IndexEvent::Publish(name) = behind.next().await.unwrap() else { panic!("no publish") };
    assert_eq!(name.block_key.to_string(), key(9));

    // A record ends while nobody serves: that is a change that was missed.
    let cursor = up_to_date.cursor().unwrap().to_owned();
    drop((behind, up_to_date));
    server.stop().await.unwrap();
    let (server, _) = start(&path, BOOT, 1_000).await;
    let query = EventsQuery { after: Some(cursor), ..EventsQuery::default() };
    let mut events = client.index_events(&server.base, query).await.unwrap();
    assert_eq!(events.next().await.unwrap(), IndexEvent::Resync);
}

#[tokio::test]
async fn two_processes_do_not_share_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let (first, _) = start(&path, BOOT, 10).await;
    publish(&first, &record(1, H1)).await;
    let (second, _) = start(&path, BOOT, 11).await;
    assert!(matches!(second.stop().await, Err(ServeError::Setup(_))));
    first.stop().await.unwrap();
}
