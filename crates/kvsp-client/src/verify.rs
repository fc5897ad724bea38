//! Verification of a container against what was asked for and against its Replica Record (draft section
//! 6.7): pure, so that every receiver of octets can use it.

use kvsp_proto::container::{
    Container, ContainerError, ContainerHasher, Header, LayerRange, LayerSections, Limits, Malformed,
};
use kvsp_proto::digest::{ReprDigest, ReprDigestError, replica_digest};
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

/// Checks a container that arrives piece by piece: its form, `Repr-Digest`, and what [`verify_request`] and
/// [`verify_record`] check, in one pass over the octets. What is wrong is found as early as it can be: other
/// layers with the header, a layer's digest with the layer's last octet.
#[derive(Debug)]
pub struct Verifier<'a> {
    hasher: ContainerHasher,
    repr_digest: ReprDigest,
    record: &'a ReplicaRecord,
    layers: Option<LayerRange>,
    /// Whether header and record go together.
    header_checked: bool,
    /// Layers whose digests have been compared.
    compared: usize,
}

impl<'a> Verifier<'a> {
    /// For a replica's container under its `Repr-Digest`; `layers` are those asked for, `None` for all.
    #[must_use]
    pub fn new(
        limits: Limits,
        repr_digest: ReprDigest,
        record: &'a ReplicaRecord,
        layers: Option<LayerRange>,
    ) -> Self {
        let hasher = ContainerHasher::new(limits);
        Self { hasher, repr_digest, record, layers, header_checked: false, compared: 0 }
    }

    /// Takes in the octets that arrived next.
    ///
    /// # Errors
    /// [`VerifyError`]; nothing that arrived may be used.
    pub fn update(&mut self, octets: &[u8]) -> Result<(), VerifyError> {
        self.hasher.update(octets)?;
        let Some(header) = self.hasher.header() else { return Ok(()) };
        let listed = self.record.layer_digests.as_deref();
        if !self.header_checked {
            if let Some(wanted) = self.layers.or_else(|| all_layers(self.record))
                && wanted != header.layers()
            {
                return Err(VerifyError::Layers { wanted, got: header.layers() });
            }
            if let Some(listed) = listed
                && replica_digest(listed) != self.record.digest.0
            {
                return Err(VerifyError::ReplicaDigest);
            }
            self.header_checked = true;
        }
        // A transcoded container has other digests, which nobody lists.
        if header.codec() == Some(self.record.codec)
            && let Some(listed) = listed
        {
            let complete = self.hasher.layer_digests();
            for (layer, digest) in header.layers().layers().zip(complete).skip(self.compared) {
                verify_digest(listed, layer, *digest)?;
            }
            self.compared = complete.len();
        }
        Ok(())
    }

    /// Ends the container: its header, and who vouches for what is in it.
    ///
    /// # Errors
    /// [`VerifyError`]; nothing that arrived may be used.
    pub fn finish(self) -> Result<(Header, Assurance), VerifyError> {
        let header = self.hasher.header().cloned();
        let (repr_digest, layer_digests) = self.hasher.finish()?;
        if repr_digest != self.repr_digest {
            return Err(VerifyError::ReprDigest);
        }
        // Without a header the hasher has refused.
        let header = header.ok_or(ContainerError::from(Malformed::Missing))?;
        if header.codec() != Some(self.record.codec) {
            return Ok((header, Assurance::Holder));
        }
        let first = header.layers().first();
        if self.record.layer_digests.is_none() {
            // Without a list, only all layers together can be checked.
            if self.layers.is_some() || first != 0 {
                return Err(VerifyError::NoLayerDigest { layer: first });
            }
            if replica_digest(&layer_digests) != self.record.digest.0 {
                return Err(VerifyError::ReplicaDigest);
            }
        }
        if self.layers.is_none() && header.container_octets() != self.record.size {
            return Err(VerifyError::Size { wanted: self.record.size, got: header.container_octets() });
        }
        Ok((header, Assurance::Producer))
    }
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
