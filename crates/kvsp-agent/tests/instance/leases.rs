//! A source keeps what is being loaded from it: the instance takes a lease before it reads, renews it while
//! it reads, and gives it back.

use std::sync::Arc;
use std::time::Duration;

use kvsp_client::BlockQuery;
use kvsp_proto::message::{DirectiveState, PrefetchDirective};
use kvsp_proto::uri::BaseUri;
use kvsp_testkit::{Behaviour, Hostile};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::support::{Ask, Holder, Index, Instance, Setup, client, ended, eventually, prompt, scope, send};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_taken_first_renewed_and_released_last() {
    let index = Index::start().await;
    let a = Instance::start(Setup::at(&index)).await;
    let b = Instance::start(Setup::at(&index)).await;
    let tokens = prompt(1, 40);
    a.ask(&Ask::new(&tokens, 1)).await;
    let prefix = a.prefix(&tokens).await;
    let source = Hostile::start(&prefix).await;
    source.behave(Behaviour::Slow { piece: 2048, pause: Duration::from_millis(60) });
    index.record(&prefix, source.base()).await;
    let directive =
        PrefetchDirective { lease_ms: 300, ..b.directive(&prefix.keys, &[source.base()], 30_000) };
    let status = ended(&b.order(&directive).await).await;
    assert_eq!(status.state, DirectiveState::Complete);
    let requests = eventually("the release of the lease", async || {
        let requests = source.requests();
        requests.iter().any(|r| r.starts_with("DELETE")).then_some(requests)
    })
    .await;
    let place = |start: &str| requests.iter().position(|r| r.starts_with(start)).unwrap_or(usize::MAX);
    let (taken, read) = (place("POST /kvsp/leases"), place("POST /kvsp/blocks"));
    let (renewed, released) = (place("PUT /kvsp/leases/"), place("DELETE /kvsp/leases/"));
    assert!(taken < read && read < renewed && renewed < released, "{requests:?}");
}

/// A wire that delivers so many octets of answers and then holds the rest back until it is opened.
async fn wire(upstream: &BaseUri, octets: usize, open: Arc<Semaphore>) -> BaseUri {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/kvsp/", listener.local_addr().unwrap()).parse().unwrap();
    let address = upstream.as_str().trim_start_matches("http://").split('/').next().unwrap().to_owned();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let (address, open) = (address.clone(), open.clone());
            tokio::spawn(async move {
                let far = TcpStream::connect(address).await.unwrap();
                let ((mut near_in, mut near_out), (mut far_in, mut far_out)) =
                    (near.into_split(), far.into_split());
                tokio::spawn(async move { tokio::io::copy(&mut near_in, &mut far_out).await });
                let mut buffer = vec![0; 1024];
                let mut left = octets;
                while let Ok(read @ 1..) = far_in.read(&mut buffer).await {
                    if read > left {
                        drop(open.acquire().await);
                    }
                    left = left.saturating_sub(read);
                    if near_out.write_all(&buffer[..read]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    base
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_does_not_evict_what_is_being_loaded() {
    let index = Index::start().await;
    let a = Instance::start(Setup::at(&index)).await;
    let b = Instance::start(Setup::at(&index)).await;
    let tokens = prompt(1, 64);
    a.ask(&Ask::new(&tokens, 1)).await;
    let prefix = a.prefix(&tokens).await;
    // A block of host memory takes whole pages, and some octets for the tables around it.
    let size = prefix.containers[0].size().next_multiple_of(4096) + 1024;
    let open = Arc::new(Semaphore::new(0));
    // Room for twenty blocks: the four that are being loaded, within what one principal may lease, and others.
    let holder =
        Holder::start(&index, 20 * size, async |own| Some(wire(own, 6000, open.clone()).await)).await;
    let put = async |key, container: &kvsp_proto::container::Container| {
        let octets = container.bytes().clone();
        client().put_block(&holder.base, a.compat(), scope(), key, octets).await.unwrap();
    };
    for (key, container) in prefix.keys.iter().zip(&prefix.containers) {
        put(*key, container).await;
    }
    index.published(a.compat(), &prefix.keys, &holder.base).await;
    let uri = b.order(&b.directive(&prefix.keys, &[&holder.base], 60_000)).await;
    eventually("the first octets of the load", async || {
        (b.metric("kvsp_prefetch_octets_fetched_total").await > 0).then_some(())
    })
    .await;

    // While the load hangs on the wire, the holder is filled twice over.
    let other = prompt(2, 40 * 16 + 1);
    a.ask(&Ask::new(&other, 1)).await;
    let others = a.prefix(&other).await;
    for (key, container) in others.keys.iter().zip(&others.containers) {
        put(*key, container).await;
    }
    let held = async |key| {
        let query = BlockQuery::default();
        client().head_block(&holder.base, a.compat(), scope(), key, &query).await.is_ok()
    };
    assert!(!held(others.keys[0]).await, "nothing was evicted: the test proves nothing");
    for key in &prefix.keys {
        assert!(held(*key).await, "a leased block was evicted");
    }
    let path = kvsp_proto::path::block(a.compat(), scope(), prefix.keys[0]);
    let refused = send(&holder.base, "DELETE", &path, "").await;
    assert_eq!(refused.problem(), (409, "kvsp-block-leased".into()));

    open.add_permits(1000);
    let status = ended(&uri).await;
    assert_eq!((status.state, status.loaded), (DirectiveState::Complete, prefix.keys.clone()));
    eventually("the release of the lease", async || {
        (send(&holder.base, "DELETE", &path, "").await.status == 204).then_some(())
    })
    .await;
}
