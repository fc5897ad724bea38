//! Instances that drain, sleep, wake and are started (draft sections 6.3 and 6.4).

mod durable;
mod hand_over;
mod start;
mod wake;

use std::time::Duration;

use kvsp_proto::digest::replica_digest;
use kvsp_proto::id::{Digest, NamedDigest};
use kvsp_proto::uri::{BaseUri, HolderUri};
use serde_json::{Value, json};

use crate::support::{Server, compat, key, scope, status, uri64};

const H1: &str = "https://h1.example/kvsp/";

/// A status that says so.
fn in_state(instance: &str, epoch: u64, state: &str) -> Value {
    let mut status = status(instance, epoch);
    status["state"] = json!(state);
    status
}

fn path(instance: &str) -> String {
    format!("instances/{}", uri64(instance))
}

fn state_path(instance: &str) -> String {
    format!("{}/state", path(instance))
}

/// Publishes a block in the host memory of a holder.
async fn publish(server: &Server, index: &BaseUri, n: usize) {
    let digests = [Digest([n as u8; 32]), Digest([1; 32])];
    let record = json!({
        "block_key": key(n), "compat_id": compat(), "scope_id": scope(), "holder": H1,
        "codec": 1, "size": 1_000_000, "digest": NamedDigest(replica_digest(&digests)),
        "layer_digests": digests, "residency": [{"tier": "host", "layers": [0, 1]}], "ttl_ms": 60_000
    });
    let holder = H1.parse::<HolderUri>().unwrap().to_uri64();
    let uri = index.join(&format!("replicas/{}/{}/{}/{holder}", compat(), scope(), key(n)));
    assert_eq!(server.send(http::Method::PUT, &uri, Some(record.to_string().into())).await.status, 201);
}

/// Waits until something holds.
async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let reached = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reached).await.unwrap_or_else(|_| panic!("never: {what}"));
}
