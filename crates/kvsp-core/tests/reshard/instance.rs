//! An instance: one [`Member`], the memory that it decides on, and the leader of the context where it has it.

use std::collections::{BTreeMap, BTreeSet};

use kvsp_core::reshard::{
    Answer, Asked, LengthOutcome, Load, Member, MemberConfig, MemberError, Planned, Ranges,
};
use kvsp_proto::message::{FetchRange, MapId, ReshardMessage, ReshardPlan};
use kvsp_proto::problem::{Problem, ProblemType};
use uuid::Uuid;

use crate::leader::Leader;
use crate::net::{Call, Msg, Node, Reply, Request, Values, Why};
use crate::oracle::{Freed, Why as FreedBy};
use crate::world::{Mutant, Shared, as_ranges, number, uri};

/// Before a status expires an instance reports three times.
pub const TTL_MS: u64 = 90;
/// How long a peer may take to answer.
pub const PEER_MS: u64 = 60;

pub struct Instance {
    pub number: usize,
    /// Rises with every start.
    pub start: u64,
    pub up: bool,
    pub paused: bool,
    pub member: Member,
    /// K and V by position.
    memory: BTreeMap<MapId, BTreeMap<u64, u64>>,
    loads: BTreeMap<MapId, Loading>,
    pub leader: Option<Leader>,
    next_status: u64,
    next_sweep: u64,
}

/// A plan that is being loaded.
struct Loading {
    plan: ReshardPlan,
    /// What is still to come, by request.
    waiting: BTreeMap<u64, FetchRange>,
    /// Who waits for the outcome.
    askers: Vec<Call>,
    until: u64,
}

fn machine(number: usize) -> Member {
    let config = MemberConfig {
        ask_interval: std::time::Duration::from_millis(20),
        max_ask_interval: std::time::Duration::from_millis(80),
        ..MemberConfig::default()
    };
    Member::new(config, uri(number))
}

fn status(error: MemberError) -> u16 {
    Problem::from(error).problem_type().map_or(500, ProblemType::status)
}

impl Instance {
    pub fn new(number: usize) -> Self {
        Self {
            number,
            start: 1,
            up: true,
            paused: false,
            member: machine(number),
            memory: BTreeMap::new(),
            loads: BTreeMap::new(),
            leader: None,
            next_status: 0,
            next_sweep: 0,
        }
    }

    fn node(&self) -> Node {
        Node::Instance(self.number)
    }

    /// SIGKILL: all that it held is gone, and what it acknowledged is void.
    pub fn crash(&mut self, shared: &mut Shared) {
        let leader = self.leader.take();
        let led = leader
            .is_some_and(|l| l.epoch == shared.oracle.epoch && Some(l.session) == shared.oracle.session);
        (self.up, self.paused) = (false, false);
        self.member = machine(self.number);
        self.memory.clear();
        self.loads.clear();
        shared.oracle.crashed(self.number, led);
    }

    pub fn restart(&mut self) {
        self.up = true;
        self.start += 1;
        self.next_status = 0;
    }

    /// Its sessions' machine has it lead a context of which these tokens are certain.
    pub fn lead(&mut self, session: Uuid, epoch: u64, tokens: Vec<u64>) {
        self.leader = Some(Leader::new(self.number, session, epoch, tokens));
    }

    pub fn held(&self, map: &MapId) -> Ranges {
        as_ranges(self.memory.get(map).into_iter().flat_map(|memory| memory.keys().copied()))
    }

    /// What it holds of which map, and how its leader stands.
    pub fn standing(&self) -> (Vec<(String, Ranges)>, Option<String>) {
        let held = self.memory.keys().map(|map| (map.as_str()[30..].to_owned(), self.held(map))).collect();
        (held, self.leader.as_ref().map(Leader::standing))
    }

    pub fn value(&self, map: &MapId, position: u64) -> Option<u64> {
        self.memory.get(map)?.get(&position).copied()
    }

