//! All contexts of the engine thread, the passes over them, and the attention that waits for its keys.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kvsp_core::reshard::Ranges;
use kvsp_core::time::Time;
use kvsp_engine::{Engine, EngineError, PageId, Span};
use kvsp_proto::message::MapId;

use super::super::Gauges;
use super::super::pages::PageTable;
use super::context::Context;
use super::work::{self, Read, Work, Write};
use super::{Advanced, Attention, ContextCommand, ContextError, Keeper, PassId};

/// Most passes at once.
const MAX_PASSES: usize = 4096;
/// Most pieces of work that wait for their turn, and most attention that waits for its keys.
const MAX_WAITING: usize = 4096;
/// Most octets of queries that wait for either.
const MAX_QUERY_OCTETS: usize = 256 << 20;
/// How long after the last work more of it is to be expected.
const LIVELY: Duration = Duration::from_secs(1);

/// A pass whose attention is put together elsewhere.
struct Pass<P> {
    map: MapId,
    rows: Range<u64>,
    /// The pages of its rows, by which it is seen that they are still its own.
    pages: Vec<PageId>,
    owner: Weak<()>,
    pass: P,
}

/// The contexts, owned by the engine thread.
pub(in crate::engine) struct Contexts<E: Engine> {
    layers: usize,
    block_tokens: usize,
    by_map: BTreeMap<MapId, Context>,
    passes: BTreeMap<u64, Pass<E::Pass>>,
    last_pass: u64,
    work: VecDeque<Work>,
    waiting: Vec<Attention>,
    /// What is held has changed since `waiting` was looked through.
    changed: bool,
    /// What is kept or held has changed since it was reported.
    unreported: bool,
    worked: Option<Instant>,
    gauges: Arc<Gauges>,
}

impl<E: Engine> Contexts<E> {
    pub(in crate::engine) fn new(engine: &E, gauges: Arc<Gauges>) -> Self {
        let descriptor = &engine.info().descriptor;
        Self {
            layers: descriptor.layers as usize,
            block_tokens: descriptor.block_tokens as usize,
            by_map: BTreeMap::new(),
            passes: BTreeMap::new(),
            last_pass: 0,
            work: VecDeque::new(),
            waiting: Vec::new(),
            changed: false,
            unreported: false,
            worked: None,
            gauges,
        }
    }

    /// Whether there is something to do.
    pub(in crate::engine) fn has_work(&self) -> bool {
        !self.work.is_empty()
    }

