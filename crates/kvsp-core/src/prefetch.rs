//! Prefetch directives (draft section 6.5): which block to fetch from where, in what order, until when.
//!
//! A [`Directive`] is told what the index recorded, what arrived and what failed, and hands out what to
//! fetch next. The rule that matters: octets of a block come from one computation. A block whose loading
//! has begun from a replica goes on only at a source whose record has the same digest and codec, because
//! layers of different computations must never be combined (profile section 5).

mod table;

use std::sync::Arc;

use kvsp_proto::id::BlockKey;
use kvsp_proto::message::{DirectiveState, DirectiveStatus, FailedBlock, FailureReason, PrefetchDirective};
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::uri::BaseUri;

pub use table::{Admission, DirectiveConflict, DirectiveTable};

use crate::time::Time;

/// One way to load a block.
#[derive(Debug, Clone)]
struct Candidate {
    source: BaseUri,
    record: Arc<ReplicaRecord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No fetch is under way.
    Waiting,
    /// A fetch from the first candidate is under way.
    Loading,
    Loaded,
    Failed(FailureReason),
}

#[derive(Debug, Clone)]
struct Block {
    key: BlockKey,
    /// Sources still to try, in order; the first is the one being tried.
    candidates: Vec<Candidate>,
    /// Layers that arrived and were verified, from 0 up.
    layers: u32,
    phase: Phase,
    last_failure: FailureReason,
}

/// A block of a fetch.
#[derive(Debug, Clone)]
pub struct FetchBlock {
    /// Its place in the directive.
    pub index: usize,
    /// What the index says of the source's replica.
    pub record: Arc<ReplicaRecord>,
    /// The first layer that is still missing.
    pub from_layer: u32,
}

/// What to fetch from one source.
#[derive(Debug, Clone)]
pub struct Fetch {
    /// The holder.
    pub source: BaseUri,
    /// Its blocks, in prefix order; all miss layers from the same one on.
    pub blocks: Vec<FetchBlock>,
}

/// One directive being worked on.
#[derive(Debug, Clone)]
pub struct Directive {
    body: PrefetchDirective,
    deadline: Time,
    blocks: Vec<Block>,
    stopped: Option<FailureReason>,
}

impl Directive {
    /// Take up a directive; `held` tells of each block whether the instance has it already.
    #[must_use]
    pub fn new(body: PrefetchDirective, held: impl Fn(&BlockKey) -> bool, now: Time) -> Self {
        let blocks = body
            .blocks
            .iter()
            .map(|block| Block {
                key: block.block_key,
                candidates: Vec::new(),
                layers: 0,
                phase: if held(&block.block_key) { Phase::Loaded } else { Phase::Waiting },
                last_failure: FailureReason::NoRecord,
            })
            .collect();
        Self { deadline: now.after_millis(body.deadline_ms), body, blocks, stopped: None }
    }

    /// The directive as it was sent.
    #[must_use]
    pub const fn body(&self) -> &PrefetchDirective {
        &self.body
    }

    /// When loading stops.
    #[must_use]
    pub const fn deadline(&self) -> Time {
        self.deadline
    }

    /// Blocks that are neither loaded nor given up, by place and key.
    #[must_use]
    pub fn wanted(&self) -> Vec<(usize, BlockKey)> {
        let open = |b: &Block| matches!(b.phase, Phase::Waiting | Phase::Loading);
        self.blocks.iter().enumerate().filter(|(_, b)| open(b)).map(|(i, b)| (i, b.key)).collect()
    }

    /// What the index records of a block. A listed source without a record is not used: octets enter an
    /// engine only under a Replica Record (profile section 5).
    pub fn recorded(&mut self, index: usize, records: &[Arc<ReplicaRecord>]) {
        let Some(wanted) = self.body.blocks.get(index) else { return };
        let candidates: Vec<Candidate> = wanted
            .sources
            .iter()
            .filter_map(|source| {
                let record = records.iter().find(|r| r.http_holder().as_ref() == Some(source))?;
                (record.block_key == wanted.block_key && record.layer_digests.is_some())
                    .then(|| Candidate { source: source.clone(), record: record.clone() })
            })
            .collect();
        let Some(block) = self.blocks.get_mut(index) else { return };
        if block.phase != Phase::Waiting {
            return;
        }
        if candidates.is_empty() {
            block.phase = Phase::Failed(FailureReason::NoRecord);
        }
        block.candidates = candidates;
    }

