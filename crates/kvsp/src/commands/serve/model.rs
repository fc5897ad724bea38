//! The model of an instance or gateway, and the keys of its scopes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvsp_agent::EngineSource;
use kvsp_engine::Tokenizer;
use kvsp_llama::{LlamaEngine, LoadError, LoadOptions, ModelSource, Prepared};
use kvsp_net::random::Random;
use kvsp_proto::block_key::{ScopeKey, ScopeKeyError};
use kvsp_proto::registry::{ElementType, Unregistered};

use crate::config::ModelConfig;
use crate::progress;

/// Largest scope key file, in octets.
const MAX_SCOPE_KEY: u64 = 4096;

/// The model cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ModelError {
    /// Its files.
    #[error("the model: {0}")]
    Load(#[from] LoadError),
    /// The element type.
    #[error(transparent)]
    ElementType(#[from] Unregistered),
    /// A scope key file.
    #[error("the scope key {path}: {source}")]
    ScopeKeyFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A scope key.
    #[error("the scope key {path}: {source}")]
    ScopeKey {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ScopeKeyError,
    },
}

/// Where the model is and how it is loaded.
pub(super) struct Model {
    source: ModelSource,
    options: LoadOptions,
}

impl Model {
    /// The configured model; `None` where none is named.
    pub(super) fn of(config: &ModelConfig) -> Result<Option<Self>, ModelError> {
        let Some(path) = &config.path else { return Ok(None) };
        let defaults = LoadOptions::default();
        let kv_dtype = match &config.kv_dtype {
            Some(name) => name.parse::<ElementType>()?,
            None => defaults.kv_dtype,
        };
        let source = path.parse().unwrap_or_else(|never: std::convert::Infallible| match never {});
        let options = LoadOptions {
            name: config.name.clone(),
            block_tokens: config.block_tokens.unwrap_or(defaults.block_tokens),
            kv_dtype,
            pool_octets: config.pool_octets.unwrap_or(defaults.pool_octets),
        };
        Ok(Some(Self { source, options }))
    }

    /// All of the model but its weights, with a bar while its files are digested.
    pub(super) fn prepare(&self) -> Result<Prepared, ModelError> {
        let bar = progress::octets("digesting the model");
        let prepared = kvsp_llama::prepare(&self.source, &self.options, &progress::callback(&bar));
        bar.finish_and_clear();
        Ok(prepared?)
    }

    pub(super) fn tokenizer(&self) -> Result<Arc<dyn Tokenizer>, ModelError> {
        Ok(Arc::new(kvsp_llama::tokenizer(&self.source)?))
    }
}

/// The engine of a model, which is loaded on the engine's thread, with a bar meanwhile.
pub(super) fn engine(prepared: Prepared) -> EngineSource<LlamaEngine> {
    EngineSource::build(prepared.info().clone(), move || {
        let bar = progress::items("loading the model");
        let engine = prepared.load(&progress::callback(&bar));
        bar.finish_and_clear();
        Ok(engine.map_err(ModelError::from)?)
    })
}

/// The keys of the configured scopes, in order.
pub(super) fn scope_keys(paths: &[PathBuf]) -> Result<Vec<Arc<ScopeKey>>, ModelError> {
    paths.iter().map(|path| scope_key(path).map(Arc::new)).collect()
}

fn scope_key(path: &Path) -> Result<ScopeKey, ModelError> {
    let failed = |source| ModelError::ScopeKeyFile { path: path.into(), source };
    let octets = std::fs::metadata(path).map_err(failed)?.len();
    if octets > MAX_SCOPE_KEY {
        return Err(failed(std::io::Error::other("larger than a scope key can be")));
    }
    let key = std::fs::read(path).map_err(failed)?;
    ScopeKey::new(key).map_err(|source| ModelError::ScopeKey { path: path.into(), source })
}

/// A key that only this process knows.
pub(super) fn own_scope_key(random: &dyn Random) -> Option<Arc<ScopeKey>> {
    let octets: Vec<u8> = (0..4).flat_map(|_| random.u64().to_le_bytes()).collect();
    ScopeKey::new(octets).ok().map(Arc::new)
}
