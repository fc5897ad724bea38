//! The leader of a context: it opens it at all members, makes token after token, and keeps K and V of the last ones
//! until their owner has them.

use std::collections::{BTreeMap, BTreeSet};

use kvsp_core::reshard::{Ranges, cover, instances_of, ranges_of};
use kvsp_proto::message::{MapId, MapView, OpenContext, Phase};
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use crate::instance::PEER_MS;
use crate::net::{Msg, Node, Reply, Request, Values, Why};
use crate::world::{CAPACITY, Mutant, Shared, as_ranges, map_of, number, uri};

/// Tokens that are stored at their owner together.
const FLUSH: usize = 4;

pub struct Leader {
    number: usize,
    pub session: Uuid,
    pub epoch: u64,
    /// What K and V are, as far as the tokens go; the last one is still to be computed with.
    tokens: Vec<u64>,
    /// How many there were when it took over.
    certain: u64,
    /// Positions whose K and V are here, because their owner does not have them yet.
    pub staging: BTreeMap<u64, u64>,
    view: Option<MapView>,
    state: State,
    /// A change is under way: to which version, from which position on nothing is dropped, and since which request.
    keep: Option<(u64, u64, u64)>,
    stores: BTreeMap<u64, (u64, Vec<u64>)>,
    /// What is held at the owners, as they said.
    held: Ranges,
    whole: bool,
}

enum State {
    Idle { at: u64 },
    Looking { request: u64, until: u64 },
    Opening { waiting: BTreeMap<u64, BaseUri>, until: u64 },
    Filling { waiting: BTreeSet<u64>, until: u64 },
    Ready { look_at: u64 },
    Attending { waiting: BTreeSet<u64>, seen: Vec<(u64, u64)>, until: u64 },
}

impl Leader {
    pub fn new(number: usize, session: Uuid, epoch: u64, tokens: Vec<u64>) -> Self {
        Self {
            number,
            session,
            epoch,
            certain: tokens.len() as u64,
            tokens,
            staging: BTreeMap::new(),
            view: None,
            state: State::Idle { at: 0 },
            keep: None,
            stores: BTreeMap::new(),
            held: Ranges::new(),
            whole: false,
        }
    }

    pub fn map(&self) -> MapId {
        map_of(self.session)
    }

    fn length(&self) -> u64 {
        self.tokens.len() as u64
    }

    /// The context is as long as it can be, and all of it is at its owners.
    pub fn is_done(&self) -> bool {
        self.whole && self.length() == CAPACITY && self.staging.is_empty() && self.keep.is_none()
    }

    pub fn standing(&self) -> String {
        let Self { session, epoch, staging, keep, held, whole, .. } = self;
        let staged: Vec<u64> = staging.keys().copied().collect();
        format!(
            "{session} {epoch} {} whole {whole} staged {staged:?} keep {keep:?} held {held:?}",
            self.length()
        )
    }

    fn restart(&mut self, now: u64) {
        self.state = State::Idle { at: now + 5 };
        self.whole = false;
    }

    /// The controller begins a change: all tokens so far may be at their owners and are to be loaded, as far as they
    /// are. Whatever is not known to be there stays here until the decision.
    pub fn length_for(&mut self, to: u64, shared: &mut Shared) -> u64 {
        let all = Ranges::one(0..self.length());
        let known = if self.whole { all.difference(&self.staged()) } else { Ranges::new() };
        let from = all.difference(&known).start().unwrap_or(self.length());
        let from = match self.keep {
            Some((known, at, _)) if known == to => from.min(at),
            _ => from,
        };
        self.keep = Some((to, from, shared.next_request));
        self.length()
    }

    fn staged(&self) -> Ranges {
        as_ranges(self.staging.keys().copied())
    }

    fn ask(&mut self, to: &BaseUri, what: Request, shared: &mut Shared) -> u64 {
        let request = shared.request();
        let msg = Msg::Ask { request, map: self.map(), what };
        shared.send(Node::Instance(self.number), Node::Instance(number(to)), msg);
        request
    }

    fn look(&mut self, shared: &mut Shared) {
        let request = shared.request();
        let msg = Msg::GetMap { map: self.map(), why: Why::Leader(request) };
        shared.send(Node::Instance(self.number), Node::Controller, msg);
        self.state = State::Looking { request, until: shared.now + PEER_MS };
    }

