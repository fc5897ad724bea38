//! Causal attention whose result for a row depends on that row and the positions up to its own, bit for bit.
//!
//! Scores are products along the head alone, so neither the number of keys nor of rows touches them. The
//! maximum is exact in any order. Numerators and values are multiplied in tiles of [`TILE`] keys at absolute
//! positions and the tiles added in ascending order from +0: a tile in a row's future adds an exact zero.
//!
//! Over a part of the keys the tiles count from its first key, so there the promise holds for that part.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Tensor};
use kvsp_engine::{EngineError, PageId};

use crate::config::Config;
use crate::math::{self, Denominator};
use crate::pool::{Gathered, Pool};

/// Keys of one tile.
pub(crate) const TILE: usize = 128;

/// Most rows (tokens × query heads of a group) of one product.
const MAX_ROWS: usize = 256;

/// Where a span's queries sit and what they attend to.
pub(crate) struct Job<'a> {
    pub(crate) config: &'a Config,
    pub(crate) pool: &'a Pool,
    /// The block of the first page.
    pub(crate) first_page: usize,
    pub(crate) pages: &'a [PageId],
    pub(crate) layer: usize,
    /// Positions of the keys; none after the last query's.
    pub(crate) keys: Range<usize>,
    /// Position of the first query.
    pub(crate) position: usize,
    /// Rotated queries: tokens × heads × `head_dim`.
    pub(crate) queries: &'a [f32],
}

/// Attention of consecutive queries.
#[derive(Debug, Default)]
pub(crate) struct Mixed {
    /// tokens × heads × `head_dim`; zeros where a query sees no key.
    pub(crate) out: Vec<f32>,
    /// tokens × heads; −∞ where a query sees no key.
    pub(crate) lse: Vec<f32>,
}

/// Keys and values of a range of the sequence as tensors.
struct Cache {
    /// kv head × dimension × token.
    keys: Tensor,
    /// kv head × tile × token × dimension.
    values: Tensor,
}

