//! Measures how long a disk store takes to find the blocks that an earlier process left.
//!
//! `cargo run --release -p kvsp-store --example open -- DIR [BLOCKS]` fills DIR once and opens it five times.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use kvsp_proto::id::BlockKey;
use kvsp_store::conformance::sample;
use kvsp_store::{BlockStore as _, DiskConfig, DiskStore, StoredBlock};
use tokio::task::JoinSet;

/// Puts at work at once.
const WRITERS: u64 = 16;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("usage: open DIR [BLOCKS]")?;
    let blocks: u64 = arguments.next().map_or(Ok(10_000), |text| text.parse())?;
    let config = DiskConfig { dir: dir.into(), quarantine_octets: 0 };
    fill(&config, blocks).await?;
    for _ in 0..5 {
        let start = Instant::now();
        let store = DiskStore::open(config.clone()).await?;
        let took = start.elapsed();
        println!("{} blocks found in {:.1} ms", store.list().await?.len(), took.as_secs_f64() * 1e3);
    }
    Ok(())
}

/// Blocks of 32 layers with little data: only heads are read.
async fn fill(config: &DiskConfig, blocks: u64) -> Result<(), Box<dyn Error>> {
    let store = Arc::new(DiskStore::open(config.clone()).await?);
    let there = store.list().await?.len() as u64;
    let block = sample(1, 32, 64);
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (store, block) = (store.clone(), block.clone());
        writers.spawn(async move {
            for number in (there..blocks).filter(|number| number % WRITERS == writer) {
                let mut meta = block.meta.as_ref().clone();
                let mut key = [number as u8; 32];
                key[1..9].copy_from_slice(&number.to_be_bytes());
                meta.name.key = BlockKey(key);
                let container = block.container.clone();
                store.put(StoredBlock { meta: Arc::new(meta), container }).await?;
            }
            Ok::<_, kvsp_store::StoreError>(())
        });
    }
    while let Some(written) = writers.join_next().await {
        written??;
    }
    Ok(())
}
