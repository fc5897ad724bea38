//! Prompts of block keys that look like the output of a hash, and the orders in which they come.

use dynamo_kv_router::protocols::LocalBlockHash;
use kvsp_proto::id::BlockKey;

/// Blocks of a prompt, and keys of a lookup.
pub const PROMPT: usize = 512;

/// A fixed permutation-like mix: the same keys on every machine.
pub const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The key of block `n` over all prompts.
pub fn key(n: usize) -> BlockKey {
    let mut octets = [0; 32];
    for (word, at) in octets.chunks_exact_mut(8).zip(1_u64..) {
        word.copy_from_slice(&mix((n as u64).wrapping_mul(5).wrapping_add(at)).to_le_bytes());
    }
    BlockKey(octets)
}

/// The same block as the radix trees know it: 64 bits.
pub fn local(n: usize) -> LocalBlockHash {
    LocalBlockHash(mix((n as u64).wrapping_mul(5).wrapping_add(1)))
}

/// `0..n` in an order that has nothing to do with the numbers.
pub fn shuffled(n: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..n).collect();
    for at in (1..n).rev() {
        all.swap(at, (mix(at as u64 ^ 0x5eed) % (at as u64 + 1)) as usize);
    }
    all
}