    pub fn viewed(&mut self, request: u64, view: Option<MapView>, shared: &mut Shared) {
        if !matches!(self.state, State::Looking { request: asked, .. } if asked == request) {
            return;
        }
        let Some(view) =
            view.filter(|view| self.view.as_ref().is_none_or(|known| known.version <= view.version))
        else {
            return self.restart(shared.now);
        };
        let preparing = view.pending.as_ref().filter(|pending| pending.phase == Phase::Preparing);
        match (preparing.map(|pending| pending.to), self.keep) {
            // It began before we led.
            (Some(to), None) => self.keep = Some((to, 0, request)),
            (Some(_), Some(_)) => {}
            // A view that was asked for before the change began says nothing of it.
            (None, Some((_, _, since))) if since < request => self.keep = None,
            (None, _) => {}
        }
        let same = self.view.as_ref().is_some_and(|known| known.version == view.version);
        if same && self.whole {
            self.view = Some(view);
            return self.begin(shared.now);
        }
        self.whole = false;
        self.held = Ranges::new();
        let mut waiting = BTreeMap::new();
        for member in instances_of(&view.shards) {
            let open = OpenContext {
                version: view.version,
                epoch: self.epoch,
                length: self.length(),
                certain: (!shared.is(Mutant::NothingCertain)).then_some(self.certain),
                shards: view.shards.clone(),
                compat_id: view.compat_id,
                scope_id: view.scope_id,
                session: view.session,
            };
            waiting.insert(self.ask(&member, Request::Open(open), shared), member);
        }
        self.view = Some(view);
        self.state = State::Opening { waiting, until: shared.now + PEER_MS };
    }

    pub fn replied(&mut self, request: u64, what: Reply, shared: &mut Shared) {
        if let Some((version, positions)) = self.stores.remove(&request) {
            return self.stored(version, positions, matches!(what, Reply::Done), shared);
        }
        match &mut self.state {
            State::Opening { waiting, .. } => {
                let Some(member) = waiting.remove(&request) else { return };
                let last = waiting.is_empty();
                let (Reply::Opened(held), Some(view)) = (what, &self.view) else {
                    return self.restart(shared.now);
                };
                let held: Ranges = held.held.into_iter().collect();
                self.held = self.held.union(&held.intersection(&ranges_of(&view.shards, &member)));
                if last {
                    self.fill(shared);
                }
            }
            State::Filling { waiting, .. } => {
                if !waiting.remove(&request) {
                    return;
                }
                let last = waiting.is_empty();
                if !matches!(what, Reply::Done) {
                    return self.restart(shared.now);
                }
                if last {
                    let staged = as_ranges(self.staging.keys().copied());
                    self.held = self.held.union(&Ranges::one(0..self.length()).difference(&staged));
                    self.begin(shared.now);
                }
            }
            State::Attending { waiting, seen, .. } => {
                if !waiting.remove(&request) {
                    return;
                }
                let Reply::Attended(values) = what else { return self.restart(shared.now) };
                seen.extend(values);
                if waiting.is_empty() {
                    let seen = std::mem::take(seen);
                    self.merge(&seen, shared);
                }
            }
            _ => {}
        }
    }

    /// What the owners lack is stored from here, or computed there.
    fn fill(&mut self, shared: &mut Shared) {
        let Some(view) = self.view.clone() else { return };
        let staged = as_ranges(self.staging.keys().copied());
        let lacking = Ranges::one(0..self.length()).difference(&self.held);
        let rest = lacking.difference(&staged);
        let preparing = view.pending.as_ref().is_some_and(|pending| pending.phase == Phase::Preparing);
        if preparing && !rest.is_empty() {
            // What is computed now would be at the owners of this version alone.
            return self.restart(shared.now + 10);
        }
        let mut waiting = BTreeSet::new();
        for shard in &view.shards {
            let part = rest.clip(shard.tokens.into());
            let values: Values = part.iter().flatten().map(|p| (p, self.tokens[p as usize])).collect();
            if !values.is_empty() {
                let what = Request::Prefill { version: view.version, epoch: self.epoch, values };
                waiting.insert(self.ask(&shard.instance, what, shared));
            }
        }
        // Those with which an owner answered are there; what is staged goes with the next flush.
        if waiting.is_empty() {
            return self.begin(shared.now);
        }
        self.state = State::Filling { waiting, until: shared.now + PEER_MS };
    }

    /// The context is whole at this version.
    fn begin(&mut self, now: u64) {
        self.whole = true;
        self.drop_staged();
        self.state = State::Ready { look_at: now + 20 };
    }

    /// What owners have need not be here, but for what a change under way may take from them.
    fn drop_staged(&mut self) {
        let keep = self.keep.map(|(_, from, _)| from);
        let held = &self.held;
        self.staging.retain(|p, _| !held.contains(*p) || keep.is_some_and(|from| *p >= from));
    }

