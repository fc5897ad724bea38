use hmac::{KeyInit as _, Mac as _};
use proptest::prelude::*;
use sha2::Sha256;

use super::*;

fn key(octets: usize) -> ScopeKey {
    ScopeKey::new(vec![7; octets]).unwrap()
}

#[test]
fn a_short_key_is_none_and_no_key_is_shown() {
    assert_eq!(ScopeKey::new(vec![0; 31]).unwrap_err(), ScopeKeyError { octets: 31 });
    assert_eq!(format!("{:?}", key(32)), "ScopeKey(redacted)");
    assert!(!format!("{:?}", BlockKeyChain::new(&key(32), CompatId::default(), 1)).contains("mac"));
}

#[test]
fn keys_are_those_of_hmac_over_the_whole_message() {
    for octets in [32, 63, 64, 65, 200] {
        let tokens: Vec<u32> = (0..300_u32).map(|i| i.wrapping_mul(0x0101_0101)).collect();
        let mut previous = [0_u8; 32];
        for (i, got) in block_keys(&key(octets), CompatId([9; 32]), 100, &tokens).into_iter().enumerate() {
            let mut mac = hmac::Hmac::<Sha256>::new_from_slice(&vec![7; octets]).unwrap();
            mac.update(b"KVSP-BLOCK-1\0");
            mac.update(&[9; 32]);
            mac.update(&previous);
            for token in &tokens[100 * i..100 * (i + 1)] {
                mac.update(&token.to_be_bytes());
            }
            previous = mac.finalize().into_bytes().into();
            assert_eq!(got.0, previous);
        }
    }
}

#[test]
fn a_partial_block_has_no_key_and_a_fork_goes_its_own_way() {
    let mut chain = BlockKeyChain::new(&key(32), CompatId::default(), 3);
    assert_eq!((chain.push(1), chain.push(2), chain.partial_tokens()), (None, None, 2));
    let mut fork = chain.clone();
    let (a, b) = (chain.push(3).unwrap(), fork.push(4).unwrap());
    assert_ne!(a, b);
    assert_eq!((chain.last(), chain.partial_tokens()), (Some(a), 0));
    assert_eq!(block_keys(&key(32), CompatId::default(), 3, &[1, 2, 3, 4, 5]), [a]);
    assert_eq!(block_keys(&key(32), CompatId::default(), 3, &[1, 2, 4]), [b]);
    assert_eq!(block_keys(&key(32), CompatId::default(), 0, &[1, 2, 3]), []);
}

#[test]
fn a_chain_goes_on_after_a_block_known_by_its_key_alone() {
    // Laid out in memory, and streamed.
    for block_tokens in [3, MAX_LAID_OUT_TOKENS + 1] {
        let tokens: Vec<u32> = (0..4 * block_tokens + 1).collect();
        let all = block_keys(&key(32), CompatId([9; 32]), block_tokens, &tokens);
        for blocks in 1..=4 {
            let mut chain = BlockKeyChain::after(all[blocks - 1], &key(32), CompatId([9; 32]), block_tokens);
            assert_eq!((chain.last(), chain.partial_tokens()), (Some(all[blocks - 1]), 0));
            assert_eq!(chain.extend(&tokens[blocks * block_tokens as usize..]), all[blocks..]);
        }
    }
}

/// The keys by the library, each over its whole message.
fn oracle(scope_key: &[u8], compat_id: CompatId, block_tokens: u32, tokens: &[u32]) -> Vec<BlockKey> {
    let mut keys = vec![BlockKey::default()];
    for block in tokens.chunks_exact(block_tokens as usize) {
        let mut mac = hmac::Hmac::<Sha256>::new_from_slice(scope_key).unwrap();
        mac.update(b"KVSP-BLOCK-1\0");
        mac.update(compat_id.as_bytes());
        mac.update(keys.last().unwrap().as_bytes());
        for token in block {
            mac.update(&token.to_be_bytes());
        }
        keys.push(BlockKey(mac.finalize().into_bytes().into()));
    }
    keys.split_off(1)
}

#[test]
fn a_block_too_large_to_lay_out_is_streamed() {
    for block_tokens in [MAX_LAID_OUT_TOKENS, MAX_LAID_OUT_TOKENS + 1, 5000] {
        let tokens: Vec<u32> = (0..3 * block_tokens + 7).map(|i| i.wrapping_mul(0x9E37_79B9)).collect();
        let want = oracle(&[7; 40], CompatId([3; 32]), block_tokens, &tokens);
        let mut chain = BlockKeyChain::new(&key(40), CompatId([3; 32]), block_tokens);
        let mut got = Vec::new();
        for part in tokens.chunks(777) {
            got.extend(chain.extend(part));
        }
        assert_eq!((got, chain.partial_tokens()), (want.clone(), 7));
        let pair = block_keys_pair(&key(40), CompatId([3; 32]), block_tokens, [&tokens, &tokens[..10]]);
        assert_eq!(pair, [want, vec![]]);
    }
    // Two thousand million tokens to a block cost no memory before they come.
    let mut chain = BlockKeyChain::new(&key(32), CompatId::default(), u32::MAX);
    assert_eq!((chain.extend(&[1, 2, 3]), chain.partial_tokens()), (vec![], 3));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn two_sequences_together_are_each_alone(
        scope_key in prop::collection::vec(any::<u8>(), 32..100),
        compat in any::<[u8; 32]>(),
        block_tokens in 1..40_u32,
        a in prop::collection::vec(any::<u32>(), 0..200),
        b in prop::collection::vec(any::<u32>(), 0..200),
        cut: prop::sample::Index,
    ) {
        let compat = CompatId(compat);
        let want = [&a, &b].map(|tokens| oracle(&scope_key, compat, block_tokens, tokens));
        let key = ScopeKey::new(scope_key).unwrap();
        prop_assert_eq!(&block_keys_pair(&key, compat, block_tokens, [&a, &b]), &want);
        let (before, after) = a.split_at(cut.index(a.len() + 1));
        let mut chain = BlockKeyChain::new(&key, compat, block_tokens);
        let mut got = chain.extend(before);
        got.extend(after.iter().filter_map(|token| chain.push(*token)));
        prop_assert_eq!(&got, &want[0]);
    }
}