    /// The next fetch to start: blocks that wait for the same source and miss the same layers. `None` when
    /// nothing waits.
    pub fn poll_fetch(&mut self) -> Option<Fetch> {
        if self.stopped.is_some() {
            return None;
        }
        let waiting = |b: &Block| b.phase == Phase::Waiting && !b.candidates.is_empty();
        let first = self.blocks.iter().find(|b| waiting(b))?;
        let (source, from_layer) = (first.candidates.first()?.source.clone(), first.layers);
        let mut blocks = Vec::new();
        for (index, block) in self.blocks.iter_mut().enumerate() {
            if !waiting(block) || block.layers != from_layer {
                continue;
            }
            let Some(candidate) = block.candidates.first().filter(|c| c.source == source) else { continue };
            blocks.push(FetchBlock { index, record: candidate.record.clone(), from_layer });
            block.phase = Phase::Loading;
        }
        Some(Fetch { source, blocks })
    }

    /// A layer of a block arrived and was verified. Layers come in ascending order.
    pub fn layer_loaded(&mut self, index: usize, layer: u32) {
        if let Some(block) = self.blocks.get_mut(index)
            && block.phase == Phase::Loading
            && block.layers == layer
        {
            block.layers += 1;
        }
    }

    /// All layers of a block are in its tiers.
    pub fn block_loaded(&mut self, index: usize) {
        if let Some(block) = self.blocks.get_mut(index)
            && block.phase == Phase::Loading
            && self.stopped.is_none()
        {
            block.phase = Phase::Loaded;
        }
    }

    /// The source being tried for a block failed: the next one is tried, where it has the same computation
    /// or nothing has been loaded yet. Returns the reason once the block is given up.
    pub fn source_failed(&mut self, index: usize, reason: FailureReason) -> Option<FailureReason> {
        let stopped = self.stopped;
        let block = self.blocks.get_mut(index)?;
        if block.phase != Phase::Loading {
            return None;
        }
        block.last_failure = reason;
        let tried = (!block.candidates.is_empty()).then(|| block.candidates.remove(0));
        if let (Some(tried), true) = (tried, block.layers > 0) {
            let same = |c: &Candidate| {
                c.record.digest == tried.record.digest && c.record.codec == tried.record.codec
            };
            block.candidates.retain(same);
        }
        block.phase = match block.candidates.first() {
            Some(_) if stopped.is_none() => Phase::Waiting,
            _ => Phase::Failed(reason),
        };
        matches!(block.phase, Phase::Failed(_)).then_some(reason)
    }

    /// The instance itself cannot take a block: no other source helps.
    pub fn give_up(&mut self, index: usize, reason: FailureReason) {
        if let Some(block) = self.blocks.get_mut(index)
            && matches!(block.phase, Phase::Waiting | Phase::Loading)
        {
            block.phase = Phase::Failed(reason);
        }
    }

    /// Stop loading: the deadline passed, or the directive was cancelled. Returns the blocks given up.
    pub fn stop(&mut self, reason: FailureReason) -> Vec<usize> {
        if self.is_ended() {
            return Vec::new();
        }
        self.stopped = Some(reason);
        let mut stopped = Vec::new();
        for (index, block) in self.blocks.iter_mut().enumerate() {
            if matches!(block.phase, Phase::Waiting | Phase::Loading) {
                block.phase = Phase::Failed(reason);
                stopped.push(index);
            }
        }
        stopped
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.blocks.iter().all(|b| matches!(b.phase, Phase::Loaded | Phase::Failed(_)))
    }

    /// The status resource.
    #[must_use]
    pub fn status(&self) -> DirectiveStatus {
        let mut loaded = Vec::new();
        let mut failed = Vec::new();
        for block in &self.blocks {
            match block.phase {
                Phase::Loaded => loaded.push(block.key),
                Phase::Failed(reason) => failed.push(FailedBlock { block_key: block.key, reason }),
                Phase::Waiting | Phase::Loading => {}
            }
        }
        let state = if !self.is_ended() {
            DirectiveState::Pending
        } else if failed.is_empty() {
            DirectiveState::Complete
        } else if self.stopped == Some(FailureReason::Deadline) || !loaded.is_empty() {
            // The draft: a deadline that expires makes it partial, whatever was loaded by then.
            DirectiveState::Partial
        } else {
            DirectiveState::Failed
        };
        DirectiveStatus { directive: self.body.directive, state, loaded, failed }
    }
}

#[cfg(test)]
mod tests;
