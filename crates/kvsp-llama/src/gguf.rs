//! The GGUF container: metadata and the places of tensors. The file is not trusted: every length is checked
//! against what the file still holds before anything is allocated for it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle_core::Device;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::ggml_file::qtensor_from_ggml;

use crate::dtype::KvType;
use crate::error::LoadError;

const MAGIC: [u8; 4] = *b"GGUF";
const MAX_ENTRIES: u64 = 1 << 17;
const MAX_KEY: u64 = 1 << 12;
const MAX_STRING: u64 = 1 << 24;
const MAX_ARRAY: u64 = 1 << 22;

/// A value of the metadata; arrays are kept where the tokenizer needs them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Meta {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Integers(Vec<i64>),
    /// An array that is skipped.
    Skipped,
}

/// Where a tensor lies.
#[derive(Debug, Clone)]
pub(crate) struct TensorInfo {
    kind: GgmlDType,
    /// Slowest first.
    pub(crate) dims: Vec<usize>,
    elements: usize,
    octets: usize,
    /// From the start of the file.
    offset: u64,
}

/// One GGUF file with its header read.
pub(crate) struct Gguf {
    path: PathBuf,
    pub(crate) metadata: BTreeMap<String, Meta>,
    pub(crate) tensors: BTreeMap<String, TensorInfo>,
}

impl Gguf {
    /// Read the header.
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let file = File::open(path).map_err(|e| LoadError::io(path, e))?;
        let length = file.metadata().map_err(|e| LoadError::io(path, e))?.len();
        let mut header = Header { path, input: BufReader::new(file), at: 0, length };
        if header.array()? != MAGIC {
            return Err(header.malformed("it does not begin with GGUF"));
        }
        let version = header.u32()?;
        if !matches!(version, 2 | 3) {
            return Err(LoadError::Unsupported(format!("GGUF version {version} (2 and 3 are read)")));
        }
        let tensors = header.count(20)?;
        let entries = header.count(13)?;
        let mut metadata = BTreeMap::new();
        for _ in 0..entries {
            let key = header.string(MAX_KEY)?;
            let kind = header.u32()?;
            let value = header.value(kind, key.starts_with("tokenizer."))?;
            if metadata.insert(key, value).is_some() {
                return Err(header.malformed("a metadata key comes twice"));
            }
        }
        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(Meta::Unsigned(a)) if a.is_power_of_two() && *a <= 1 << 20 => *a,
            Some(_) => return Err(header.malformed("general.alignment is no power of two")),
        };
        let mut found = BTreeMap::new();
        for _ in 0..tensors {
            let name = header.string(MAX_KEY)?;
            let info = header.tensor()?;
            if found.insert(name, info).is_some() {
                return Err(header.malformed("a tensor comes twice"));
            }
        }
        let data = header.at.next_multiple_of(alignment);
        for (name, info) in &mut found {
            let end = info.offset.checked_add(data).and_then(|start| start.checked_add(info.octets as u64));
            if end.is_none_or(|end| end > length) {
                return Err(header.malformed(&format!("tensor {name:?} runs beyond the end of the file")));
            }
            info.offset += data;
        }
        Ok(Self { path: path.to_owned(), metadata, tensors: found })
    }

    /// The elements of a tensor as `f32`, dequantised.
    pub(crate) fn read(&self, info: &TensorInfo) -> Result<Vec<f32>, LoadError> {
        let io = |e| LoadError::io(&self.path, e);
        let mut file = File::open(&self.path).map_err(io)?;
        file.seek(SeekFrom::Start(info.offset)).map_err(io)?;
        let mut raw = vec![0; info.octets];
        file.read_exact(&mut raw).map_err(io)?;
        Ok(match info.kind {
            GgmlDType::F32 => KvType::F32.decode(&raw),
            GgmlDType::F16 => KvType::F16.decode(&raw),
            GgmlDType::BF16 => KvType::Bf16.decode(&raw),
            kind => {
                let tensor = qtensor_from_ggml(kind, &raw, vec![info.elements], &Device::Cpu)?;
                tensor.dequantize(&Device::Cpu)?.to_vec1()?
            }
        })
    }
}

/// The part of a file before its tensors.
struct Header<'a> {
    path: &'a Path,
    input: BufReader<File>,
    at: u64,
    length: u64,
}

