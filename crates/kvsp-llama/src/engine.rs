//! The engine: a forward pass over several sequences, one layer at a time.

use std::collections::HashSet;
use std::ops::Range;

use kvsp_engine::{Engine, EngineError, EngineInfo, PageId, PageRun, Partial, Queries, Span};

use crate::attention::{Job, Mixed, backend};
use crate::config::Config;
use crate::dtype::KvType;
use crate::error::LoadError;
use crate::info::{pool_shape, too_large};
use crate::math;
use crate::pool::Pool;
use crate::rope::Angles;
use crate::weights::{Layer, Weights};

/// A Llama-family decoder on the CPU.
///
/// Equal tokens at equal positions give bit-identical keys, values and logits on one machine, whatever shares
/// their pass, wherever chunks begin, and whether the earlier positions were computed here or written with
/// [`Engine::write_layer`].
pub struct LlamaEngine {
    info: EngineInfo,
    config: Config,
    weights: Weights,
    inverse_frequencies: Vec<f32>,
    kv: KvType,
    pool: Pool,
}

/// A forward pass of [`LlamaEngine`] under way.
pub struct LlamaPass {
    spans: Vec<Span>,
    /// Rows × hidden size, the spans one after another.
    hidden: Vec<f32>,
    angles: Angles,
    layer: usize,
    /// Whether K and V of this layer are in the pages already.
    projected: bool,
}

/// What an engine is put together from.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) weights: Weights,
    pub(crate) info: EngineInfo,
}

impl LlamaEngine {
    pub(crate) fn new(parts: Parts) -> Result<Self, LoadError> {
        let Parts { config, weights, info } = parts;
        let kv = KvType::new(info.descriptor.kv_dtype)?;
        let shape = pool_shape(&config, &info.descriptor)?;
        let pool = Pool::new(shape, info.pages).ok_or_else(too_large)?;
        let inverse_frequencies = config.inverse_frequencies();
        Ok(Self { info, config, weights, inverse_frequencies, kv, pool })
    }

    fn check(&self, spans: &[Span]) -> Result<(), EngineError> {
        let misuse = |why: String| Err(EngineError::Misuse(why));
        if spans.is_empty() {
            return misuse("a pass needs a span".into());
        }
        for span in spans {
            let end = span.position.checked_add(span.tokens.len());
            let Some(end) = end.filter(|&end| end <= self.config.max_context) else {
                return misuse(format!("positions beyond the context of {}", self.config.max_context));
            };
            if span.tokens.is_empty() {
                return misuse("an empty span".into());
            }
            if span.first_page > span.position / self.block_tokens() {
                return misuse(format!("the pages begin after position {}", span.position));
            }
            if span.pages.len() < end.div_ceil(self.block_tokens()) - span.first_page {
                return misuse(format!("{} pages do not hold {end} tokens", span.pages.len()));
            }
            if let Some(page) = span.pages.iter().find(|page| page.0 as usize >= self.pool.len()) {
                return misuse(format!("there is no page {}", page.0));
            }
            if let Some(token) = span.tokens.iter().find(|&&token| token as usize >= self.config.vocab) {
                return misuse(format!("token {token} is outside the vocabulary"));
            }
        }
        self.check_written_pages(spans)
    }

    /// A page that one span writes may be in no other span of the pass.
    fn check_written_pages(&self, spans: &[Span]) -> Result<(), EngineError> {
        let written = |span: &Span| {
            let end = span.position + span.tokens.len();
            let first = span.position / self.block_tokens() - span.first_page;
            first..end.div_ceil(self.block_tokens()) - span.first_page
        };
        let mut writers = HashSet::new();
        for span in spans {
            for page in &span.pages[written(span)] {
                if !writers.insert(*page) {
                    return Err(EngineError::Misuse(format!("page {} is written twice", page.0)));
                }
            }
        }
        for span in spans {
            let range = written(span);
            let others = span.pages.iter().enumerate().filter(|(i, _)| !range.contains(i));
            if let Some((_, page)) = others.into_iter().find(|(_, page)| writers.contains(page)) {
                return Err(EngineError::Misuse(format!("page {} is written and shared", page.0)));
            }
        }
        Ok(())
    }

