//! Row-wise arithmetic. Each result depends on its own row alone, in a fixed order of summation.

/// Partial sums kept side by side, so that the compiler can use vector registers without reordering.
const LANES: usize = 16;

/// e^x to about 2 ulp for finite x; below −87 it is 0 and above 88 the greatest value. Branch-free, so that
/// loops over it vectorise.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5·2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.0, 88.0);
    let n = (clamped * LOG2_E + ROUND) - ROUND;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    // n lies in −126..=127, so the biased exponent does not wrap. NaN stays NaN through `p`.
    let scale = f32::from_bits(((n as i32 + 127) << 23) as u32);
    let y = p * scale;
    if x < -87.0 { 0.0 } else { y }
}

/// Σ values, in a fixed order.
pub(crate) fn sum(values: &[f32]) -> f32 {
    fold(values, |acc, x| acc + x)
}

fn fold(values: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let chunks = values.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = f(*lane, x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = f(*lane, x);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// RMS-normalise each row of `x` (rows × weight.len()) into a new buffer.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len()) {
        let mean = fold(row, |acc, x| acc + x * x) / weight.len() as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        out.extend(row.iter().zip(weight).map(|(&x, &w)| x * scale * w));
    }
    out
}

/// silu(gate) · up of rows that hold `width` gates, then `width` ups.
pub(crate) fn swiglu(gate_up: &[f32], width: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(gate_up.len() / 2);
    for row in gate_up.chunks_exact(2 * width) {
        let (gate, up) = row.split_at(width);
        out.extend(gate.iter().zip(up).map(|(&g, &u)| g / (1.0 + exp(-g)) * u));
    }
    out
}

/// x += y.
pub(crate) fn add(x: &mut [f32], y: &[f32]) {
    for (x, &y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// What numerators of a softmax leave out: they are e^(score − `max`), to be divided by `sum`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Denominator {
    /// −∞ where there is no key.
    pub(crate) max: f32,
    /// 0 where there is no key, else at least 1 (or not a number).
    pub(crate) sum: f32,
}

impl Denominator {
    /// ln Σ e^score; −∞ where there is no key.
    pub(crate) fn log_sum_exp(self) -> f32 {
        self.max + self.sum.ln()
    }
}

/// Turn `scores` of one query (raw products, already scaled) into softmax numerators over the first `valid`
/// keys and zeros after them. Sums run over tiles of `tile` keys in ascending order, so tiles without a valid
/// key change nothing.
pub(crate) fn softmax_numerators(scores: &mut [f32], valid: usize, tile: usize) -> Denominator {
    let valid = valid.min(scores.len());
    let (seen, future) = scores.split_at_mut(valid);
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in seen.chunks(LANES) {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    let max = lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for x in &mut *seen {
        *x = exp(*x - max);
    }
    future.fill(0.0);
    let mut total = 0.0;
    for tile in scores[..valid.next_multiple_of(tile).min(scores.len())].chunks(tile) {
        total += sum(tile);
    }
    Denominator { max, sum: total }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_and_exact_at_zero() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-1000.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
        for i in -8700..8800 {
            let x = i as f32 / 100.0;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) / want - 1.0).abs() < 4e-7, "{x}");
        }
    }

    #[test]
    fn keys_after_the_valid_ones_change_nothing() {
        let scores: Vec<f32> = (0..512).map(|i| ((i * 37) % 101) as f32 / 17.0).collect();
        for valid in [1usize, 2, 127, 128, 129, 300, 384] {
            let mut long = scores.clone();
            let mut short = scores[..valid.next_multiple_of(128)].to_vec();
            let a = softmax_numerators(&mut long, valid, 128);
            let b = softmax_numerators(&mut short, valid, 128);
            assert_eq!(a.sum.to_bits(), b.sum.to_bits());
            assert_eq!(a.max.to_bits(), b.max.to_bits());
            assert_eq!(long[..short.len()], short[..]);
            assert!(long[valid..].iter().all(|&p| p == 0.0));
        }
    }

    #[test]
    fn log_sum_exp_is_close_and_minus_infinity_without_a_key() {
        let mut scores: Vec<f32> = (0..300).map(|i| ((i * 37) % 101) as f32 - 150.0).collect();
        let want: f64 = scores[..200].iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        let got = softmax_numerators(&mut scores.clone(), 200, 128).log_sum_exp();
        assert!((f64::from(got) - want).abs() < 1e-5, "{got} for {want}");
        let none = softmax_numerators(&mut scores, 0, 128);
        assert_eq!((none.sum, none.log_sum_exp()), (0.0, f32::NEG_INFINITY));
        assert!(scores.iter().all(|&p| p == 0.0));
    }

    #[test]
    fn norm_of_a_row_ignores_its_neighbours() {
        let x: Vec<f32> = (0..96).map(|i| (i as f32).sin()).collect();
        let w = vec![0.5; 48];
        assert_eq!(rms_norm(&x, &w, 1e-5)[48..], rms_norm(&x[48..], &w, 1e-5)[..]);
    }
}
