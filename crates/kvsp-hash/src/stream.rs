//! One SHA-256 in progress, and two side by side.

use zeroize::Zeroize;

use crate::kernel::{BLOCK_OCTETS, Block, Kernel, State};

/// Octets that arrive in any pieces, hashed in whole blocks.
#[derive(Clone)]
pub(crate) struct Stream {
    state: State,
    /// The octets after the last whole block.
    pending: Block,
    /// How many: always less than a block between calls.
    pending_octets: usize,
    /// Of the whole message, as the padding wants them.
    octets: u64,
}

impl Zeroize for Stream {
    fn zeroize(&mut self) {
        self.state.zeroize();
        self.pending.zeroize();
    }
}

impl Stream {
    pub(crate) const fn new(kernel: Kernel) -> Self {
        Self::after(kernel.initial(), 0)
    }

    /// A message of which `octets`, whole blocks, have been taken into `state`.
    pub(crate) const fn after(state: State, octets: u64) -> Self {
        Self { state, pending: [0; BLOCK_OCTETS], pending_octets: 0, octets }
    }

    pub(crate) fn update(&mut self, kernel: Kernel, octets: &[u8]) {
        let (full, rest) = self.fill(octets);
        if full {
            kernel.compress(&mut self.state, &[self.pending]);
        }
        let (blocks, tail) = rest.as_chunks();
        kernel.compress(&mut self.state, blocks);
        self.keep(tail);
    }

    /// Takes the same octets into two messages at once.
    pub(crate) fn update_both(kernel: Kernel, a: &mut Self, b: &mut Self, octets: &[u8]) {
        let ((a_full, a_rest), (b_full, b_rest)) = (a.fill(octets), b.fill(octets));
        let pending =
            [if a_full { &[a.pending][..] } else { &[] }, if b_full { &[b.pending][..] } else { &[] }];
        kernel.compress_two([&mut a.state, &mut b.state], pending);
        let ((a_blocks, a_tail), (b_blocks, b_tail)) = (a_rest.as_chunks(), b_rest.as_chunks());
        kernel.compress_two([&mut a.state, &mut b.state], [a_blocks, b_blocks]);
        a.keep(a_tail);
        b.keep(b_tail);
    }

    pub(crate) fn finish(mut self, kernel: Kernel) -> [u8; 32] {
        let (blocks, count) = self.last_blocks();
        kernel.compress(&mut self.state, &blocks[..count]);
        kernel.digest(&self.state)
    }

    /// Adds octets to a block in progress; whether that completes it, and the octets that are left.
    fn fill<'a>(&mut self, octets: &'a [u8]) -> (bool, &'a [u8]) {
        self.octets = self.octets.wrapping_add(octets.len() as u64);
        if self.pending_octets == 0 {
            return (false, octets);
        }
        let room = &mut self.pending[self.pending_octets..];
        let (now, rest) = octets.split_at(room.len().min(octets.len()));
        room[..now.len()].copy_from_slice(now);
        self.pending_octets = (self.pending_octets + now.len()) % BLOCK_OCTETS;
        (self.pending_octets == 0, rest)
    }

    /// Keeps what is not a whole block. Only where no block is in progress is there anything.
    fn keep(&mut self, tail: &[u8]) {
        if !tail.is_empty() {
            self.pending[..tail.len()].copy_from_slice(tail);
            self.pending_octets = tail.len();
        }
    }

    /// The octets pending and the padding (FIPS 180-4, section 5.1.1), in one block or two.
    fn last_blocks(&self) -> ([Block; 2], usize) {
        let mut blocks = [[0; BLOCK_OCTETS]; 2];
        let room = blocks.as_flattened_mut();
        room[..self.pending_octets].copy_from_slice(&self.pending[..self.pending_octets]);
        let count = pad(room, self.pending_octets, self.octets);
        (blocks, count)
    }
}

/// Blocks that `octets` of a message's end take with their padding.
pub(crate) const fn padded_blocks(octets: usize) -> usize {
    (octets + 1 + 8).div_ceil(BLOCK_OCTETS)
}

/// Pads a message of `message_octets` whose last `octets` are at the front of `room`; how many blocks of it
/// are used. The rest of the room is zero.
pub(crate) fn pad(room: &mut [u8], octets: usize, message_octets: u64) -> usize {
    let blocks = padded_blocks(octets);
    room[octets] = 0x80;
    let bits = message_octets.wrapping_mul(8).to_be_bytes();
    room[blocks * BLOCK_OCTETS - bits.len()..blocks * BLOCK_OCTETS].copy_from_slice(&bits);
    blocks
}
