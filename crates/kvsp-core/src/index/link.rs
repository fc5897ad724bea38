//! Where a replica hangs: in the chain of its block and the ring of its holder.

use kvsp_proto::message::ReplicaName;
use kvsp_proto::uri::HolderUri;

use super::Index;
use super::block::{Block, BlockId};
use super::contents::ContentsPool;
use super::replica::{NONE, Replica, ReplicaId};
use super::texts::Texts;
use crate::time::Time;

impl Index {
    /// A new replica, a tombstone as yet, in the chain of its block and the ring of its holder.
    pub(super) fn link(&mut self, name: &ReplicaName, seq: u64, deadline: Time, now: Time) -> ReplicaId {
        let block = self.block_for(name);
        let holder = self.holders.intern(&name.holder, now.after_millis(self.config.max_ttl_ms));
        let replica = Replica::tombstone(block, holder, seq, deadline);
        let id = match self.free_replicas.pop_front() {
            Some(id) => {
                if let Some(free) = self.replicas.get_mut(id as usize) {
                    let queued = free.set_queued(false);
                    *free = replica;
                    free.set_queued(queued);
                }
                id
            }
            None => {
                self.replicas.push(replica);
                (self.replicas.len() - 1) as ReplicaId
            }
        };
        self.join_chain(id, block, &name.holder);
        self.join_holder(id, holder);
        self.expiry.queue(id, deadline);
        self.charge(block, super::room::REPLICA_OCTETS);
        id
    }

    /// Frees a replica, record or tombstone.
    pub(super) fn remove(&mut self, id: ReplicaId, now: Time) {
        self.let_go(id);
        let Some(replica) = self.replica(id) else { return };
        let (holder, yielded, block) = (replica.holder, replica.yields(), replica.block);
        self.count_yielding(holder, yielded, false);
        self.discharge(block, super::room::REPLICA_OCTETS);
        self.leave_chain(id, block);
        self.leave_holder(id, now);
        if let Some(replica) = self.replicas.get_mut(id as usize) {
            replica.clear();
        }
        self.free_replicas.push_back(id);
    }

    /// A record gives up what it holds besides its links, and counts as a record no more.
    pub(super) fn let_go(&mut self, id: ReplicaId) {
        let Some(replica) = self.replicas.get_mut(id as usize).filter(|replica| !replica.is_free()) else {
            return;
        };
        self.records -= usize::from(!replica.is_tombstone());
        self.heap -= replica.heap_octets();
        let texts = std::mem::replace(&mut replica.texts, NONE);
        let contents = std::mem::replace(&mut replica.contents, NONE);
        let block = replica.block;
        self.release_texts(texts);
        self.release_contents(contents, block);
    }

    pub(super) fn release_contents(&mut self, contents: u32, block: BlockId) {
        if let Some(layers) = self.contents.release(contents) {
            self.discharge(block, ContentsPool::cost(layers));
        }
    }

    pub(super) fn take_texts(&mut self, (producer, namespace): (Option<&str>, Option<&str>)) -> u32 {
        let texts = Texts { producer: producer.map(Into::into), namespace: namespace.map(Into::into) };
        let (octets, known) = (texts.octets(), self.texts.len());
        let id = self.texts.take(&texts);
        self.heap += octets * (self.texts.len() - known) as u64;
        id
    }

    pub(super) fn release_texts(&mut self, texts: u32) {
        let octets = self.texts.get(texts).map_or(0, Texts::octets);
        let known = self.texts.len();
        self.texts.release(texts);
        self.heap -= octets * (known - self.texts.len()) as u64;
    }

    /// Summarises a block's replicas anew.
    pub(super) fn sum_up(&mut self, block: BlockId) {
        let Self { blocks, replicas, contents, .. } = self;
        let Some(block) = blocks.get_mut(block as usize) else { return };
        let at = |id: ReplicaId| replicas.get(id as usize);
        let chain = std::iter::successors(at(block.head), |replica| at(replica.next));
        block.sum_up(chain, |replica| contents.list(replica.contents).map(|list| list.len() as u32));
    }

