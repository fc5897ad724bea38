//! Octets that were read back are those that were written, or rotten.

use bytes::Bytes;
use kvsp_proto::container::{Container, LayerRange};
use kvsp_proto::digest::sha256;

use crate::block::{BlockMeta, BlockPart};
use crate::disk::format::LIMITS;
use crate::store::StoreError;

/// The container of the leading layers of a block, or of all. Equal headers and equal layer digests make an
/// equal whole, so the data is hashed once.
pub(crate) fn container_of(meta: &BlockMeta, layers: u32, octets: Bytes) -> Result<Container, StoreError> {
    let container =
        Container::parse(octets, &LIMITS).map_err(|_| StoreError::Rotten("it is no container"))?;
    let header = LayerRange::from_count(0, layers).and_then(|range| meta.header_of(range));
    if header.as_ref() != Some(container.header()) {
        return Err(StoreError::Rotten("its header is not that of what was written"));
    }
    let data = container.bytes().get(container.header().octets()..).unwrap_or_default();
    check_layers(container.header().lengths(), &meta.layer_digests, data)?;
    Ok(container)
}

/// Some layers of a block as a container in two parts; `data` are their sections.
pub(crate) fn part_of(meta: &BlockMeta, range: LayerRange, data: Bytes) -> Result<BlockPart, StoreError> {
    let header = meta.header_of(range).ok_or(StoreError::Rotten("it lacks the layers"))?;
    let digests = meta.layer_digests.get(range.first() as usize..).unwrap_or_default();
    check_layers(header.lengths(), digests, &data)?;
    Ok(BlockPart { head: header.encode().into(), data })
}

fn check_layers(
    lengths: &[(u64, u64)],
    digests: &[kvsp_proto::id::Digest],
    mut data: &[u8],
) -> Result<(), StoreError> {
    for (index, (k, v)) in lengths.iter().enumerate() {
        let (layer, rest) =
            data.split_at_checked((k + v) as usize).ok_or(StoreError::Rotten("it is cut short"))?;
        if digests.get(index) != Some(&sha256(layer)) {
            return Err(StoreError::Rotten("a layer digest is not that of what was written"));
        }
        data = rest;
    }
    data.is_empty().then_some(()).ok_or(StoreError::Rotten("octets follow the last layer"))
}
