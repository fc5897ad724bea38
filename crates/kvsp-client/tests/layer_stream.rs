//! A prefix, layer by layer.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

use std::time::Duration;

use kvsp_client::{Client, ClientConfig, ClientError, LayerStream, StreamedLayer, VerifyError};
use kvsp_proto::container::LayerRange;
use kvsp_proto::id::BlockKey;
use kvsp_proto::registry::Codec;
use kvsp_testkit::{Behaviour, Geometry, Hostile, Prefix};

async fn stage() -> (Prefix, Hostile, Client) {
    let prefix = Prefix::new(Geometry::default(), 9, 3);
    let holder = Hostile::start(&prefix).await;
    let config = ClientConfig { idle_timeout: Duration::from_millis(200), ..ClientConfig::default() };
    (prefix, holder, Client::new(config))
}

async fn open(prefix: &Prefix, holder: &Hostile, client: &Client) -> Result<LayerStream, ClientError> {
    let layers = LayerRange::new(1, 3).unwrap();
    client
        .layer_stream(holder.base(), prefix.compat(), prefix.scope(), &prefix.keys, layers, Some(Codec::RAW))
        .await
}

async fn drain(mut stream: LayerStream) -> (Vec<StreamedLayer>, Option<ClientError>) {
    let mut layers = Vec::new();
    while let Some(next) = stream.next().await {
        match next {
            Ok(layer) => layers.push(layer),
            Err(error) => {
                assert!(stream.next().await.is_none(), "nothing comes after an error");
                return (layers, Some(error));
            }
        }
    }
    (layers, None)
}

#[tokio::test]
async fn layers_come_layer_major_and_are_verified() {
    let (prefix, holder, client) = stage().await;
    let records = prefix.records(&holder.base().into());
    for behaviour in [Behaviour::Honest, Behaviour::Slow { piece: 100, pause: Duration::from_micros(100) }] {
        holder.behave(behaviour);
        let stream = open(&prefix, &holder, &client).await.unwrap();
        assert_eq!(stream.blocks(), 3);
        let (layers, error) = drain(stream).await;
        assert!(error.is_none(), "{error:?}");
        let order: Vec<_> = layers.iter().map(|layer| (layer.layer, layer.block)).collect();
        let want: Vec<_> = (1..=3).flat_map(|layer| (0..3).map(move |block| (layer, block))).collect();
        assert_eq!(order, want);
        for layer in layers {
            layer.verify(&records[layer.block]).unwrap();
            let one = LayerRange::new(layer.layer, layer.layer).unwrap();
            let held = prefix.containers[layer.block].slice(one).unwrap().join();
            assert_eq!(layer.to_container().unwrap(), held);
        }
    }
}

#[tokio::test]
async fn a_missing_block_ends_the_list() {
    let (prefix, holder, client) = stage().await;
    holder.forget(prefix.keys[1]);
    let stream = open(&prefix, &holder, &client).await.unwrap();
    assert_eq!(stream.blocks(), 1);
    assert_eq!(drain(stream).await.0.len(), 3);
    holder.forget(prefix.keys[0]);
    let stream = open(&prefix, &holder, &client).await.unwrap();
    assert_eq!(stream.blocks(), 0);
    let (layers, error) = drain(stream).await;
    assert!(layers.is_empty() && error.is_none());
}

#[tokio::test]
async fn a_broken_stream_keeps_what_came_before() {
    let (prefix, holder, client) = stage().await;
    holder.behave(Behaviour::Truncated);
    let (layers, error) = drain(open(&prefix, &holder, &client).await.unwrap()).await;
    assert_eq!(layers.len(), 4);
    assert!(matches!(error, Some(ClientError::Unreachable { .. })), "{error:?}");
    holder.behave(Behaviour::HangInBody);
    let (layers, error) = drain(open(&prefix, &holder, &client).await.unwrap()).await;
    assert_eq!(layers.len(), 4);
    assert!(matches!(error, Some(ClientError::Timeout { .. })), "{error:?}");
    holder.behave(Behaviour::CorruptUnderItsDigest);
    let (layers, error) = drain(open(&prefix, &holder, &client).await.unwrap()).await;
    assert!(error.is_none());
    let records = prefix.records(&holder.base().into());
    let last = layers.last().unwrap();
    assert_eq!(last.verify(&records[2]), Err(VerifyError::LayerDigest { layer: 3 }));
    assert!(layers[..8].iter().all(|layer| layer.verify(&records[layer.block]).is_ok()));
}

#[tokio::test]
async fn a_holder_without_the_extension_says_so() {
    let (prefix, holder, client) = stage().await;
    holder.behave(Behaviour::OnlyGet);
    let error = open(&prefix, &holder, &client).await.unwrap_err();
    assert!(matches!(&error, ClientError::Problem(problem) if problem.status() == 405), "{error:?}");
    holder.behave(Behaviour::Honest);
    let layers = LayerRange::new(3, 4).unwrap();
    let stream =
        client.layer_stream(holder.base(), prefix.compat(), prefix.scope(), &prefix.keys, layers, None).await;
    assert_eq!(stream.unwrap().blocks(), 0, "no block has layer 4");
    let other = [BlockKey([1; 32])];
    let layers = LayerRange::new(0, 0).unwrap();
    let stream =
        client.layer_stream(holder.base(), prefix.compat(), prefix.scope(), &other, layers, None).await;
    assert_eq!(stream.unwrap().blocks(), 0);
}
