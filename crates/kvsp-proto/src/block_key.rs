//! Scopes and Block Keys (draft section 4.2).

use std::fmt;

use kvsp_hash::{Hmac, HmacKey, HmacMessage};
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

/// What stands before K[i-1] in every message.
const LABEL: &[u8; 13] = b"KVSP-BLOCK-1\0";
/// Octets of the Compatibility ID, and of a key.
const ID_OCTETS: usize = 32;
/// Where K[i-1] stands in a message.
const PREVIOUS_AT: usize = LABEL.len() + ID_OCTETS;
/// Where the tokens stand in a message.
const TOKENS_AT: usize = PREVIOUS_AT + ID_OCTETS;
/// Tokens up to which a block's whole message is laid out in memory. A descriptor may name two thousand
/// million, which must not be allocated on its word.
const MAX_LAID_OUT_TOKENS: u32 = 4096;
/// Tokens of larger blocks whose octets are gathered before they are hashed: one call for each token would cost
/// more than the hash.
const GATHERED_TOKENS: usize = 256;

/// Computes the Block Keys of one token sequence as its tokens come. A clone forks the sequence.
#[derive(Clone)]
pub struct BlockKeyChain {
    key: HmacKey,
    message: Message,
    block_tokens: u32,
    /// Tokens of the block in progress.
    filled: u32,
    last: Option<BlockKey>,
}

/// The message of the block in progress.
#[derive(Clone)]
enum Message {
    /// In its place, label and `compat_id` included: only K[i-1] and the tokens are written for each block.
    LaidOut(HmacMessage),
    /// On its way.
    Streamed(Box<Streamed>),
}

#[derive(Clone)]
struct Streamed {
    /// With label and `compat_id` taken in: the same for every block.
    start: Hmac,
    mac: Hmac,
    gathered: [u8; 4 * GATHERED_TOKENS],
    gathered_tokens: usize,
}

impl BlockKeyChain {
    /// The chain before its first token. A block of 0 tokens, which no descriptor has, never completes.
    #[must_use]
    pub fn new(scope_key: &ScopeKey, compat_id: CompatId, block_tokens: u32) -> Self {
        let key = HmacKey::new(&scope_key.0);
        let message = if block_tokens <= MAX_LAID_OUT_TOKENS {
            Message::LaidOut(lay_out(compat_id, block_tokens))
        } else {
            Message::Streamed(Box::new(Streamed::new(&key, compat_id)))
        };
        Self { key, message, block_tokens, filled: 0, last: None }
    }

    /// The chain right after the complete block of this key, whose tokens need not be known: the keys that
    /// follow cover them through it.
    #[must_use]
    pub fn after(last: BlockKey, scope_key: &ScopeKey, compat_id: CompatId, block_tokens: u32) -> Self {
        let mut chain = Self::new(scope_key, compat_id, block_tokens);
        match &mut chain.message {
            Message::LaidOut(message) => write_previous(message, &last.0),
            Message::Streamed(streamed) => streamed.restart(&last.0),
        }
        chain.last = Some(last);
        chain
    }

    /// Takes in one token; the key of the block that it completes, if it completes one.
    pub fn push(&mut self, token: u32) -> Option<BlockKey> {
        self.take(&mut [token].as_slice())
    }

    /// Takes in tokens; the keys of the blocks that they complete, in order.
    pub fn extend(&mut self, mut tokens: &[u32]) -> Vec<BlockKey> {
        let mut keys = Vec::with_capacity(self.blocks_of(tokens.len()));
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
        let count = match &mut self.message {
            Message::LaidOut(message) => {
                let at = TOKENS_AT + 4 * self.filled as usize;
                write_tokens(&mut message.octets_mut()[at..], &tokens[..room.min(tokens.len())])
            }
            Message::Streamed(streamed) => streamed.gather(&tokens[..room.min(tokens.len())]),
        };
        *tokens = &tokens[count..];
        // At most `room`, which fits.
        self.filled += count as u32;
        (self.filled == self.block_tokens).then(|| self.complete_block())
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
        let key = match &mut self.message {
            Message::LaidOut(message) => {
                let key = self.key.mac(message);
                write_previous(message, &key);
                key
            }
            Message::Streamed(streamed) => streamed.complete(),
        };
        self.filled = 0;
        *self.last.insert(BlockKey(key))
    }

