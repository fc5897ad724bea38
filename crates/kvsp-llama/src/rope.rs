//! Rotary positional encoding.

use crate::config::Pairing;

/// Cosines and sines of a pass's rows: rows × `head_dim`/2 each.
pub(crate) struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

impl Angles {
    /// The angles at these positions.
    pub(crate) fn new(inverse_frequencies: &[f32], positions: impl Iterator<Item = usize>) -> Self {
        let half = inverse_frequencies.len();
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in positions {
            for &f in inverse_frequencies {
                // The product is in f32, as the models were trained.
                let (s, c) = f64::from(position as f32 * f).sin_cos();
                cos.push(c as f32);
                sin.push(s as f32);
            }
        }
        Self { cos, sin, half }
    }

    /// Turn each head of `heads` (heads × `head_dim`) by the angles of `row`.
    pub(crate) fn turn(&self, row: usize, heads: &mut [f32], pairing: Pairing) {
        let cos = &self.cos[row * self.half..][..self.half];
        let sin = &self.sin[row * self.half..][..self.half];
        for head in heads.chunks_exact_mut(2 * self.half) {
            match pairing {
                Pairing::Interleaved => {
                    for ((pair, &c), &s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                        let [a, b] = *pair;
                        *pair = [a * c - b * s, a * s + b * c];
                    }
                }
                Pairing::HalfSplit => {
                    let (first, second) = head.split_at_mut(self.half);
                    for (((a, b), &c), &s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                        (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_pairings_turn_the_same_pairs() {
        let angles = Angles::new(&[1.0, 0.1], [0, 7].into_iter());
        let mut interleaved = [1.0, 2.0, 3.0, 4.0];
        let mut split = [1.0, 3.0, 2.0, 4.0];
        angles.turn(1, &mut interleaved, Pairing::Interleaved);
        angles.turn(1, &mut split, Pairing::HalfSplit);
        assert_eq!(interleaved, [split[0], split[2], split[1], split[3]]);
        let mut still = [5.0, 6.0, 7.0, 8.0];
        angles.turn(0, &mut still, Pairing::Interleaved);
        assert_eq!(still, [5.0, 6.0, 7.0, 8.0]);
    }
}
