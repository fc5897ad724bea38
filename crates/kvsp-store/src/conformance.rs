//! What every [`BlockStore`] must do, as one suite that a backend's tests call.
//!
//! Panics where the store does not conform; meant for tests alone.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use kvsp_buffer::{Arena, footprint};
use kvsp_proto::container::{Container, LayerRange, Limits};
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::registry::Codec;

use crate::block::{BlockMeta, BlockName, Held, StoredBlock};
use crate::store::{BlockStore, StoreError};

/// A block of `layers` layers with sections of `octets` octets, all of it told by `seed`.
#[must_use]
pub fn sample(seed: u8, layers: u8, octets: usize) -> StoredBlock {
    let section = |layer: u8, v: u8| -> Vec<u8> {
        (0..octets).map(|at| seed.wrapping_mul(31) ^ layer.wrapping_mul(7) ^ v ^ (at % 251) as u8).collect()
    };
    let sections: Vec<_> = (0..layers).map(|layer| (section(layer, 0), section(layer, 128))).collect();
    let container = Container::build(Codec::RAW, 0, 4, &sections).unwrap();
    let name = BlockName { compat: CompatId([9; 32]), scope: ScopeId([8; 16]), key: BlockKey([seed; 32]) };
    let meta = Arc::new(BlockMeta::of(name, format!("https://producer-{seed}.example/"), &container));
    StoredBlock { meta, container }
}

/// Runs the whole suite, each check on an empty store of its own.
pub async fn run<S: BlockStore, F: Future<Output = S>>(empty: impl Fn() -> F) {
    keeps_what_it_is_given(&empty().await).await;
    refuses_a_second(&empty().await).await;
    serves_parts(&empty().await).await;
    deletes(&empty().await).await;
    tells_names_apart(&empty().await).await;
    takes_awkward_sizes(&empty().await).await;
    keeps_leading_layers(&empty().await).await;
    trims(&empty().await).await;
    grows(&empty().await).await;
    lets_one_of_two_racing_puts_win(Arc::new(empty().await)).await;
}

async fn assert_holds(store: &impl BlockStore, block: &StoredBlock) {
    let got = store.get(block.meta.name).await.unwrap().unwrap();
    assert_eq!(got.meta, block.meta);
    assert_eq!(got.container.bytes(), block.container.bytes());
}

/// What a store lists of a block that it was given.
fn held(store: &impl BlockStore, block: &StoredBlock) -> Held {
    let layers = block.layers();
    Held { meta: block.meta.clone(), layers, octets: store.charge(&block.meta, layers) }
}

async fn keeps_what_it_is_given(store: &impl BlockStore) {
    let block = sample(1, 3, 100);
    assert!(store.get(block.meta.name).await.unwrap().is_none());
    assert!(store.list().await.unwrap().is_empty());
    store.put(block.clone()).await.unwrap();
    assert_holds(store, &block).await;
    assert_eq!(store.list().await.unwrap(), [held(store, &block)]);
    assert!(store.charge(&block.meta, 3) > block.meta.size());
    assert!(store.charge(&block.meta, 1) < store.charge(&block.meta, 2));
}

async fn refuses_a_second(store: &impl BlockStore) {
    let first = sample(1, 3, 100);
    let mut second = sample(2, 1, 5);
    Arc::make_mut(&mut second.meta).name = first.meta.name;
    store.put(first.clone()).await.unwrap();
    assert!(matches!(store.put(second).await, Err(StoreError::Exists)));
    assert_holds(store, &first).await;
}

async fn serves_parts(store: &impl BlockStore) {
    let block = sample(1, 4, 33);
    let name = block.meta.name;
    store.put(block.clone()).await.unwrap();
    for first in 0..4 {
        for last in first..4 {
            let range = LayerRange::new(first, last).unwrap();
            let part = store.part(name, range).await.unwrap().unwrap();
            let joined = Bytes::from([part.head.as_ref(), part.data.as_ref()].concat());
            let container = Container::parse(joined, &Limits::default()).unwrap();
            assert_eq!(container.layers(), range);
            assert_eq!(
                container.layer_digests(),
                block.meta.layer_digests[first as usize..=last as usize],
                "{range}"
            );
        }
    }
    for (first, last) in [(0, 4), (4, 4), (u32::MAX, u32::MAX)] {
        assert!(store.part(name, LayerRange::new(first, last).unwrap()).await.unwrap().is_none());
    }
}