    /// Blocks that `tokens` complete at most.
    fn blocks_of(&self, tokens: usize) -> usize {
        tokens / (self.block_tokens as usize).max(1) + 1
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

impl Streamed {
    fn new(key: &HmacKey, compat_id: CompatId) -> Self {
        let mut start = key.begin();
        start.update(LABEL);
        start.update(compat_id.as_bytes());
        let mut mac = start.clone();
        mac.update(BlockKey::default().as_bytes());
        Self { start, mac, gathered: [0; 4 * GATHERED_TOKENS], gathered_tokens: 0 }
    }

    /// Takes tokens in, as far as the gathering goes; how many.
    fn gather(&mut self, tokens: &[u32]) -> usize {
        let count = write_tokens(&mut self.gathered[4 * self.gathered_tokens..], tokens);
        self.gathered_tokens += count;
        if self.gathered_tokens == GATHERED_TOKENS {
            self.hash_gathered();
        }
        count
    }

    fn hash_gathered(&mut self) {
        self.mac.update(&self.gathered[..4 * self.gathered_tokens]);
        self.gathered_tokens = 0;
    }

    fn complete(&mut self) -> [u8; ID_OCTETS] {
        self.hash_gathered();
        let key = std::mem::replace(&mut self.mac, self.start.clone()).finish();
        self.mac.update(&key);
        key
    }

    /// Begins a block after the one of this key.
    fn restart(&mut self, previous: &[u8; ID_OCTETS]) {
        self.mac = self.start.clone();
        self.mac.update(previous);
        self.gathered_tokens = 0;
    }
}

/// The message of a first block, without its tokens; K[-1] is 32 zero octets.
fn lay_out(compat_id: CompatId, block_tokens: u32) -> HmacMessage {
    let mut message = HmacMessage::new(TOKENS_AT + 4 * block_tokens as usize);
    message.octets_mut()[..LABEL.len()].copy_from_slice(LABEL);
    message.octets_mut()[LABEL.len()..PREVIOUS_AT].copy_from_slice(compat_id.as_bytes());
    message
}

fn write_previous(message: &mut HmacMessage, key: &[u8; ID_OCTETS]) {
    message.octets_mut()[PREVIOUS_AT..TOKENS_AT].copy_from_slice(key);
}

/// Writes tokens in network byte order, as many as there is room for; how many.
fn write_tokens(room: &mut [u8], tokens: &[u32]) -> usize {
    let (fours, _) = room.as_chunks_mut::<4>();
    for (octets, token) in fours.iter_mut().zip(tokens) {
        *octets = token.to_be_bytes();
    }
    fours.len().min(tokens.len())
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

/// The keys of all complete blocks of two token sequences of one scope, each in order: as [`block_keys`] of
/// each. The two are hashed together as far as both go, which takes much less time than one after the other.
#[must_use]
pub fn block_keys_pair(
    scope_key: &ScopeKey,
    compat_id: CompatId,
    block_tokens: u32,
    sequences: [&[u32]; 2],
) -> [Vec<BlockKey>; 2] {
    if block_tokens == 0 || block_tokens > MAX_LAID_OUT_TOKENS {
        return sequences.map(|tokens| block_keys(scope_key, compat_id, block_tokens, tokens));
    }
    let key = HmacKey::new(&scope_key.0);
    let laid_out = lay_out(compat_id, block_tokens);
    let (mut one, mut other) = (laid_out.clone(), laid_out);
    let [blocks, other_blocks] = sequences.map(|tokens| tokens.chunks_exact(block_tokens as usize));
    let common = blocks.len().min(other_blocks.len());
    let mut keys = [Vec::with_capacity(blocks.len()), Vec::with_capacity(other_blocks.len())];
    for (block, other_block) in blocks.clone().zip(other_blocks.clone()) {
        write_tokens(&mut one.octets_mut()[TOKENS_AT..], block);
        write_tokens(&mut other.octets_mut()[TOKENS_AT..], other_block);
        let both = key.mac2([&one, &other]);
        write_previous(&mut one, &both[0]);
        write_previous(&mut other, &both[1]);
        for (keys, key) in keys.iter_mut().zip(both) {
            keys.push(BlockKey(key));
        }
    }
    // One of the two is at its end.
    let rests = [(one, blocks), (other, other_blocks)];
    for ((mut message, blocks), keys) in rests.into_iter().zip(&mut keys) {
        for block in blocks.skip(common) {
            write_tokens(&mut message.octets_mut()[TOKENS_AT..], block);
            let next = key.mac(&message);
            write_previous(&mut message, &next);
            keys.push(BlockKey(next));
        }
    }
    keys
}

#[cfg(test)]
mod tests;
