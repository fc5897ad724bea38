//! Block keys of a prompt beside a bare loop over the same HMAC.

use std::hint::black_box;

use hmac::{Hmac, KeyInit as _, Mac as _};
use kvsp_proto::block_key::{ScopeKey, block_keys, block_keys_pair};
use kvsp_proto::id::{BlockKey, CompatId};
use sha2::Sha256;

use super::contest::{Contest, Entrant};
use super::error::BenchError;
use super::goal::Goal;
use super::report::Bench;
use crate::progress;

/// A key of the shortest length allowed; what is in it does not change the speed.
const SCOPE_KEY: [u8; 32] = [0x5a; 32];
const COMPAT: CompatId = CompatId([0xc3; 32]);
const LABEL: &[u8] = b"KVSP-BLOCK-1\0";
const BLOCK_TOKENS: [u32; 3] = [16, 64, 256];

/// Measures keys a second of every way.
pub(super) fn measure(quick: bool) -> Result<Bench, BenchError> {
    let (token_count, rounds) = if quick { (1 << 16, 5) } else { (1 << 20, 15) };
    let tokens: Vec<u32> = (0..token_count).map(|i: u32| i.wrapping_mul(0x9e37_79b9) % 128_000).collect();
    // Whole blocks of every size, so that all ways make as many keys.
    let (one, other) = tokens.split_at(tokens.len() / 2);
    let scope_key = ScopeKey::new(SCOPE_KEY.to_vec()).map_err(|_| BenchError::Differ("scope keys"))?;
    let mut figures = Vec::new();
    let bar = progress::spinner("block-keys".to_owned());
    for block_tokens in BLOCK_TOKENS {
        let library = bare_loop(block_tokens as usize, &tokens, hmac_sha2);
        let pair = || block_keys_pair(&scope_key, COMPAT, block_tokens, [one, other]);
        let pair_library = [one, other].map(|tokens| bare_loop(block_tokens as usize, tokens, aws_lc));
        if block_keys(&scope_key, COMPAT, block_tokens, &tokens) != library || pair() != pair_library {
            return Err(BenchError::Differ("block keys"));
        }
        let named = |way: &str| format!("{way}, blocks of {block_tokens} tokens");
        let mut contest = Contest::default();
        let chain = contest.enter(named("one prompt"), None, || {
            black_box(block_keys(&scope_key, COMPAT, block_tokens, black_box(&tokens)));
            Ok(())
        });
        let together = contest.enter(named("two prompts together"), None, || {
            black_box(pair());
            Ok(())
        });
        let bare = contest.enter(named("bare loop over hmac and sha2"), None, || {
            black_box(bare_loop(block_tokens as usize, black_box(&tokens), hmac_sha2));
            Ok(())
        });
        let aws = contest.enter(named("bare loop over aws-lc-rs"), None, || {
            black_box(bare_loop(block_tokens as usize, black_box(&tokens), aws_lc));
            Ok(())
        });
        let results = contest.run(rounds, &bar, "block-keys")?;
        figures.extend(results.iter().map(|series| series.rate(library.len() as f64, "keys/s")));
        let mut compare = |own: Entrant, other: Entrant, name: &str, goal: Option<f64>| {
            let name = format!("{name}, {block_tokens} tokens");
            let ratio = results[own].cpu_speed_ratio(name, &[&results[other]]);
            figures.push(match goal {
                Some(least) => ratio.should_be(Goal::AtLeast(least)),
                None => ratio,
            });
        };
        let at_16 = (block_tokens == 16).then_some(1.2);
        compare(chain, bare, "one prompt / hmac and sha2", at_16);
        compare(chain, aws, "one prompt / aws-lc-rs", None);
        compare(together, bare, "two prompts together / hmac and sha2", None);
        compare(together, aws, "two prompts together / aws-lc-rs", Some(2.0));
    }
    bar.finish_and_clear();
    let notes = vec![
        format!("{token_count} tokens a round, {rounds} rounds in turns after one to warm up, one thread"),
        "bare loop: the keyed state taken again for each key, the message put together in one buffer and taken \
         in at once; all ways start from 32-bit tokens and give the same keys"
            .to_owned(),
        "ratios are of CPU time; two prompts together have half of the tokens each".to_owned(),
    ];
    Ok(Bench { name: "block-keys", figures, notes })
}

/// Keys by a library; `keyed` makes its HMAC of a key.
fn bare_loop<M: Fn(&[u8]) -> [u8; 32]>(
    block_tokens: usize,
    tokens: &[u32],
    keyed: impl FnOnce(&[u8]) -> M,
) -> Vec<BlockKey> {
    let mac = keyed(&SCOPE_KEY);
    let mut message = [LABEL, COMPAT.as_bytes(), &[0; 32]].concat();
    let (previous_at, tokens_at) = (message.len() - 32, message.len());
    message.resize(tokens_at + 4 * block_tokens, 0);
    let mut keys = Vec::with_capacity(tokens.len() / block_tokens);
    for block in tokens.chunks_exact(block_tokens) {
        for (octets, token) in message[tokens_at..].chunks_exact_mut(4).zip(block) {
            octets.copy_from_slice(&token.to_be_bytes());
        }
        let key = BlockKey(mac(&message));
        message[previous_at..tokens_at].copy_from_slice(key.as_bytes());
        keys.push(key);
    }
    keys
}

fn hmac_sha2(key: &[u8]) -> impl Fn(&[u8]) -> [u8; 32] + use<> {
    let mut padded = [0; 64];
    padded[..key.len()].copy_from_slice(key);
    let keyed = Hmac::<Sha256>::new(&padded.into());
    move |message| {
        let mut mac = keyed.clone();
        mac.update(message);
        mac.finalize().into_bytes().into()
    }
}

fn aws_lc(key: &[u8]) -> impl Fn(&[u8]) -> [u8; 32] + use<> {
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, key);
    move |message| {
        let tag = aws_lc_rs::hmac::sign(&key, message);
        let mut octets = [0; 32];
        octets.copy_from_slice(tag.as_ref());
        octets
    }
}
