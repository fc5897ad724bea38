//! Why a model could not be loaded or described.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvsp_proto::descriptor::DescriptorError;

/// Why a model could not be loaded or described.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LoadError {
    /// A path was given without the model's name, which is part of every cache's identity.
    #[error("a model from a path needs its name: give --name (all parties must use the same string)")]
    NameRequired,
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: Arc<std::io::Error>,
    },
    /// The path holds no model files.
    #[error("{} holds neither *.safetensors nor *.gguf", .0.display())]
    NoModel(PathBuf),
    /// A file contradicts its format.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// The file or the part of it.
        what: String,
        /// What does not add up.
        why: String,
    },
    /// A valid model that this engine does not compute.
    #[error("not supported by this engine: {0}")]
    Unsupported(String),
    /// A weight is absent.
    #[error("the weights lack the tensor {0:?}")]
    MissingTensor(String),
    /// A weight has another shape than the configuration says.
    #[error("tensor {name:?} has shape {got:?} where {want:?} was expected")]
    TensorShape {
        /// Its name.
        name: String,
        /// Dimensions in the file, slowest first.
        got: Vec<usize>,
        /// Dimensions by the configuration.
        want: Vec<usize>,
    },
    /// The load options contradict each other or the model.
    #[error("load options: {0}")]
    Options(String),
    /// The tokenizer could not be built.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The weight files could not be digested.
    #[error(transparent)]
    Digest(#[from] crate::digest::DigestError),
    /// The descriptor of this model and these options is not valid.
    #[error("descriptor: {0}")]
    Descriptor(#[from] DescriptorError),
    /// The tensor library failed.
    #[error("tensor library: {0}")]
    Backend(String),
}

impl LoadError {
    pub(crate) fn malformed(what: impl Into<String>, why: String) -> Self {
        Self::Malformed { what: what.into(), why }
    }

    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source: Arc::new(source) }
    }
}

impl From<candle_core::Error> for LoadError {
    fn from(error: candle_core::Error) -> Self {
        Self::Backend(error.to_string())
    }
}
