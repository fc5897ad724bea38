//! Connections are used again, and replaced where their peer has closed them.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kvsp_client::connect::{BoxFuture, Connect, ConnectError, Stream, TcpConnector};
use kvsp_client::policy::LoopbackOnly;
use kvsp_client::{Client, ClientConfig};
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::uri::{BaseUri, HolderUri};
use kvsp_testkit::{Geometry, Hostile, Prefix};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Connects by TCP and counts.
struct Counting {
    tcp: TcpConnector,
    made: Arc<AtomicUsize>,
}

impl Connect for Counting {
    fn connect(&self, host: String, port: u16) -> BoxFuture<Result<Box<dyn Stream>, ConnectError>> {
        self.made.fetch_add(1, Ordering::Relaxed);
        self.tcp.connect(host, port)
    }
}

fn counting(config: ClientConfig) -> (Client, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let tcp = TcpConnector::new(Arc::new(LoopbackOnly), Duration::from_secs(2));
    let connector = Arc::new(Counting { tcp, made: Arc::clone(&made) });
    (Client::new(ClientConfig { connector: Some(connector), ..config }), made)
}

#[tokio::test]
async fn one_connection_serves_calls_one_after_the_other() {
    let prefix = Prefix::new(Geometry::default(), 7, 3);
    let holder = Hostile::start(&prefix).await;
    let record = prefix.records(&HolderUri::from(holder.base())).remove(0);
    let (client, made) = counting(ClientConfig::default());
    for _ in 0..3 {
        assert_eq!(client.get_verified(&record, None).await.unwrap(), prefix.containers[0]);
        let mut missing = record.clone();
        missing.block_key = BlockKey([9; 32]);
        assert!(client.get_verified(&missing, None).await.unwrap_err().is_not_found());
    }
    assert_eq!(made.load(Ordering::Relaxed), 1);
    let (thrifty, made) = counting(ClientConfig { max_idle_connections: 0, ..ClientConfig::default() });
    for _ in 0..2 {
        thrifty.get_verified(&record, None).await.unwrap();
    }
    assert_eq!(made.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_connection_that_its_peer_closed_is_not_used() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base: BaseUri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
    let (closed, mut closing) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await.unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
            drop(stream);
            closed.send(()).await.unwrap();
        }
    });
    let (client, made) = counting(ClientConfig::default());
    for _ in 0..3 {
        let (compat, scope, key) = (CompatId::default(), ScopeId::default(), BlockKey::default());
        client.delete_block(&base, compat, scope, key).await.unwrap();
        closing.recv().await.unwrap();
    }
    assert_eq!(made.load(Ordering::Relaxed), 3);
}
