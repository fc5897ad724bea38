//! A context split over several pools: queries that leave their engine, and the attention that comes back.

use crate::PageId;

/// The pages of contiguous blocks of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRun {
    /// The block of the first page: it holds the positions from `first · block_tokens` on.
    pub first: usize,
    /// The pages, in order of their blocks.
    pub pages: Vec<PageId>,
}

/// Queries of one layer at consecutive positions of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Queries {
    /// Position of the first row.
    pub position: usize,
    /// Rows, one for each token.
    pub rows: usize,
    /// Query heads of a row.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// rows × heads × `head_dim`, after positional encoding, not scaled.
    pub values: Vec<f32>,
}

/// Attention of [`Queries`] over a part of the keys that they need.
#[derive(Debug, Clone, PartialEq)]
pub struct Partial {
    /// Rows, as of the queries.
    pub rows: usize,
    /// Heads, as of the queries.
    pub heads: usize,
    /// Elements of a head, as of the queries.
    pub head_dim: usize,
    /// rows × heads × `head_dim`: softmax-weighted values, normalised over the keys of this part; zeros where a
    /// row sees none of them.
    pub out: Vec<f32>,
    /// rows × heads: natural logarithm of the sum of the exponentials of the scaled scores; −∞ where a row sees
    /// no key.
    pub lse: Vec<f32>,
}
