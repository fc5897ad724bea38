//! Matrix products whose rows do not depend on each other.
//!
//! The library picks another kernel, with another order of summation, for a single row; so single rows are
//! padded to two. For more, each element of a product is one chain of fused multiply-adds along the inner
//! dimension, cut at multiples that depend on that dimension alone as long as neither side of the product
//! exceeds 64. Panels and row chunks keep within that, so an element is the same in any company, at any number
//! of threads. Panels are also what makes decoding fast: a product streams one in storage order, where a
//! whole matrix would be read in single cache lines a row apart.

use candle_core::{Device, Tensor};
use rayon::prelude::*;

/// Most rows of one product.
const MAX_ROWS: usize = 64;
/// Output columns of one product.
const PANEL: usize = 32;
/// Multiplications below which waking other threads costs more than it saves.
const PARALLEL_WORK: usize = 1 << 18;

/// A weight, kept as panels × inner × [`PANEL`] outputs, one group of panels for each thread.
pub(crate) struct Linear {
    groups: Vec<Tensor>,
    panels_per_group: usize,
    inner: usize,
    outer: usize,
}

impl Linear {
    /// A weight from rows of `inner` elements, one for each output, given part after part (parts are stacked).
    pub(crate) fn from_rows(parts: &[&[f32]], inner: usize) -> Result<Self, candle_core::Error> {
        let outer = parts.iter().map(|part| part.len() / inner).sum::<usize>();
        let panels = outer.div_ceil(PANEL);
        let panels_per_group = panels.div_ceil(rayon::current_num_threads());
        let mut rows = parts.iter().flat_map(|part| part.chunks_exact(inner));
        let mut groups = Vec::new();
        for first in (0..panels).step_by(panels_per_group) {
            let count = panels_per_group.min(panels - first);
            let mut group = vec![0.0; count * inner * PANEL];
            for panel in group.chunks_exact_mut(inner * PANEL) {
                for (column, row) in rows.by_ref().take(PANEL).enumerate() {
                    for (target, &x) in panel[column..].iter_mut().step_by(PANEL).zip(row) {
                        *target = x;
                    }
                }
            }
            groups.push(Tensor::from_vec(group, (count, inner, PANEL), &Device::Cpu)?);
        }
        Ok(Self { groups, panels_per_group, inner, outer })
    }

    /// `x` (rows × inner, row-major) times the weight: rows × outer.
    pub(crate) fn forward(&self, x: &[f32]) -> Result<Vec<f32>, candle_core::Error> {
        let mut out = vec![0.0; x.len() / self.inner * self.outer];
        let chunks = x.chunks(MAX_ROWS * self.inner).zip(out.chunks_mut(MAX_ROWS * self.outer));
        for (x, out) in chunks {
            let rows = x.len() / self.inner;
            let mut input = Vec::with_capacity(rows.max(2) * self.inner);
            input.extend_from_slice(x);
            input.resize(rows.max(2) * self.inner, 0.0);
            let input = Tensor::from_vec(input, (1, rows.max(2), self.inner), &Device::Cpu)?;
            let multiply = |group: &Tensor| -> Result<Vec<f32>, candle_core::Error> {
                let input = input.broadcast_as((group.dim(0)?, rows.max(2), self.inner))?;
                input.matmul(group)?.flatten_all()?.to_vec1()
            };
            let products: Result<Vec<_>, _> = if rows * self.inner * self.outer < PARALLEL_WORK {
                self.groups.iter().map(multiply).collect()
            } else {
                self.groups.par_iter().map(multiply).collect()
            };
            for (group, product) in products?.iter().enumerate() {
                self.place(group, product, rows.max(2), out);
            }
        }
        Ok(out)
    }

    /// Copy a group's product (panels × rows × [`PANEL`]) to its columns of `out` (rows × outer).
    fn place(&self, group: usize, product: &[f32], rows: usize, out: &mut [f32]) {
        for (panel, product) in product.chunks_exact(rows * PANEL).enumerate() {
            let column = (group * self.panels_per_group + panel) * PANEL;
            let width = PANEL.min(self.outer - column);
            for (row, x) in out.chunks_exact_mut(self.outer).zip(product.chunks_exact(PANEL)) {
                row[column..column + width].copy_from_slice(&x[..width]);
            }
        }
    }

    /// The weight's row of one output, as it was given.
    pub(crate) fn row(&self, output: usize) -> Result<Vec<f32>, candle_core::Error> {
        let panel = output / PANEL;
        let group = self.groups.get(panel / self.panels_per_group).ok_or_else(|| {
            candle_core::Error::Msg(format!("there is no output {output} of {}", self.outer))
        })?;
        let panel = group.get(panel % self.panels_per_group)?;
        panel.narrow(1, output % PANEL, 1)?.flatten_all()?.to_vec1()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * step) % 1009) as f32 / 504.5 - 1.0).collect()
    }

    #[test]
    fn a_row_is_the_same_in_any_company() {
        for (inner, outer) in [(16, 5), (64, 32), (576, 70), (600, 64), (1100, 33)] {
            let weight = numbers(inner * outer, 7);
            let (first, second) = weight.split_at(inner * (outer / 3));
            let linear = Linear::from_rows(&[first, second], inner).unwrap();
            let x = numbers(inner * 200, 31);
            let all = linear.forward(&x).unwrap();
            for rows in [1, 2, 3, 17, 63, 64, 65, 129] {
                let part = linear.forward(&x[..rows * inner]).unwrap();
                assert!(part.iter().zip(&all).all(|(a, b)| a.to_bits() == b.to_bits()), "{rows} rows");
                let end = linear.forward(&x[(200 - rows) * inner..]).unwrap();
                assert_eq!(end, all[(200 - rows) * outer..], "the last {rows} rows");
            }
            let exact: f64 = (0..inner).map(|i| f64::from(x[i]) * f64::from(weight[i])).sum();
            assert!((f64::from(all[0]) - exact).abs() < 1e-3);
            assert_eq!(linear.row(outer - 1).unwrap(), weight[(outer - 1) * inner..]);
        }
    }
}
