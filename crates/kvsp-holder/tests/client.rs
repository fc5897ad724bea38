//! The typed client against a holder.

#![allow(clippy::unwrap_used)]

mod support;

use kvsp_client::{BlockQuery, Client, ClientConfig};
use kvsp_proto::container::LayerRange;
use kvsp_proto::message::LeaseRequest;
use kvsp_proto::problem::ProblemType;
use support::{COMPAT, Holder, SCOPE, config, container, key};
use uuid::Uuid;

fn range(first: u32, last: u32) -> LayerRange {
    LayerRange::new(first, last).unwrap()
}

#[tokio::test]
async fn blocks_go_in_and_out() {
    let holder = Holder::start(config()).await;
    let client = Client::new(ClientConfig::default());
    let block = container(1, 4, 70);
    client.put_block(&holder.base, COMPAT, SCOPE, key(1), block.bytes().clone()).await.unwrap();
    let again = client.put_block(&holder.base, COMPAT, SCOPE, key(1), block.bytes().clone()).await;
    assert_eq!(again.unwrap_err().problem_type(), Some(ProblemType::BlockExists));
    let head = client.head_block(&holder.base, COMPAT, SCOPE, key(1), &BlockQuery::default()).await.unwrap();
    assert_eq!((head.size, head.repr_digest), (Some(block.size()), Some(block.repr_digest())));
    let query = BlockQuery { layers: Some(range(1, 2)), ..BlockQuery::default() };
    let part = client.get_block(&holder.base, COMPAT, SCOPE, key(1), &query).await.unwrap();
    assert_eq!(part.container.layer_digests(), block.layer_digests()[1..=2]);
    client.delete_block(&holder.base, COMPAT, SCOPE, key(1)).await.unwrap();
    let gone = client.get_block(&holder.base, COMPAT, SCOPE, key(1), &query).await;
    assert!(gone.unwrap_err().is_not_found());
    holder.stop().await;
}

#[tokio::test]
async fn a_prefix_is_leased_and_streamed_layer_by_layer() {
    let holder = Holder::start(config()).await;
    let client = Client::new(ClientConfig::default());
    let blocks: Vec<_> = (0..5).map(|n| container(n, 6, 700)).collect();
    let mut keys = Vec::new();
    for (n, block) in (0..).zip(&blocks) {
        client.put_block(&holder.base, COMPAT, SCOPE, key(n), block.bytes().clone()).await.unwrap();
        keys.push(key(n));
    }
    keys.push(key(99));
    let request =
        LeaseRequest { compat_id: COMPAT, scope_id: SCOPE, block_keys: keys.clone(), ttl_ms: 10_000 };
    let retry_key = Some(Uuid::from_u128(1));
    let lease = client.create_lease(&holder.base, &request, retry_key).await.unwrap();
    assert_eq!((&lease.block_keys[..], &lease.missing[..]), (&keys[..5], &keys[5..]));
    let retried = client.create_lease(&holder.base, &request, retry_key).await.unwrap();
    assert_eq!(retried.lease, lease.lease);
    assert!(client.renew_lease(&holder.base, lease.lease, 20_000).await.unwrap().ttl_ms > 10_000);

    let mut stream =
        client.layer_stream(&holder.base, COMPAT, SCOPE, &keys, range(2, 5), None).await.unwrap();
    assert_eq!(stream.blocks(), 5);
    for layer in 2..=5 {
        for (at, block) in blocks.iter().enumerate() {
            let got = stream.next().await.unwrap().unwrap();
            assert_eq!((got.block, got.layer), (at, layer));
            assert_eq!(Some(got.sections), block.layer(layer));
        }
    }
    assert!(stream.next().await.is_none());

    client.release_lease(&holder.base, lease.lease).await.unwrap();
    let gone = client.get_lease(&holder.base, lease.lease).await.unwrap_err();
    assert_eq!(gone.problem_type(), Some(ProblemType::LeaseUnknown));
    holder.stop().await;
}