async fn deletes(store: &impl BlockStore) {
    let block = sample(1, 2, 10);
    let name = block.meta.name;
    assert!(!store.delete(name).await.unwrap());
    store.put(block.clone()).await.unwrap();
    assert!(store.delete(name).await.unwrap());
    assert!(!store.delete(name).await.unwrap());
    assert!(store.get(name).await.unwrap().is_none());
    assert!(store.part(name, LayerRange::new(0, 0).unwrap()).await.unwrap().is_none());
    store.put(block.clone()).await.unwrap();
    assert_holds(store, &block).await;
}

async fn tells_names_apart(store: &impl BlockStore) {
    let base = sample(1, 1, 10).meta.name;
    let names = [
        base,
        BlockName { compat: CompatId([1; 32]), ..base },
        BlockName { scope: ScopeId([1; 16]), ..base },
        BlockName { key: BlockKey([200; 32]), ..base },
    ];
    let mut blocks = Vec::new();
    for (seed, name) in (1..).zip(names) {
        let mut block = sample(seed, 1, 10);
        Arc::make_mut(&mut block.meta).name = name;
        store.put(block.clone()).await.unwrap();
        blocks.push(block);
    }
    for block in &blocks {
        assert_holds(store, block).await;
    }
    let listed: Vec<_> = store.list().await.unwrap().iter().map(|held| held.meta.name).collect();
    let mut ordered = names.to_vec();
    ordered.sort_unstable();
    assert_eq!(listed, ordered);
    assert!(store.delete(base).await.unwrap());
    assert_holds(store, &blocks[1]).await;
}

/// Empty sections, one layer, many layers, and more than one buffer of anything.
async fn takes_awkward_sizes(store: &impl BlockStore) {
    for (seed, (layers, octets)) in (1..).zip([(1, 0), (1, 1), (255, 0), (255, 3), (2, 70_000), (3, 65_536)])
    {
        let block = sample(seed, layers, octets);
        store.put(block.clone()).await.unwrap();
        assert_holds(store, &block).await;
    }
}

async fn keeps_leading_layers(store: &impl BlockStore) {
    for (seed, (held_layers, octets)) in (1..).zip([(1, 10), (2, 5000), (3, 70_000)]) {
        let block = sample(seed, 4, octets).leading(held_layers).unwrap();
        let name = block.meta.name;
        assert!(!block.is_whole());
        store.put(block.clone()).await.unwrap();
        assert_holds(store, &block).await;
        let listed = store.list().await.unwrap();
        assert_eq!(listed.last(), Some(&held(store, &block)));
        assert!(!listed.last().unwrap().is_whole());
        assert_parts(store, &block).await;
        assert!(store.delete(name).await.unwrap());
        store.put(block).await.unwrap();
    }
}

/// Every range that is held is served as it was stored, and no other.
async fn assert_parts(store: &impl BlockStore, block: &StoredBlock) {
    let layers = block.meta.layer_count();
    for first in 0..=layers {
        for last in first..=layers {
            let range = LayerRange::new(first, last).unwrap();
            let got = store.part(block.meta.name, range).await.unwrap();
            assert_eq!(got, block.part(range), "{range}");
            assert_eq!(got.is_some(), last < block.layers(), "{range}");
        }
    }
}