    pub fn handle(&mut self, from: Node, msg: Msg, shared: &mut Shared) {
        if !self.up {
            return;
        }
        match msg {
            Msg::Tell { sent, message } => self.told(sent, message, shared),
            Msg::AskLength { sent, request } => {
                let ours = self.leader.as_mut().filter(|leader| leader.map() == sent.sent.map);
                let outcome = match ours {
                    Some(leader) => LengthOutcome::Length(leader.length_for(request.to, shared)),
                    None => LengthOutcome::NotLed,
                };
                shared.send(self.node(), Node::Controller, Msg::LengthIs { sent, outcome });
            }
            Msg::Forget { sent } => {
                self.forget(&sent.sent.map.clone(), FreedBy::End, shared);
                self.answer(sent, Answer::Ok, shared);
            }
            Msg::View { map, view, why: Why::Leader(request) } => {
                if let Some(leader) = self.leader.as_mut().filter(|leader| leader.map() == map) {
                    leader.viewed(request, view, shared);
                }
            }
            Msg::View { why: Why::Member(_, start), .. } if start != self.start => {}
            Msg::View { map, view, why: Why::Member(ask, _) } => match self.member.asked(&ask, view.as_ref())
            {
                Asked::Wait => {}
                Asked::Commit(free) => {
                    shared.count("commit learnt by asking");
                    shared.oracle.took(self.number, &map, ask.to, ask.attempt, true);
                    self.free(&map, &free, FreedBy::Commit, shared);
                }
                Asked::Abort(free) => {
                    shared.count("abort learnt by asking");
                    shared.oracle.took(self.number, &map, ask.to, ask.attempt, false);
                    self.end_load(&map, shared);
                    self.free(&map, &free, FreedBy::Abort, shared);
                }
                Asked::Forget => {
                    shared.count("map forgotten by asking");
                    self.end_load(&map, shared);
                    self.free_all(&map, FreedBy::End, shared);
                }
            },
            Msg::Ask { request, map, what } => {
                let reply = self.asked_by_peer(&map, what, shared);
                shared.send(self.node(), from, Msg::Reply { request, what: reply });
            }
            Msg::Reply { request, what } => {
                let loading = self.loads.iter().find(|(_, loading)| loading.waiting.contains_key(&request));
                match loading.map(|(map, _)| map.clone()) {
                    Some(map) => self.fetched(&map, request, what, shared),
                    None => {
                        if let Some(leader) = &mut self.leader {
                            leader.replied(request, what, shared);
                        }
                    }
                }
            }
            other => unreachable!("{other:?} is not for an instance"),
        }
    }

    fn answer(&self, sent: Call, answer: Answer, shared: &mut Shared) {
        shared.send(self.node(), Node::Controller, Msg::Answered { sent, answer });
    }

    fn told(&mut self, sent: Call, message: ReshardMessage, shared: &mut Shared) {
        let answer = match message {
            ReshardMessage::Plan(plan) => return self.plan(sent, *plan, shared),
            ReshardMessage::Commit { map, version, attempt, keep } => {
                let before = self.member.view(&map, &Ranges::new()).map(|view| view.version);
                let keep: Ranges = keep.into_iter().collect();
                self.member.commit(&map, version, attempt, &keep).map(|free| {
                    if before.is_ok_and(|before| before < version) {
                        shared.oracle.took(self.number, &map, version, attempt, true);
                    }
                    if !keep.is_empty() {
                        shared.count("copy kept at a commit");
                    }
                    (map, free, FreedBy::Commit)
                })
            }
            ReshardMessage::Abort { map, version, attempt, keep } => {
                let keep: Ranges = keep.into_iter().collect();
                let open = self.loads.get(&map).is_some_and(|loading| {
                    loading.plan.to == version && (attempt.is_none() || loading.plan.attempt <= attempt)
                });
                if open {
                    self.end_load(&map, shared);
                }
                if !keep.is_empty() {
                    shared.count("copy kept at an abort");
                }
                self.member.abort(&map, version, attempt, &keep).map(|free| {
                    if !free.is_empty() {
                        shared.oracle.took(self.number, &map, version, attempt, false);
                    }
                    (map, free, FreedBy::Abort)
                })
            }
        };
        match answer {
            Ok((map, free, why)) => {
                self.free(&map, &free, why, shared);
                self.answer(sent, Answer::Ok, shared);
            }
            Err(error) => {
                shared.count("decision refused");
                self.answer(sent, Answer::Refused(status(error)), shared);
            }
        }
    }

    fn plan(&mut self, sent: Call, plan: ReshardPlan, shared: &mut Shared) {
        match self.member.plan(&plan, shared.time()) {
            Ok(Planned::Load(load)) => self.begin(sent, plan, *load, shared),
            Ok(Planned::Loading) => {
                if let Some(loading) = self.loads.get_mut(&plan.map) {
                    loading.askers.push(sent);
                }
            }
            Ok(Planned::Ready(_)) => self.answer(sent, Answer::Ok, shared),
            Err(error) => {
                shared.count("plan refused");
                self.answer(sent, Answer::Refused(status(error)), shared);
            }
        }
    }

