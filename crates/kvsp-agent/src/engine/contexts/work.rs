//! What is done for contexts in turns: attention, layers of passes, and octets in and out, one layer at a time.

use std::ops::Range;

use bytes::Bytes;
use kvsp_core::reshard::Ranges;
use kvsp_engine::{Engine, EngineError, Partial, Queries};
use kvsp_proto::container::Header;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::message::MapId;
use kvsp_proto::registry::Codec;

use super::context::Context;
use super::{Advanced, Attention, ContextError, Reply, VerifiedSections};

/// Work that waits for its turn.
pub(super) enum Work {
    Attend(Attention),
    Advance { pass: u64, attention: Option<Vec<f32>>, local: Ranges, reply: Reply<Advanced> },
    Finish { pass: u64, logits: bool, reply: Reply<Option<Vec<f32>>> },
    Read(Read),
    Write(Write),
}

impl Work {
    /// Whether whoever asked has gone away.
    pub(super) fn is_unwanted(&self) -> bool {
        match self {
            Self::Attend(attention) => attention.reply.is_closed(),
            Self::Advance { reply, .. } => reply.is_closed(),
            Self::Finish { reply, .. } => reply.is_closed(),
            Self::Read(read) => read.reply.is_closed(),
            Self::Write(write) => write.reply.is_closed(),
        }
    }

    /// Octets of the queries that it holds.
    pub(super) fn query_octets(&self) -> usize {
        if let Self::Attend(attention) = self { attention.octets() } else { 0 }
    }

    /// Refuse it.
    pub(super) fn refuse(self, error: ContextError) {
        // Whoever does not listen any more need not know.
        match self {
            Self::Attend(attention) => drop(attention.reply.send(Err(error))),
            Self::Advance { reply, .. } => drop(reply.send(Err(error))),
            Self::Finish { reply, .. } => drop(reply.send(Err(error))),
            Self::Read(read) => drop(read.reply.send(Err(error))),
            Self::Write(write) => drop(write.reply.send(Err(error))),
        }
    }
}

/// A container that is being put together.
pub(super) struct Read {
    pub(super) map: MapId,
    range: Range<u64>,
    layer: usize,
    out: Vec<u8>,
    values: Vec<u8>,
    reply: Reply<Bytes>,
}

impl Read {
    pub(super) const fn new(map: MapId, range: Range<u64>, reply: Reply<Bytes>) -> Self {
        Self { map, range, layer: 0, out: Vec::new(), values: Vec::new(), reply }
    }

    /// Read one layer; itself while there are more.
    pub(super) fn step<E: Engine>(mut self, engine: &E, context: Option<&Context>) -> Option<Self> {
        let descriptor = engine.info().descriptor.clone();
        match context.ok_or(ContextError::Missing).and_then(|c| self.layer(engine, c, &descriptor)) {
            Ok(()) if self.layer < descriptor.layers as usize => return Some(self),
            Ok(()) => drop(self.reply.send(Ok(self.out.into()))),
            Err(error) => drop(self.reply.send(Err(error))),
        }
        None
    }

    fn layer<E: Engine>(
        &mut self,
        engine: &E,
        context: &Context,
        descriptor: &Descriptor,
    ) -> Result<(), ContextError> {
        if self.layer == 0 {
            if self.range.is_empty() || !context.held_in_all().covers(&self.range) {
                return Err(ContextError::Missing);
            }
            self.out = head(descriptor, self.range.end - self.range.start)?;
        }
        if !context.holds(self.layer, &self.range) {
            return Err(ContextError::Missing);
        }
        for (page, slots, _) in context.slots(&self.range).ok_or(ContextError::Missing)? {
            engine.read_tokens(page, self.layer, slots, &mut self.out, &mut self.values)?;
        }
        self.out.append(&mut self.values);
        self.layer += 1;
        Ok(())
    }
}

