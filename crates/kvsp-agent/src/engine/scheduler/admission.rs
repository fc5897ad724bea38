//! How requests come in: queued, given the blocks that are there, and given pages that were kept for them.

use kvsp_engine::Engine;
use kvsp_proto::id::{BlockKey, ScopeId};
use tokio::sync::mpsc;

use super::super::pages::ScopedKey;
use super::super::sequence::Sequence;
use super::super::{EngineEvent, EngineRequest, Expectation, Output, Pin, SubmitError};
use super::{PinnedPages, Scheduler};

/// What became of looking for a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attached {
    /// The request has what there is.
    Yes,
    /// A block that cannot be computed has no page now.
    NoRoom,
    /// A block that cannot be computed is neither in the pool nor in the host tier.
    Missing,
}

impl<E: Engine> Scheduler<E> {
    /// Take a request; one that waited for the engine (`early`) was counted already.
    pub(super) fn submit(
        &mut self,
        request: EngineRequest,
        output: mpsc::Sender<Output>,
        early: bool,
    ) -> Result<(), SubmitError> {
        if !early && self.waiting.len() >= self.config.max_queued {
            return Err(SubmitError::QueueFull);
        }
        let compat = self.engine.info().descriptor.compat_id();
        let block_tokens = self.engine.info().descriptor.block_tokens;
        self.arrivals += 1;
        let arrival = (self.arrivals, self.clock.now());
        self.waiting.push_back(Sequence::new(request, compat, block_tokens, output, arrival));
        self.report();
        Ok(())
    }

    pub(super) fn expire_pins(&mut self) {
        let now = self.clock.now();
        let pages = &mut self.pages;
        self.pins.retain(|_, pin| {
            let keep = pin.until > now;
            if !keep {
                pages.release_all(&pin.pages);
            }
            keep
        });
    }

    /// Give up the pages that are kept the shortest; false where none are kept.
    pub(super) fn unpin_one(&mut self) -> bool {
        let soonest = self.pins.iter().min_by_key(|(_, pin)| pin.until).map(|(name, _)| name.clone());
        let Some(pin) = soonest.and_then(|name| self.pins.remove(&name)) else { return false };
        self.pages.release_all(&pin.pages);
        true
    }

    pub(super) fn admit(&mut self) {
        while self.has_place() && !self.waiting.is_empty() {
            // Those that are held do not keep others out.
            while self.pages.available() == 0 && self.held_give_way() {}
            // Nor do pages that are kept for requests to come, where nobody runs.
            if self.pages.available() == 0 && !(self.running.is_empty() && self.unpin_one()) {
                break;
            }
            let Some(mut sequence) = self.waiting.pop_front() else { break };
            self.progressed = true;
            let attached = self.attach_prefix(&mut sequence);
            if let Some(pin) = sequence.request_ref.take().and_then(|name| self.pins.remove(&name)) {
                self.pages.release_all(&pin.pages);
            }
            if attached == Attached::Missing {
                sequence.send(Output::NeedsPrompt);
            } else {
                self.running.push(sequence);
            }
        }
    }

    /// Have the request that is held and arrived last give up its pages; false where none of those has any.
    fn held_give_way(&mut self) -> bool {
        let held =
            (0..self.running.len()).filter(|&i| self.gives_way(i)).max_by_key(|&i| self.running[i].order);
        let Some(index) = held else { return false };
        self.preempt(index);
        true
    }

    /// Whether a request is held and has pages.
    pub(super) fn gives_way(&self, index: usize) -> bool {
        !self.running[index].pages.is_empty() && !self.running[index].may_go_on()
    }

    /// Whether one more request may run. Those that are held do not keep others out, within bounds.
    pub(super) fn has_place(&self) -> bool {
        self.running.len() < self.config.max_running
            || (self.running.len() < self.config.max_running.saturating_add(self.config.max_queued)
                && self.running.iter().filter(|s| s.may_go_on()).count() < self.config.max_running)
    }

    /// Find the leading blocks in the pool, or have them filled from the host tier. The last token is
    /// always computed: its logits are wanted. Blocks that cannot be computed are all found, or none is taken.
    pub(super) fn attach_prefix(&mut self, sequence: &mut Sequence<E::Pass>) -> Attached {
        debug_assert!(sequence.pages.is_empty(), "pages are found from the first block on");
        sequence.attached = true;
        let most = (sequence.tokens.len() - 1) / self.block_tokens;
        let mut room = true;
        for index in 0..most {
            let Some(block) = sequence.block(index) else { break };
            let page = match self.pages.find(&block) {
                Some(page) => page,
                None if self.host.holds(&block) || self.host.expects(&block) => {
                    let must = index < sequence.unknown;
                    let slot = loop {
                        match self.pages.begin_load(block) {
                            None if must && self.make_room(sequence.order) => {}
                            slot => break slot,
                        }
                    };
                    let Some(slot) = slot else {
                        room = false;
                        break;
                    };
                    if self.events.blocking_send(EngineEvent::Fill { block, slot }).is_err() {
                        self.pages.end_load(slot);
                        break;
                    }
                    slot.page
                }
                None => break,
            };
            self.pages.retain(page);
            sequence.pages.push(page);
        }
        if sequence.pages.len() < sequence.unknown {
            let pages = sequence.take_pages();
            self.pages.release_all(&pages);
            return if room { Attached::Missing } else { Attached::NoRoom };
        }
        sequence.prefix = sequence.pages.len();
        sequence.named = sequence.prefix;
        sequence.computed = sequence.prefix * self.block_tokens;
        Attached::Yes
    }

    pub(super) fn expect(&mut self, scope: ScopeId, keys: &[BlockKey], pin: Option<Pin>) -> Vec<Expectation> {
        let mut pinned = Vec::new();
        let mut answers = Vec::with_capacity(keys.len());
        for &key in keys {
            let block = ScopedKey { scope, key };
            let (answer, page) = match self.pages.find(&block) {
                Some(page) if self.pages.layers_ready(page) == self.layers => {
                    (Expectation::Resident, Some(page))
                }
                Some(page) => (Expectation::Arriving, Some(page)),
                None => match self.pages.begin_load(block) {
                    Some(slot) => (Expectation::Slot(slot), Some(slot.page)),
                    None => (Expectation::NoRoom, None),
                },
            };
            answers.push(answer);
            if let (Some(page), true) = (page, pin.is_some()) {
                self.pages.retain(page);
                pinned.push(page);
            }
        }
        if let Some(Pin { request_ref, until }) = pin
            && let Some(old) = self.pins.insert(request_ref, PinnedPages { until, pages: pinned })
        {
            self.pages.release_all(&old.pages);
        }
        answers
    }
}