    fn begin(&mut self, sent: Call, plan: ReshardPlan, load: Load, shared: &mut Shared) {
        let map = load.map.clone();
        self.end_load(&map, shared);
        self.free(&map, &load.discard, FreedBy::Succeeded, shared);
        if shared.faulty && shared.rng.one_in(25) {
            shared.count("no memory for a plan");
            let free = self.member.load_failed(&map, load.to, load.attempt);
            self.free(&map, &free, FreedBy::Abort, shared);
            return self.answer(sent, Answer::Refused(507), shared);
        }
        let mut fetch = load.fetch;
        if shared.is(Mutant::RetainedFetched) {
            let other = uri((self.number + 1) % 2);
            fetch
                .extend(plan.retain.iter().map(|tokens| FetchRange { tokens: *tokens, from: other.clone() }));
        }
        let mut waiting = BTreeMap::new();
        for part in fetch {
            shared.oracle.fetches(self.number, &plan, &part);
            let request = shared.request();
            let (start, end) = (part.tokens.start(), part.tokens.end());
            let what = Request::Fetch { version: plan.from, start, end };
            let to = Node::Instance(number(&part.from));
            shared.send(self.node(), to, Msg::Ask { request, map: map.clone(), what });
            waiting.insert(request, part);
        }
        let until = shared.now + PEER_MS;
        self.loads.insert(map.clone(), Loading { plan, waiting, askers: vec![sent], until });
        self.loaded(&map, shared);
    }

    fn fetched(&mut self, map: &MapId, request: u64, what: Reply, shared: &mut Shared) {
        let Some(loading) = self.loads.get_mut(map) else { return };
        let Some(part) = loading.waiting.remove(&request) else { return };
        let Reply::Fetched { mut values, epoch } = what else { return self.load_failed(map, shared) };
        let (to, attempt) = (loading.plan.to, loading.plan.attempt);
        // What is here already may be of a later leader.
        values.retain(|(position, _)| self.value(map, *position).is_none());
        let got = as_ranges(values.iter().map(|(position, _)| *position));
        self.member.fetched(map, to, attempt, &got, epoch);
        let within: Ranges = [part.tokens].into_iter().collect();
        let values = values.into_iter().filter(|(position, _)| within.contains(*position)).collect();
        self.put(map, values, false, None, shared);
        self.loaded(map, shared);
    }

    /// All has come: the acknowledgement.
    fn loaded(&mut self, map: &MapId, shared: &mut Shared) {
        if self.loads.get(map).is_none_or(|loading| !loading.waiting.is_empty()) {
            return;
        }
        let Some(loading) = self.loads.remove(map) else { return };
        let plan = loading.plan;
        let answer = match self.member.loaded(map, plan.to, plan.attempt) {
            Ok(_) => {
                shared.count("acknowledgement");
                shared.oracle.acknowledges(self.number, self.start, &plan, self.held(map));
                if shared.is(Mutant::ReleaseAtAck) {
                    self.free(map, &plan.release.iter().copied().collect(), FreedBy::Commit, shared);
                }
                Answer::Ok
            }
            Err(error) => Answer::Refused(status(error)),
        };
        loading.askers.into_iter().for_each(|sent| self.answer(sent, answer, shared));
    }

    fn load_failed(&mut self, map: &MapId, shared: &mut Shared) {
        let Some(loading) = self.loads.remove(map) else { return };
        shared.count("load failed");
        let free = self.member.load_failed(map, loading.plan.to, loading.plan.attempt);
        self.free(map, &free, FreedBy::Abort, shared);
        loading.askers.into_iter().for_each(|sent| self.answer(sent, Answer::Refused(503), shared));
    }

    /// A load whose plan is over.
    fn end_load(&mut self, map: &MapId, shared: &mut Shared) {
        if let Some(loading) = self.loads.remove(map) {
            loading.askers.into_iter().for_each(|sent| self.answer(sent, Answer::Refused(409), shared));
        }
    }

