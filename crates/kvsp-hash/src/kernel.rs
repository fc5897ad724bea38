//! The compression function, chosen when the program runs.

use zeroize::Zeroize;

use crate::constants::INITIAL;
#[cfg(target_arch = "x86_64")]
use crate::x86::{self, ShaNi};

/// Octets that are hashed at a time.
pub(crate) const BLOCK_OCTETS: usize = 64;
/// Blocks that the portable kernel takes from one stream before it turns to the other: little enough to stay
/// in the first cache between the two.
const PORTABLE_TURN_BLOCKS: usize = 128;

pub(crate) type Block = [u8; BLOCK_OCTETS];

/// The state of one stream, its words in the order of the kernel that made it.
#[derive(Clone)]
pub(crate) struct State(pub(crate) [u32; 8]);

impl Zeroize for State {
    fn zeroize(&mut self) {
        self.0.zeroize();
    }
}

/// How blocks are hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// By the library, which knows other processors too.
    Portable,
    /// By the SHA extensions.
    #[cfg(target_arch = "x86_64")]
    ShaNi(ShaNi),
}

impl Kernel {
    /// The best that this processor has.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn best() -> Self {
        ShaNi::detect().map_or(Self::Portable, Self::ShaNi)
    }

    /// The best that this processor has.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) const fn best() -> Self {
        Self::Portable
    }

    /// Every kernel that this processor can run.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        let mut all = vec![Self::Portable];
        if Self::best() != Self::Portable {
            all.push(Self::best());
        }
        all
    }

    /// The state before the first block.
    pub(crate) const fn initial(self) -> State {
        match self {
            Self::Portable => State(INITIAL),
            #[cfg(target_arch = "x86_64")]
            Self::ShaNi(_) => State(x86::reorder(INITIAL)),
        }
    }

    /// The digest that a state stands for once the padding is in it.
    pub(crate) fn digest(self, state: &State) -> [u8; 32] {
        let words = match self {
            Self::Portable => state.0,
            #[cfg(target_arch = "x86_64")]
            Self::ShaNi(_) => x86::restore(state.0),
        };
        let mut octets = [0; 32];
        for (four, word) in octets.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *four = word.to_be_bytes();
        }
        octets
    }

    /// Takes blocks into one stream.
    pub(crate) fn compress(self, state: &mut State, blocks: &[Block]) {
        match self {
            Self::Portable => sha2::block_api::compress256(&mut state.0, blocks),
            #[cfg(target_arch = "x86_64")]
            Self::ShaNi(instructions) => instructions.compress(state, blocks),
        }
    }

    /// Takes the blocks of each stream into it. The streams are hashed together as far as both go.
    pub(crate) fn compress_two(self, states: [&mut State; 2], blocks: [&[Block]; 2]) {
        let [a, b] = states;
        match self {
            Self::Portable => {
                let [mut turns_a, mut turns_b] = blocks.map(|blocks| blocks.chunks(PORTABLE_TURN_BLOCKS));
                loop {
                    let (turn_a, turn_b) = (turns_a.next(), turns_b.next());
                    if turn_a.is_none() && turn_b.is_none() {
                        return;
                    }
                    sha2::block_api::compress256(&mut a.0, turn_a.unwrap_or_default());
                    sha2::block_api::compress256(&mut b.0, turn_b.unwrap_or_default());
                }
            }
            #[cfg(target_arch = "x86_64")]
            Self::ShaNi(instructions) => {
                let done = instructions.compress_two([&mut *a, &mut *b], blocks);
                instructions.compress(a, &blocks[0][done..]);
                instructions.compress(b, &blocks[1][done..]);
            }
        }
    }
}
