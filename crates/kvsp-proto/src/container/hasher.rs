//! The digests of a container whose octets arrive piece by piece.

use kvsp_hash::Sweep;

use super::header::{HEADER_OCTETS, Start};
use super::{ContainerError, Header, Limits, Malformed};
use crate::digest::ReprDigest;
use crate::id::Digest;

/// Computes the `Repr-Digest` of a container and the digests of its layers in one pass, as its octets arrive. A
/// layer's digest is there as soon as its last octet is.
///
/// It refuses what [`Container::parse`](super::Container::parse) refuses, but as early as it can be known: so a
/// limit may be named before what else is wrong. Nothing is kept but header and table.
#[derive(Debug, Clone)]
pub struct ContainerHasher {
    limits: Limits,
    sweep: Sweep,
    stage: Stage,
    layer_digests: Vec<Digest>,
}

#[derive(Debug, Clone)]
enum Stage {
    /// The first octets, less than header and table.
    Head {
        arrived: Vec<u8>,
        start: Option<Start>,
    },
    Layers {
        header: Header,
        /// Octets that the present layer still lacks.
        left: u64,
    },
    Failed(ContainerError),
}

impl ContainerHasher {
    /// Before the first octet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let stage = Stage::Head { arrived: Vec::new(), start: None };
        Self { limits, sweep: Sweep::new(), stage, layer_digests: Vec::new() }
    }

    /// Takes in the octets that arrived next.
    ///
    /// # Errors
    /// What arrived cannot be the beginning of a container within the limits; from then on always the same.
    pub fn update(&mut self, mut octets: &[u8]) -> Result<(), ContainerError> {
        while !octets.is_empty() {
            self.take(&mut octets).inspect_err(|error| self.stage = Stage::Failed(*error))?;
        }
        Ok(())
    }

    /// Header and table, once they are complete.
    #[must_use]
    pub const fn header(&self) -> Option<&Header> {
        match &self.stage {
            Stage::Layers { header, .. } => Some(header),
            Stage::Head { .. } | Stage::Failed(_) => None,
        }
    }

    /// The digests of the layers that are complete, in ascending layer order.
    #[must_use]
    pub fn layer_digests(&self) -> &[Digest] {
        &self.layer_digests
    }

    /// The `Repr-Digest` and the digests of all layers, in ascending layer order.
    ///
    /// # Errors
    /// Octets are missing, the error of [`update`](Self::update), or a codec of 0 or 65535.
    pub fn finish(self) -> Result<(ReprDigest, Vec<Digest>), ContainerError> {
        match self.stage {
            Stage::Failed(error) => Err(error),
            Stage::Layers { header, .. } if self.layer_digests.len() == header.lengths().len() => {
                header.codec().ok_or(ContainerError::Codec(header.codec_number()))?;
                Ok((ReprDigest(Digest(self.sweep.finish())), self.layer_digests))
            }
            Stage::Head { .. } | Stage::Layers { .. } => Err(Malformed::Missing.into()),
        }
    }

    /// Takes octets off the front, at least one.
    fn take(&mut self, octets: &mut &[u8]) -> Result<(), ContainerError> {
        match &mut self.stage {
            Stage::Failed(error) => return Err(*error),
            Stage::Head { arrived, start } => {
                let wanted = HEADER_OCTETS as u64 + start.as_ref().map_or(0, Start::table_octets);
                arrived.extend_from_slice(split(octets, wanted - arrived.len() as u64));
                if arrived.len() as u64 == wanted {
                    self.complete_head()?;
                }
            }
            Stage::Layers { left: 0, .. } => return Err(Malformed::Trailing.into()),
            Stage::Layers { left, .. } => {
                let now = split(octets, *left);
                *left -= now.len() as u64;
                self.sweep.update(now);
                self.end_layers();
            }
        }
        Ok(())
    }

    /// Header or table has just become complete.
    fn complete_head(&mut self) -> Result<(), ContainerError> {
        let Stage::Head { arrived, start } = &mut self.stage else { return Ok(()) };
        let Some((head, table)) = arrived.split_first_chunk::<HEADER_OCTETS>() else { return Ok(()) };
        let Some(start) = start else {
            let parsed = Start::parse(head)?;
            parsed.check_limits(&self.limits)?;
            // Not empty: there is at least one layer.
            *start = Some(parsed);
            return Ok(());
        };
        let header = start.with_table(table)?;
        self.limits.check_octets(header.container_octets())?;
        self.sweep.update_whole_only(arrived);
        self.layer_digests.reserve_exact(header.lengths().len());
        let left = layer_octets(&header, 0).unwrap_or(0);
        self.stage = Stage::Layers { header, left };
        self.end_layers();
        Ok(())
    }

    /// Ends the present layer if nothing of it is left, and those after it that are empty.
    fn end_layers(&mut self) {
        let Stage::Layers { header, left } = &mut self.stage else { return };
        while *left == 0 && self.layer_digests.len() < header.lengths().len() {
            self.layer_digests.push(Digest(self.sweep.end_segment()));
            *left = layer_octets(header, self.layer_digests.len()).unwrap_or(0);
        }
    }
}

/// Octets of a layer by its place in the table. Their sum did not overflow.
fn layer_octets(header: &Header, index: usize) -> Option<u64> {
    header.lengths().get(index).map(|(k, v)| k + v)
}

/// Takes at most `most` octets off the front.
fn split<'a>(octets: &mut &'a [u8], most: u64) -> &'a [u8] {
    let count = usize::try_from(most).map_or(octets.len(), |most| most.min(octets.len()));
    let (now, rest) = octets.split_at(count);
    *octets = rest;
    now
}