    /// Refuse queries that this model has not, before anything is sized after them. Returns the keys that the
    /// last of them sees.
    fn check_queries(
        &self,
        layer: usize,
        keys: Range<usize>,
        queries: &Queries,
    ) -> Result<Range<usize>, EngineError> {
        let misuse = |why: &str| Err(EngineError::Misuse(why.into()));
        let Config { heads, head_dim, max_context, layers, .. } = self.config;
        if layer >= layers {
            return misuse("there is no such layer");
        }
        if keys.start > keys.end {
            return misuse("an inverted range of keys");
        }
        let end = queries.position.checked_add(queries.rows).filter(|&end| end <= max_context);
        let Some(end) = end.filter(|_| queries.rows > 0) else {
            return misuse("no queries, or some beyond the context");
        };
        let lengths = queries.rows * heads * head_dim;
        if (queries.heads, queries.head_dim, queries.values.len()) != (heads, head_dim, lengths) {
            return misuse("queries of another shape than the model's");
        }
        Ok(keys.start.min(end)..keys.end.min(end))
    }

    /// The first half of a layer: K and V of the new tokens into their pages; the queries of all rows.
    fn enter_layer(&mut self, pass: &LlamaPass) -> Result<Vec<f32>, EngineError> {
        let layer = self.weights.layers.get(pass.layer).ok_or_else(all_done)?;
        let normed = math::rms_norm(&pass.hidden, &layer.attention_norm, self.config.rms_eps);
        let mut qkv = layer.qkv.forward(&normed).map_err(|e| backend(&e))?;
        enter_cache(&self.config, self.kv, &mut self.pool, pass, &mut qkv)
    }

    /// The second half, from the attention of all rows.
    fn leave_layer(&self, pass: &mut LlamaPass, mixed: &[f32]) -> Result<(), EngineError> {
        let layer = self.weights.layers.get(pass.layer).ok_or_else(all_done)?;
        let update = layer.output.forward(mixed).map_err(|e| backend(&e))?;
        math::add(&mut pass.hidden, &update);
        let update = mlp(layer, &pass.hidden, &self.config)?;
        math::add(&mut pass.hidden, &update);
        pass.layer += 1;
        pass.projected = false;
        Ok(())
    }

    fn block_tokens(&self) -> usize {
        self.info.descriptor.block_tokens as usize
    }
}

impl Engine for LlamaEngine {
    type Pass = LlamaPass;

    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn begin(&mut self, spans: Vec<Span>) -> Result<LlamaPass, EngineError> {
        self.check(&spans)?;
        let mut hidden = Vec::new();
        for &token in spans.iter().flat_map(|span| &span.tokens) {
            hidden.extend(self.weights.embed(token, self.config.hidden).map_err(|e| backend(&e))?);
        }
        let positions = spans.iter().flat_map(|span| span.position..span.position + span.tokens.len());
        let angles = Angles::new(&self.inverse_frequencies, positions);
        Ok(LlamaPass { spans, hidden, angles, layer: 0, projected: false })
    }

    fn next_layer(&self, pass: &LlamaPass) -> Option<usize> {
        (pass.layer < self.config.layers).then_some(pass.layer)
    }

    fn step_layer(&mut self, pass: &mut LlamaPass) -> Result<(), EngineError> {
        if pass.spans.iter().any(|span| span.first_page > 0) {
            return Err(EngineError::Misuse("the first pages of a span are elsewhere".into()));
        }
        let queries = self.enter_layer(pass)?;
        let mixed = attend(&self.config, &self.pool, pass, &queries)?;
        self.leave_layer(pass, &mixed)
    }

    fn project(&mut self, pass: &mut LlamaPass) -> Result<Vec<Queries>, EngineError> {
        let mut values = self.enter_layer(pass)?.into_iter();
        pass.projected = true;
        let Config { heads, head_dim, .. } = self.config;
        let queries = pass.spans.iter().map(|span| {
            let rows = span.tokens.len();
            let values = values.by_ref().take(rows * heads * head_dim).collect();
            Queries { position: span.position, rows, heads, head_dim, values }
        });
        Ok(queries.collect())
    }

    fn complete(&mut self, pass: &mut LlamaPass, attention: &[Vec<f32>]) -> Result<(), EngineError> {
        if !pass.projected {
            return Err(EngineError::Misuse(format!("layer {} is not projected", pass.layer)));
        }
        let lengths = pass.spans.iter().map(|span| span.tokens.len() * self.config.q_dim());
        if !lengths.eq(attention.iter().map(Vec::len)) {
            return Err(EngineError::Misuse("attention of other lengths than the spans".into()));
        }
        self.leave_layer(pass, &attention.concat())
    }

    fn attend(
        &self,
        layer: usize,
        pages: &PageRun,
        keys: Range<usize>,
        queries: &Queries,
    ) -> Result<Partial, EngineError> {
        let keys = self.check_queries(layer, keys, queries)?;
        let &Queries { position, rows, heads, head_dim, ref values } = queries;
        let mut mixed = Mixed::default();
        let job = Job {
            config: &self.config,
            pool: &self.pool,
            first_page: pages.first,
            pages: &pages.pages,
            layer,
            keys,
            position,
            queries: values,
        };
        job.run(&mut mixed)?;
        Ok(Partial { rows, heads, head_dim, out: mixed.out, lse: mixed.lse })
    }