    /// Whether nothing is waited for that may time out or be given up.
    pub(in crate::engine) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.passes.is_empty()
    }

    /// Whether work came lately, so that more of it will come, and somebody waits for each piece of it.
    pub(in crate::engine) fn is_lively(&self) -> bool {
        self.worked.is_some_and(|at| at.elapsed() < LIVELY)
    }

    /// Carry out a command, or take it up as work.
    pub(in crate::engine) fn handle(
        &mut self,
        command: ContextCommand,
        engine: &mut E,
        pages: &mut PageTable,
    ) {
        // A caller that is gone has dropped its receiver.
        match command {
            ContextCommand::Reserve { map, keeper, ranges, reply } => {
                drop(reply.send(self.reserve(&map, keeper, &ranges, pages)));
            }
            ContextCommand::Free { map, keeper, ranges, reply } => {
                self.free(&map, keeper, ranges.as_ref(), pages);
                let _ = reply.send(());
            }
            ContextCommand::Held { map, reply } => {
                drop(reply.send(self.by_map.get(&map).map(Context::held_in_all).unwrap_or_default()));
            }
            ContextCommand::Forget { map, from, reply } => {
                self.forget(&map, from);
                let _ = reply.send(());
            }
            ContextCommand::Begin { map, position, tokens, reply } => {
                drop(reply.send(self.begin(map, position, tokens, engine)));
            }
            ContextCommand::Read { map, range, reply } => {
                self.queue(Work::Read(Read::new(map, range, reply)));
            }
            ContextCommand::Write { map, range, sections, reply } => {
                self.queue(Work::Write(Write::new(map, range, sections, reply)));
            }
            ContextCommand::Attend(attention) => self.attend(attention),
            ContextCommand::Advance { pass, attention, local, reply } => {
                self.queue(Work::Advance { pass, attention, local, reply });
            }
            ContextCommand::Finish { pass, logits, reply } => {
                self.queue(Work::Finish { pass, logits, reply });
            }
        }
    }

    fn reserve(
        &mut self,
        map: &MapId,
        keeper: Keeper,
        ranges: &Ranges,
        pages: &mut PageTable,
    ) -> Result<(), ContextError> {
        let (layers, block_tokens) = (self.layers, self.block_tokens);
        let context = self.by_map.entry(map.clone()).or_insert_with(|| Context::new(layers, block_tokens));
        let reserved = context.reserve(keeper, ranges, pages);
        if context.is_empty() {
            self.by_map.remove(map);
        }
        self.report_pages(pages);
        reserved
    }

    fn free(&mut self, map: &MapId, keeper: Option<Keeper>, ranges: Option<&Ranges>, pages: &mut PageTable) {
        let Some(context) = self.by_map.get_mut(map) else { return };
        match keeper {
            Some(keeper) => context.free(keeper, ranges, pages),
            None => context.clear(pages),
        }
        if context.is_empty() {
            self.by_map.remove(map);
        }
        self.changed = true;
        self.report_pages(pages);
    }

    /// What is free is known before the answer to whoever freed it.
    fn report_pages(&mut self, pages: &PageTable) {
        self.unreported = true;
        self.report();
        let in_use = pages.capacity() - pages.available();
        self.gauges.pages_in_use.store(in_use as u64, Ordering::Relaxed);
    }

    fn forget(&mut self, map: &MapId, from: u64) {
        if let Some(context) = self.by_map.get_mut(map) {
            context.forget(&(from..u64::MAX));
            self.unreported = true;
        }
        self.passes.retain(|_, pass| pass.map != *map || pass.rows.end <= from);
    }

    fn begin(
        &mut self,
        map: MapId,
        position: u64,
        tokens: Vec<u32>,
        engine: &mut E,
    ) -> Result<PassId, ContextError> {
        if self.passes.len() >= MAX_PASSES {
            return Err(ContextError::Busy);
        }
        let end = position.checked_add(tokens.len() as u64).ok_or(ContextError::NotReserved)?;
        let rows = position..end;
        let context = self.by_map.get(&map).ok_or(ContextError::NotReserved)?;
        if rows.is_empty() || !context.keeps(&rows) {
            return Err(ContextError::NotReserved);
        }
        let run = context.run(&rows).ok_or(ContextError::NotReserved)?;
        // A position that is kept has a page, so it is within memory.
        let (position, first_page, pages) = (position as usize, run.first, run.pages);
        let span = Span { tokens, position, first_page, pages: pages.clone(), logits: true };
        let pass = engine.begin(vec![span])?;
        self.last_pass += 1;
        let owner = Arc::new(());
        let known = Pass { map, rows, pages, owner: Arc::downgrade(&owner), pass };
        self.passes.insert(self.last_pass, known);
        Ok(PassId { id: self.last_pass, _owner: owner })
    }

    fn queue(&mut self, work: Work) {
        if self.work.len() >= MAX_WAITING {
            return work.refuse(ContextError::Busy);
        }
        self.work.push_back(work);
    }

    fn attend(&mut self, attention: Attention) {
        let readiness = self.readiness(&attention);
        if readiness == Readiness::Never {
            return Work::Attend(attention).refuse(ContextError::Missing);
        }
        let ready = self.work.iter().map(Work::query_octets).sum::<usize>();
        let waiting = self.waiting.iter().map(Attention::octets).sum::<usize>();
        let octets = ready.saturating_add(waiting).saturating_add(attention.octets());
        if octets > MAX_QUERY_OCTETS || self.waiting.len() >= MAX_WAITING {
            return Work::Attend(attention).refuse(ContextError::Busy);
        }
        if readiness == Readiness::Ready {
            self.queue(Work::Attend(attention));
        } else {
            self.waiting.push(attention);
        }
    }

    fn readiness(&self, attention: &Attention) -> Readiness {
        let seen = work::seen(&attention.keys, &attention.queries);
        match self.by_map.get(&attention.map) {
            Some(context) if seen.is_empty() || context.holds(attention.layer, &seen) => Readiness::Ready,
            Some(context) if attention.layer < self.layers && context.keeps(&seen) => Readiness::Later,
            _ => Readiness::Never,
        }
    }

    /// Work until there is no more or the time is used up, one piece at least. Whether anything was done.
    pub(in crate::engine) fn turn(&mut self, engine: &mut E, now: Time, slice: Duration) -> bool {
        self.passes.retain(|_, pass| pass.owner.strong_count() > 0);
        self.look_through_waiting(now);
        let begin = Instant::now();
        let mut worked = false;
        while let Some(work) = self.work.pop_front() {
            if !work.is_unwanted() {
                worked = true;
                if let Some(rest) = self.step(work, engine) {
                    self.work.push_back(rest);
                }
            }
            if begin.elapsed() >= slice {
                break;
            }
            if self.changed {
                self.look_through_waiting(now);
            }
        }
        if worked {
            self.worked = Some(Instant::now());
        }
        worked
    }

    fn look_through_waiting(&mut self, now: Time) {
        let changed = std::mem::take(&mut self.changed);
        let mut index = 0;
        while let Some(attention) = self.waiting.get(index) {
            let late = attention.until <= now;
            let readiness = if changed { self.readiness(attention) } else { Readiness::Later };
            if attention.reply.is_closed() {
                self.waiting.swap_remove(index);
            } else if readiness == Readiness::Ready {
                let attention = self.waiting.remove(index);
                self.queue(Work::Attend(attention));
            } else if late || readiness == Readiness::Never {
                Work::Attend(self.waiting.swap_remove(index)).refuse(ContextError::Missing);
            } else {
                index += 1;
            }
        }
    }

    /// One piece of work; what is left of it.
    fn step(&mut self, work: Work, engine: &mut E) -> Option<Work> {
        match work {
            Work::Attend(Attention { map, layer, keys, queries, reply, .. }) => {
                let context = self.by_map.get(&map).ok_or(ContextError::Missing);
                let partial = context.and_then(|c| work::attend(engine, c, layer, &keys, &queries));
                drop(reply.send(partial));
                None
            }
            Work::Advance { pass, attention, local, reply } => {
                drop(reply.send(self.advance(pass, attention, &local, engine)));
                None
            }
            Work::Finish { pass, logits, reply } => {
                drop(reply.send(self.finish(pass, logits, engine)));
                None
            }
            Work::Read(read) => {
                let context = self.by_map.get(&read.map);
                read.step(engine, context).map(Work::Read)
            }
            Work::Write(write) => {
                let context = self.by_map.get_mut(&write.map);
                (self.changed, self.unreported) = (true, true);
                write.step(engine, context).map(Work::Write)
            }
        }
    }

    fn advance(
        &mut self,
        id: u64,
        attention: Option<Vec<f32>>,
        local: &Ranges,
        engine: &mut E,
    ) -> Result<Advanced, ContextError> {
        let pass = self.passes.get_mut(&id).ok_or(ContextError::PassEnded)?;
        let context = self.by_map.get_mut(&pass.map).filter(|context| {
            context.keeps(&pass.rows) && context.run(&pass.rows).is_some_and(|run| run.pages == pass.pages)
        });
        let Some(context) = context else {
            // Its pages may be somebody else's by now.
            self.passes.remove(&id);
            return Err(ContextError::PassEnded);
        };
        if let Some(attention) = attention {
            engine.complete(&mut pass.pass, &[attention])?;
        }
        let Some(layer) = engine.next_layer(&pass.pass) else { return Ok(Advanced::Done) };
        let queries = engine.project(&mut pass.pass)?.pop();
        let queries = queries.ok_or_else(|| EngineError::Misuse("a pass without queries".into()))?;
        context.mark(layer, pass.rows.clone());
        (self.changed, self.unreported) = (true, true);
        let attend = |keys: Range<u64>| {
            work::attend(engine, context, layer, &keys, &queries).map(|partial| (keys, partial))
        };
        let local = local.iter().map(attend).collect::<Result<_, _>>()?;
        let layer = u32::try_from(layer).map_err(|_| EngineError::Misuse("a layer over 32 bits".into()))?;
        Ok(Advanced::Layer { layer, queries, local })
    }

    fn finish(&mut self, id: u64, logits: bool, engine: &mut E) -> Result<Option<Vec<f32>>, ContextError> {
        let pass = self.passes.remove(&id).ok_or(ContextError::PassEnded)?;
        if engine.next_layer(&pass.pass).is_some() {
            return Err(EngineError::Misuse("the pass has layers left".into()).into());
        }
        if !logits {
            return Ok(None);
        }
        Ok(engine.finish(pass.pass)?.pop().flatten())
    }

    /// Tell what is kept and held.
    pub(in crate::engine) fn report(&mut self) {
        if !std::mem::take(&mut self.unreported) {
            return;
        }
        let (kept, held) = self
            .by_map
            .values()
            .map(Context::tokens)
            .fold((0, 0), |(a, b), (c, d)| (u64::saturating_add(a, c), u64::saturating_add(b, d)));
        let pages: usize = self.by_map.values().map(Context::page_count).sum();
        self.gauges.context_tokens_reserved.store(kept, Ordering::Relaxed);
        self.gauges.context_tokens_held.store(held, Ordering::Relaxed);
        self.gauges.context_pages.store(pages as u64, Ordering::Relaxed);
    }
}

/// Whether keys are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readiness {
    Ready,
    Later,
    Never,
}
