//! HMAC-SHA-256 (RFC 2104) with the key taken in once.

use std::fmt;

use zeroize::{Zeroize, Zeroizing};

use crate::kernel::{BLOCK_OCTETS, Block, Kernel, State};
use crate::sha256::sha256;
use crate::stream::{Stream, pad, padded_blocks};

const DIGEST_OCTETS: usize = 32;

/// A key, of which only the two states after its inner and its outer block are kept: a message costs its own
/// blocks and one more. Overwritten when dropped.
#[derive(Clone)]
pub struct HmacKey {
    kernel: Kernel,
    inner: State,
    outer: State,
}

impl HmacKey {
    /// The key of these octets, of any number.
    #[must_use]
    pub fn new(key: &[u8]) -> Self {
        Self::with(Kernel::best(), key)
    }

    pub(crate) fn with(kernel: Kernel, key: &[u8]) -> Self {
        // RFC 2104: a key longer than a block is hashed first, a shorter one padded with zero octets.
        let mut block = Zeroizing::new([0; BLOCK_OCTETS]);
        if key.len() <= block.len() {
            block[..key.len()].copy_from_slice(key);
        } else {
            block[..DIGEST_OCTETS].copy_from_slice(&*Zeroizing::new(sha256(key)));
        }
        let state_after = |pad: u8| {
            let padded: Zeroizing<Block> = Zeroizing::new(block.map(|octet| octet ^ pad));
            let mut state = kernel.initial();
            kernel.compress(&mut state, &[*padded]);
            state
        };
        Self { kernel, inner: state_after(0x36), outer: state_after(0x5c) }
    }

    /// The MAC of a message.
    #[must_use]
    pub fn mac(&self, message: &HmacMessage) -> [u8; 32] {
        let mut inner = self.inner.clone();
        self.kernel.compress(&mut inner, &message.blocks);
        let last = self.outer_block(&inner);
        let mut outer = self.outer.clone();
        self.kernel.compress(&mut outer, &[last]);
        self.kernel.digest(&outer)
    }

    /// The MACs of two messages under one key, of any two lengths: hashed together as far as both go, which
    /// takes little longer than one of them.
    #[must_use]
    pub fn mac2(&self, messages: [&HmacMessage; 2]) -> [[u8; 32]; 2] {
        let [mut a, mut b] = [self.inner.clone(), self.inner.clone()];
        self.kernel.compress_two([&mut a, &mut b], messages.map(|message| &message.blocks[..]));
        let last = [self.outer_block(&a), self.outer_block(&b)];
        let [mut a, mut b] = [self.outer.clone(), self.outer.clone()];
        self.kernel.compress_two([&mut a, &mut b], [&last[..1], &last[1..]]);
        [self.kernel.digest(&a), self.kernel.digest(&b)]
    }

    /// The MAC of a message that comes in parts.
    #[must_use]
    pub fn begin(&self) -> Hmac {
        Hmac { key: self.clone(), inner: Stream::after(self.inner.clone(), BLOCK_OCTETS as u64) }
    }

    /// The one block of the outer hash after that of the key: the inner digest and the padding.
    fn outer_block(&self, inner: &State) -> Block {
        let mut block = [0; BLOCK_OCTETS];
        block[..DIGEST_OCTETS].copy_from_slice(&self.kernel.digest(inner));
        pad(&mut block, DIGEST_OCTETS, (BLOCK_OCTETS + DIGEST_OCTETS) as u64);
        block
    }
}

impl Drop for HmacKey {
    fn drop(&mut self) {
        self.inner.zeroize();
        self.outer.zeroize();
    }
}

impl fmt::Debug for HmacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HmacKey(redacted)")
    }
}

/// A message of a fixed number of octets that stands where it is hashed, with its padding after it: to hash
/// many that differ in part, write only what differs.
#[derive(Clone)]
pub struct HmacMessage {
    blocks: Vec<Block>,
    octets: usize,
}

impl HmacMessage {
    /// A message of `octets` zero octets.
    #[must_use]
    pub fn new(octets: usize) -> Self {
        let mut blocks = vec![[0; BLOCK_OCTETS]; padded_blocks(octets)];
        pad(blocks.as_flattened_mut(), octets, (BLOCK_OCTETS + octets) as u64);
        Self { blocks, octets }
    }

    /// The octets of the message.
    #[must_use]
    pub fn octets(&self) -> &[u8] {
        &self.blocks.as_flattened()[..self.octets]
    }

    /// The octets of the message, to be written.
    #[must_use]
    pub fn octets_mut(&mut self) -> &mut [u8] {
        &mut self.blocks.as_flattened_mut()[..self.octets]
    }
}

impl fmt::Debug for HmacMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HmacMessage").field("octets", &self.octets).finish_non_exhaustive()
    }
}

/// A MAC in progress. A clone forks the message. Overwritten when dropped.
#[derive(Clone)]
pub struct Hmac {
    key: HmacKey,
    inner: Stream,
}

impl Hmac {
    /// Takes in more octets.
    pub fn update(&mut self, octets: &[u8]) {
        self.inner.update(self.key.kernel, octets);
    }

    /// The MAC of everything taken in.
    #[must_use]
    pub fn finish(mut self) -> [u8; 32] {
        let kernel = self.key.kernel;
        let inner = std::mem::replace(&mut self.inner, Stream::new(kernel)).finish(kernel);
        let mut outer = Stream::after(self.key.outer.clone(), BLOCK_OCTETS as u64);
        outer.update(kernel, &inner);
        outer.finish(kernel)
    }
}

impl Drop for Hmac {
    fn drop(&mut self) {
        self.inner.zeroize();
    }
}

impl fmt::Debug for Hmac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hmac(redacted)")
    }
}

#[cfg(test)]
mod tests;
