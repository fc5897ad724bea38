//! Partial attention put together again (profile section 8).

use std::ops::Range;

use crate::{Partial, Queries};

/// Why partial attention cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// A part's dimensions or lengths are not those of the queries.
    #[error("a part has other dimensions than the queries")]
    Shape,
    /// A key range ends before it starts.
    #[error("the key range {}..{} is inverted", .0.start, .0.end)]
    Inverted(Range<usize>),
    /// Two parts have a key in common.
    #[error("the key ranges {}..{} and {}..{} overlap", .0.start, .0.end, .1.start, .1.end)]
    Overlap(Range<usize>, Range<usize>),
    /// A value is not a number or infinite, or the log-sum-exp says otherwise than the key range whether a row
    /// sees a key.
    #[error("the part for the keys {}..{} holds a value that no attention gives", .0.start, .0.end)]
    Value(Range<usize>),
    /// No part covers this position, which a row needs.
    #[error("no part covers position {0}")]
    Gap(usize),
}

/// Merges the parts of causal attention by their log-sum-exp.
///
/// A row at position p needs every key of `0..=p` exactly once. The result does not depend on the order in
/// which the parts were added, and one part alone is given back as it is.
#[derive(Debug)]
pub struct Merge {
    position: usize,
    rows: usize,
    heads: usize,
    head_dim: usize,
    /// Key ranges (cut where the last row's end, never empty) and their parts, in order of position.
    parts: Vec<(Range<usize>, Partial)>,
}

impl Merge {
    /// A merge for these queries, of which only position and dimensions matter.
    #[must_use]
    pub fn new(queries: &Queries) -> Self {
        let &Queries { position, rows, heads, head_dim, .. } = queries;
        Self { position, rows, heads, head_dim, parts: Vec::new() }
    }

    /// Take the attention over the keys at the positions `keys`, which may reach beyond the last row: causality
    /// cuts them there, and a part of which nothing is left adds nothing.
    ///
    /// # Errors
    /// [`MergeError`]; the merge is then as it was.
    pub fn add(&mut self, keys: Range<usize>, partial: Partial) -> Result<(), MergeError> {
        if keys.start > keys.end {
            return Err(MergeError::Inverted(keys));
        }
        self.check(&keys, &partial)?;
        let cut = keys.start..keys.end.min(self.end());
        if cut.is_empty() {
            return Ok(());
        }
        let at = self.parts.partition_point(|(other, _)| other.start < cut.start);
        let neighbours = [at.checked_sub(1), Some(at)];
        for (other, _) in neighbours.into_iter().flatten().filter_map(|i| self.parts.get(i)) {
            if other.start < cut.end && cut.start < other.end {
                return Err(MergeError::Overlap(other.clone(), cut));
            }
        }
        self.parts.insert(at, (cut, partial));
        Ok(())
    }

    /// Attention over all keys of every row: rows × heads × `head_dim`.
    ///
    /// # Errors
    /// [`MergeError::Gap`] where a row needs a key that no part covers.
    pub fn finish(self) -> Result<Vec<f32>, MergeError> {
        let mut covered = 0;
        for (keys, _) in &self.parts {
            if keys.start > covered {
                return Err(MergeError::Gap(covered));
            }
            covered = keys.end;
        }
        if covered < self.end() {
            return Err(MergeError::Gap(covered));
        }
        let mut out = vec![0.0; self.rows * self.heads * self.head_dim];
        let mut weights = Vec::with_capacity(self.parts.len());
        for (i, target) in out.chunks_exact_mut(self.head_dim.max(1)).enumerate() {
            self.weigh(i, &mut weights);
            for (&weight, (_, part)) in weights.iter().zip(&self.parts).filter(|(weight, _)| **weight > 0.0) {
                for (x, &y) in target.iter_mut().zip(&part.out[i * self.head_dim..]) {
                    *x += weight * y;
                }
            }
        }
        Ok(out)
    }

    /// The position after the last row's.
    fn end(&self) -> usize {
        self.position.saturating_add(self.rows)
    }

    fn check(&self, keys: &Range<usize>, partial: &Partial) -> Result<(), MergeError> {
        let lines = self.rows.checked_mul(self.heads).ok_or(MergeError::Shape)?;
        let shape = (partial.rows, partial.heads, partial.head_dim) == (self.rows, self.heads, self.head_dim);
        let lengths =
            partial.lse.len() == lines && Some(partial.out.len()) == lines.checked_mul(self.head_dim);
        if !shape || !lengths {
            return Err(MergeError::Shape);
        }
        let expected = |(i, lse): (usize, &f32)| {
            let sees = !keys.is_empty() && keys.start <= self.position.saturating_add(i / self.heads);
            if sees { lse.is_finite() } else { *lse == f32::NEG_INFINITY }
        };
        if !partial.lse.iter().enumerate().all(expected) || !partial.out.iter().all(|x| x.is_finite()) {
            return Err(MergeError::Value(keys.clone()));
        }
        Ok(())
    }

    /// The share of each part in line `i` (row × head). They add up to 1.
    fn weigh(&self, i: usize, weights: &mut Vec<f32>) {
        let lse = |part: &Partial| f64::from(part.lse[i]);
        let max = self.parts.iter().map(|(_, part)| lse(part)).fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = self.parts.iter().map(|(_, part)| (lse(part) - max).exp()).sum();
        weights.clear();
        weights.extend(self.parts.iter().map(|(_, part)| ((lse(part) - max).exp() / total) as f32));
    }
}

#[cfg(test)]
mod tests;
