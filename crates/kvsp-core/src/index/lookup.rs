//! Lookup of a prefix.

use kvsp_proto::id::{BlockKey, CompatId, ScopeId};

use super::Index;
use super::slot::{NONE, Slot, SlotId};
use super::view::BlockView;
use crate::time::Time;

/// What a lookup found: the leading blocks with a live replica.
#[derive(Debug, Clone)]
pub struct Lookup<'a> {
    index: &'a Index,
    now: Time,
    layers: Option<u32>,
    heads: Vec<SlotId>,
    complete: usize,
}

impl Index {
    /// Looks up keys in prefix order and stops at the first without a live replica of this compatibility
    /// and scope (draft section 6.2).
    #[must_use]
    pub fn lookup(&self, compat: CompatId, scope: ScopeId, keys: &[BlockKey], now: Time) -> Lookup<'_> {
        let mut found =
            Lookup { index: self, now, layers: self.layers_of(compat), heads: Vec::new(), complete: 0 };
        let Some(space) = self.spaces.find(&(compat, scope)) else { return found };
        found.heads.reserve(keys.len());
        let mut head = NONE;
        for key in keys {
            // Prefixes are mostly published in order, so the next block's slot is mostly the next one.
            let next = head.wrapping_add(1);
            let guessed = self.slot(next).is_some_and(|slot| slot.heads(space, key));
            head = if guessed {
                next
            } else if let Some(head) = self.table.find(&self.slots, space, key) {
                head
            } else {
                break;
            };
            let Some(complete) = found.judge(head) else { break };
            if complete && found.complete == found.heads.len() {
                found.complete += 1;
            }
            found.heads.push(head);
        }
        found
    }
}

impl Slot {
    fn heads(&self, space: u32, key: &BlockKey) -> bool {
        self.is_head() && self.space == space && self.key == *key
    }
}

impl<'a> Lookup<'a> {
    /// Leading keys with at least one live replica.
    #[must_use]
    pub fn matched(&self) -> usize {
        self.heads.len()
    }

    /// Leading keys of which live replicas of one digest and codec hold every layer together.
    #[must_use]
    pub const fn complete(&self) -> usize {
        self.complete
    }

    /// The matched blocks, in the order of the keys.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = BlockView<'a>> + use<'a, '_> {
        self.heads.iter().map(|&head| BlockView::new(self.index, head, self.layers, self.now))
    }

    /// `None` without a live replica, else whether the block is complete.
    fn judge(&self, head: SlotId) -> Option<bool> {
        let slot = self.index.slot(head)?;
        if slot.next == NONE
            && let Some(span) = slot.only_span()
        {
            // One replica with one range: nothing has to be collected.
            let listed = || slot.layer_digests.as_ref().map_or(0, |digests| digests.len() as u64);
            let layers = self.layers.map_or_else(listed, u64::from);
            return slot.is_live(self.now).then(|| span.0 == 0 && u64::from(span.1) + 1 >= layers);
        }
        let block = BlockView::new(self.index, head, self.layers, self.now);
        block.replicas().next()?;
        Some(block.is_complete())
    }
}
