//! The pool of KV pages, in the form that makes attention's products fast.
//!
//! A page holds, for each layer, the keys as kv head × dimension × token and the values as kv head × token ×
//! dimension, as `f32` values already rounded to the cache's element type: widening them on every read would
//! cost more than their memory. Pages are allocated when first written.

use std::ops::Range;

use kvsp_engine::{EngineError, PageId};

use crate::dtype::KvType;

/// The pool's dimensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolShape {
    pub(crate) layers: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) block_tokens: usize,
    pub(crate) kv: KvType,
}

impl PoolShape {
    /// Elements of the keys (or the values) of one layer of a page; `None` where they overflow.
    fn half(&self) -> Option<usize> {
        self.kv_heads.checked_mul(self.head_dim)?.checked_mul(self.block_tokens)
    }

    /// Octets a page takes in memory.
    pub(crate) fn page_octets(&self) -> Option<u64> {
        let elements = self.half()?.checked_mul(2)?.checked_mul(self.layers)?;
        u64::try_from(elements.checked_mul(size_of::<f32>())?).ok()
    }
}

/// One page: all layers, and which of them hold something.
struct Page {
    elements: Box<[f32]>,
    written: Vec<bool>,
}

/// All pages.
pub(crate) struct Pool {
    shape: PoolShape,
    half: usize,
    pages: Vec<Option<Page>>,
}

/// Keys and values of a range of a sequence in one layer, padded with zeros to `padded` tokens.
pub(crate) struct Gathered {
    /// kv head × dimension × token.
    pub(crate) keys: Vec<f32>,
    /// kv head × token × dimension.
    pub(crate) values: Vec<f32>,
}

