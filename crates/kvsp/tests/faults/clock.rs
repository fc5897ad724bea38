//! Expiry is judged by the service's monotonic clock alone: a wall clock that jumps changes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvsp_blocks::{BlocksConfig, BlocksDeps};
use kvsp_client::{Client, ClientConfig};
use kvsp_holder::HolderConfig;
use kvsp_index::{Deps, IndexServiceConfig};
use kvsp_net::auth::Development;
use kvsp_net::clock::ManualClock;
use kvsp_net::metrics::Metrics;
use kvsp_net::random::SystemRandom;
use kvsp_net::service::{Bound, Service, ServiceConfig};
use kvsp_testkit::Running;
use serde_json::json;

use crate::support::{Answer, COMPAT, Connection, SCOPE, block_path, container, hex, key, replicas_path};

async fn bind() -> (Bound, String) {
    let bound = Service::bind(ServiceConfig::default(), Arc::new(Development::new())).await.unwrap();
    let base = bound.base().as_str().to_owned();
    (bound, base)
}

/// One request, on a thread that may block.
async fn send(base: &str, method: &'static str, path: String, body: Vec<u8>) -> Answer {
    let base = base.to_owned();
    let media = if path.starts_with("blocks") { "application/kvsp-block" } else { "application/kvsp+json" };
    tokio::task::spawn_blocking(move || {
        let headers = [("content-type", media), ("if-none-match", "*")];
        let headers = if method == "PUT" { &headers[..] } else { &headers[..1] };
        Connection::open(&base).unwrap().send(method, &path, headers, &body).unwrap()
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_of_a_service_alone_ends_its_leases_and_records() {
    let (index_clock, holder_clock) = (Arc::new(ManualClock::default()), Arc::new(ManualClock::default()));
    let (bound, index) = bind().await;
    let deps = Deps { clock: index_clock.clone(), random: Arc::new(SystemRandom), metrics: Metrics::new() };
    let running_index =
        Running::spawn(|stop| kvsp_index::serve(IndexServiceConfig::default(), bound, deps, || {}, stop));
    let (bound, holder) = bind().await;
    let deps = BlocksDeps {
        client: Client::new(ClientConfig::default()),
        clock: holder_clock.clone(),
        random: Arc::new(SystemRandom),
        metrics: Metrics::new(),
    };
    let blocks = BlocksConfig { replica_ttl_ms: 50, index: None, ..BlocksConfig::default() };
    let running_holder =
        Running::spawn(|stop| kvsp_holder::serve(HolderConfig { blocks }, bound, deps, || {}, stop));

    let put = send(&holder, "PUT", block_path(1), container(0, 1, 64, 1)).await;
    assert_eq!(put.status, 201, "{put:?}");
    let lease = json!({
        "compat_id": hex(&COMPAT), "scope_id": hex(&SCOPE), "block_keys": [key(1)], "ttl_ms": 40
    });
    let lease = send(&holder, "POST", "leases".into(), lease.to_string().into_bytes()).await;
    assert_eq!(lease.status, 201, "{lease:?}");
    let lease = format!("leases/{}", lease.value()["lease"].as_str().unwrap());
    let record = json!({
        "compat_id": hex(&COMPAT), "scope_id": hex(&SCOPE), "block_key": key(1), "codec": 1, "size": 100,
        "holder": "https://h.example/", "digest": format!("sha-256:{}", "00".repeat(32)),
        "residency": [{"tier": "host", "layers": [0, 0]}], "ttl_ms": 40
    });
    let name = format!("{}/aHR0cHM6Ly9oLmV4YW1wbGUv", replicas_path(1));
    let put = send(&index, "PUT", name.clone(), record.to_string().into_bytes()).await;
    assert_eq!(put.status, 201, "{put:?}");

    // By every other clock the time of both has passed.
    tokio::time::sleep(Duration::from_millis(120)).await;
    let get = send(&holder, "GET", lease.clone(), Vec::new()).await;
    assert_eq!((get.status, get.value()["ttl_ms"].as_u64()), (200, Some(40)));
    assert_eq!(send(&holder, "DELETE", block_path(1), Vec::new()).await.problem(), "kvsp-block-leased");
    assert_eq!(send(&index, "GET", name.clone(), Vec::new()).await.value()["ttl_ms"], 40);

    index_clock.advance(Duration::from_millis(40));
    holder_clock.advance(Duration::from_millis(40));
    assert_eq!(send(&holder, "GET", lease, Vec::new()).await.problem(), "kvsp-lease-unknown");
    assert_eq!(send(&holder, "DELETE", block_path(1), Vec::new()).await.status, 204);
    assert_eq!(send(&index, "GET", name, Vec::new()).await.problem(), "kvsp-block-not-found");
    running_holder.stop().await.unwrap();
    running_index.stop().await.unwrap();
}

/// Where the wall clock may be read: epochs, which only order, and the times that the OpenAI API tells.
const WALL_CLOCK: [&str; 4] = [
    "kvsp-agent/src/completions.rs",
    "kvsp-agent/src/service.rs",
    "kvsp-blocks/src/service.rs",
    "kvsp-gateway/src/service.rs",
];

#[test]
fn the_wall_clock_is_read_for_epochs_and_for_people_only() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let reads = ["SystemTime::now", "CLOCK_REALTIME", "Utc::now", "OffsetDateTime::now"];
    let mut readers = Vec::new();
    for room in std::fs::read_dir(crates).unwrap() {
        for source in sources(&room.unwrap().path().join("src")) {
            let text = std::fs::read_to_string(&source).unwrap();
            if reads.iter().any(|read| text.contains(read)) {
                readers.push(source.strip_prefix(crates).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    readers.sort();
    assert_eq!(readers, WALL_CLOCK);
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    crate::support::files(dir)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect()
}