async fn trims(store: &impl BlockStore) {
    let block = sample(1, 4, 100);
    let name = block.meta.name;
    store.put(block.clone()).await.unwrap();
    if !store.trim(name, 3).await.unwrap() {
        // Whole or nothing: then nothing has changed.
        assert_holds(store, &block).await;
        return;
    }
    for (ask, left) in [(3, 3), (3, 3), (4, 3), (u32::MAX, 3), (1, 1)] {
        assert!(store.trim(name, ask).await.unwrap());
        let left = block.leading(left).unwrap();
        assert_holds(store, &left).await;
        assert_parts(store, &left).await;
        assert_eq!(store.list().await.unwrap(), [held(store, &left)]);
    }
    assert!(store.trim(name, 0).await.unwrap());
    assert!(!store.trim(name, 0).await.unwrap());
    assert!(!store.trim(name, 1).await.unwrap());
    assert!(store.get(name).await.unwrap().is_none());
    assert!(store.list().await.unwrap().is_empty());
    store.put(block.clone()).await.unwrap();
    assert_holds(store, &block).await;
}

/// More layers of the same block take the place of fewer; nothing else does.
async fn grows(store: &impl BlockStore) {
    let block = sample(1, 4, 3000);
    let name = block.meta.name;
    store.put(block.leading(1).unwrap()).await.unwrap();
    let mut other = sample(2, 4, 3000);
    Arc::make_mut(&mut other.meta).name = name;
    for refused in [other, block.leading(1).unwrap()] {
        assert!(matches!(store.put(refused).await, Err(StoreError::Exists)));
        assert_holds(store, &block.leading(1).unwrap()).await;
    }
    for layers in [3, 4] {
        let more = block.leading(layers).unwrap();
        store.put(more.clone()).await.unwrap();
        assert_holds(store, &more).await;
        assert_parts(store, &more).await;
        assert_eq!(store.list().await.unwrap(), [held(store, &more)]);
    }
    for layers in 1..=4 {
        let refused = store.put(block.leading(layers).unwrap()).await;
        assert!(matches!(refused, Err(StoreError::Exists)));
    }
    assert_holds(store, &block).await;
}

async fn lets_one_of_two_racing_puts_win(store: Arc<impl BlockStore>) {
    let racers = (1..=8_u8).map(|seed| {
        let mut block = sample(seed, 2, 5000);
        Arc::make_mut(&mut block.meta).name = sample(1, 1, 1).meta.name;
        let store = store.clone();
        tokio::spawn(async move { (store.put(block.clone()).await.is_ok(), block) })
    });
    let mut winners = Vec::new();
    for racer in racers.collect::<Vec<_>>() {
        let (won, block) = racer.await.unwrap();
        if won {
            winners.push(block);
        }
    }
    assert_eq!(winners.len(), 1);
    assert_holds(store.as_ref(), &winners[0]).await;
}

/// Reads go into the arena that was given and into no other memory, whatever lacks.
///
/// For stores that keep blocks elsewhere than in memory.
pub async fn reads_into_an_arena(store: &impl BlockStore) {
    let blocks = [sample(1, 4, 5000), sample(2, 4, 5000).leading(2).unwrap()];
    for block in &blocks {
        store.put(block.clone()).await.unwrap();
    }
    let arena = Arena::new(64 << 10);
    store.use_buffers(arena.clone());
    let others = arena.take(60 << 10).unwrap();
    let range = LayerRange::new(0, 1).unwrap();
    for block in &blocks {
        let name = block.meta.name;
        assert!(matches!(store.get(name).await, Err(StoreError::NoMemory)));
        assert!(matches!(store.part(name, range).await, Err(StoreError::NoMemory)));
    }
    drop(others);
    for block in &blocks {
        assert_eq!(arena.used(), 0);
        let whole = store.get(block.meta.name).await.unwrap().unwrap();
        assert_eq!(whole.container.bytes(), block.container.bytes());
        assert_eq!(arena.used(), footprint(block.container.bytes().len()));
        drop(whole);
        let part = store.part(block.meta.name, range).await.unwrap().unwrap();
        assert_eq!(part, block.part(range).unwrap());
        assert_eq!(arena.used(), footprint(part.data.len()));
    }
}
