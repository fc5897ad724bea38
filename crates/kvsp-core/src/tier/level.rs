//! The tiers that a holder can have, from the fastest to the largest.

use std::ops::{Index, IndexMut};

use kvsp_proto::registry::Tier;

/// One of the tiers that a holder manages; the accelerator's memory is its engine's matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Host memory.
    Host,
    /// A local disk.
    Disk,
    /// An object store.
    Object,
}

impl Level {
    /// From the fastest to the largest.
    pub const ALL: [Self; 3] = [Self::Host, Self::Disk, Self::Object];

    /// As records name it.
    #[must_use]
    pub const fn tier(self) -> Tier {
        match self {
            Self::Host => Tier::Host,
            Self::Disk => Tier::Disk,
            Self::Object => Tier::Object,
        }
    }
}

/// One value for each tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PerLevel<T>([T; 3]);

impl<T> PerLevel<T> {
    /// The values for host memory, disk and object store.
    pub const fn new(host: T, disk: T, object: T) -> Self {
        Self([host, disk, object])
    }

    /// The values made by `of`.
    pub fn from_fn(of: impl FnMut(Level) -> T) -> Self {
        Self(Level::ALL.map(of))
    }

    /// Tiers and values, from the fastest to the largest.
    pub fn iter(&self) -> impl Iterator<Item = (Level, &T)> {
        Level::ALL.into_iter().zip(&self.0)
    }
}

impl<T> Index<Level> for PerLevel<T> {
    type Output = T;
    fn index(&self, level: Level) -> &T {
        let [host, disk, object] = &self.0;
        match level {
            Level::Host => host,
            Level::Disk => disk,
            Level::Object => object,
        }
    }
}

impl<T> IndexMut<Level> for PerLevel<T> {
    fn index_mut(&mut self, level: Level) -> &mut T {
        let [host, disk, object] = &mut self.0;
        match level {
            Level::Host => host,
            Level::Disk => disk,
            Level::Object => object,
        }
    }
}
