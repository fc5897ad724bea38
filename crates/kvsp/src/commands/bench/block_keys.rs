//! Block keys of a prompt beside a bare loop over the same HMAC.

use hmac::{Hmac, KeyInit as _, Mac as _};
use kvsp_proto::block_key::{BlockKeyChain, ScopeKey};
use kvsp_proto::id::{BlockKey, CompatId};
use sha2::Sha256;

use super::BenchError;
use super::measure::{Series, sample};
use super::report::Bench;
use crate::progress;

/// A key of the shortest length allowed; what is in it does not change the speed.
const SCOPE_KEY: [u8; 32] = [0x5a; 32];
const COMPAT: CompatId = CompatId([0xc3; 32]);
const LABEL: &[u8] = b"KVSP-BLOCK-1\0";
const BLOCK_TOKENS: [u32; 3] = [16, 64, 256];

/// Measures keys a second of both ways.
pub(super) fn measure(quick: bool) -> Result<Bench, BenchError> {
    let (token_count, rounds) = if quick { (1 << 16, 5) } else { (1 << 20, 15) };
    let tokens: Vec<u32> = (0..token_count).map(|i: u32| i.wrapping_mul(0x9e37_79b9) % 128_000).collect();
    let mut figures = Vec::new();
    let bar = progress::spinner("block-keys".to_owned());
    for block_tokens in BLOCK_TOKENS {
        let mut chain = Series::new(format!("chain, blocks of {block_tokens} tokens"));
        let mut bare = Series::new(format!("bare loop, blocks of {block_tokens} tokens"));
        let mut keys = 0;
        // The first round warms up and is thrown away.
        for round in 0..=rounds {
            let (ours, took) = sample(|| Ok(chained(block_tokens, &tokens)))?;
            let (theirs, bare_took) = sample(|| Ok(bare_loop(block_tokens as usize, &tokens)))?;
            if ours != theirs {
                return Err(BenchError::Differ("block keys"));
            }
            keys = ours.len();
            if round > 0 {
                chain.push(took);
                bare.push(bare_took);
            }
        }
        figures.push(chain.rate(keys as f64, "keys/s"));
        figures.push(bare.rate(keys as f64, "keys/s"));
        figures.push(chain.speed_ratio(format!("chain / bare loop, {block_tokens} tokens"), &[&bare]));
    }
    bar.finish_and_clear();
    let notes = vec![
        format!("{token_count} tokens a round, {rounds} rounds in turns after one to warm up, one thread"),
        "bare loop: hmac and sha2, the keyed state cloned for each key, the message put together in one buffer \
         and taken in at once; both ways start from 32-bit tokens and give the same keys"
            .to_owned(),
    ];
    Ok(Bench { name: "block-keys", figures, notes })
}

fn chained(block_tokens: u32, tokens: &[u32]) -> Vec<BlockKey> {
    ScopeKey::new(SCOPE_KEY.to_vec())
        .map(|key| BlockKeyChain::new(&key, COMPAT, block_tokens).extend(tokens))
        .unwrap_or_default()
}

fn bare_loop(block_tokens: usize, tokens: &[u32]) -> Vec<BlockKey> {
    let mut padded = [0; 64];
    padded[..SCOPE_KEY.len()].copy_from_slice(&SCOPE_KEY);
    let keyed = Hmac::<Sha256>::new(&padded.into());
    let mut message = [LABEL, COMPAT.as_bytes(), &[0; 32]].concat();
    let (previous_at, tokens_at) = (message.len() - 32, message.len());
    message.resize(tokens_at + 4 * block_tokens, 0);
    let mut keys = Vec::with_capacity(tokens.len() / block_tokens);
    for block in tokens.chunks_exact(block_tokens) {
        for (octets, token) in message[tokens_at..].chunks_exact_mut(4).zip(block) {
            octets.copy_from_slice(&token.to_be_bytes());
        }
        let mut mac = keyed.clone();
        mac.update(&message);
        let key = BlockKey(mac.finalize().into_bytes().into());
        message[previous_at..tokens_at].copy_from_slice(key.as_bytes());
        keys.push(key);
    }
    keys
}