    fn stored(&mut self, version: u64, positions: Vec<u64>, done: bool, shared: &mut Shared) {
        let Some(view) = &self.view else { return };
        if view.version != version {
            return;
        }
        if !done {
            return self.restart(shared.now);
        }
        self.held.extend(positions.into_iter().map(|p| p..p + 1));
        self.drop_staged();
    }

    fn flush(&mut self, shared: &mut Shared) {
        let Some(view) = self.view.clone() else { return };
        let fresh: Vec<u64> = self.staging.keys().copied().filter(|p| !self.held.contains(*p)).collect();
        if !self.stores.is_empty() || (fresh.len() < FLUSH && self.length() < CAPACITY) {
            return;
        }
        for shard in &view.shards {
            let own = Ranges::one(shard.tokens.into());
            let positions: Vec<u64> = fresh.iter().copied().filter(|p| own.contains(*p)).collect();
            if !positions.is_empty() {
                let values = positions.iter().map(|p| (*p, self.staging[p])).collect();
                let what = Request::Store { version: view.version, epoch: self.epoch, values };
                let request = self.ask(&shard.instance, what, shared);
                self.stores.insert(request, (view.version, positions));
            }
        }
        if !shared.rng.one_in(10) {
            return;
        }
        // Also to the owners of the next version, as well as may be.
        for shard in view.pending.iter().flat_map(|pending| &pending.shards) {
            let own = Ranges::one(shard.tokens.into());
            let values: Values =
                self.staging.iter().filter(|(p, _)| own.contains(**p)).map(|(p, v)| (*p, *v)).collect();
            if !values.is_empty() {
                let what = Request::Store { version: view.version + 1, epoch: self.epoch, values };
                self.ask(&shard.instance, what, shared);
            }
        }
    }

    /// Begins a step: every key is asked for where it is.
    fn attend(&mut self, memory: &BTreeMap<u64, u64>, shared: &mut Shared) {
        let Some(view) = self.view.clone() else { return };
        let own = ranges_of(&view.shards, &uri(self.number));
        let here = as_ranges(memory.keys().copied()).intersection(&own);
        let local = here.union(&as_ranges(self.staging.keys().copied()));
        let cover = cover(&view.shards, &uri(self.number), &local, self.length());
        if !cover.missing.is_empty() {
            self.view = None;
            return self.restart(shared.now);
        }
        let mut seen: Vec<(u64, u64)> = Vec::new();
        for position in cover.local.iter().flatten() {
            let value = self.staging.get(&position).or_else(|| memory.get(&position));
            seen.extend(value.map(|value| (position, *value)));
        }
        let mut waiting = BTreeSet::new();
        for (member, range) in cover.remote {
            let what = Request::Attend {
                version: view.version,
                epoch: self.epoch,
                start: range.start,
                end: range.end,
            };
            waiting.insert(self.ask(&member, what, shared));
        }
        if waiting.is_empty() {
            return self.merge(&seen, shared);
        }
        self.state = State::Attending { waiting, seen, until: shared.now + PEER_MS };
    }

    /// Ends a step: every key once, and the next token.
    fn merge(&mut self, seen: &[(u64, u64)], shared: &mut Shared) {
        let covered = as_ranges(seen.iter().map(|(position, _)| *position));
        let whole = covered == Ranges::one(0..self.length());
        if !whole || seen.len() as u64 != self.length() {
            // Somebody has lost his part.
            shared.count("merge that does not cover");
            return self.restart(shared.now);
        }
        shared.count("step");
        self.state = State::Ready { look_at: shared.now + 20 };
        if shared.oracle.merged(self.session, self.epoch, seen) && self.length() < CAPACITY {
            let value = shared.rng.next();
            self.staging.insert(self.length(), value);
            self.tokens.push(value);
            shared.oracle.grown(self.session, self.epoch, value);
        }
    }

    pub fn tick(&mut self, memory: &BTreeMap<u64, u64>, shared: &mut Shared) {
        let now = shared.now;
        match &self.state {
            State::Idle { at } if *at <= now => self.look(shared),
            State::Ready { look_at } if *look_at <= now => {
                self.stores.clear();
                self.look(shared);
            }
            State::Ready { .. } => {
                self.flush(shared);
                if self.length() < CAPACITY || shared.rng.one_in(4) {
                    self.attend(memory, shared);
                }
            }
            State::Looking { until, .. }
            | State::Opening { until, .. }
            | State::Filling { until, .. }
            | State::Attending { until, .. }
                if *until <= now =>
            {
                self.restart(now);
            }
            _ => {}
        }
    }
}
