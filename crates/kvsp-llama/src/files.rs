//! Model files of either form.

use std::path::Path;

use crate::config::Config;
use crate::error::LoadError;
use crate::gguf_model::GgufModel;
use crate::hf::HfModel;
use crate::tokenizer::LlamaTokenizer;
use crate::weights::WeightSource;

/// The opened files of a model: headers read, weights not.
pub(crate) enum ModelFiles {
    Gguf(GgufModel),
    Hf(Box<HfModel>),
}

impl ModelFiles {
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let weights = crate::digest::weight_files(path)?;
        if weights.gguf {
            GgufModel::open(path, &weights.files).map(Self::Gguf)
        } else {
            HfModel::open(path, &weights.files).map(Box::new).map(Self::Hf)
        }
    }

    pub(crate) fn config(&self) -> Result<Config, LoadError> {
        let config = match self {
            Self::Gguf(model) => model.config()?,
            Self::Hf(model) => model.config()?,
        };
        config.check()?;
        Ok(config)
    }

    pub(crate) fn tokenizer(&self) -> Result<LlamaTokenizer, LoadError> {
        match self {
            Self::Gguf(model) => model.tokenizer(),
            Self::Hf(model) => model.tokenizer(),
        }
    }

    pub(crate) fn weights(&mut self) -> &mut dyn WeightSource {
        match self {
            Self::Gguf(model) => model,
            Self::Hf(model) => model.as_mut(),
        }
    }
}
