//! Reuse over the network is exact: with blocks from anywhere an instance answers as one that computes all
//! itself, whatever the block size, the element type, the reuse point, the chunking and the company.

use std::sync::Arc;

use kvsp_proto::message::DirectiveState;
use kvsp_proto::registry::ElementType;

use crate::support::{Ask, Holder, Index, Instance, Setup, prompt, send};

const OUTPUT: u32 = 24;

fn shaped(setup: Setup, block_tokens: u32, kv_dtype: ElementType) -> Setup {
    Setup { block_tokens, kv_dtype, ..setup }
}

/// One block size and element type: `alone` computes everything, `a` computes and shares, `b` loads from `a`.
async fn reuse(block_tokens: u32, kv_dtype: ElementType) {
    let index = Index::start().await;
    let alone = Instance::start(shaped(Setup::alone(), block_tokens, kv_dtype)).await;
    let a = Instance::start(shaped(Setup::at(&index), block_tokens, kv_dtype)).await;
    let b = Instance::start(shaped(Setup::at(&index), block_tokens, kv_dtype)).await;
    let block = block_tokens as usize;
    for (nth, length) in [block + 1, 3 * block - 1, 3 * block, 97].into_iter().enumerate() {
        let tokens = prompt(nth as u64, length);
        let ask = Ask::new(&tokens, OUTPUT);
        let (greedy, sampled) = (alone.ask(&ask).await, alone.ask(&ask.clone().sampled()).await);
        assert_eq!((greedy.cached, sampled.cached), (0, 0));
        let at_a = a.ask(&ask).await;
        assert_eq!(at_a, greedy, "sharing blocks changes nothing");

        let keys = a.keys(&tokens);
        index.published(a.compat(), &keys, &a.base).await;
        let status = b.load(&keys, &[&a.base]).await;
        assert_eq!((status.state, status.loaded), (DirectiveState::Complete, keys.clone()));
        // The last token is computed all the same: its logits are wanted.
        let reused = ((length - 1) / block * block) as u64;
        for (ask, cold) in [(ask.clone(), &greedy), (ask.sampled(), &sampled)] {
            let warm = b.ask(&ask).await;
            assert_eq!(warm.cached, reused, "{length} tokens in blocks of {block}");
            assert_eq!((&warm.text, warm.tokens), (&cold.text, cold.tokens), "{length}, blocks of {block}");
        }
    }
    // Reuse points within a prompt: b has only the first n blocks, and a's tail is another's.
    for shared in [1, 2, 4] {
        let head = prompt(50 + shared as u64, shared * block);
        a.ask(&Ask::new(&[head.clone(), prompt(60, 5)].concat(), 4)).await;
        let keys = a.keys(&head);
        index.published(a.compat(), &keys, &a.base).await;
        b.load(&keys, &[&a.base]).await;
        let tokens = [head, prompt(70 + shared as u64, 2 * block + 3)].concat();
        let ask = Ask::new(&tokens, OUTPUT).sampled();
        let (cold, warm) = (alone.ask(&ask).await, b.ask(&ask).await);
        assert_eq!(warm.cached, (shared * block) as u64);
        assert_eq!((warm.text, warm.tokens), (cold.text, cold.tokens), "shared blocks: {shared}");
        // What b computed on top of the loaded blocks is to the bit what a computes from nothing.
        a.ask(&ask).await;
        let keys = b.keys(&tokens);
        index.published(a.compat(), &keys, &a.base).await;
        let known = index.published(a.compat(), &keys, &b.base).await;
        for replicas in known.blocks.unwrap() {
            let digests: Vec<_> = replicas.replicas.iter().map(|r| r.digest).collect();
            assert!(digests.len() == 2 && digests[0] == digests[1], "{replicas:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_4_tokens_are_reused_exactly() {
    for kv_dtype in [ElementType::Float16, ElementType::Bfloat16] {
        reuse(4, kv_dtype).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_16_tokens_are_reused_exactly() {
    for kv_dtype in [ElementType::Float32, ElementType::Float16, ElementType::Bfloat16] {
        reuse(16, kv_dtype).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_32_tokens_are_reused_exactly() {
    for kv_dtype in [ElementType::Float32, ElementType::Bfloat16] {
        reuse(32, kv_dtype).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_outlive_their_instance_in_a_holder() {
    let index = Index::start().await;
    let holder = Holder::start(&index, 64 << 20, async |_| None).await;
    let mut setup = Setup::at(&index);
    setup.agent.holder = Some(holder.base.clone());
    let a = Instance::start(setup.clone()).await;
    let tokens = prompt(1, 120);
    let cold = a.ask(&Ask::new(&tokens, OUTPUT)).await;
    let keys = a.keys(&tokens);
    index.published(a.compat(), &keys, &holder.base).await;
    a.running.stop().await.unwrap();
    let b = Instance::start(setup).await;
    let status = b.load(&keys, &[&a.base, &holder.base]).await;
    assert_eq!((status.state, status.loaded), (DirectiveState::Complete, keys));
    let warm = b.ask(&Ask::new(&tokens, OUTPUT)).await;
    assert_eq!((warm.text, warm.cached), (cold.text, 112));
}

/// Borders of prefill passes are invisible, in the text and in the blocks; a pass of one token is decoding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_of_any_size_compute_the_same_blocks() {
    let tokens = prompt(2, 150);
    let ask = Ask::new(&tokens, OUTPUT).sampled();
    let mut seen = Vec::new();
    for chunk_tokens in [1, 7, 64, 512] {
        let mut setup = Setup::default();
        setup.agent.chunk_tokens = chunk_tokens;
        let instance = Instance::start(setup).await;
        let reply = instance.ask(&ask).await;
        let mut digests = Vec::new();
        for key in instance.keys(&tokens) {
            digests.push(instance.block(key).await.digest());
        }
        seen.push((chunk_tokens, reply, digests));
    }
    for (chunk_tokens, reply, digests) in &seen[1..] {
        assert_eq!((reply, digests), (&seen[0].1, &seen[0].2), "chunks of {chunk_tokens} tokens");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn company_changes_no_answer() {
    let alone = Instance::start(Setup::alone()).await;
    let mut setup = Setup::default();
    // Fewer places than requests, so that some begin while others are in the middle.
    setup.agent.max_running = 3;
    setup.agent.chunk_tokens = 32;
    let shared = Arc::new(Instance::start(setup).await);
    let common = prompt(3, 64);
    let asks: Vec<Ask> = (0..8)
        .map(|n| Ask::new(&[common.clone(), prompt(80 + n, 10 + 13 * n as usize)].concat(), OUTPUT))
        .enumerate()
        .map(|(n, ask)| if n % 2 == 0 { ask } else { ask.sampled() })
        .collect();
    let mut running = tokio::task::JoinSet::new();
    for (n, ask) in asks.iter().cloned().enumerate() {
        let shared = shared.clone();
        running.spawn(async move { (n, shared.ask(&ask).await) });
    }
    while let Some(done) = running.join_next().await {
        let (n, together) = done.unwrap();
        let cold = alone.ask(&asks[n]).await;
        assert_eq!((together.text, together.tokens), (cold.text, cold.tokens), "request {n}");
    }
    assert_eq!(send(&shared.base, "GET", "status", "").await.json()["running"], 0);
}

/// A pool with room for one and a half of the requests: they take pages from each other and still answer
/// right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequences_that_lose_their_pages_are_computed_again() {
    let alone = Instance::start(Setup::alone()).await;
    // Some 20 pages of 16 tokens.
    let tight = Arc::new(Instance::start(Setup { pool_octets: 20 * PAGE_OCTETS, ..Setup::default() }).await);
    let asks: Vec<Ask> = (0..4).map(|n| Ask::new(&prompt(90 + n, 100), 90)).map(Ask::sampled).collect();
    let mut running = tokio::task::JoinSet::new();
    for (n, ask) in asks.iter().cloned().enumerate() {
        let tight = tight.clone();
        running.spawn(async move { (n, tight.ask(&ask).await) });
    }
    while let Some(done) = running.join_next().await {
        let (n, together) = done.unwrap();
        let cold = alone.ask(&asks[n]).await;
        assert_eq!((together.text, together.tokens), (cold.text, cold.tokens), "request {n}");
    }
    assert!(tight.metric("kvsp_instance_preemptions_total").await > 0, "the pool was large enough for all");
}

/// Octets of a page of 16 tokens of the tiny model: 4 layers of K and V of 2 heads of 16 numbers of 4 octets.
const PAGE_OCTETS: u64 = 4 * 2 * 2 * 16 * 16 * 4;
