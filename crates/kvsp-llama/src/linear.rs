//! Matrix products whose rows do not depend on each other.
//!
//! The library picks another kernel, with another order of summation, for a single row; for more, each element
//! of a product is one chain of fused multiply-adds along the inner dimension, cut only at multiples that
//! depend on that dimension. So single rows are padded to two, and outputs of at most 64 columns with a long
//! inner dimension, which have cuts of their own, to more than 64.

use candle_core::{Device, Tensor};

/// Most rows of one product.
const MAX_ROWS: usize = 256;
/// Outputs up to this width take other cuts of the inner dimension…
const NARROW: usize = 64;
/// …where it is longer than this.
const ONE_CUT: usize = 512;

/// A weight, kept as inner × outer so that products stream it in storage order.
pub(crate) struct Linear {
    weight: Tensor,
    inner: usize,
    outer: usize,
}

impl Linear {
    /// A weight from rows of `inner` elements, one for each output, given part after part (parts are stacked).
    pub(crate) fn from_rows(parts: &[&[f32]], inner: usize) -> Result<Self, candle_core::Error> {
        let outer = parts.iter().map(|part| part.len() / inner).sum::<usize>();
        let width = if outer <= NARROW && inner > ONE_CUT { NARROW + 1 } else { outer };
        let mut transposed = vec![0.0; inner * width];
        let mut first = 0;
        for part in parts {
            transpose_into(part, inner, &mut transposed[first..], width);
            first += part.len() / inner;
        }
        let weight = Tensor::from_vec(transposed, (inner, width), &Device::Cpu)?;
        Ok(Self { weight, inner, outer })
    }

    /// `x` (rows × inner, row-major) times the weight: rows × outer.
    pub(crate) fn forward(&self, x: &[f32]) -> Result<Vec<f32>, candle_core::Error> {
        let rows = x.len() / self.inner;
        let mut out = Vec::with_capacity(rows * self.outer);
        for chunk in x.chunks(MAX_ROWS * self.inner) {
            let rows = chunk.len() / self.inner;
            let mut input = Vec::with_capacity(rows.max(2) * self.inner);
            input.extend_from_slice(chunk);
            input.resize(rows.max(2) * self.inner, 0.0);
            let input = Tensor::from_vec(input, (rows.max(2), self.inner), &Device::Cpu)?;
            let product = input.matmul(&self.weight)?;
            let product = product.narrow(0, 0, rows)?.narrow(1, 0, self.outer)?;
            out.extend_from_slice(&product.contiguous()?.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(out)
    }

    /// Output column `column` of every inner element: the row the weight came from.
    pub(crate) fn row(&self, column: usize) -> Result<Vec<f32>, candle_core::Error> {
        self.weight.narrow(1, column, 1)?.flatten_all()?.to_vec1()
    }
}

/// Write `rows` (n × inner) as columns of `out`, whose rows are `width` apart.
fn transpose_into(rows: &[f32], inner: usize, out: &mut [f32], width: usize) {
    // Blocks keep both sides in the cache.
    const BLOCK: usize = 32;
    let count = rows.len() / inner;
    for r0 in (0..count).step_by(BLOCK) {
        for c0 in (0..inner).step_by(BLOCK) {
            for c in c0..(c0 + BLOCK).min(inner) {
                for r in r0..(r0 + BLOCK).min(count) {
                    out[c * width + r] = rows[r * inner + c];
                }
            }
        }
    }
}
