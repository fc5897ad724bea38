//! SHA-256 by the SHA extensions of x86-64: the only unsafe code of this crate.
//!
//! Why not a library: the digest of a container and the digests of its layers are two streams over the same
//! octets. One stream leaves the unit idle more than half of its time, because each round waits for the one
//! before; two streams interleaved take hardly longer than one. No library hashes two streams together.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_loadu_si128, _mm_set_epi64x, _mm_sha256msg1_epu32,
    _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32, _mm_shuffle_epi8, _mm_shuffle_epi32, _mm_storeu_si128,
};

use crate::constants::ROUND_WORDS;
use crate::kernel::{Block, State};

/// Proof that this processor has the instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShaNi(());

impl ShaNi {
    /// `None` where the processor lacks them.
    pub(crate) fn detect() -> Option<Self> {
        let there = is_x86_feature_detected!("sha")
            && is_x86_feature_detected!("ssse3")
            && is_x86_feature_detected!("sse4.1")
            && is_x86_feature_detected!("avx");
        there.then_some(Self(()))
    }

    /// Takes blocks into one stream.
    pub(crate) fn compress(self, state: &mut State, blocks: &[Block]) {
        // SAFETY: `self` exists only where `detect` found every feature of `compress`.
        unsafe { compress([state], [blocks], blocks.len()) }
    }

    /// Takes the blocks of each stream into it, as many from both as the shorter has; how many.
    pub(crate) fn compress_two(self, states: [&mut State; 2], blocks: [&[Block]; 2]) -> usize {
        let count = blocks[0].len().min(blocks[1].len());
        // SAFETY: as in `compress`.
        unsafe { compress(states, blocks, count) }
        count
    }
}

/// The state in the order of the instructions, from and to the order of the standard.
pub(crate) const fn reorder([a, b, c, d, e, f, g, h]: [u32; 8]) -> [u32; 8] {
    [f, e, b, a, h, g, d, c]
}

/// The inverse of [`reorder`].
pub(crate) const fn restore([f, e, b, a, h, g, d, c]: [u32; 8]) -> [u32; 8] {
    [a, b, c, d, e, f, g, h]
}

/// Takes `count` blocks into each of `L` streams, whose instructions alternate. Each has at least as many.
///
/// The features include AVX for the three-operand forms of the instructions around the rounds.
#[target_feature(enable = "sha,ssse3,sse4.1,avx")]
fn compress<const L: usize>(states: [&mut State; L], blocks: [&[Block]; L], count: usize) {
    let mut abef: [__m128i; L] = std::array::from_fn(|l| load(&states[l].0, 0));
    let mut cdgh: [__m128i; L] = std::array::from_fn(|l| load(&states[l].0, 4));
    let blocks = blocks.map(|stream| &stream[..count]);
    for block in 0..count {
        let (abef_before, cdgh_before) = (abef, cdgh);
        let mut words: [[__m128i; 4]; L] = blocks.map(|stream| message(&stream[block]));
        for quad in 0..16 {
            if quad >= 4 {
                schedule(&mut words, quad % 4);
            }
            four_rounds(&mut abef, &mut cdgh, std::array::from_fn(|l| words[l][quad % 4]), quad);
        }
        for l in 0..L {
            abef[l] = _mm_add_epi32(abef[l], abef_before[l]);
            cdgh[l] = _mm_add_epi32(cdgh[l], cdgh_before[l]);
        }
    }
    for (l, state) in states.into_iter().enumerate() {
        store(&mut state.0, 0, abef[l]);
        store(&mut state.0, 4, cdgh[l]);
    }
}

/// Makes the next four words of each stream from the sixteen before, in the place of the oldest.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1,avx")]
fn schedule<const L: usize>(words: &mut [[__m128i; 4]; L], oldest: usize) {
    for words in words {
        let [w0, w1, w2, w3] = [0, 1, 2, 3].map(|i| words[(oldest + i) % 4]);
        let sum = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8::<4>(w3, w2));
        words[oldest] = _mm_sha256msg2_epu32(sum, w3);
    }
}

#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1,avx")]
fn four_rounds<const L: usize>(
    abef: &mut [__m128i; L],
    cdgh: &mut [__m128i; L],
    words: [__m128i; L],
    quad: usize,
) {
    let constants = load(&ROUND_WORDS, 4 * quad);
    let sums: [__m128i; L] = std::array::from_fn(|l| _mm_add_epi32(words[l], constants));
    for l in 0..L {
        cdgh[l] = _mm_sha256rnds2_epu32(cdgh[l], abef[l], sums[l]);
    }
    for l in 0..L {
        abef[l] = _mm_sha256rnds2_epu32(abef[l], cdgh[l], _mm_shuffle_epi32::<0x0E>(sums[l]));
    }
}

/// The sixteen words of a block, which are big-endian.
#[inline]
#[target_feature(enable = "ssse3")]
fn message(block: &Block) -> [__m128i; 4] {
    let swap = _mm_set_epi64x(0x0C0D_0E0F_0809_0A0B, 0x0405_0607_0001_0203);
    std::array::from_fn(|quad| {
        let octets: &[u8; 64] = block;
        // SAFETY: 16 octets from 16 · quad, quad ≤ 3, lie within the 64; the load needs no alignment.
        let words = unsafe { _mm_loadu_si128(octets.as_ptr().add(16 * quad).cast()) };
        _mm_shuffle_epi8(words, swap)
    })
}

/// Four words from `at`.
#[inline]
#[target_feature(enable = "sse2")]
fn load<const N: usize>(words: &[u32; N], at: usize) -> __m128i {
    assert!(at + 4 <= N);
    // SAFETY: four words from `at` lie within the array, as asserted; the load needs no alignment.
    unsafe { _mm_loadu_si128(words.as_ptr().add(at).cast()) }
}

/// Four words to `at`.
#[inline]
#[target_feature(enable = "sse2")]
fn store<const N: usize>(words: &mut [u32; N], at: usize, four: __m128i) {
    assert!(at + 4 <= N);
    // SAFETY: four words from `at` lie within the array, as asserted; the store needs no alignment.
    unsafe { _mm_storeu_si128(words.as_mut_ptr().add(at).cast(), four) }
}
