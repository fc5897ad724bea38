//! A context split over several pools: a driver of members as instances would be, without a network.

use std::collections::BTreeMap;
use std::ops::Range;

use kvsp_engine::{Engine, Merge, PageId, PageRun, Partial, Queries, Span};
use kvsp_llama::{LlamaEngine, LlamaPass};
use kvsp_proto::descriptor::Descriptor;

/// Who holds which positions: contiguous from 0, the last range up to the capacity.
pub type Shards = Vec<(Range<usize>, usize)>;

/// Shards of the members 0, 1, … that end at these positions.
pub fn shards(ends: &[usize]) -> Shards {
    let starts = [0].into_iter().chain(ends.iter().copied());
    starts.zip(ends).zip(0..).map(|((start, &end), member)| (start..end, member)).collect()
}

/// A pool of pages: an engine of its own, or pages of a shared one.
struct Member {
    engine: usize,
    next_page: u32,
    /// Pages by block, taken when first needed.
    pages: BTreeMap<usize, PageId>,
}

/// The members of a map, and the first of them as the leader.
pub struct Group {
    engines: Vec<LlamaEngine>,
    members: Vec<Member>,
    shards: Shards,
    /// The sequence so far, as far as K and V are there.
    pub length: usize,
    /// Octets that moved between members.
    pub moved: usize,
}

impl Group {
    /// A group of `count` members over these engines; with fewer engines than members they share the first.
    pub fn new(engines: Vec<LlamaEngine>, count: usize, shards: Shards) -> Self {
        let shared = engines.len() < count;
        let members = (0..count).map(|i| Member {
            engine: if shared { 0 } else { i },
            next_page: if shared { (i * engines[0].info().pages / count) as u32 } else { 0 },
            pages: BTreeMap::new(),
        });
        let members = members.collect();
        Self { engines, members, shards, length: 0, moved: 0 }
    }

    /// The engines again.
    pub fn into_engines(self) -> Vec<LlamaEngine> {
        self.engines
    }

    /// The descriptor of all of them.
    pub fn descriptor(&self) -> &Descriptor {
        &self.engines[0].info().descriptor
    }

    /// Octets of a token in all layers.
    pub fn token_octets(&self) -> usize {
        let descriptor = self.descriptor();
        let elements = descriptor.layers * 2 * descriptor.kv_heads * descriptor.head_dim;
        elements as usize * descriptor.kv_dtype.octets()
    }

    /// Every member computes the tokens of its own range, all together layer by layer; the logits after the
    /// last token.
    pub fn prefill(&mut self, tokens: &[u32]) -> Vec<f32> {
        let spans: Vec<(usize, Span)> = self
            .shards
            .clone()
            .into_iter()
            .filter(|(range, _)| range.start < tokens.len())
            .map(|(range, member)| {
                let range = range.start..range.end.min(tokens.len());
                let logits = range.end == tokens.len();
                (member, self.span(member, tokens[range.clone()].to_vec(), range.start, logits))
            })
            .collect();
        self.length = tokens.len();
        let all = self.shards.clone();
        self.run(spans, |_| all.clone()).pop().unwrap().unwrap()
    }

    /// The leader computes one token, keeps its K and V aside, and stores them at their owner afterwards.
    pub fn decode(&mut self, token: u32) -> Vec<f32> {
        let position = self.length;
        let owner = self.owner(position);
        let span = self.span(0, vec![token], position, true);
        let mut cover: Shards = self
            .shards
            .iter()
            .map(|(range, member)| (range.start..range.end.min(position), *member))
            .collect();
        cover.retain(|(range, _)| range.start < range.end);
        match cover.last_mut() {
            Some((range, 0)) => range.end += 1,
            _ => cover.push((position..position + 1, 0)),
        }
        let logits = self.run(vec![(0, span)], |_| cover.clone()).remove(0).unwrap();
        self.length += 1;
        self.hand_over(position..position + 1, 0, owner);
        logits
    }

    /// Move to other shards. What stays with its member is not touched.
    pub fn reshard(&mut self, to: Shards) {
        let length = self.length;
        let pieces = |shards: &Shards| -> BTreeMap<usize, usize> {
            shards.iter().flat_map(|(r, m)| (r.start..r.end.min(length)).map(|p| (p, *m))).collect()
        };
        let (old, new) = (pieces(&self.shards), pieces(&to));
        assert_eq!((old.len(), new.len()), (length, length));
        let mut start = 0;
        while start < length {
            let pair = (old[&start], new[&start]);
            let end = (start..length).find(|p| (old[p], new[p]) != pair).unwrap_or(length);
            self.hand_over(start..end, pair.0, pair.1);
            start = end;
        }
        self.shards = to;
    }

