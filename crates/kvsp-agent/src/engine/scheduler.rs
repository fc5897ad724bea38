//! The loop of the engine thread: commands, decoding, prefill, exports, in turns.
//!
//! Decoding sequences share one pass a turn. A prefill is advanced layer by layer within a time slice, and
//! only through layers whose prefix has arrived: a source that hangs stalls the request that waits for it
//! and nobody else.

mod admission;
mod export;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kvsp_core::time::Time;
use kvsp_engine::{Engine, EngineError, PageId, Span};
use kvsp_net::clock::Clock;
use kvsp_openai::FinishReason;
use kvsp_proto::container::LayerSections;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::contexts::Contexts;
use super::pages::{PageTable, Slot};
use super::sequence::{Running, Sequence};
use super::start::Opener;
use super::{Command, EngineEvent, Gauges, HostTier, Output, SchedulerConfig};
use admission::Attached;
use export::Export;

/// Time for prefill in a turn while other sequences decode.
const PREFILL_SLICE: Duration = Duration::from_millis(30);
/// Time for prefill in a turn while nobody decodes.
const PREFILL_SLICE_ALONE: Duration = Duration::from_millis(120);
/// Time for prefill in a turn while other instances wait for attention.
const PREFILL_SLICE_AMONG_GROUPS: Duration = Duration::from_millis(10);
/// Time for split contexts in a turn.
const CONTEXT_SLICE: Duration = Duration::from_millis(20);
/// Time for commands in a turn.
const COMMAND_SLICE: Duration = Duration::from_millis(10);
/// How long an idle turn waits while something may time out.
const IDLE_WAIT: Duration = Duration::from_millis(50);
/// Prompt tokens of the pass that measures the prefill rate before the first request.
const CALIBRATION_TOKENS: usize = 48;
/// Passes with fewer tokens say little about the prefill rate.
const RATE_TOKENS: usize = 16;

struct PinnedPages {
    until: Time,
    pages: Vec<PageId>,
}

pub(super) struct Scheduler<E: Engine> {
    engine: E,
    layers: usize,
    block_tokens: usize,
    config: SchedulerConfig,
    pages: PageTable,
    waiting: VecDeque<Sequence<E::Pass>>,
    running: Vec<Sequence<E::Pass>>,
    /// Requests submitted so far.
    arrivals: u64,
    /// Computed blocks to hand out, each page with a reference.
    exports: VecDeque<Export>,
    pins: BTreeMap<String, PinnedPages>,
    contexts: Contexts<E>,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<EngineEvent>,
    host: Arc<dyn HostTier>,
    clock: Arc<dyn Clock>,
    gauges: Arc<Gauges>,
    /// Whether the last turn computed or changed anything; if not, the next one waits a little.
    progressed: bool,
}

impl<E: Engine> Scheduler<E> {
    pub(super) fn new(
        engine: E,
        config: SchedulerConfig,
        commands: mpsc::Receiver<Command>,
        events: mpsc::Sender<EngineEvent>,
        host: Arc<dyn HostTier>,
        clock: Arc<dyn Clock>,
        gauges: Arc<Gauges>,
    ) -> Self {
        let descriptor = &engine.info().descriptor;
        let (layers, block_tokens) = (descriptor.layers as usize, descriptor.block_tokens as usize);
        let pages = PageTable::new(engine.info().pages, layers);
        gauges.pages.store(pages.capacity() as u64, Ordering::Relaxed);
        Self {
            layers,
            block_tokens,
            config,
            pages,
            waiting: VecDeque::new(),
            running: Vec::new(),
            arrivals: 0,
            exports: VecDeque::new(),
            pins: BTreeMap::new(),
            contexts: Contexts::new(&engine, gauges.clone()),
            commands,
            events,
            host,
            clock,
            gauges,
            engine,
            progressed: true,
        }
    }

    /// Take what waited for the engine, then run until every handle is gone.
    pub(super) fn run(mut self, runtime: &Handle, opener: &Opener) {
        if let Err(error) = self.calibrate() {
            tracing::error!(%error, "the engine cannot compute");
        }
        opener.open(|| {
            while let Ok(command) = self.commands.try_recv() {
                self.handle(command);
            }
        });
        while self.receive(runtime) {
            self.progressed = false;
            self.expire_pins();
            self.drop_cancelled();
            self.mend_broken();
            self.admit();
            self.decode();
            self.attend();
            self.prefill();
            self.export();
            self.report();
        }
    }

