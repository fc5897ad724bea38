//! Scopes and Block Keys (draft section 4.2).

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::digest::sha256_parts;
use crate::id::{BlockKey, CompatId, ScopeId};

/// The fewest octets of a scope key.
pub const MIN_SCOPE_KEY_OCTETS: usize = 32;

/// A secret shared by the principals of a scope. It is never shown, and overwritten when dropped.
#[derive(Clone)]
pub struct ScopeKey(Zeroizing<Vec<u8>>);

/// A scope key is too short to be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a scope key has at least {MIN_SCOPE_KEY_OCTETS} octets, this one has {octets}")]
pub struct ScopeKeyError {
    /// Octets that were given.
    pub octets: usize,
}

impl ScopeKey {
    /// Takes over the raw octets of a key.
    ///
    /// # Errors
    /// Fewer than 32 octets.
    pub fn new(octets: Vec<u8>) -> Result<Self, ScopeKeyError> {
        let octets = Zeroizing::new(octets);
        if octets.len() < MIN_SCOPE_KEY_OCTETS {
            return Err(ScopeKeyError { octets: octets.len() });
        }
        Ok(Self(octets))
    }

    /// The Scope ID: the first 16 octets of SHA-256("KVSP-SCOPE-1" || 0x00 || scope key).
    #[must_use]
    pub fn scope_id(&self) -> ScopeId {
        let digest = sha256_parts([b"KVSP-SCOPE-1\0".as_slice(), self.0.as_slice()]);
        let mut id = [0; 16];
        id.copy_from_slice(&digest.as_bytes()[..16]);
        ScopeId(id)
    }
}

impl fmt::Debug for ScopeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScopeKey(redacted)")
    }
}

/// Tokens whose octets are gathered before they are hashed: one call for each token would cost more
/// than the hash.
const GATHERED_TOKENS: usize = 256;

/// Computes the Block Keys of one token sequence as its tokens come. A clone forks the sequence.
#[derive(Clone)]
pub struct BlockKeyChain {
    /// Keyed, with "KVSP-BLOCK-1" || 0x00 || `compat_id` taken in: the same for every block.
    start: Hmac<Sha256>,
    /// The block in progress.
    mac: Hmac<Sha256>,
    gathered: [u8; 4 * GATHERED_TOKENS],
    gathered_tokens: usize,
    block_tokens: u32,
    /// Tokens of the block in progress.
    filled: u32,
    last: Option<BlockKey>,
}

impl BlockKeyChain {
    /// The chain before its first token. A block of 0 tokens, which no descriptor has, never completes.
    #[must_use]
    pub fn new(scope_key: &ScopeKey, compat_id: CompatId, block_tokens: u32) -> Self {
        let mut start = keyed(&scope_key.0);
        start.update(b"KVSP-BLOCK-1\0");
        start.update(compat_id.as_bytes());
        let mut chain = Self {
            mac: start.clone(),
            start,
            gathered: [0; 4 * GATHERED_TOKENS],
            gathered_tokens: 0,
            block_tokens,
            filled: 0,
            last: None,
        };
        chain.begin_block();
        chain
    }

    /// Takes in one token; the key of the block that it completes, if it completes one.
    pub fn push(&mut self, token: u32) -> Option<BlockKey> {
        self.take(&mut [token].as_slice())
    }

    /// Takes in tokens; the keys of the blocks that they complete, in order.
    pub fn extend(&mut self, mut tokens: &[u32]) -> Vec<BlockKey> {
        let mut keys = Vec::with_capacity(tokens.len() / (self.block_tokens as usize).max(1));
        while !tokens.is_empty() {
            keys.extend(self.take(&mut tokens));
        }
        keys
    }

    /// Takes tokens off the front, as far as the block in progress and the gathering go; the key of the
    /// block that they complete.
    fn take(&mut self, tokens: &mut &[u32]) -> Option<BlockKey> {
        if self.block_tokens == 0 {
            *tokens = &[];
            return None;
        }
        let room = (self.block_tokens - self.filled) as usize;
        let count = room.min(GATHERED_TOKENS - self.gathered_tokens).min(tokens.len());
        let (now, rest) = tokens.split_at(count);
        *tokens = rest;
        let free = &mut self.gathered[4 * self.gathered_tokens..];
        for (octets, token) in free.chunks_exact_mut(4).zip(now) {
            octets.copy_from_slice(&token.to_be_bytes());
        }
        self.gathered_tokens += count;
        // At most `room`, which fits.
        self.filled += count as u32;
        let complete = self.filled == self.block_tokens;
        if complete || self.gathered_tokens == GATHERED_TOKENS {
            self.mac.update(&self.gathered[..4 * self.gathered_tokens]);
            self.gathered_tokens = 0;
        }
        complete.then(|| self.complete_block())
    }

    /// The key of the last complete block; `None` before the first is complete.
    #[must_use]
    pub const fn last(&self) -> Option<BlockKey> {
        self.last
    }

    /// Tokens after the last complete block.
    #[must_use]
    pub const fn partial_tokens(&self) -> u32 {
        self.filled
    }

    fn complete_block(&mut self) -> BlockKey {
        let mac = std::mem::replace(&mut self.mac, self.start.clone());
        let key = BlockKey(mac.finalize().into_bytes().into());
        self.last = Some(key);
        self.filled = 0;
        self.begin_block();
        key
    }

    /// K[-1] is 32 zero octets.
    fn begin_block(&mut self) {
        self.mac.update(self.last.unwrap_or_default().as_bytes());
    }
}

impl fmt::Debug for BlockKeyChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockKeyChain")
            .field("block_tokens", &self.block_tokens)
            .field("partial_tokens", &self.filled)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

/// The keys of all complete blocks of `tokens`, in order.
#[must_use]
pub fn block_keys(
    scope_key: &ScopeKey,
    compat_id: CompatId,
    block_tokens: u32,
    tokens: &[u32],
) -> Vec<BlockKey> {
    BlockKeyChain::new(scope_key, compat_id, block_tokens).extend(tokens)
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    // RFC 2104: a key longer than the hash's block of 64 octets is hashed first, a shorter one
    // padded with zero octets.
    let mut block = Zeroizing::new([0_u8; 64]);
    if key.len() <= block.len() {
        block[..key.len()].copy_from_slice(key);
    } else {
        block[..32].copy_from_slice(crate::digest::sha256(key).as_bytes());
    }
    Hmac::new(&(*block).into())
}

#[cfg(test)]
mod tests {
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
            for (i, got) in block_keys(&key(octets), CompatId([9; 32]), 100, &tokens).into_iter().enumerate()
            {
                let mut mac = Hmac::<Sha256>::new_from_slice(&vec![7; octets]).unwrap();
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
}