/// The head of a container of so many tokens, with room for all that follows.
fn head(descriptor: &Descriptor, tokens: u64) -> Result<Vec<u8>, ContextError> {
    let too_large = || EngineError::Misuse(format!("no container holds {tokens} tokens"));
    let tokens = u32::try_from(tokens).map_err(|_| too_large())?;
    let lengths = descriptor.section_octets(tokens).ok_or_else(too_large)?;
    let header = Header::new(Codec::RAW, 0, tokens, vec![lengths; descriptor.layers as usize])
        .map_err(|_| too_large())?;
    let octets = usize::try_from(header.container_octets()).map_err(|_| too_large())?;
    let mut out = Vec::with_capacity(octets);
    out.extend_from_slice(&header.encode());
    Ok(out)
}

/// A container that is being put into pages.
pub(super) struct Write {
    pub(super) map: MapId,
    range: Range<u64>,
    sections: VerifiedSections,
    layer: usize,
    reply: Reply<()>,
}

impl Write {
    pub(super) const fn new(
        map: MapId,
        range: Range<u64>,
        sections: VerifiedSections,
        reply: Reply<()>,
    ) -> Self {
        Self { map, range, sections, layer: 0, reply }
    }

    /// Write one layer, which is held from then on; itself while there are more.
    pub(super) fn step<E: Engine>(mut self, engine: &mut E, context: Option<&mut Context>) -> Option<Self> {
        let layers = self.sections.0.len();
        match context.ok_or(ContextError::NotReserved).and_then(|c| self.layer(engine, c)) {
            Ok(()) if self.layer < layers => return Some(self),
            done => drop(self.reply.send(done)),
        }
        None
    }

    fn layer<E: Engine>(&mut self, engine: &mut E, context: &mut Context) -> Result<(), ContextError> {
        if self.range.is_empty() || !context.keeps(&self.range) {
            return Err(ContextError::NotReserved);
        }
        let other = || EngineError::Misuse("the sections are not of the tokens of the range".into());
        let token = engine.info().descriptor.section_octets(1).ok_or_else(other)?;
        let (k_octets, v_octets) = (token.0 as usize, token.1 as usize);
        let sections = self.sections.0.get(self.layer).ok_or_else(other)?;
        for (page, slots, at) in context.slots(&self.range).ok_or(ContextError::NotReserved)? {
            let of = |section: &Bytes, octets: usize| {
                let from = at.checked_mul(octets)?;
                let to = from.checked_add(slots.len().checked_mul(octets)?)?;
                (to <= section.len()).then(|| section.slice(from..to))
            };
            let (k, v) = of(&sections.k, k_octets).zip(of(&sections.v, v_octets)).ok_or_else(other)?;
            engine.write_tokens(page, self.layer, slots, &k, &v)?;
        }
        context.mark(self.layer, self.range.clone());
        self.layer += 1;
        Ok(())
    }
}

/// The keys among `keys` that a row of the queries sees.
pub(super) fn seen(keys: &Range<u64>, queries: &Queries) -> Range<u64> {
    let end = (queries.position as u64).saturating_add(queries.rows as u64);
    keys.start..keys.end.min(end)
}

/// Attention over keys that are held.
pub(super) fn attend<E: Engine>(
    engine: &E,
    context: &Context,
    layer: usize,
    keys: &Range<u64>,
    queries: &Queries,
) -> Result<Partial, ContextError> {
    let seen = seen(keys, queries);
    if seen.is_empty() {
        return Ok(nothing(queries));
    }
    if !context.holds(layer, &seen) {
        return Err(ContextError::Missing);
    }
    let run = context.run(&seen).ok_or(ContextError::Missing)?;
    // Both are positions of pages that are there.
    Ok(engine.attend(layer, &run, seen.start as usize..seen.end as usize, queries)?)
}

/// Attention of rows that see none of the keys.
fn nothing(queries: &Queries) -> Partial {
    let &Queries { rows, heads, head_dim, ref values, .. } = queries;
    let lines = values.len().checked_div(head_dim).unwrap_or(0);
    Partial { rows, heads, head_dim, out: vec![0.0; values.len()], lse: vec![f32::NEG_INFINITY; lines] }
}
