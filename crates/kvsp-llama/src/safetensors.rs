//! The safetensors container. The file is not trusted: lengths are checked before anything is allocated.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::dtype::KvType;
use crate::error::LoadError;

/// Longest header taken, as the format's own library has it.
const MAX_HEADER: u64 = 100_000_000;

/// Where a tensor lies.
#[derive(Debug, Clone)]
pub(crate) struct TensorInfo {
    /// `None` for element types that are no weights of this engine.
    element: Option<KvType>,
    /// Slowest first.
    pub(crate) dims: Vec<usize>,
    /// From the start of the file.
    offset: u64,
    octets: usize,
}

/// One safetensors file with its header read.
pub(crate) struct Safetensors {
    path: PathBuf,
    pub(crate) tensors: BTreeMap<String, TensorInfo>,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

impl Safetensors {
    /// Read the header.
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let malformed = |why: String| LoadError::malformed(&name, why);
        let io = |e| LoadError::io(path, e);
        let mut file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix).map_err(io)?;
        let header = u64::from_le_bytes(prefix);
        if header > MAX_HEADER || header > length - 8 {
            return Err(malformed("its header is longer than it can be".into()));
        }
        let mut octets = Vec::new();
        file.take(header).read_to_end(&mut octets).map_err(io)?;
        let entries: Map<String, Value> =
            serde_json::from_slice(&octets).map_err(|e| malformed(e.to_string()))?;
        let data = 8 + header;
        let mut tensors = BTreeMap::new();
        for (tensor, entry) in entries.into_iter().filter(|(name, _)| name != "__metadata__") {
            let entry: Entry =
                serde_json::from_value(entry).map_err(|e| malformed(format!("{tensor:?}: {e}")))?;
            let info = entry
                .place(data, length)
                .ok_or_else(|| malformed(format!("the place of {tensor:?} does not add up")))?;
            tensors.insert(tensor, info);
        }
        Ok(Self { path: path.to_owned(), tensors })
    }

    /// The elements of a tensor as `f32`.
    pub(crate) fn read(&self, info: &TensorInfo) -> Result<Vec<f32>, LoadError> {
        let Some(element) = info.element else {
            return Err(LoadError::Unsupported("safetensors other than F32, F16 and BF16".into()));
        };
        let io = |e| LoadError::io(&self.path, e);
        let mut file = File::open(&self.path).map_err(io)?;
        file.seek(SeekFrom::Start(info.offset)).map_err(io)?;
        let mut raw = vec![0; info.octets];
        file.read_exact(&mut raw).map_err(io)?;
        Ok(element.decode(&raw))
    }
}

impl Entry {
    fn place(self, data: u64, length: u64) -> Option<TensorInfo> {
        let (start, end) = self.data_offsets;
        let octets = end.checked_sub(start)?;
        if data.checked_add(end)? > length {
            return None;
        }
        let element = match self.dtype.as_str() {
            "F32" => Some(KvType::F32),
            "F16" => Some(KvType::F16),
            "BF16" => Some(KvType::Bf16),
            _ => None,
        };
        let elements = self.shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim as u64))?;
        if let Some(element) = element
            && elements.checked_mul(element.octets() as u64)? != octets
        {
            return None;
        }
        let octets = usize::try_from(octets).ok()?;
        Some(TensorInfo { element, dims: self.shape, offset: data + start, octets })
    }
}