impl Job<'_> {
    /// Attention of every query over the keys up to its own, appended to `mixed`.
    pub(crate) fn run(&self, mixed: &mut Mixed) -> Result<(), EngineError> {
        let q_dim = self.config.q_dim();
        let tokens = self.queries.len() / q_dim;
        if self.keys.is_empty() {
            mixed.out.resize(mixed.out.len() + self.queries.len(), 0.0);
            mixed.lse.resize(mixed.lse.len() + tokens * self.config.heads, f32::NEG_INFINITY);
            return Ok(());
        }
        let padded = self.keys.len().next_multiple_of(TILE);
        let gathered =
            self.pool.gather(self.first_page, self.pages, self.layer, self.keys.clone(), padded)?;
        let cache = self.cache(gathered, padded).map_err(|e| backend(&e))?;
        let step = (MAX_ROWS / self.config.group()).max(1);
        for first in (0..tokens).step_by(step) {
            let last = (first + step).min(tokens);
            let queries = &self.queries[first * q_dim..last * q_dim];
            self.block(&cache, queries, self.position + first, mixed).map_err(|e| backend(&e))?;
        }
        Ok(())
    }

    fn cache(&self, gathered: Gathered, padded: usize) -> Result<Cache, candle_core::Error> {
        let Config { kv_heads, head_dim, .. } = *self.config;
        Ok(Cache {
            keys: Tensor::from_vec(gathered.keys, (kv_heads, head_dim, padded), &Device::Cpu)?,
            values: Tensor::from_vec(
                gathered.values,
                (kv_heads, padded / TILE, TILE, head_dim),
                &Device::Cpu,
            )?,
        })
    }

    /// A block of consecutive queries, the first of them at `position`.
    fn block(
        &self,
        cache: &Cache,
        queries: &[f32],
        position: usize,
        mixed: &mut Mixed,
    ) -> Result<(), candle_core::Error> {
        let Config { heads, kv_heads, head_dim, .. } = *self.config;
        let group = self.config.group();
        let tokens = queries.len() / self.config.q_dim();
        let (out, lse) = (mixed.out.len(), mixed.lse.len());
        mixed.out.resize(out + queries.len(), 0.0);
        mixed.lse.resize(lse + tokens * heads, f32::NEG_INFINITY);
        let (out, lse) = (&mut mixed.out[out..], &mut mixed.lse[lse..]);
        let columns = seen(&self.keys, position + tokens - 1).next_multiple_of(TILE);
        if columns == 0 {
            return Ok(());
        }
        let rows = (tokens * group).max(2);
        let tiles = columns / TILE;
        let scores = self.by_kv_head(queries, rows)?.matmul(&cache.keys.narrow(2, 0, columns)?)?;
        let softmax = Softmax {
            rows,
            columns,
            group,
            position,
            keys: self.keys.clone(),
            denominators: Mutex::default(),
        };
        scores.inplace_op1(&softmax)?;
        let denominators = softmax.denominators.into_inner().unwrap_or_else(PoisonError::into_inner);

        for head in 0..kv_heads {
            let weights = scores.get(head)?.reshape((rows, tiles, TILE))?.transpose(0, 1)?;
            let products = weights.matmul(&cache.values.get(head)?.narrow(0, 0, tiles)?)?;
            let products = products.flatten_all()?.to_vec1::<f32>()?;
            for row in 0..tokens * group {
                let (token, member) = (row / group, row % group);
                let line = token * heads + head * group + member;
                let denominator = denominators[head * rows + row];
                // A query before the first key sees none: it keeps its zeros.
                if seen(&self.keys, position + token) == 0 {
                    continue;
                }
                let target = &mut out[line * head_dim..][..head_dim];
                for tile in 0..tiles {
                    math::add(target, &products[(tile * rows + row) * head_dim..][..head_dim]);
                }
                for x in target {
                    *x /= denominator.sum;
                }
                lse[line] = denominator.log_sum_exp();
            }
        }
        Ok(())
    }

    /// Scaled queries as kv head × (token, query head of the group) × dimension, padded with zero rows.
    fn by_kv_head(&self, queries: &[f32], rows: usize) -> Result<Tensor, candle_core::Error> {
        let Config { kv_heads, head_dim, .. } = *self.config;
        let width = self.config.group() * head_dim;
        let scale = 1.0 / (head_dim as f32).sqrt();
        let mut grouped = Vec::with_capacity(kv_heads * rows * head_dim);
        for head in 0..kv_heads {
            for token in queries.chunks_exact(self.config.q_dim()) {
                grouped.extend(token[head * width..(head + 1) * width].iter().map(|q| q * scale));
            }
            grouped.resize((head + 1) * rows * head_dim, 0.0);
        }
        Tensor::from_vec(grouped, (kv_heads, rows, head_dim), &Device::Cpu)
    }
}

/// How many of the keys at these positions a query at `position` sees.
fn seen(keys: &Range<usize>, position: usize) -> usize {
    keys.end.min(position + 1).saturating_sub(keys.start)
}

/// Scores to softmax numerators in place; the denominators of the rows aside.
struct Softmax {
    rows: usize,
    columns: usize,
    group: usize,
    position: usize,
    keys: Range<usize>,
    denominators: Mutex<Vec<Denominator>>,
}

impl InplaceOp1 for Softmax {
    fn name(&self) -> &'static str {
        "causal-softmax-numerators"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> Result<(), candle_core::Error> {
        let CpuStorage::F32(scores) = storage else {
            return Err(candle_core::Error::Msg("scores are not float32".into()));
        };
        let denominators = scores.chunks_exact_mut(self.columns).enumerate().map(|(row, scores)| {
            let seen = seen(&self.keys, self.position + (row % self.rows) / self.group);
            math::softmax_numerators(scores, seen, TILE)
        });
        let denominators: Vec<_> = denominators.collect();
        *self.denominators.lock().unwrap_or_else(PoisonError::into_inner) = denominators;
        Ok(())
    }
}

pub(crate) fn backend(error: &candle_core::Error) -> EngineError {
    EngineError::Backend(error.to_string())
}