impl Header<'_> {
    fn malformed(&self, why: &str) -> LoadError {
        let file = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        LoadError::malformed(file, why.to_owned())
    }

    /// Claim octets of the file before they are read or allocated.
    fn claim(&mut self, octets: u64) -> Result<(), LoadError> {
        match self.at.checked_add(octets).filter(|&at| at <= self.length) {
            Some(at) => {
                self.at = at;
                Ok(())
            }
            None => Err(self.malformed("it ends within its header")),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        self.claim(N as u64)?;
        let mut octets = [0; N];
        self.input.read_exact(&mut octets).map_err(|e| LoadError::io(self.path, e))?;
        Ok(octets)
    }

    fn u32(&mut self) -> Result<u32, LoadError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, LoadError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of entries of at least `least` octets each.
    fn count(&mut self, least: u64) -> Result<u64, LoadError> {
        let count = self.u64()?;
        if count > MAX_ENTRIES || count.saturating_mul(least) > self.length - self.at {
            return Err(self.malformed("it claims more entries than it can hold"));
        }
        Ok(count)
    }

    fn string(&mut self, limit: u64) -> Result<String, LoadError> {
        let length = self.u64()?;
        if length > limit {
            return Err(self.malformed("a string is too long"));
        }
        self.claim(length)?;
        // In range by the limit.
        let mut octets = vec![0; length as usize];
        self.input.read_exact(&mut octets).map_err(|e| LoadError::io(self.path, e))?;
        String::from_utf8(octets).map_err(|_| self.malformed("a string is not UTF-8"))
    }

    fn value(&mut self, kind: u32, keep: bool) -> Result<Meta, LoadError> {
        Ok(match kind {
            0 => Meta::Unsigned(self.array::<1>()?[0].into()),
            1 => Meta::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Meta::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Meta::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Meta::Unsigned(self.u32()?.into()),
            5 => Meta::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Meta::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Meta::Bool(self.array::<1>()?[0] != 0),
            8 => Meta::Text(self.string(MAX_STRING)?),
            9 => return self.elements(keep),
            10 => Meta::Unsigned(self.u64()?),
            11 => Meta::Signed(i64::from_le_bytes(self.array()?)),
            12 => Meta::Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(self.malformed("a metadata type is unknown")),
        })
    }

    fn elements(&mut self, keep: bool) -> Result<Meta, LoadError> {
        let kind = self.u32()?;
        let count = self.u64()?;
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => return Err(LoadError::Unsupported("GGUF arrays of arrays".into())),
            _ => return Err(self.malformed("a metadata type is unknown")),
        };
        if count > MAX_ARRAY || count * least > self.length - self.at {
            return Err(self.malformed("an array claims more elements than it can hold"));
        }
        let mut texts = Vec::new();
        let mut integers = Vec::new();
        for _ in 0..count {
            match self.value(kind, false)? {
                Meta::Text(text) if keep => texts.push(text),
                Meta::Unsigned(n) if keep => integers.push(i64::try_from(n).unwrap_or(i64::MAX)),
                Meta::Signed(n) if keep => integers.push(n),
                _ => {}
            }
        }
        Ok(match kind {
            8 if keep => Meta::Texts(texts),
            0..=5 | 10 | 11 if keep => Meta::Integers(integers),
            _ => Meta::Skipped,
        })
    }

    fn tensor(&mut self) -> Result<TensorInfo, LoadError> {
        let rank = self.u32()?;
        if rank > 4 {
            return Err(self.malformed("a tensor has more than four dimensions"));
        }
        let mut dims = Vec::new();
        for _ in 0..rank {
            dims.push(usize::try_from(self.u64()?).map_err(|_| self.malformed("a dimension overflows"))?);
        }
        dims.reverse();
        let kind = kind(self.u32()?)?;
        let offset = self.u64()?;
        let elements = dims.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let fits = |n: &usize| dims.last().is_none_or(|row| row.is_multiple_of(kind.block_size())) && *n > 0;
        let Some(elements) = elements.filter(fits) else {
            return Err(self.malformed("a tensor's dimensions do not add up"));
        };
        let octets = (elements / kind.block_size()).checked_mul(kind.type_size());
        let octets = octets.ok_or_else(|| self.malformed("a tensor's dimensions do not add up"))?;
        Ok(TensorInfo { kind, dims, elements, octets, offset })
    }
}

/// The element types by GGUF's numbers.
fn kind(number: u32) -> Result<GgmlDType, LoadError> {
    Ok(match number {
        0 => GgmlDType::F32,
        1 => GgmlDType::F16,
        2 => GgmlDType::Q4_0,
        3 => GgmlDType::Q4_1,
        6 => GgmlDType::Q5_0,
        7 => GgmlDType::Q5_1,
        8 => GgmlDType::Q8_0,
        10 => GgmlDType::Q2K,
        11 => GgmlDType::Q3K,
        12 => GgmlDType::Q4K,
        13 => GgmlDType::Q5K,
        14 => GgmlDType::Q6K,
        30 => GgmlDType::BF16,
        _ => return Err(LoadError::Unsupported(format!("GGUF tensor type {number}"))),
    })
}
