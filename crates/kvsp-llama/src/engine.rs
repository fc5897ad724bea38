//! The engine: a forward pass over several sequences, one layer at a time.

use std::collections::HashSet;
use std::sync::Arc;

use kvsp_engine::{Engine, EngineError, EngineInfo, PageId, Span};
use kvsp_proto::descriptor::Descriptor;

use crate::attention::{Job, backend};
use crate::config::Config;
use crate::dtype::KvType;
use crate::error::LoadError;
use crate::math;
use crate::pool::{Pool, PoolShape};
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
}

/// What an engine is put together from.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) weights: Weights,
    pub(crate) descriptor: Descriptor,
    pub(crate) pool_octets: u64,
}

impl LlamaEngine {
    pub(crate) fn new(parts: Parts) -> Result<Self, LoadError> {
        let Parts { config, weights, descriptor, pool_octets } = parts;
        let kv = KvType::new(descriptor.kv_dtype)?;
        let shape = PoolShape {
            layers: config.layers,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            block_tokens: descriptor.block_tokens as usize,
            kv,
        };
        let too_large = || LoadError::Options("a page of so many tokens overflows".into());
        let page_octets = shape.page_octets().ok_or_else(too_large)?;
        // Page identifiers are 32 bits wide.
        let pages =
            usize::try_from((pool_octets / page_octets).min(u64::from(u32::MAX))).unwrap_or(usize::MAX);
        if pages == 0 {
            return Err(LoadError::Options(format!(
                "a pool of {pool_octets} octets holds no page: one takes {page_octets}"
            )));
        }
        let info = EngineInfo {
            descriptor: Arc::new(descriptor),
            max_context: config.max_context,
            vocab: config.vocab,
            eos: config.eos.clone(),
            pages,
            batch_invariant: true,
        };
        let pool = Pool::new(shape, pages).ok_or_else(too_large)?;
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
            if span.pages.len() < end.div_ceil(self.block_tokens()) {
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
            span.position / self.block_tokens()..end.div_ceil(self.block_tokens())
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
        Ok(LlamaPass { spans, hidden, angles, layer: 0 })
    }

    fn next_layer(&self, pass: &LlamaPass) -> Option<usize> {
        (pass.layer < self.config.layers).then_some(pass.layer)
    }

    fn step_layer(&mut self, pass: &mut LlamaPass) -> Result<(), EngineError> {
        let Some(layer) = self.weights.layers.get(pass.layer) else {
            return Err(EngineError::Misuse("all layers are computed".into()));
        };
        let eps = self.config.rms_eps;
        let normed = math::rms_norm(&pass.hidden, &layer.attention_norm, eps);
        let mut qkv = layer.qkv.forward(&normed).map_err(|e| backend(&e))?;
        let queries = enter_cache(&self.config, self.kv, &mut self.pool, pass, &mut qkv)?;
        let mixed = attend(&self.config, &self.pool, pass, &queries)?;
        math::add(&mut pass.hidden, &layer.output.forward(&mixed).map_err(|e| backend(&e))?);
        let update = mlp(layer, &pass.hidden, &self.config)?;
        math::add(&mut pass.hidden, &update);
        pass.layer += 1;
        Ok(())
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
        (span.position..span.position + span.tokens.len()).map(|position| (&span.pages, position))
    });
    let block = pool.block_tokens();
    for ((row, x), (pages, position)) in qkv.chunks_exact_mut(q_dim + 2 * kv_dim).enumerate().zip(places) {
        let (turned, value) = x.split_at_mut(q_dim + kv_dim);
        pass.angles.turn(row, turned, config.pairing);
        let (query, key) = turned.split_at_mut(q_dim);
        queries.extend_from_slice(query);
        for x in key.iter_mut().chain(value.iter_mut()) {
            *x = kv.round(*x);
        }
        pool.put(pages[position / block], pass.layer, position % block, key, value)?;
    }
    Ok(queries)
}

/// Attention of all spans: rows × heads × `head_dim`.
fn attend(config: &Config, pool: &Pool, pass: &LlamaPass, queries: &[f32]) -> Result<Vec<f32>, EngineError> {
    let mut out = Vec::with_capacity(queries.len());
    let mut rest = queries;
    for span in &pass.spans {
        let (queries, later) = rest.split_at(span.tokens.len() * config.q_dim());
        rest = later;
        let job =
            Job { config, pool, pages: &span.pages, layer: pass.layer, position: span.position, queries };
        job.run(&mut out)?;
    }
    Ok(out)
}

fn mlp(layer: &Layer, hidden: &[f32], config: &Config) -> Result<Vec<f32>, EngineError> {
    let normed = math::rms_norm(hidden, &layer.mlp_norm, config.rms_eps);
    let gate_up = layer.gate_up.forward(&normed).map_err(|e| backend(&e))?;
    layer.down.forward(&math::swiglu(&gate_up, config.intermediate)).map_err(|e| backend(&e))
}