impl Pool {
    /// A pool of `pages` pages, none of them allocated. `None` for dimensions that overflow.
    pub(crate) fn new(shape: PoolShape, pages: usize) -> Option<Self> {
        shape.page_octets()?;
        Some(Self { shape, half: shape.half()?, pages: (0..pages).map(|_| None).collect() })
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Tokens of a page.
    pub(crate) fn block_tokens(&self) -> usize {
        self.shape.block_tokens
    }

    /// Store the (rounded) key and value, kv head × dimension each, of one token.
    pub(crate) fn put(
        &mut self,
        page: PageId,
        layer: usize,
        slot: usize,
        key: &[f32],
        value: &[f32],
    ) -> Result<(), EngineError> {
        let PoolShape { head_dim, block_tokens, .. } = self.shape;
        let (keys, values) = self.layer_mut(page, layer)?;
        for (i, &x) in key.iter().enumerate() {
            keys[i * block_tokens + slot] = x;
        }
        for (h, row) in value.chunks_exact(head_dim).enumerate() {
            let at = (h * block_tokens + slot) * head_dim;
            values[at..at + head_dim].copy_from_slice(row);
        }
        Ok(())
    }

    /// The keys and values at the positions `keys` in one layer; `pages` begin with the block `first`.
    pub(crate) fn gather(
        &self,
        first: usize,
        pages: &[PageId],
        layer: usize,
        keys: Range<usize>,
        padded: usize,
    ) -> Result<Gathered, EngineError> {
        let PoolShape { kv_heads, head_dim, block_tokens, .. } = self.shape;
        let mut parts = Vec::new();
        for block in keys.start / block_tokens..keys.end.div_ceil(block_tokens) {
            let page = block.checked_sub(first).and_then(|at| pages.get(at)).ok_or_else(|| {
                EngineError::Misuse(format!("the keys {}..{} are not in the pages", keys.start, keys.end))
            })?;
            let start = block * block_tokens;
            let slots = keys.start.max(start) - start..(keys.end - start).min(block_tokens);
            parts.push((self.layer(*page, layer)?, slots));
        }
        let elements = kv_heads * head_dim * padded;
        let mut keys = Vec::with_capacity(elements);
        let mut values = Vec::with_capacity(elements);
        for row in 0..kv_heads * head_dim {
            for ((source, _), slots) in &parts {
                keys.extend_from_slice(&source[row * block_tokens..][slots.clone()]);
            }
            keys.resize((row + 1) * padded, 0.0);
        }
        for head in 0..kv_heads {
            for ((_, source), slots) in &parts {
                let at = head * block_tokens;
                values.extend_from_slice(&source[(at + slots.start) * head_dim..(at + slots.end) * head_dim]);
            }
            values.resize((head + 1) * padded * head_dim, 0.0);
        }
        Ok(Gathered { keys, values })
    }

    /// Fill one layer of a page from raw sections (token × kv head × dimension, little-endian).
    pub(crate) fn write_sections(
        &mut self,
        page: PageId,
        layer: usize,
        k: &[u8],
        v: &[u8],
    ) -> Result<(), EngineError> {
        self.write_tokens(page, layer, 0..self.shape.block_tokens, k, v)
    }

    /// As [`Pool::write_sections`], for some tokens of the page.
    pub(crate) fn write_tokens(
        &mut self,
        page: PageId,
        layer: usize,
        slots: Range<usize>,
        k: &[u8],
        v: &[u8],
    ) -> Result<(), EngineError> {
        self.check_slots(&slots)?;
        let PoolShape { kv_heads, head_dim, block_tokens, kv, .. } = self.shape;
        let want = slots.len() * kv_heads * head_dim * kv.octets();
        for section in [k, v] {
            if section.len() != want {
                return Err(EngineError::SectionSize { got: section.len(), want });
            }
        }
        let (k, v) = (kv.decode(k), kv.decode(v));
        let (keys, values) = self.layer_mut(page, layer)?;
        for (token, slot) in slots.enumerate() {
            for head in 0..kv_heads {
                let from = (token * kv_heads + head) * head_dim;
                for d in 0..head_dim {
                    keys[(head * head_dim + d) * block_tokens + slot] = k[from + d];
                }
                let to = (head * block_tokens + slot) * head_dim;
                values[to..to + head_dim].copy_from_slice(&v[from..from + head_dim]);
            }
        }
        Ok(())
    }

    /// Append the raw sections of one layer of a page.
    pub(crate) fn read_sections(
        &self,
        page: PageId,
        layer: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        let (keys, values) = self.layer(page, layer)?;
        let slots = 0..self.shape.block_tokens;
        self.encode_keys(keys, slots.clone(), out);
        self.encode_values(values, slots, out);
        Ok(())
    }

    /// Append the raw sections of some tokens of one layer of a page.
    pub(crate) fn read_tokens(
        &self,
        page: PageId,
        layer: usize,
        slots: Range<usize>,
        k: &mut Vec<u8>,
        v: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        self.check_slots(&slots)?;
        let (keys, values) = self.layer(page, layer)?;
        self.encode_keys(keys, slots.clone(), k);
        self.encode_values(values, slots, v);
        Ok(())
    }

    fn encode_keys(&self, keys: &[f32], slots: Range<usize>, out: &mut Vec<u8>) {
        let PoolShape { kv_heads, head_dim, block_tokens, kv, .. } = self.shape;
        let rows = kv_heads * head_dim;
        let mut tokens = Vec::with_capacity(slots.len() * rows);
        for slot in slots {
            tokens.extend(keys[slot..].iter().step_by(block_tokens).take(rows));
        }
        kv.encode(&tokens, out);
    }

    fn encode_values(&self, values: &[f32], slots: Range<usize>, out: &mut Vec<u8>) {
        let PoolShape { kv_heads, head_dim, block_tokens, kv, .. } = self.shape;
        let mut tokens = Vec::with_capacity(slots.len() * kv_heads * head_dim);
        for slot in slots {
            for head in 0..kv_heads {
                tokens.extend_from_slice(&values[(head * block_tokens + slot) * head_dim..][..head_dim]);
            }
        }
        kv.encode(&tokens, out);
    }

    fn check_slots(&self, slots: &Range<usize>) -> Result<(), EngineError> {
        if slots.is_empty() || slots.end > self.shape.block_tokens {
            let Range { start, end } = slots;
            return Err(EngineError::Misuse(format!("a page has no slots {start}..{end}")));
        }
        Ok(())
    }

    /// Keys and values of one layer that has been written.
    fn layer(&self, page: PageId, layer: usize) -> Result<(&[f32], &[f32]), EngineError> {
        let entry = self.pages.get(page.0 as usize).ok_or_else(|| unknown_page(page))?;
        let page_data = entry.as_ref().filter(|p| p.written.get(layer) == Some(&true)).ok_or_else(|| {
            EngineError::Misuse(format!("layer {layer} of page {} was never written", page.0))
        })?;
        let at = layer * 2 * self.half;
        Ok(page_data.elements[at..at + 2 * self.half].split_at(self.half))
    }

    /// As [`Pool::layer`], to be written: allocates the page.
    fn layer_mut(&mut self, page: PageId, layer: usize) -> Result<(&mut [f32], &mut [f32]), EngineError> {
        if layer >= self.shape.layers {
            return Err(EngineError::Misuse(format!("there is no layer {layer}")));
        }
        let layers = self.shape.layers;
        let half = self.half;
        let entry = self.pages.get_mut(page.0 as usize).ok_or_else(|| unknown_page(page))?;
        let page = entry.get_or_insert_with(|| Page {
            elements: vec![0.0; layers * 2 * half].into_boxed_slice(),
            written: vec![false; layers],
        });
        page.written[layer] = true;
        let at = layer * 2 * half;
        Ok(page.elements[at..at + 2 * half].split_at_mut(half))
    }
}

fn unknown_page(page: PageId) -> EngineError {
    EngineError::Misuse(format!("there is no page {}", page.0))
}