    /// Measure the prefill rate, so that the first placement has an estimate to go by.
    fn calibrate(&mut self) -> Result<(), EngineError> {
        let tokens = CALIBRATION_TOKENS.min(self.engine.info().max_context / 2);
        let pages: Vec<PageId> =
            (0..tokens.div_ceil(self.block_tokens)).map_while(|_| self.pages.allocate()).collect();
        if pages.len() * self.block_tokens >= tokens && tokens > 0 {
            let vocab = self.engine.info().vocab.max(1);
            let tokens: Vec<u32> = (0..tokens).map(|i| (i * 7 % vocab) as u32).collect();
            let (count, begin) = (tokens.len(), Instant::now());
            let span = Span { tokens, position: 0, first_page: 0, pages: pages.clone(), logits: true };
            let mut pass = self.engine.begin(vec![span])?;
            while self.engine.next_layer(&pass).is_some() {
                self.engine.step_layer(&mut pass)?;
            }
            self.engine.finish(pass)?;
            self.gauges.prefill_tokens_per_s.add_rate(count, begin.elapsed());
        }
        self.pages.release_all(&pages);
        Ok(())
    }

    /// Take commands; waits for one where there is nothing to compute. False once all handles are gone.
    fn receive(&mut self, runtime: &Handle) -> bool {
        if !self.progressed || !self.can_advance() {
            let idle = self.running.is_empty() && self.waiting.is_empty() && self.exports.is_empty();
            let may_time_out = !(idle && self.pins.is_empty() && self.contexts.is_idle());
            let commands = &mut self.commands;
            let first = runtime.block_on(async {
                match may_time_out {
                    true => tokio::time::timeout(IDLE_WAIT, commands.recv()).await.ok(),
                    false => Some(commands.recv().await),
                }
            });
            match first {
                Some(Some(command)) => self.handle(command),
                Some(None) => return false,
                None => {}
            }
        }
        let begin = Instant::now();
        while begin.elapsed() < COMMAND_SLICE {
            match self.commands.try_recv() {
                Ok(command) => self.handle(command),
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    /// Whether a turn would compute something.
    fn can_advance(&self) -> bool {
        let moves = |s: &Sequence<E::Pass>| {
            if !s.may_go_on() {
                return false;
            }
            let readable = s.readable_layers(&self.pages, self.layers);
            match &s.pass {
                Some(running) => self.engine.next_layer(&running.pass).is_none_or(|layer| layer < readable),
                None => readable > 0,
            }
        };
        !self.exports.is_empty()
            || self.contexts.has_work()
            || self.running.iter().any(moves)
            || (!self.waiting.is_empty()
                && self.has_place()
                && (self.pages.available() > 0 || (0..self.running.len()).any(|i| self.gives_way(i))))
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Submit(request, output, reply) => {
                let answer = self.submit(request, output, reply.is_none());
                if let Some(reply) = reply {
                    // A caller that is gone has dropped its receiver, and the sequence is dropped with it.
                    let _ = reply.send(answer);
                }
            }
            Command::Expect { scope, keys, pin, reply } => {
                let _ = reply.send(self.expect(scope, &keys, pin));
            }
            Command::Write { slot, layer, sections } => self.write(slot, layer as usize, &sections),
            Command::EndLoad(slot) => self.pages.end_load(slot),
            Command::Context(command) => {
                self.contexts.handle(*command, &mut self.engine, &mut self.pages);
            }
            // The turn that follows sees what has changed.
            Command::Wake => {}
        }
    }

    fn write(&mut self, slot: Slot, layer: usize, sections: &LayerSections) {
        if !self.pages.takes(slot, layer) {
            return;
        }
        match self.engine.write_layer(slot.page, layer, &sections.k, &sections.v) {
            Ok(()) => self.pages.layer_ready(slot),
            Err(error) => {
                tracing::warn!(%error, layer, "a layer was not taken by the engine");
                self.pages.end_load(slot);
            }
        }
    }

    fn drop_cancelled(&mut self) {
        self.waiting.retain(|s| !s.output.is_closed());
        let mut index = 0;
        while index < self.running.len() {
            if self.running[index].output.is_closed() {
                let mut gone = self.running.swap_remove(index);
                self.pages.release_all(&gone.take_pages());
            } else {
                index += 1;
            }
        }
    }

    /// Sequences whose prefix failed to arrive compute from the first block that is missing; where that cannot
    /// be computed they end.
    fn mend_broken(&mut self) {
        for sequence in self.running.iter_mut().filter(|s| !s.ended) {
            if let Some(broken) = sequence.broken_page(&self.pages) {
                Gauges::count(&self.gauges.prefixes_broken, 1);
                if broken < sequence.unknown {
                    sequence.send(Output::NeedsPrompt);
                    sequence.ended = true;
                    continue;
                }
                let dropped = sequence.truncate(broken, self.block_tokens);
                self.pages.release_all(&dropped);
            }
        }
    }

    /// One token for every sequence that decodes, in one pass.
    fn decode(&mut self) {
        let layers = self.layers;
        let mut batch: Vec<usize> = (0..self.running.len())
            .filter(|&i| self.running[i].is_decoding(&self.pages, layers) && self.running[i].may_go_on())
            .collect();
        // Making room for one sequence may have cost another its pages: one that comes later in the batch gets
        // no new ones then, because they would stand where its first blocks belong.
        batch.retain(|&index| self.running[index].is_decoding(&self.pages, layers) && self.cover(index, 1));
        batch.retain(|&index| {
            self.running[index].is_decoding(&self.pages, layers) && self.is_covered(index, 1)
        });
        if batch.is_empty() {
            return;
        }
        let begin = Instant::now();
        let spans = batch.iter().map(|&index| self.span(index, 1)).collect();
        match self.compute(spans) {
            Ok(logits) => {
                self.progressed = true;
                self.gauges.decode_tokens_per_s.add_rate(batch.len(), begin.elapsed());
                for (&index, logits) in batch.iter().zip(logits) {
                    self.advance(index, 1, logits);
                }
            }
            Err(error) => batch.iter().for_each(|&index| self.fail(index, &error)),
        }
        self.end_finished();
    }

    fn compute(&mut self, spans: Vec<Span>) -> Result<Vec<Option<Vec<f32>>>, EngineError> {
        let mut pass = self.engine.begin(spans)?;
        while self.engine.next_layer(&pass).is_some() {
            self.engine.step_layer(&mut pass)?;
        }
        self.engine.finish(pass)
    }

    /// Work on contexts that are split over instances, between the decoding and the prefill of requests.
    fn attend(&mut self) {
        let now = self.clock.now();
        self.progressed |= self.contexts.turn(&mut self.engine, now, CONTEXT_SLICE);
    }

    /// Advance prefills in turn, until the time slice is used up.
    fn prefill(&mut self) {
        let decoding = self.running.iter().any(|s| s.is_decoding(&self.pages, self.layers) && s.may_go_on());
        let slice = match decoding {
            _ if self.contexts.is_lively() => PREFILL_SLICE_AMONG_GROUPS,
            true => PREFILL_SLICE,
            false => PREFILL_SLICE_ALONE,
        };
        let begin = Instant::now();
        let mut index = 0;
        while index < self.running.len() && begin.elapsed() < slice {
            let sequence = &self.running[index];
            if !sequence.ended
                && !sequence.is_decoding(&self.pages, self.layers)
                && sequence.may_go_on()
                && let Err(error) = self.prefill_one(index, begin, slice)
            {
                self.fail(index, &error);
            }
            index += 1;
        }
        // The next turn begins with another sequence, so that two long prompts share the time.
        if self.running.len() > 1 {
            self.running.rotate_left(1);
        }
        self.end_finished();
    }

    fn prefill_one(&mut self, index: usize, begin: Instant, slice: Duration) -> Result<(), EngineError> {
        if !self.running[index].attached {
            // It was preempted: what it had computed may still be in the pool, or in the host tier.
            let mut sequence = self.running.swap_remove(index);
            let attached = self.attach_prefix(&mut sequence);
            if attached == Attached::Missing {
                sequence.send(Output::NeedsPrompt);
                sequence.ended = true;
            }
            self.running.push(sequence);
            let last = self.running.len() - 1;
            self.running.swap(index, last);
            if attached != Attached::Yes {
                return Ok(());
            }
        }
        let readable = self.running[index].readable_layers(&self.pages, self.layers);
        if readable == 0 {
            return Ok(());
        }
        let mut running = match self.running[index].pass.take() {
            Some(running) => running,
            None => {
                let left = self.running[index].tokens.len() - self.running[index].computed;
                let tokens = left.min(self.config.chunk_tokens);
                if !self.cover(index, tokens) {
                    return Ok(());
                }
                let span = self.span(index, tokens);
                Running { pass: self.engine.begin(vec![span])?, tokens, spent: Duration::ZERO }
            }
        };
        while let Some(layer) = self.engine.next_layer(&running.pass) {
            if layer >= readable || begin.elapsed() >= slice {
                self.running[index].pass = Some(running);
                return Ok(());
            }
            let step = Instant::now();
            self.engine.step_layer(&mut running.pass)?;
            self.progressed = true;
            running.spent += step.elapsed();
        }
        let logits = self.engine.finish(running.pass)?.pop().flatten();
        if running.tokens >= RATE_TOKENS {
            self.gauges.prefill_tokens_per_s.add_rate(running.tokens, running.spent);
        }
        self.advance(index, running.tokens, logits);
        Ok(())
    }

    fn span(&self, index: usize, tokens: usize) -> Span {
        let sequence = &self.running[index];
        let end = sequence.computed + tokens;
        Span {
            tokens: sequence.tokens[sequence.computed..end].to_vec(),
            position: sequence.computed,
            first_page: 0,
            pages: sequence.pages.clone(),
            logits: end == sequence.tokens.len(),
        }
    }

    fn is_covered(&self, index: usize, tokens: usize) -> bool {
        let sequence = &self.running[index];
        sequence.pages.len() * self.block_tokens >= sequence.computed + tokens
    }

    /// Give a sequence pages for its next tokens. Where none can be had, the sequence that arrived last
    /// gives up its own and is computed again later, to the same result.
    fn cover(&mut self, index: usize, tokens: usize) -> bool {
        while !self.is_covered(index, tokens) {
            if let Some(page) = self.pages.allocate() {
                self.running[index].pages.push(page);
            } else if !self.make_room(self.running[index].order) {
                return false;
            }
        }
        true
    }

    /// Have pages given up for the sequence of this order: by the last that arrived after it, else by one that
    /// is held, else by requests to come. False where nobody gives any.
    fn make_room(&mut self, order: u64) -> bool {
        let victim = (0..self.running.len())
            .filter(|&i| !self.running[i].pages.is_empty() && self.running[i].order != order)
            .filter(|&i| self.running[i].order > order || !self.running[i].may_go_on())
            .max_by_key(|&i| self.running[i].order);
        let Some(victim) = victim else {
            // What is kept for a request to come gives way to one that is here.
            return self.unpin_one();
        };
        self.preempt(victim);
        true
    }

    /// Take a sequence's pages away; it is computed again later, to the same result.
    fn preempt(&mut self, index: usize) {
        Gauges::count(&self.gauges.preemptions, 1);
        let pages = self.running[index].take_pages();
        self.pages.release_all(&pages);
    }

    /// Tokens of a sequence were computed: name complete blocks, sample where logits came.
    fn advance(&mut self, index: usize, tokens: usize, logits: Option<Vec<f32>>) {
        self.progressed = true;
        let sequence = &mut self.running[index];
        let (of_prompt, of_output) = sequence.parts(tokens);
        Gauges::count(&self.gauges.prompt_tokens_computed, of_prompt);
        Gauges::count(&self.gauges.output_tokens_recomputed, of_output);
        sequence.computed += tokens;
        while sequence.named < sequence.computed / self.block_tokens {
            let (at, page) = (sequence.named, sequence.pages[sequence.named]);
            sequence.named += 1;
            let Some(block) = sequence.block(at) else { continue };
            if self.pages.publish(page, block) && !self.host.holds(&block) {
                self.pages.retain(page);
                self.exports.push_back(Export { block, page, wanted: sequence.is_watched() });
            }
        }
        let Some(logits) = logits else { return };
        if !sequence.started {
            sequence.started = true;
            let reused = (sequence.prefix * self.block_tokens).min(sequence.prompt_len);
            Gauges::count(&self.gauges.prompt_tokens_reused, reused);
            sequence.send(Output::Started { reused });
        }
        let token = sequence.sampler.sample(&logits, sequence.step());
        if self.engine.info().eos.contains(&token) {
            sequence.finish(FinishReason::Stop);
            return;
        }
        sequence.push(token);
        Gauges::count(&self.gauges.tokens_generated, 1);
        let full = sequence.tokens.len() >= self.engine.info().max_context;
        sequence.send(Output::Token(token));
        if sequence.generated() >= sequence.max_tokens || full {
            sequence.finish(FinishReason::Length);
        }
    }

    fn fail(&mut self, index: usize, error: &EngineError) {
        tracing::error!(%error, "a request failed in the engine");
        self.running[index].pass = None;
        self.running[index].send(Output::Failed(error.to_string()));
        self.running[index].ended = true;
    }

    fn end_finished(&mut self) {
        let now = self.clock.now();
        let mut index = 0;
        while index < self.running.len() {
            if !self.running[index].ended {
                index += 1;
                continue;
            }
            let mut done = self.running.swap_remove(index);
            self.gauges.mean_service_us.add(now.since(done.arrived).as_micros() as f64);
            self.pages.release_all(&done.take_pages());
        }
    }

    fn report(&mut self) {
        self.contexts.report();
        let set =
            |gauge: &std::sync::atomic::AtomicU64, value: usize| gauge.store(value as u64, Ordering::Relaxed);
        set(&self.gauges.running, self.running.len());
        set(&self.gauges.queued, self.waiting.len());
        set(&self.gauges.pages_in_use, self.pages.capacity() - self.pages.available());
    }
}