    fn finish(&mut self, pass: LlamaPass) -> Result<Vec<Option<Vec<f32>>>, EngineError> {
        if pass.layer < self.config.layers {
            return Err(EngineError::Misuse(format!("layer {} is not computed", pass.layer)));
        }
        let hidden = self.config.hidden;
        let mut last_rows = Vec::new();
        let mut end = 0;
        for span in &pass.spans {
            end += span.tokens.len();
            if span.logits {
                last_rows.extend_from_slice(&pass.hidden[(end - 1) * hidden..end * hidden]);
            }
        }
        let normed = math::rms_norm(&last_rows, &self.weights.norm, self.config.rms_eps);
        let logits = self.weights.head.forward(&normed).map_err(|e| backend(&e))?;
        let mut rows = logits.chunks_exact(self.config.vocab).map(<[f32]>::to_vec);
        Ok(pass.spans.iter().map(|span| if span.logits { rows.next() } else { None }).collect())
    }

    fn write_layer(&mut self, page: PageId, layer: usize, k: &[u8], v: &[u8]) -> Result<(), EngineError> {
        self.pool.write_sections(page, layer, k, v)
    }

    fn read_layer(&self, page: PageId, layer: usize, out: &mut Vec<u8>) -> Result<(), EngineError> {
        self.pool.read_sections(page, layer, out)
    }

    fn write_tokens(
        &mut self,
        page: PageId,
        layer: usize,
        slots: Range<usize>,
        k: &[u8],
        v: &[u8],
    ) -> Result<(), EngineError> {
        self.pool.write_tokens(page, layer, slots, k, v)
    }

    fn read_tokens(
        &self,
        page: PageId,
        layer: usize,
        slots: Range<usize>,
        k: &mut Vec<u8>,
        v: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        self.pool.read_tokens(page, layer, slots, k, v)
    }
}

/// Rotate queries and keys, put rounded keys and values into their pages, and return the queries (rows ×
/// heads × `head_dim`).
fn enter_cache(
    config: &Config,
    kv: KvType,
    pool: &mut Pool,
    pass: &LlamaPass,
    qkv: &mut [f32],
) -> Result<Vec<f32>, EngineError> {
    let (q_dim, kv_dim) = (config.q_dim(), config.kv_dim());
    let mut queries = Vec::with_capacity(pass.hidden.len() / config.hidden * q_dim);
    let places = pass.spans.iter().flat_map(|span| {
        (span.position..span.position + span.tokens.len()).map(move |position| (span, position))
    });
    let block = pool.block_tokens();
    for ((row, x), (span, position)) in qkv.chunks_exact_mut(q_dim + 2 * kv_dim).enumerate().zip(places) {
        let (turned, value) = x.split_at_mut(q_dim + kv_dim);
        pass.angles.turn(row, turned, config.pairing);
        let (query, key) = turned.split_at_mut(q_dim);
        queries.extend_from_slice(query);
        for x in key.iter_mut().chain(value.iter_mut()) {
            *x = kv.round(*x);
        }
        pool.put(span.pages[position / block - span.first_page], pass.layer, position % block, key, value)?;
    }
    Ok(queries)
}

/// Attention of all spans: rows × heads × `head_dim`.
fn attend(config: &Config, pool: &Pool, pass: &LlamaPass, queries: &[f32]) -> Result<Vec<f32>, EngineError> {
    let mut mixed = Mixed::default();
    let mut rest = queries;
    for span in &pass.spans {
        let (queries, later) = rest.split_at(span.tokens.len() * config.q_dim());
        rest = later;
        let job = Job {
            config,
            pool,
            first_page: 0,
            pages: &span.pages,
            layer: pass.layer,
            keys: 0..span.position + span.tokens.len(),
            position: span.position,
            queries,
        };
        job.run(&mut mixed)?;
    }
    Ok(mixed.out)
}

fn all_done() -> EngineError {
    EngineError::Misuse("all layers are computed".into())
}

fn mlp(layer: &Layer, hidden: &[f32], config: &Config) -> Result<Vec<f32>, EngineError> {
    let normed = math::rms_norm(hidden, &layer.mlp_norm, config.rms_eps);
    let gate_up = layer.gate_up.forward(&normed).map_err(|e| backend(&e))?;
    layer.down.forward(&math::swiglu(&gate_up, config.intermediate)).map_err(|e| backend(&e))
}
