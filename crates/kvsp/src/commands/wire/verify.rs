//! `block verify`.

use std::path::PathBuf;

use kvsp_proto::codec;
use kvsp_proto::container::Container;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::digest;
use kvsp_proto::id::{Digest, NamedDigest};
use kvsp_proto::record::{RecordError, ReplicaRecord};
use serde_json::json;

use super::Answer;
use super::block;
use super::error::{Mismatch, WireError};
use super::files;

/// Arguments of `kvsp block verify`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  kvsp block verify block.kvb1 --record replica.json --descriptor descriptor.json"
)]
pub(crate) struct VerifyArgs {
    /// The container; - reads stdin.
    file: PathBuf,
    /// The Replica Record that the container must bear out.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The descriptor whose geometry the container must have.
    #[arg(long, value_name = "FILE")]
    descriptor: Option<PathBuf>,
}

impl VerifyArgs {
    pub(super) fn answer(&self) -> Result<Answer, WireError> {
        let container = files::read_container(&self.file).map_err(block::as_mismatch)?;
        let descriptor = self.descriptor.as_deref().map(files::read_descriptor).transpose()?;
        let record = self.read_record()?;
        let digests = container.layer_digests();
        check(&container, &digests, descriptor.as_ref(), record.as_ref())
            .map_err(|source| WireError::Mismatch { path: self.file.clone(), source })?;
        let mut checked = vec!["container"];
        checked.extend(descriptor.map(|_| "descriptor"));
        checked.extend(record.map(|_| "record"));
        let digest = NamedDigest(digest::replica_digest(&digests));
        let repr_digest = container.repr_digest().to_string();
        Ok(Answer {
            text: format!("verified against: {}\ndigest {digest}", checked.join(", ")),
            json: json!({ "verified": true, "checked": checked, "digest": digest, "repr_digest": repr_digest }),
        })
    }

    fn read_record(&self) -> Result<Option<ReplicaRecord>, WireError> {
        let Some(path) = &self.record else { return Ok(None) };
        match ReplicaRecord::from_json(&files::read(path)?) {
            Ok(record) => Ok(Some(record)),
            Err(error @ RecordError::Invalid(_)) => {
                Err(WireError::Mismatch { path: path.clone(), source: Mismatch::Record(error) })
            }
            Err(source) => Err(WireError::Record { path: path.clone(), source }),
        }
    }
}

fn check(
    container: &Container,
    digests: &[Digest],
    descriptor: Option<&Descriptor>,
    record: Option<&ReplicaRecord>,
) -> Result<(), Mismatch> {
    check_sections(container)?;
    if let Some(descriptor) = descriptor {
        container.check_geometry(descriptor)?;
    }
    if let Some(record) = record {
        check_record(container, digests, record, descriptor)?;
    }
    Ok(())
}

/// Every section decodes; private codecs are opaque.
fn check_sections(container: &Container) -> Result<(), Mismatch> {
    for layer in container.layers().layers() {
        let Some(sections) = container.layer(layer) else { continue };
        for section in [&sections.k, &sections.v] {
            match codec::decode_section(container.codec(), section) {
                Ok(_) | Err(codec::CodecError::Opaque(_)) => {}
                Err(source) => return Err(Mismatch::Section { layer, source }),
            }
        }
    }
    Ok(())
}

fn check_record(
    container: &Container,
    digests: &[Digest],
    record: &ReplicaRecord,
    descriptor: Option<&Descriptor>,
) -> Result<(), Mismatch> {
    if let Some(descriptor) = descriptor.filter(|descriptor| descriptor.compat_id() != record.compat_id) {
        return Err(Mismatch::CompatId { record: record.compat_id, descriptor: descriptor.compat_id() });
    }
    if record.codec != container.codec() {
        return Err(Mismatch::Codec { record: record.codec.number(), container: container.codec().number() });
    }
    let listed = record.layer_digests.as_deref();
    if let (Some(listed), Some(descriptor)) = (listed, descriptor)
        && usize::try_from(descriptor.layers) != Ok(listed.len())
    {
        return Err(Mismatch::LayerCount { record: listed.len(), model: descriptor.layers });
    }
    for (layer, digest) in container.layers().layers().zip(digests) {
        match listed.map(|listed| listed.get(layer as usize)) {
            Some(Some(expected)) if expected == digest => {}
            Some(Some(_)) => return Err(Mismatch::LayerDigest(layer)),
            Some(None) => return Err(Mismatch::NoLayerDigest(layer)),
            None => {}
        }
    }
    // A record without layer digests is of a replica that is only served whole.
    let whole = listed.is_none_or(|listed| listed.len() == digests.len());
    if whole {
        let container_digest = NamedDigest(digest::replica_digest(digests));
        if container_digest != record.digest {
            return Err(Mismatch::Digest { record: record.digest, container: container_digest });
        }
        if container.size() != record.size {
            return Err(Mismatch::Size { record: record.size, container: container.size() });
        }
    }
    Ok(())
}
