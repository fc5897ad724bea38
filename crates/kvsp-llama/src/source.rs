//! From where a model comes, and what is asked of it.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use kvsp_engine::EngineInfo;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::registry::{ElementType, Layout};
use serde_json::{Value, json};

use crate::config::Config;
use crate::digest::{ModelDigests, model_digests};
use crate::dtype::KvType;
use crate::engine::{LlamaEngine, Parts};
use crate::error::LoadError;
use crate::files::ModelFiles;
use crate::info::engine_info;
use crate::tiny;
use crate::tokenizer::LlamaTokenizer;
use crate::weights::Weights;

/// Where a model comes from. Parsed from `tiny`, `tiny:SEED` or a path (`./tiny` for a file of that name).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A Hugging Face folder, a folder of GGUF files, or one GGUF file.
    Path(PathBuf),
    /// A small random model made in memory.
    Tiny {
        /// Equal seeds give equal models.
        seed: u64,
    },
}

impl FromStr for ModelSource {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.strip_prefix("tiny") {
            Some("") => Self::Tiny { seed: 0 },
            Some(rest) => match rest.strip_prefix(':').map(str::parse) {
                Some(Ok(seed)) => Self::Tiny { seed },
                _ => Self::Path(text.into()),
            },
            None => Self::Path(text.into()),
        })
    }
}

/// How a model is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOptions {
    /// The descriptor's `model`: the same string at all parties, so never guessed from a path.
    pub name: Option<String>,
    /// B, the tokens of a block and of a page.
    pub block_tokens: u32,
    /// Element type of the cache: `float32`, `float16` or `bfloat16`.
    pub kv_dtype: ElementType,
    /// Most memory of the page pool in octets; sets the number of pages. Pages are allocated when first used.
    pub pool_octets: u64,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { name: None, block_tokens: 16, kv_dtype: ElementType::Float16, pool_octets: 1 << 30 }
    }
}

/// What is known of a model without its weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFacts {
    /// Longest sequence in tokens.
    pub max_context: usize,
    /// Entries of a logits row.
    pub vocab: usize,
    /// Tokens that end a generation.
    pub eos: Vec<u32>,
}

impl From<Config> for ModelFacts {
    fn from(config: Config) -> Self {
        Self { max_context: config.max_context, vocab: config.vocab, eos: config.eos }
    }
}

/// A model that is known, digested, and not loaded.
#[derive(Debug, Clone)]
pub struct Prepared {
    source: ModelSource,
    config: Config,
    info: EngineInfo,
}

/// Read everything of a model but its weights, and digest its files. `progress` hears octets digested of all.
///
/// # Errors
/// See [`LoadError`].
pub fn prepare(
    source: &ModelSource,
    options: &LoadOptions,
    progress: &dyn Fn(u64, u64),
) -> Result<Prepared, LoadError> {
    KvType::new(options.kv_dtype)?;
    let name = name(source, options)?;
    let config = config(source)?;
    let descriptor = Descriptor::from_value(descriptor(&config, &digests(source, progress)?, name, options))?;
    let info = engine_info(&config, descriptor, options.pool_octets)?;
    Ok(Prepared { source: source.clone(), config, info })
}

impl Prepared {
    /// The facts of the engine that [`Self::load`] gives.
    #[must_use]
    pub const fn info(&self) -> &EngineInfo {
        &self.info
    }

    /// Read the weights. `progress` hears how many of how many are in.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(self, progress: &dyn Fn(u64, u64)) -> Result<LlamaEngine, LoadError> {
        let Self { source, config, info } = self;
        let weights = match &source {
            ModelSource::Tiny { seed } => {
                Weights::load(&config, &mut tiny::TinyWeights::new(*seed), progress)?
            }
            ModelSource::Path(path) => Weights::load(&config, ModelFiles::open(path)?.weights(), progress)?,
        };
        LlamaEngine::new(Parts { config, weights, info })
    }
}

/// Load a model. `progress` hears units done of all: first octets digested, then weights read.
///
/// # Errors
/// See [`LoadError`].
pub fn load(
    source: &ModelSource,
    options: &LoadOptions,
    progress: &dyn Fn(u64, u64),
) -> Result<LlamaEngine, LoadError> {
    prepare(source, options, progress)?.load(progress)
}

/// The tokenizer of a model, without its weights.
///
/// # Errors
/// See [`LoadError`].
pub fn tokenizer(source: &ModelSource) -> Result<LlamaTokenizer, LoadError> {
    match source {
        ModelSource::Tiny { .. } => tiny::tokenizer(),
        ModelSource::Path(path) => ModelFiles::open(path)?.tokenizer(),
    }
}

/// What is known of a model without its weights.
///
/// # Errors
/// See [`LoadError`].
pub fn facts(source: &ModelSource) -> Result<ModelFacts, LoadError> {
    config(source).map(ModelFacts::from)
}

/// The descriptor of a model under these options (draft section 4.1); reads the weight files to digest them.
///
/// # Errors
/// See [`LoadError`].
pub fn describe(
    source: &ModelSource,
    options: &LoadOptions,
    progress: &dyn Fn(u64, u64),
) -> Result<Value, LoadError> {
    let name = name(source, options)?;
    let config = config(source)?;
    let value = descriptor(&config, &digests(source, progress)?, name, options);
    Descriptor::from_value(value.clone())?;
    Ok(value)
}

fn digests(source: &ModelSource, progress: &dyn Fn(u64, u64)) -> Result<ModelDigests, LoadError> {
    match source {
        ModelSource::Tiny { seed } => tiny::digests(*seed),
        ModelSource::Path(path) => Ok(model_digests(path, progress)?),
    }
}

fn config(source: &ModelSource) -> Result<Config, LoadError> {
    match source {
        ModelSource::Tiny { .. } => Ok(tiny::config()),
        ModelSource::Path(path) => ModelFiles::open(path as &Path)?.config(),
    }
}

fn name<'a>(source: &ModelSource, options: &'a LoadOptions) -> Result<&'a str, LoadError> {
    match (&options.name, source) {
        (Some(name), _) => Ok(name),
        (None, ModelSource::Tiny { .. }) => Ok(tiny::NAME),
        (None, ModelSource::Path(_)) => Err(LoadError::NameRequired),
    }
}

fn descriptor(config: &Config, digests: &ModelDigests, name: &str, options: &LoadOptions) -> Value {
    json!({
        "model": name,
        "model_digest": digests.model,
        "tokenizer_digest": digests.tokenizer,
        "layers": config.layers,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "kv_dtype": options.kv_dtype,
        "positional": config.positional(),
        "block_tokens": options.block_tokens,
        "layout": Layout::Kvsp1,
    })
}
