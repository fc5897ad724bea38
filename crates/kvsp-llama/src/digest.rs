//! Digests of model files, streamed (profile section 2).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvsp_proto::digest::Hasher;
use kvsp_proto::id::NamedDigest;
use serde_json::Value;

/// Octets read at a time.
const CHUNK: usize = 1 << 20;
/// Longest index file taken; the largest published ones are a few MiB.
const MAX_INDEX: u64 = 64 << 20;

/// The two digests of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelDigests {
    /// Over the weight files in the order of their names.
    pub model: NamedDigest,
    /// Over the tokenizer's definition; the model's own digest for GGUF, which embeds it.
    pub tokenizer: NamedDigest,
}

/// Why model files have no digest.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DigestError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: Arc<std::io::Error>,
    },
    /// The path holds no weight files.
    #[error("{} holds neither *.safetensors nor *.gguf", .0.display())]
    NoWeights(PathBuf),
    /// Safetensors weights without a tokenizer definition.
    #[error("{} holds neither tokenizer.json nor tokenizer.model", .0.display())]
    NoTokenizer(PathBuf),
    /// The index of the weights is not what it should be.
    #[error("malformed model.safetensors.index.json: {0}")]
    Index(String),
}

impl DigestError {
    fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source: Arc::new(source) }
    }
}

/// The digests of the model at `path`, a folder or one GGUF file. `progress` hears octets done of all.
///
/// # Errors
/// See [`DigestError`].
pub fn model_digests(path: &Path, progress: &dyn Fn(u64, u64)) -> Result<ModelDigests, DigestError> {
    let weights = weight_files(path)?;
    let definition = tokenizer_file(path);
    let mut total = 0;
    for file in weights.files.iter().chain(&definition) {
        total += std::fs::metadata(file).map_err(|e| DigestError::io(file, e))?.len();
    }
    let mut done = 0;
    let model = hash(&weights.files, &mut done, total, progress)?;
    let tokenizer = match definition {
        Some(file) => hash(&[file], &mut done, total, progress)?,
        None if weights.gguf => model,
        None => return Err(DigestError::NoTokenizer(path.to_owned())),
    };
    Ok(ModelDigests { model, tokenizer })
}

/// The weight files of a model, ascending by the octets of their names.
pub(crate) struct WeightFiles {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) gguf: bool,
}

/// The weight files that make up the model at `path`.
pub(crate) fn weight_files(path: &Path) -> Result<WeightFiles, DigestError> {
    let metadata = std::fs::metadata(path).map_err(|e| DigestError::io(path, e))?;
    if !metadata.is_dir() {
        if path.extension() == Some(OsStr::new("gguf")) {
            return Ok(WeightFiles { files: vec![path.to_owned()], gguf: true });
        }
        return Err(DigestError::NoWeights(path.to_owned()));
    }
    let index = path.join("model.safetensors.index.json");
    if index.is_file() {
        let names = indexed_files(&index)?;
        let files: Vec<PathBuf> = names.iter().map(|name| path.join(name)).collect();
        if let Some(missing) = files.iter().find(|file| !file.is_file()) {
            let name = missing.file_name().unwrap_or_default().to_string_lossy();
            return Err(DigestError::Index(format!("it names {name:?}, which is not there")));
        }
        return Ok(WeightFiles { files, gguf: false });
    }
    let single = path.join("model.safetensors");
    if single.is_file() {
        return Ok(WeightFiles { files: vec![single], gguf: false });
    }
    let files = gguf_files(path)?;
    if files.is_empty() {
        return Err(DigestError::NoWeights(path.to_owned()));
    }
    Ok(WeightFiles { files, gguf: true })
}

/// The tokenizer's definition beside the weights, if there is one.
fn tokenizer_file(path: &Path) -> Option<PathBuf> {
    if !path.is_dir() {
        return None;
    }
    ["tokenizer.json", "tokenizer.model"].iter().map(|name| path.join(name)).find(|file| file.is_file())
}

/// The distinct file names of an index, ascending.
fn indexed_files(index: &Path) -> Result<BTreeSet<String>, DigestError> {
    let octets = read_limited(index, MAX_INDEX)?;
    let malformed = |why: &str| DigestError::Index(why.to_owned());
    let value: Value = serde_json::from_slice(&octets).map_err(|e| malformed(&e.to_string()))?;
    let map = value.get("weight_map").and_then(Value::as_object).ok_or_else(|| malformed("no weight_map"))?;
    let mut names = BTreeSet::new();
    for name in map.values() {
        let name = name.as_str().ok_or_else(|| malformed("a file name is not a string"))?;
        // A file elsewhere is not part of this model, and must not be read on its say-so.
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\', '\0']) {
            return Err(malformed("a file name with a path in it"));
        }
        names.insert(name.to_owned());
    }
    if names.is_empty() {
        return Err(malformed("it names no file"));
    }
    Ok(names)
}

/// All `*.gguf` in a folder, ascending by the octets of their names.
fn gguf_files(folder: &Path) -> Result<Vec<PathBuf>, DigestError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| DigestError::io(folder, e))? {
        let file = entry.map_err(|e| DigestError::io(folder, e))?.path();
        if file.extension() == Some(OsStr::new("gguf")) && file.is_file() {
            files.push(file);
        }
    }
    files.sort_by(|a, b| name_octets(a).cmp(name_octets(b)));
    Ok(files)
}

fn name_octets(file: &Path) -> &[u8] {
    file.file_name().unwrap_or_default().as_bytes()
}

/// A whole file of at most `limit` octets.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, DigestError> {
    let file = File::open(path).map_err(|e| DigestError::io(path, e))?;
    let mut octets = Vec::new();
    file.take(limit + 1).read_to_end(&mut octets).map_err(|e| DigestError::io(path, e))?;
    if octets.len() as u64 > limit {
        return Err(DigestError::io(path, std::io::Error::other(format!("longer than {limit} octets"))));
    }
    Ok(octets)
}

fn hash(
    files: &[PathBuf],
    done: &mut u64,
    total: u64,
    progress: &dyn Fn(u64, u64),
) -> Result<NamedDigest, DigestError> {
    let mut hasher = Hasher::new();
    let mut chunk = vec![0; CHUNK];
    for path in files {
        let mut file = File::open(path).map_err(|e| DigestError::io(path, e))?;
        loop {
            let read = file.read(&mut chunk).map_err(|e| DigestError::io(path, e))?;
            if read == 0 {
                break;
            }
            hasher.update(&chunk[..read]);
            *done += read as u64;
            progress(*done, total);
        }
    }
    Ok(NamedDigest(hasher.finish()))
}
