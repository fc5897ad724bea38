//! SHA-256 by the SHA extensions of x86-64: the only unsafe code of this crate.
//!
//! Why not a library: the digest of a container and the digests of its layers are two streams over the same
//! octets. One stream leaves the unit idle more than half of its time, because each round waits for the one
//! before; two streams interleaved take hardly longer than one. No library hashes two streams together.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_alignr_epi8, _mm_loadu_si128, _mm_set_epi64x, _mm_setzero_si128,
    _mm_sha256msg1_epu32, _mm_sha256msg2_epu32, _mm_sha256rnds2_epu32, _mm_shuffle_epi8, _mm_shuffle_epi32,
    _mm_storeu_si128,
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
            && is_x86_feature_detected!("sse4.1");
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
/// The rounds are written out: in a loop their words would have to be looked up in memory. With AVX's
/// three-operand forms for what is around them it was slower.
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn compress<const L: usize>(states: [&mut State; L], blocks: [&[Block]; L], count: usize) {
    let mut lanes = [Lane::empty(); L];
    for (lane, state) in lanes.iter_mut().zip(&states) {
        lane.abef = load(&state.0, 0);
        lane.cdgh = load(&state.0, 4);
    }
    for block in 0..count {
        let before = lanes;
        for (lane, stream) in lanes.iter_mut().zip(&blocks) {
            lane.words = message(&stream[block]);
        }
        rounds::<L, 0>(&mut lanes);
        rounds::<L, 1>(&mut lanes);
        rounds::<L, 2>(&mut lanes);
        rounds::<L, 3>(&mut lanes);
        scheduled_rounds::<L, 4>(&mut lanes);
        scheduled_rounds::<L, 5>(&mut lanes);
        scheduled_rounds::<L, 6>(&mut lanes);
        scheduled_rounds::<L, 7>(&mut lanes);
        scheduled_rounds::<L, 8>(&mut lanes);
        scheduled_rounds::<L, 9>(&mut lanes);
        scheduled_rounds::<L, 10>(&mut lanes);
        scheduled_rounds::<L, 11>(&mut lanes);
        scheduled_rounds::<L, 12>(&mut lanes);
        scheduled_rounds::<L, 13>(&mut lanes);
        scheduled_rounds::<L, 14>(&mut lanes);
        scheduled_rounds::<L, 15>(&mut lanes);
        for (lane, before) in lanes.iter_mut().zip(&before) {
            lane.abef = _mm_add_epi32(lane.abef, before.abef);
            lane.cdgh = _mm_add_epi32(lane.cdgh, before.cdgh);
        }
    }
    for (state, lane) in states.into_iter().zip(lanes) {
        store(&mut state.0, 0, lane.abef);
        store(&mut state.0, 4, lane.cdgh);
    }
}

/// What one stream has in registers.
#[derive(Clone, Copy)]
struct Lane {
    abef: __m128i,
    cdgh: __m128i,
    /// The last sixteen words of the message schedule, four at the place of their number modulo four.
    words: [__m128i; 4],
}

impl Lane {
    #[inline]
    #[target_feature(enable = "sse2")]
    fn empty() -> Self {
        let zero = _mm_setzero_si128();
        Self { abef: zero, cdgh: zero, words: [zero; 4] }
    }
}

/// Rounds 4 · `QUAD` to 4 · `QUAD` + 3, below 16: their words are the message itself.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn rounds<const L: usize, const QUAD: usize>(lanes: &mut [Lane; L]) {
    let constants = load(&ROUND_WORDS, 4 * QUAD);
    let mut sums = [constants; L];
    for (lane, sum) in lanes.iter_mut().zip(&mut sums) {
        *sum = _mm_add_epi32(lane.words[QUAD % 4], constants);
        lane.cdgh = _mm_sha256rnds2_epu32(lane.cdgh, lane.abef, *sum);
    }
    for (lane, sum) in lanes.iter_mut().zip(&sums) {
        lane.abef = _mm_sha256rnds2_epu32(lane.abef, lane.cdgh, _mm_shuffle_epi32::<0x0E>(*sum));
    }
}

/// Rounds 4 · `QUAD` to 4 · `QUAD` + 3, from 16: their words are made from the sixteen before.
#[inline]
#[target_feature(enable = "sha,ssse3,sse4.1")]
fn scheduled_rounds<const L: usize, const QUAD: usize>(lanes: &mut [Lane; L]) {
    for lane in &mut *lanes {
        let words = &mut lane.words;
        let (w0, w1) = (words[QUAD % 4], words[(QUAD + 1) % 4]);
        let (w2, w3) = (words[(QUAD + 2) % 4], words[(QUAD + 3) % 4]);
        let sum = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8::<4>(w3, w2));
        words[QUAD % 4] = _mm_sha256msg2_epu32(sum, w3);
    }
    rounds::<L, QUAD>(lanes);
}

/// The sixteen words of a block, which are big-endian.
#[inline]
#[target_feature(enable = "ssse3")]
fn message(block: &Block) -> [__m128i; 4] {
    let swap = _mm_set_epi64x(0x0C0D_0E0F_0809_0A0B, 0x0405_0607_0001_0203);
    let mut words = [swap; 4];
    for (four, octets) in words.iter_mut().zip(block.as_chunks::<16>().0) {
        // SAFETY: the load is of the 16 octets of the array and needs no alignment.
        let loaded = unsafe { _mm_loadu_si128(octets.as_ptr().cast()) };
        *four = _mm_shuffle_epi8(loaded, swap);
    }
    words
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
