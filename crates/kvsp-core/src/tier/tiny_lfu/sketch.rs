//! How often keys were seen lately, in a few bits a key.

use std::hash::{DefaultHasher, Hash, Hasher as _};

/// Counters in a word, of four bits each.
const IN_WORD: usize = 16;
/// Highest count.
const MOST: u8 = 15;
/// Counters of a row for each block held. Between two ageings ten blocks can come for each that is held, and
/// with fewer counters every second one of them would look as if it had been there before.
const WIDTH_PER_BLOCK: u64 = 16;
/// Counts for each block held after which all are halved.
const SAMPLE_PER_BLOCK: u64 = 10;
/// All bits of a word but the highest of each counter.
const LOW_BITS: u64 = 0x7777_7777_7777_7777;

/// A count-min sketch of four rows. It never counts a key too low but for its ageing, and too high only where
/// another key shares a counter with it in every row. The hash has no secret: whoever finds keys that collide
/// can make a block look used, which using it does as well.
#[derive(Debug)]
pub(super) struct FrequencySketch {
    /// Rows of equal length, a power of two.
    rows: [Vec<u64>; 4],
    blocks: u64,
    counts: u64,
}

impl FrequencySketch {
    /// All zero, for `blocks` blocks and more.
    pub(super) fn new(blocks: u64) -> Self {
        let words = usize::try_from(blocks.saturating_mul(WIDTH_PER_BLOCK)).unwrap_or(0) / IN_WORD;
        let row = vec![0; words.max(1).next_power_of_two()];
        Self { rows: [row.clone(), row.clone(), row.clone(), row], blocks, counts: 0 }
    }

    /// Grows to what `blocks` blocks need; it never shrinks.
    pub(super) fn fit(&mut self, blocks: u64) {
        self.blocks = self.blocks.max(blocks);
        while self.width() < self.blocks.saturating_mul(WIDTH_PER_BLOCK) {
            for row in &mut self.rows {
                // A key's place in the longer row is its old one, or that in the copy.
                row.extend_from_within(..);
            }
        }
    }

    /// Counts a key once more.
    pub(super) fn count(&mut self, key: &impl Hash) {
        let hash = hash(key);
        let least = self.least(hash);
        if least < MOST {
            for (row, words) in (0..).zip(&mut self.rows) {
                let (word, shift) = place(hash, row, words.len());
                // Only the lowest counters can be this key's alone.
                if counter(words[word], shift) == least {
                    words[word] += 1 << shift;
                }
            }
        }
        self.counts += 1;
        if self.counts >= self.blocks.saturating_mul(SAMPLE_PER_BLOCK) {
            self.age();
        }
    }

    /// How often a key was counted, at most 15.
    pub(super) fn estimate(&self, key: &impl Hash) -> u8 {
        self.least(hash(key))
    }

    fn least(&self, hash: u64) -> u8 {
        let counters = (0..).zip(&self.rows).map(|(row, words)| {
            let (word, shift) = place(hash, row, words.len());
            counter(words[word], shift)
        });
        counters.min().unwrap_or(0)
    }

    fn age(&mut self) {
        for word in self.rows.iter_mut().flatten() {
            *word = (*word >> 1) & LOW_BITS;
        }
        self.counts = 0;
    }

    fn width(&self) -> u64 {
        u64::try_from(self.rows[0].len().saturating_mul(IN_WORD)).unwrap_or(u64::MAX)
    }
}

/// The same for the same key in every process of one build.
fn hash(key: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// The word of a key's counter in a row of `words` words, and the counter's first bit.
fn place(hash: u64, row: u64, words: usize) -> (usize, u32) {
    let step = (hash >> 32) | 1;
    let at = hash.wrapping_add(row.wrapping_mul(step));
    let low = u32::try_from(at % 16).unwrap_or(0);
    // `words` is a power of two, so only low bits count and the truncation takes none of them.
    let word = usize::try_from(at / 16 % words as u64).unwrap_or(0);
    (word, low * 4)
}

fn counter(word: u64, shift: u32) -> u8 {
    u8::try_from((word >> shift) & 0xF).unwrap_or(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_counted_up_to_fifteen() {
        let mut sketch = FrequencySketch::new(1024);
        for times in 0..20_u8 {
            assert_eq!(sketch.estimate(&7_u64), times.min(15));
            sketch.count(&7_u64);
        }
        assert_eq!(sketch.estimate(&8_u64), 0);
    }

    #[test]
    fn counts_survive_growth() {
        let mut sketch = FrequencySketch::new(1);
        sketch.count(&1_u64);
        sketch.fit(10_000);
        assert_eq!(sketch.estimate(&1_u64), 1);
        assert!(sketch.width() >= 40_000);
        let strangers = (2..2002_u64).filter(|key| sketch.estimate(key) > 0).count();
        sketch.count(&1_u64);
        assert_eq!(sketch.estimate(&1_u64), 2);
        assert!(strangers < 2000, "the copy is not what every key falls into");
    }

    #[test]
    fn ten_counts_a_block_halve_all() {
        let mut sketch = FrequencySketch::new(1024);
        for _ in 0..8 {
            sketch.count(&0_u64);
        }
        for key in 1..10_240 - 8_u64 {
            sketch.count(&key);
        }
        assert_eq!(sketch.estimate(&0_u64), 8);
        sketch.count(&u64::MAX);
        assert_eq!(sketch.estimate(&0_u64), 4);
    }

    #[test]
    fn few_keys_are_counted_too_high() {
        let mut sketch = FrequencySketch::new(4096);
        (0..4096_u64).for_each(|key| sketch.count(&key));
        let wrong = (0..4096_u64).filter(|key| sketch.estimate(key) != 1).count();
        assert!(wrong < 40, "{wrong}");
    }
}
