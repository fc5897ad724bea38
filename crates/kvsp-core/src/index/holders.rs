//! The holders of records: their epochs, their counts and the rings of their slots.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kvsp_proto::uri::HolderUri;

use super::replica::{NONE, ReplicaId};
use crate::time::Time;

/// Octets of a holder but for its URI: its entry, the places of its number, and a third of a tree's node.
const HOLDER_OCTETS: u64 = 256;

/// What the index knows of one holder.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) uri: Arc<HolderUri>,
    /// The highest `holder_epoch` seen.
    pub(super) epoch: Option<u64>,
    /// Slots of this holder, tombstones among them.
    pub(super) slots: usize,
    /// Those among them that make way for records.
    pub(super) yielding: usize,
    /// One of them.
    pub(super) first: ReplicaId,
    /// When a holder without slots is forgotten, with its epoch.
    forget_at: Time,
    /// Whether it is in the queue of those to forget.
    queued: bool,
}

/// Holders by number; a holder without slots is remembered for a while because of its epoch.
#[derive(Debug, Default)]
pub(super) struct Holders {
    ids: BTreeMap<HolderUri, u32>,
    entries: Vec<Option<Holder>>,
    free: Vec<u32>,
    idle: VecDeque<(Time, u32)>,
    /// Octets in URIs.
    heap: u64,
}

impl Holders {
    pub(super) fn find(&self, uri: &HolderUri) -> Option<u32> {
        self.ids.get(uri).copied()
    }

    pub(super) fn get(&self, id: u32) -> Option<&Holder> {
        self.entries.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Holder> {
        self.entries.get_mut(id as usize)?.as_mut()
    }

    /// Until when a holder is remembered at least; one with slots has until `else_at`.
    pub(super) fn remembered_until(&self, holder: &Holder, else_at: Time) -> Time {
        if holder.slots > 0 { else_at } else { holder.forget_at }
    }

    /// One more than the highest number given.
    pub(super) const fn end(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Octets in use, roughly.
    pub(super) const fn octets(&self) -> u64 {
        self.entries.len() as u64 * HOLDER_OCTETS + self.heap
    }

    /// Holders known.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The number of a holder, which becomes known; without slots it is forgotten at `forget_at`.
    pub(super) fn intern(&mut self, uri: &HolderUri, forget_at: Time) -> u32 {
        if let Some(id) = self.find(uri) {
            return id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            (self.entries.len() - 1) as u32
        });
        let holder = Holder {
            uri: Arc::new(uri.clone()),
            epoch: None,
            slots: 0,
            yielding: 0,
            first: NONE,
            forget_at,
            queued: true,
        };
        if let Some(entry) = self.entries.get_mut(id as usize) {
            *entry = Some(holder);
        }
        self.heap += 2 * uri.as_str().len() as u64;
        self.ids.insert(uri.clone(), id);
        self.idle.push_back((forget_at, id));
        id
    }

    /// The last slot of a holder is gone: it is forgotten at `forget_at` unless it gets another.
    pub(super) fn rest(&mut self, id: u32, forget_at: Time) {
        if let Some(holder) = self.get_mut(id) {
            holder.forget_at = forget_at;
            if !std::mem::replace(&mut holder.queued, true) {
                self.idle.push_back((forget_at, id));
            }
        }
    }

    /// Forgets the holders without slots whose time has come.
    pub(super) fn forget(&mut self, now: Time) {
        while let Some(&(at, id)) = self.idle.front()
            && at <= now
        {
            self.idle.pop_front();
            let Some(holder) = self.get_mut(id) else { continue };
            if holder.slots > 0 {
                holder.queued = false;
            } else if holder.forget_at > now {
                let again = holder.forget_at;
                self.idle.push_back((again, id));
            } else if let Some(holder) = self.entries.get_mut(id as usize).and_then(Option::take) {
                self.ids.remove(&*holder.uri);
                self.heap -= 2 * holder.uri.as_str().len() as u64;
                self.free.push(id);
            }
        }
    }
}
