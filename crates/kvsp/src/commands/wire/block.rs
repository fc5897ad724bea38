//! `block inspect`, `block slice` and `block transcode`.

use std::fmt::Write as _;
use std::path::PathBuf;

use kvsp_proto::codec;
use kvsp_proto::container::{Container, LayerRange, VERSION};
use kvsp_proto::digest;
use kvsp_proto::id::NamedDigest;
use kvsp_proto::registry::Codec;
use serde_json::json;

use super::Answer;
use super::error::WireError;
use super::files;

/// Arguments of `kvsp block inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  kvsp block inspect block.kvb1 --json")]
pub(crate) struct InspectArgs {
    /// The container; - reads stdin.
    file: PathBuf,
}

impl InspectArgs {
    pub(super) fn answer(&self) -> Result<Answer, WireError> {
        let container = files::read_container(&self.file).map_err(as_mismatch)?;
        Ok(describe(&container))
    }
}

/// A container that is looked into or verified and turns out to be none fails verification; for a
/// command that was to make another one of it, it is an input like any other.
pub(super) fn as_mismatch(error: WireError) -> WireError {
    match error {
        WireError::Container { path, source } => WireError::Mismatch { path, source: source.into() },
        other => other,
    }
}

/// What `inspect` shows.
pub(super) fn describe(container: &Container) -> Answer {
    let layer_digests = container.layer_digests();
    let digest = NamedDigest(digest::replica_digest(&layer_digests));
    let repr_digest = container.repr_digest().to_string();
    let (codec, layers) = (container.codec(), container.layers());
    let mut text = format!(
        "version {VERSION}, codec {} ({codec}), layers {layers}, {} tokens, {} octets\n\
         digest      {digest}\n\
         repr-digest {repr_digest}",
        codec.number(),
        container.token_count(),
        container.size(),
    );
    let lengths = container.header().lengths();
    for ((layer, layer_digest), (k, v)) in layers.layers().zip(&layer_digests).zip(lengths) {
        // Writing to a string does not fail.
        let _ = write!(text, "\nlayer {layer:<5} {layer_digest}  K {k}  V {v}");
    }
    let json = json!({
        "version": VERSION,
        "codec": codec,
        "first_layer": layers.first(),
        "layer_count": layers.count(),
        "token_count": container.token_count(),
        "size": container.size(),
        "layer_digests": layer_digests,
        "digest": digest,
        "repr_digest": repr_digest,
    });
    Answer { json, text }
}

/// Arguments of `kvsp block slice`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  kvsp block slice block.kvb1 --layers 0-15 -o lower.kvb1")]
pub(crate) struct SliceArgs {
    /// The container; - reads stdin.
    file: PathBuf,
    /// The layers to keep, inclusive: a-b.
    #[arg(long, value_name = "A-B")]
    layers: LayerRange,
    /// Where to write the container of those layers.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
}

impl SliceArgs {
    pub(super) fn answer(&self) -> Result<Answer, WireError> {
        let container = files::read_container(&self.file)?;
        let slice = container
            .slice(self.layers)
            .ok_or(WireError::LayersUnavailable { asked: self.layers, held: container.layers() })?;
        files::write_whole(&self.output, &[&slice.head, &slice.data])?;
        let repr_digest = slice.repr_digest().to_string();
        Ok(Answer {
            text: format!("layers {}, {} octets, {repr_digest}", self.layers, slice.size()),
            json: json!({
                "layers": [self.layers.first(), self.layers.last()],
                "size": slice.size(),
                "repr_digest": repr_digest,
            }),
        })
    }
}

/// Arguments of `kvsp block transcode`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  kvsp block transcode block.kvb1 --codec 2 -o block.split.kvb1")]
pub(crate) struct TranscodeArgs {
    /// The container; - reads stdin.
    file: PathBuf,
    /// The codec to change to: a number, raw or split-zstd.
    #[arg(long, value_name = "N", value_parser = parse_codec)]
    codec: Codec,
    /// The block's descriptor: checked, and the size of the elements taken from it. Without it they
    /// are taken to be of two octets.
    #[arg(long, value_name = "FILE")]
    descriptor: Option<PathBuf>,
    /// Where to write the new container.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
}

impl TranscodeArgs {
    pub(super) fn answer(&self) -> Result<Answer, WireError> {
        let container = files::read_container(&self.file)?;
        let mut element_octets = codec::SPLIT_ELEMENT_OCTETS;
        if let Some(path) = &self.descriptor {
            let descriptor = files::read_descriptor(path)?;
            container
                .check_geometry(&descriptor)
                .map_err(|e| WireError::Mismatch { path: self.file.clone(), source: e.into() })?;
            element_octets = descriptor.kv_dtype.octets();
        }
        let transcoded = codec::transcode(&container, self.codec, element_octets)?;
        files::write_whole(&self.output, &[transcoded.bytes()])?;
        let repr_digest = transcoded.repr_digest().to_string();
        Ok(Answer {
            text: format!(
                "codec {}, {} octets (before: {}), {repr_digest}",
                self.codec,
                transcoded.size(),
                container.size()
            ),
            json: json!({ "codec": self.codec, "size": transcoded.size(), "repr_digest": repr_digest }),
        })
    }
}

/// Neither the name nor the number of a codec.
#[derive(Debug, thiserror::Error)]
#[error("not raw, split-zstd or a number from 1 to 65534")]
struct CodecNameError;

fn parse_codec(text: &str) -> Result<Codec, CodecNameError> {
    match text {
        "raw" => Ok(Codec::RAW),
        "split-zstd" => Ok(Codec::SPLIT_ZSTD),
        number => number.parse().ok().and_then(Codec::new).ok_or(CodecNameError),
    }
}
