//! One buffer.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;

use crate::arena::Lent;
use crate::region::{Region, occupied};

/// A buffer of a fixed number of octets, aligned to a page where it has at least one. Its octets are
/// initialised, but what they are before it is filled is unspecified: zeros, or what a former buffer of the same
/// arena held. So fill it whole before others see it.
pub struct PageBuffer {
    lent: Lent,
    octets: usize,
}

impl PageBuffer {
    /// A buffer that counts against no cap. `None` where the system has no more memory.
    #[must_use]
    pub fn unpooled(octets: usize) -> Option<Self> {
        let region = Region::new(occupied(octets)?)?;
        Some(Self::new(Lent::unpooled(region), octets))
    }

    /// `octets` is at most what the region has.
    pub(crate) const fn new(lent: Lent, octets: usize) -> Self {
        Self { lent, octets }
    }

    /// The octets as [`Bytes`], not copied. The memory is freed, and no longer counted, when the last of its
    /// clones and slices goes.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// What it counts against the cap of its arena.
    #[must_use]
    pub const fn footprint(&self) -> u64 {
        self.lent.region().octets() as u64
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.lent.region().as_slice()[..self.octets]
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.lent.region_mut().as_mut_slice()[..self.octets]
    }
}

impl AsRef<[u8]> for PageBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for PageBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageBuffer").field("octets", &self.octets).finish_non_exhaustive()
    }
}