    /// Passes of several members in step: all project a layer before any attends over it.
    fn run(
        &mut self,
        spans: Vec<(usize, Span)>,
        cover: impl Fn(&Queries) -> Shards,
    ) -> Vec<Option<Vec<f32>>> {
        let mut passes: Vec<(usize, LlamaPass)> = Vec::new();
        for (member, span) in spans {
            let pass = self.engine(member).begin(vec![span]).unwrap();
            passes.push((member, pass));
        }
        let layers = self.descriptor().layers as usize;
        for layer in 0..layers {
            let mut queries = Vec::new();
            for (member, pass) in &mut passes {
                assert_eq!(self.engine(*member).next_layer(pass), Some(layer));
                queries.push(self.engine(*member).project(pass).unwrap().remove(0));
            }
            for ((member, pass), queries) in passes.iter_mut().zip(&queries) {
                let mut merge = Merge::new(queries);
                for (keys, holder) in cover(queries) {
                    // Members ask only for earlier positions than their last.
                    if keys.start < queries.position + queries.rows {
                        let part = self.attend(holder, layer, keys.clone(), queries);
                        merge.add(keys, part).unwrap();
                    }
                }
                let attention = merge.finish().unwrap();
                self.engine(*member).complete(pass, &[attention]).unwrap();
            }
        }
        passes.into_iter().map(|(member, pass)| self.engine(member).finish(pass).unwrap().remove(0)).collect()
    }

    fn attend(&mut self, member: usize, layer: usize, keys: Range<usize>, queries: &Queries) -> Partial {
        let held = keys.start..keys.end.min(queries.position + queries.rows);
        let run = self.run_of(member, held);
        self.engine(member).attend(layer, &run, keys, queries).unwrap()
    }

    fn span(&mut self, member: usize, tokens: Vec<u32>, position: usize, logits: bool) -> Span {
        let PageRun { first, pages } = self.run_of(member, position..position + tokens.len());
        Span { tokens, position, first_page: first, pages, logits }
    }

    /// The pages of these positions.
    fn run_of(&mut self, member: usize, range: Range<usize>) -> PageRun {
        let block = self.block();
        let member = &mut self.members[member];
        let (first, last) = (range.start / block, range.end.div_ceil(block));
        let mut take = |block| {
            *member.pages.entry(block).or_insert_with(|| {
                member.next_page += 1;
                PageId(member.next_page - 1)
            })
        };
        PageRun { first, pages: (first..last).map(&mut take).collect() }
    }

    fn owner(&self, position: usize) -> usize {
        self.shards.iter().find(|(range, _)| range.contains(&position)).unwrap().1
    }

    /// Move positions through raw sections, page by page, and leave rubbish behind; nothing where the member
    /// stays the same.
    fn hand_over(&mut self, range: Range<usize>, from: usize, to: usize) {
        if from == to {
            return;
        }
        for (slots, at) in self.slots(range.clone()) {
            let (source, target) = (self.run_of(from, at.clone()).pages[0], self.run_of(to, at).pages[0]);
            for layer in 0..self.descriptor().layers as usize {
                let (mut k, mut v) = (Vec::new(), Vec::new());
                self.engine(from).read_tokens(source, layer, slots.clone(), &mut k, &mut v).unwrap();
                self.engine(to).write_tokens(target, layer, slots.clone(), &k, &v).unwrap();
                self.moved += k.len() + v.len();
            }
        }
        self.spoil(from, range);
    }

    /// Not-a-number in all elements of these positions.
    fn spoil(&mut self, member: usize, range: Range<usize>) {
        let layers = self.descriptor().layers as usize;
        let token = self.token_octets() / layers / 2;
        for (slots, at) in self.slots(range) {
            let page = self.run_of(member, at).pages[0];
            let rubbish = vec![0xFF; slots.len() * token];
            for layer in 0..layers {
                self.engine(member).write_tokens(page, layer, slots.clone(), &rubbish, &rubbish).unwrap();
            }
        }
    }

    /// A range cut at the borders of pages: slots, and their positions.
    fn slots(&self, range: Range<usize>) -> Vec<(Range<usize>, Range<usize>)> {
        let block = self.block();
        let blocks = range.start / block..range.end.div_ceil(block);
        let parts = blocks.map(|b| {
            let at = range.start.max(b * block)..range.end.min((b + 1) * block);
            (at.start - b * block..at.end - b * block, at)
        });
        parts.collect()
    }

    fn block(&self) -> usize {
        self.descriptor().block_tokens as usize
    }

    fn engine(&mut self, member: usize) -> &mut LlamaEngine {
        &mut self.engines[self.members[member].engine]
    }
}
