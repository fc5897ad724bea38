//! Verification of a container against what was asked for and against its Replica Record (draft section
//! 6.7): pure, so that every receiver of octets can use it.

use kvsp_proto::container::{Container, ContainerError, LayerRange, LayerSections};
use kvsp_proto::digest::{ReprDigestError, replica_digest};
use kvsp_proto::id::{CompatId, Digest};
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::registry::Codec;

/// A block is not what it should be. Nothing of it may be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// There is no `Repr-Digest`, or none with `sha-256`.
    #[error("no Repr-Digest with sha-256")]
    NoReprDigest,
    /// The `Repr-Digest` does not parse.
    #[error("Repr-Digest: {0}")]
    BadReprDigest(ReprDigestError),
    /// The octets do not have the `Repr-Digest`.
    #[error("the octets do not have the Repr-Digest")]
    ReprDigest,
    /// The octets are not a container.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// Other layers than those asked for.
    #[error("layers {got} instead of {wanted}")]
    Layers {
        /// The layers asked for.
        wanted: LayerRange,
        /// The layers that came.
        got: LayerRange,
    },
    /// Another codec than that asked for.
    #[error("codec {got} instead of {wanted}")]
    Codec {
        /// The codec asked for.
        wanted: Codec,
        /// The codec that came.
        got: Codec,
    },
    /// A layer does not have the digest that the record lists.
    #[error("layer {layer} does not have its digest")]
    LayerDigest {
        /// The layer.
        layer: u32,
    },
    /// The record lists no digest for a layer.
    #[error("the record lists no digest for layer {layer}")]
    NoLayerDigest {
        /// The layer.
        layer: u32,
    },
    /// The layer digests, of the record or of the container, do not have the replica digest.
    #[error("the layers do not have the replica digest")]
    ReplicaDigest,
    /// The octets are not as many as the record says.
    #[error("{got} octets instead of {wanted}")]
    Size {
        /// The octets of the record.
        wanted: u64,
        /// The octets that came.
        got: u64,
    },
    /// The record is of another Compatibility ID than the one asked for.
    #[error("the record is of Compatibility ID {got}")]
    Compat {
        /// That of the record.
        got: CompatId,
    },
}

/// Who vouches for a container's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assurance {
    /// The producer: the layers have the digests of the Replica Record.
    Producer,
    /// Only the holder, by its `Repr-Digest`: the representation was transcoded.
    Holder,
}

/// Checks that a container has the layers and the codec that were asked for.
///
/// # Errors
/// [`VerifyError::Layers`], [`VerifyError::Codec`].
pub fn verify_request(
    container: &Container,
    layers: Option<LayerRange>,
    codec: Option<Codec>,
) -> Result<(), VerifyError> {
    match (layers, codec) {
        (Some(wanted), _) if wanted != container.layers() => {
            Err(VerifyError::Layers { wanted, got: container.layers() })
        }
        (_, Some(wanted)) if wanted != container.codec() => {
            Err(VerifyError::Codec { wanted, got: container.codec() })
        }
        _ => Ok(()),
    }
}

/// Checks a container against the record of its replica. `layers` are those asked for, `None` for all; then
/// the replica digest is checked too. Hashes the container's data.
///
/// A container of another codec than the record's is transcoded, and only its `Repr-Digest` protects it:
/// [`Assurance::Holder`].
///
/// # Errors
/// [`VerifyError`].
pub fn verify_record(
    container: &Container,
    record: &ReplicaRecord,
    layers: Option<LayerRange>,
) -> Result<Assurance, VerifyError> {
    verify_request(container, layers.or_else(|| all_layers(record)), None)?;
    if container.codec() != record.codec {
        return Ok(Assurance::Holder);
    }
    let Some(listed) = &record.layer_digests else {
        return verify_unlisted(container, record, layers);
    };
    if replica_digest(listed) != record.digest.0 {
        return Err(VerifyError::ReplicaDigest);
    }
    for layer in container.layers().layers() {
        // Within the container by the loop's range.
        let octets = container.layer_octets(layer).unwrap_or_default();
        verify_digest(listed, layer, kvsp_proto::digest::sha256(&octets))?;
    }
    verify_size(container, record, layers)?;
    Ok(Assurance::Producer)
}

/// Checks one layer against the record of its replica.
///
/// # Errors
/// [`VerifyError::LayerDigest`], [`VerifyError::NoLayerDigest`], or [`VerifyError::Codec`] where it is
/// transcoded.
pub fn verify_layer(
    layer: u32,
    sections: &LayerSections,
    codec: Codec,
    record: &ReplicaRecord,
) -> Result<(), VerifyError> {
    if codec != record.codec {
        return Err(VerifyError::Codec { wanted: record.codec, got: codec });
    }
    let listed = record.layer_digests.as_deref().unwrap_or_default();
    verify_digest(listed, layer, sections.digest())
}

fn verify_digest(listed: &[Digest], layer: u32, got: Digest) -> Result<(), VerifyError> {
    let wanted = usize::try_from(layer).ok().and_then(|index| listed.get(index));
    match wanted {
        None => Err(VerifyError::NoLayerDigest { layer }),
        Some(wanted) if *wanted != got => Err(VerifyError::LayerDigest { layer }),
        Some(_) => Ok(()),
    }
}

/// Without a list, only all layers together can be checked.
fn verify_unlisted(
    container: &Container,
    record: &ReplicaRecord,
    layers: Option<LayerRange>,
) -> Result<Assurance, VerifyError> {
    let first = container.layers().first();
    if layers.is_some() || first != 0 {
        return Err(VerifyError::NoLayerDigest { layer: first });
    }
    if container.digest() != record.digest {
        return Err(VerifyError::ReplicaDigest);
    }
    verify_size(container, record, layers)?;
    Ok(Assurance::Producer)
}

fn verify_size(
    container: &Container,
    record: &ReplicaRecord,
    layers: Option<LayerRange>,
) -> Result<(), VerifyError> {
    if layers.is_none() && container.size() != record.size {
        return Err(VerifyError::Size { wanted: record.size, got: container.size() });
    }
    Ok(())
}

/// Layers 0…L−1 of a record that lists their digests.
fn all_layers(record: &ReplicaRecord) -> Option<LayerRange> {
    let count = u32::try_from(record.layer_digests.as_ref()?.len()).ok()?;
    LayerRange::from_count(0, count)
}
