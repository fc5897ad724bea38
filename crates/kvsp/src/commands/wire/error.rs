//! Why a command on files fails, and with which exit status.

use std::io;
use std::path::PathBuf;

use kvsp_llama::LoadError;
use kvsp_llama::digest::DigestError;
use kvsp_proto::block_key::ScopeKeyError;
use kvsp_proto::codec::CodecError;
use kvsp_proto::container::{ContainerError, GeometryError, LayerRange};
use kvsp_proto::descriptor::DescriptorError;
use kvsp_proto::id::{CompatId, NamedDigest};
use kvsp_proto::json::JsonError;
use kvsp_proto::record::RecordError;

/// A command on files failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot write to stdout: {0}")]
    Stdout(io::Error),
    #[error("the descriptor {} is refused: {source}", path.display())]
    Descriptor { path: PathBuf, source: DescriptorError },
    #[error("the scope key {} is refused: {source}", path.display())]
    ScopeKey { path: PathBuf, source: ScopeKeyError },
    #[error("{} is not a JSON array of token identifiers: {source}", path.display())]
    Tokens { path: PathBuf, source: JsonError },
    #[error("{}: {source}", path.display())]
    Container { path: PathBuf, source: ContainerError },
    #[error("layers {asked} are not in the container, which holds {held}")]
    LayersUnavailable { asked: LayerRange, held: LayerRange },
    #[error("cannot transcode: {0}")]
    Transcode(#[from] CodecError),
    #[error("the record {} cannot be read: {source}", path.display())]
    Record { path: PathBuf, source: RecordError },
    #[error("{}: {source}", path.display())]
    Mismatch { path: PathBuf, source: Mismatch },
    #[error(transparent)]
    Digest(#[from] DigestError),
    #[error(transparent)]
    Model(#[from] LoadError),
}

/// What verification finds false.
#[derive(Debug, thiserror::Error)]
pub(super) enum Mismatch {
    #[error("malformed container: {0}")]
    Container(#[from] ContainerError),
    #[error("a section of layer {layer}: {source}")]
    Section { layer: u32, source: CodecError },
    #[error("contradicts the descriptor: {0}")]
    Geometry(#[from] GeometryError),
    #[error("the record contradicts itself: {0}")]
    Record(RecordError),
    #[error("the record is of compat_id {record}, the descriptor of {descriptor}")]
    CompatId { record: CompatId, descriptor: CompatId },
    #[error("the record says codec {record}, the container has codec {container}")]
    Codec { record: u16, container: u16 },
    #[error("the record says {record} octets, the container has {container}")]
    Size { record: u64, container: u64 },
    #[error("the record has {record} layer digests where the model has {model} layers")]
    LayerCount { record: usize, model: u32 },
    #[error("the record has no digest of layer {0}")]
    NoLayerDigest(u32),
    #[error("the digest of layer {0} is not that of the record")]
    LayerDigest(u32),
    #[error("the digest of the layers is {container}, the record says {record}")]
    Digest { record: NamedDigest, container: NamedDigest },
}

impl WireError {
    /// 4 where something was verified and found false, else 1.
    pub(super) const fn exit_status(&self) -> u8 {
        match self {
            Self::Mismatch { .. } => 4,
            _ => 1,
        }
    }
}
