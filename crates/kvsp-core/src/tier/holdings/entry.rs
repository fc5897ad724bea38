//! One block as the machine keeps it.

use super::super::level::{Level, PerLevel};
use super::Block;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// On its way in; not visible.
    Arriving,
    /// Visible.
    Here,
    /// Withdrawn; its octets are being freed.
    Leaving,
}

/// What is under way in one tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Move<K> {
    /// `octets` for the leading `layers` layers, of which `owed` are still to be freed by cuts.
    In { layers: u32, octets: u64, owed: u64 },
    /// `octets` are being freed, for `creditor` first; `back` layers are there again where that fails.
    Out { octets: u64, back: u32, creditor: Option<K>, attempts: u32 },
}

#[derive(Debug)]
pub(super) struct Entry<K, B> {
    pub(super) block: B,
    pub(super) stage: Stage,
    /// Leading layers that can be read.
    pub(super) held: PerLevel<u32>,
    pub(super) moves: PerLevel<Option<Move<K>>>,
    /// Copied to the overflow because it was cold, and not used since.
    pub(super) cold_copy: bool,
}

impl<K: Copy, B: Block> Entry<K, B> {
    pub(super) fn new(block: B, stage: Stage) -> Self {
        Self {
            block,
            stage,
            held: PerLevel::default(),
            moves: PerLevel::new(None, None, None),
            cold_copy: false,
        }
    }

    pub(super) fn is_whole_at(&self, level: Level) -> bool {
        self.held[level] == self.block.layers()
    }

    pub(super) fn moves_nowhere(&self) -> bool {
        self.moves.iter().all(|(_, under_way)| under_way.is_none())
    }

    pub(super) fn is_arriving_somewhere(&self) -> bool {
        self.moves.iter().any(|(_, under_way)| matches!(under_way, Some(Move::In { .. })))
    }
}