    fn block_for(&mut self, name: &ReplicaName) -> BlockId {
        let space = (name.compat_id, name.scope_id);
        let known = self.spaces.find(&space);
        if let Some(block) = known.and_then(|space| self.table.find(&self.blocks, space, &name.block_key)) {
            return block;
        }
        let space = self.spaces.take(&space);
        let block = Block { key: name.block_key, space, ..Block::FREE };
        let id = match self.free_blocks.pop_front() {
            Some(id) => {
                if let Some(free) = self.blocks.get_mut(id as usize) {
                    *free = block;
                }
                id
            }
            None => {
                self.blocks.push(block);
                (self.blocks.len() - 1) as BlockId
            }
        };
        self.table.insert(space, &name.block_key, id);
        id
    }

    fn join_chain(&mut self, id: ReplicaId, block: BlockId, holder: &HolderUri) {
        let (mut before, mut after) = (NONE, NONE);
        for (at, replica) in self.chain(block) {
            if self.holders.get(replica.holder).is_some_and(|other| *other.uri > *holder) {
                after = at;
                break;
            }
            before = at;
        }
        if let Some(replica) = self.replicas.get_mut(id as usize) {
            replica.next = after;
        }
        self.set_next(block, before, id);
    }

    fn leave_chain(&mut self, id: ReplicaId, block: BlockId) {
        let next = self.replica(id).map_or(NONE, |replica| replica.next);
        let before = self.chain(block).find(|(_, replica)| replica.next == id).map_or(NONE, |(at, _)| at);
        self.set_next(block, before, next);
        let Some(empty) = self.blocks.get_mut(block as usize).filter(|block| block.head == NONE) else {
            self.sum_up(block);
            return;
        };
        let Block { key, space, .. } = std::mem::replace(empty, Block::FREE);
        self.table.remove(space, &key, block);
        self.spaces.release(space);
        self.free_blocks.push_back(block);
    }

    /// Lets `next` follow `before`, or lead the block.
    fn set_next(&mut self, block: BlockId, before: ReplicaId, next: ReplicaId) {
        if let Some(before) = self.replicas.get_mut(before as usize) {
            before.next = next;
        } else if let Some(block) = self.blocks.get_mut(block as usize) {
            block.head = next;
        }
    }

    fn join_holder(&mut self, id: ReplicaId, holder: u32) {
        let Some(owner) = self.holders.get_mut(holder) else { return };
        owner.slots += 1;
        let second = std::mem::replace(&mut owner.first, id);
        if let Some(replica) = self.replicas.get_mut(second as usize) {
            replica.holder_prev = id;
        }
        if let Some(replica) = self.replicas.get_mut(id as usize) {
            replica.holder_next = second;
        }
    }

    fn leave_holder(&mut self, id: ReplicaId, now: Time) {
        let Some((holder, prev, next)) =
            self.replica(id).map(|replica| (replica.holder, replica.holder_prev, replica.holder_next))
        else {
            return;
        };
        if let Some(replica) = self.replicas.get_mut(prev as usize) {
            replica.holder_next = next;
        }
        if let Some(replica) = self.replicas.get_mut(next as usize) {
            replica.holder_prev = prev;
        }
        let Some(owner) = self.holders.get_mut(holder) else { return };
        owner.slots -= 1;
        if prev == NONE {
            owner.first = next;
        }
        if owner.slots == 0 {
            self.holders.rest(holder, now.after_millis(self.config.max_ttl_ms));
        }
    }

    /// The replicas of a holder, records and tombstones.
    pub(super) fn replicas_of(&self, holder: &HolderUri) -> Vec<ReplicaId> {
        let first = self.holders.find(holder).and_then(|id| self.holders.get(id)).map_or(NONE, |h| h.first);
        std::iter::successors((first != NONE).then_some(first), |&id| {
            self.replica(id).map(|replica| replica.holder_next).filter(|&next| next != NONE)
        })
        .collect()
    }
}