    fn asked_by_peer(&mut self, map: &MapId, what: Request, shared: &mut Shared) -> Reply {
        match what {
            Request::Fetch { version, start, end } => {
                let Ok(view) = self.member.view(map, &Ranges::new()) else { return Reply::Refused };
                if self.member.may_serve(map, version).is_err() {
                    return Reply::Refused;
                }
                Reply::Fetched { values: self.values(map, start..end), epoch: view.epoch }
            }
            Request::Open(open) => {
                let Ok(opened) = self.member.open(map, &open) else { return Reply::Refused };
                self.free(map, &opened.discard, FreedBy::Cut, shared);
                let all = self.memory.entry(map.clone()).or_default();
                all.retain(|position, _| *position < opened.forget_from);
                self.member.view(map, &self.held(map)).map_or(Reply::Refused, Reply::Opened)
            }
            Request::Store { version, epoch, values } | Request::Prefill { version, epoch, values }
                if values.iter().any(|(position, _)| {
                    self.member.may_store(map, version, &(*position..*position + 1), epoch).is_err()
                }) =>
            {
                Reply::Refused
            }
            Request::Store { values, epoch, .. } => {
                self.put(map, values, false, Some(epoch), shared);
                Reply::Done
            }
            Request::Prefill { values, epoch, .. } => {
                shared.count("range computed again");
                self.put(map, values, true, Some(epoch), shared);
                Reply::Done
            }
            Request::Attend { version, epoch, start, end } => {
                if self.member.may_compute(map, version, epoch).is_err() {
                    return Reply::Refused;
                }
                Reply::Attended(self.values(map, start..end))
            }
        }
    }

    fn values(&self, map: &MapId, range: std::ops::Range<u64>) -> Values {
        let memory = self.memory.get(map);
        memory.into_iter().flat_map(|memory| memory.range(range.clone())).map(|(p, v)| (*p, *v)).collect()
    }

    fn put(&mut self, map: &MapId, values: Values, computed: bool, epoch: Option<u64>, shared: &mut Shared) {
        for (position, value) in values {
            let before = self.memory.entry(map.clone()).or_default().insert(position, value);
            if before != Some(value) {
                shared.oracle.arrived(self.number, position, computed, epoch);
            }
        }
    }

    fn forget(&mut self, map: &MapId, why: FreedBy, shared: &mut Shared) {
        self.member.forget(map);
        self.end_load(map, shared);
        self.free_all(map, why, shared);
    }

    fn free_all(&mut self, map: &MapId, why: FreedBy, shared: &mut Shared) {
        let held = self.held(map);
        self.free(map, &held, why, shared);
    }

    fn free(&mut self, map: &MapId, ranges: &Ranges, why: FreedBy, shared: &mut Shared) {
        let Some(memory) = self.memory.get_mut(map) else { return };
        let gone: BTreeSet<u64> =
            memory.keys().copied().filter(|position| ranges.contains(*position)).collect();
        for position in gone {
            if let Some(value) = memory.remove(&position) {
                let (instance, start) = (self.number, self.start);
                shared.oracle.freed.push(Freed { map: map.clone(), instance, start, position, value, why });
            }
        }
    }

    pub fn tick(&mut self, shared: &mut Shared) {
        if shared.now >= self.next_status {
            self.next_status = shared.now + TTL_MS / 3;
            let status = Msg::Status { instance: self.number, epoch: self.start };
            shared.send(self.node(), Node::Controller, status);
        }
        let late: Vec<MapId> = self
            .loads
            .iter()
            .filter(|(_, load)| load.until <= shared.now)
            .map(|(map, _)| map.clone())
            .collect();
        late.iter().for_each(|map| self.load_failed(map, shared));
        let mut asks = self.member.due_to_ask(shared.time());
        if shared.is(Mutant::MemberAbortsAlone) {
            for ask in std::mem::take(&mut asks) {
                if let Ok(free) = self.member.abort(&ask.map, ask.to, ask.attempt, &Ranges::new()) {
                    shared.oracle.took(self.number, &ask.map, ask.to, ask.attempt, false);
                    self.end_load(&ask.map, shared);
                    self.free(&ask.map, &free, FreedBy::Abort, shared);
                }
            }
        }
        if shared.now >= self.next_sweep {
            self.next_sweep = shared.now + 150;
            asks.extend(self.member.sweep());
        }
        for ask in asks {
            shared.count("controller asked");
            let msg = Msg::GetMap { map: ask.map.clone(), why: Why::Member(ask, self.start) };
            shared.send(self.node(), Node::Controller, msg);
        }
        if let Some(leader) = &mut self.leader {
            let map = leader.map();
            let memory = self.memory.get(&map);
            leader.tick(memory.unwrap_or(&BTreeMap::new()), shared);
        }
    }
}
