//! The controller: [`Maps`], its stable storage, and what it has heard of instances.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kvsp_core::reshard::{
    Answer, Change, Decision, Effect, LengthOutcome, Maps, MapsConfig, NewMap, Outcome, Row, Sent, Ticket,
};
use kvsp_core::time::Time;
use kvsp_proto::message::{MapId, ReshardMessage};
use uuid::Uuid;

use crate::instance::TTL_MS;
use crate::net::{Call, Msg, Node};
use crate::world::{INSTANCES, Mutant, Shared, map_of, number, random_split, uri};

const DEADLINE_MS: u64 = 120;
/// How long a decision may be on its way before the driver calls it unanswered.
const ANSWER_MS: u64 = 40;

pub fn config() -> MapsConfig {
    MapsConfig {
        deadline_ms: DEADLINE_MS,
        backoff: Duration::from_millis(5),
        max_backoff: Duration::from_millis(20),
        answer_timeout: Duration::from_millis(80),
        max_tries: 6,
        regroup: Duration::from_millis(10),
        max_regroup: Duration::from_millis(80),
        stall: Duration::from_millis(60),
        ..MapsConfig::default()
    }
}

pub struct Controller {
    running: Option<Running>,
    pub paused: bool,
    pub disk: BTreeMap<MapId, Row>,
    /// Sessions so far; the last one is under way unless it has ended.
    sessions: u128,
    over: bool,
    leader: Option<usize>,
    starts: u64,
}

struct Running {
    maps: Maps,
    commits: Vec<(Ticket, Change)>,
    /// Messages without an answer, and when they count as unanswered.
    calls: Vec<(Sent, u64, bool)>,
    heard: BTreeMap<usize, Heard>,
    /// Lost since the plan that is open began.
    over: BTreeSet<usize>,
    attempt: Option<(MapId, u64)>,
    looked: u64,
    /// Rises with every start.
    start: u64,
}

#[derive(Clone, Copy)]
struct Heard {
    epoch: u64,
    until: u64,
    failed: bool,
}

impl Controller {
    pub fn new(now: Time) -> Self {
        let disk = BTreeMap::new();
        let running = Some(Running::new(Maps::new(config()), 0, now));
        Self { running, paused: false, disk, sessions: 0, over: true, leader: None, starts: 0 }
    }

    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    pub fn start(&mut self, shared: &mut Shared) {
        let now = shared.time();
        let rows = self.disk.values().cloned().collect();
        self.starts += 1;
        let mut running = Running::new(Maps::restore(config(), rows, now), self.starts, now);
        // Whose session ended is told again: the end may not have been durable.
        let live = Some(Uuid::from_u128(self.sessions)).filter(|_| !self.over);
        for session in self.disk.values().filter_map(|row| row.session).filter(|one| Some(*one) != live) {
            running.maps.session_ended(session, now);
        }
        if let Some(leader) = self.leader.filter(|_| !self.over) {
            running.maps.leader_moved(Uuid::from_u128(self.sessions), &uri(leader));
        }
        self.running = Some(running);
        self.effects(shared);
    }

    /// The process is gone: each write under way arrived or did not.
    pub fn crash(&mut self, shared: &mut Shared) {
        self.paused = false;
        let Some(running) = self.running.take() else { return };
        for (_, change) in running.commits {
            shared.count("crash in a write");
            if !shared.is(Mutant::DecisionInMemory) && shared.rng.one_in(2) {
                apply(&mut self.disk, change);
            }
        }
    }

    pub fn state(&self) -> String {
        let view = self.running.as_ref().map(|running| running.maps.view(&self.map()));
        format!("{view:?}; disk {:?}", self.disk.get(&self.map()))
    }

    fn map(&self) -> MapId {
        map_of(Uuid::from_u128(self.sessions))
    }

    /// The session under way, whose map there is; else one is begun.
    pub fn session(&mut self, shared: &mut Shared) -> Option<Uuid> {
        let now = shared.time();
        let active = self.active(shared);
        let Some(running) = &mut self.running else { return None };
        let session = Uuid::from_u128(self.sessions);
        if !self.over && running.maps.view(&map_of(session)).is_ok() {
            return Some(session);
        }
        let making = !self.over && !running.commits.is_empty();
        if active.is_empty() || making || !shared.rng.one_in(10) {
            return None;
        }
        self.sessions += u128::from(self.over);
        self.over = false;
        let session = Uuid::from_u128(self.sessions);
        let new = NewMap {
            map: map_of(session),
            compat_id: "22".repeat(32).parse().expect("an identifier"),
            scope_id: "33".repeat(16).parse().expect("an identifier"),
            session: Some(session),
            shards: random_split(&active, &mut shared.rng),
            leader: None,
        };
        if let Ok(Outcome::Persist { ticket, change, .. }) = running.maps.create(new, now) {
            running.commits.push((ticket, change));
        }
        self.effects(shared);
        None
    }

    pub fn end_session(&mut self, session: Uuid, shared: &mut Shared) {
        self.over = true;
        self.leader = None;
        if let Some(running) = &mut self.running {
            running.maps.session_ended(session, shared.time());
        }
        shared.count("context ended");
        self.effects(shared);
    }

    pub fn leader_moved(&mut self, session: Uuid, leader: usize, shared: &mut Shared) {
        self.leader = Some(leader);
        if let Some(running) = &mut self.running {
            running.maps.leader_moved(session, &uri(leader));
        }
        self.effects(shared);
    }

    /// Instances that report.
    pub fn active(&self, shared: &Shared) -> Vec<usize> {
        let heard = self.running.iter().flat_map(|running| &running.heard);
        heard.filter(|(_, heard)| !heard.failed && heard.until > shared.now).map(|(n, _)| *n).collect()
    }

    /// Whether it has heard of this start of an instance.
    pub fn knows(&self, instance: usize, start: u64) -> bool {
        let heard = self.running.as_ref().and_then(|running| running.heard.get(&instance));
        heard.is_some_and(|heard| heard.epoch == start && !heard.failed)
    }

    /// The map's row, where it is at rest.
    pub fn settled_row(&self) -> Option<Row> {
        let running = self.running.as_ref().filter(|_| !self.over)?;
        let row = running.maps.row(&self.map()).ok()?;
        let rest = row.plan.is_none() && running.maps.lost(&row.map).is_empty() && running.commits.is_empty();
        rest.then(|| row.clone())
    }

    pub fn handle(&mut self, from: Node, msg: Msg, shared: &mut Shared) {
        let now = shared.time();
        let Some(running) = &mut self.running else { return };
        match msg {
            Msg::Status { instance, epoch } => running.status(instance, epoch, shared),
            Msg::Answered { sent, answer } => {
                if running.ends(&sent) {
                    running.maps.answered(&sent.sent, answer, now);
                }
            }
            Msg::LengthIs { sent, outcome } => {
                if running.ends(&sent) {
                    running.maps.length(&sent.sent, outcome, now);
                }
            }
            Msg::GetMap { map, why } => {
                let view = running.maps.view(&map).ok();
                shared.send(Node::Controller, from, Msg::View { map, view, why });
            }
            other => unreachable!("{other:?} is not for a controller"),
        }
        self.effects(shared);
    }

    pub fn tick(&mut self, shared: &mut Shared) {
        let now = shared.time();
        let Some(running) = &mut self.running else { return };
        let stalled = shared.now - std::mem::replace(&mut running.looked, shared.now) > 60;
        if stalled {
            running.heard.values_mut().for_each(|heard| heard.until = shared.now + TTL_MS);
        }
        let late: Vec<usize> = running
            .heard
            .iter()
            .filter(|(_, h)| !h.failed && h.until <= shared.now)
            .map(|(n, _)| *n)
            .collect();
        for n in late {
            shared.count("status expired");
            running.heard.entry(n).and_modify(|heard| heard.failed = true);
            running.over.insert(n);
            running.maps.instance_failed(&uri(n), now);
        }
        let (late, open): (Vec<_>, Vec<_>) =
            std::mem::take(&mut running.calls).into_iter().partition(|(_, until, _)| *until <= shared.now);
        running.calls = open;
        for (sent, _, asks_length) in late {
            if asks_length {
                running.maps.length(&sent, LengthOutcome::Unreachable, now);
            } else if shared.is(Mutant::CommitWithoutAllAcks) {
                running.maps.answered(&sent, Answer::Ok, now);
            } else {
                running.maps.answered(&sent, Answer::Unreachable, now);
            }
        }
        running.maps.tick(now);
        if shared.faulty && shared.rng.one_in(12) {
            self.reshard(shared);
        }
        self.effects(shared);
    }

    /// The policy wants another group.
    fn reshard(&mut self, shared: &mut Shared) {
        let active = self.active(shared);
        let map = self.map();
        let Some(running) = self.running.as_mut().filter(|_| !active.is_empty()) else { return };
        let Ok(view) = running.maps.view(&map) else { return };
        let shards = random_split(&active, &mut shared.rng);
        let deadline = 1 + shared.rng.below(2 * DEADLINE_MS as usize) as u64;
        let outcome = running.maps.reshard(&map, view.version, shards, deadline, shared.time());
        if let Ok(Outcome::Persist { ticket, change, .. }) = outcome {
            running.commits.push((ticket, change));
        }
    }

    /// Some write ends.
    pub fn commit(&mut self, shared: &mut Shared) {
        let now = shared.time();
        let Some(running) = &mut self.running else { return };
        if running.commits.is_empty() {
            return;
        }
        let at =
            if shared.is(Mutant::DecisionInMemory) { 0 } else { shared.rng.below(running.commits.len()) };
        let (ticket, change) = running.commits.remove(at);
        let fails = shared.faulty && shared.rng.one_in(12);
        if !fails || shared.rng.one_in(2) {
            apply(&mut self.disk, change);
        }
        if fails {
            shared.count("write failed");
        }
        self.look(shared);
        let Some(running) = &mut self.running else { return };
        if fails {
            running.maps.persist_failed(ticket, now);
        } else {
            running.maps.persisted(ticket, now);
        }
        self.effects(shared);
    }

    fn look(&mut self, shared: &mut Shared) {
        let map = self.map();
        let lost = self.running.as_ref().map(|running| running.maps.lost(&map));
        shared.oracle.look(self.disk.get(&map).filter(|_| !self.over), lost);
    }

    fn effects(&mut self, shared: &mut Shared) {
        self.look(shared);
        let now = shared.time();
        let active = self.active(shared);
        loop {
            let Some(running) = &mut self.running else { return };
            let Some(effect) = running.maps.poll_effect() else { return };
            match effect {
                Effect::Persist { ticket, change } => {
                    let decision = match &change {
                        Change::Row(row) => row.plan.as_ref().and_then(|plan| plan.decision),
                        Change::Erase(_) => None,
                    };
                    if let Change::Row(row) = &change {
                        shared.oracle.decides(row, &running.epochs());
                    }
                    if shared.is(Mutant::DecisionInMemory) && decision.is_some() {
                        // What is to be durable is told to be so and written later.
                        running.maps.persisted(ticket, now);
                        running.commits.push((Ticket(u64::MAX), change));
                    } else {
                        running.commits.push((ticket, change));
                    }
                    match decision {
                        Some(Decision::Commit) => shared.count("commit decided"),
                        Some(Decision::Abort) => shared.count("abort decided"),
                        None => {}
                    }
                }
                Effect::Send { sent, mut message } => {
                    self.look(shared);
                    let Some(running) = &mut self.running else { return };
                    running.send(&sent, &mut message, shared);
                }
                Effect::AskLength { sent, request, .. } => {
                    running.calls.push((sent.clone(), shared.now + ANSWER_MS, true));
                    let to = Node::Instance(number(&sent.instance));
                    shared.send(
                        Node::Controller,
                        to,
                        Msg::AskLength { sent: running.call(&sent), request: *request },
                    );
                }
                Effect::Forget(sent) => {
                    running.calls.push((sent.clone(), shared.now + ANSWER_MS, false));
                    let to = Node::Instance(number(&sent.instance));
                    shared.send(Node::Controller, to, Msg::Forget { sent: running.call(&sent) });
                }
                Effect::Regroup { map, .. } => {
                    shared.count("regroup");
                    let Ok(view) = running.maps.view(&map) else { continue };
                    let all_active = view.shards.iter().all(|s| active.contains(&number(&s.instance)));
                    let shards = if all_active && shared.rng.one_in(2) {
                        view.shards
                    } else if active.is_empty() {
                        continue;
                    } else {
                        random_split(&active, &mut shared.rng)
                    };
                    if let Ok(Outcome::Persist { ticket, change, .. }) =
                        running.maps.desired(&map, shards, now)
                    {
                        running.commits.push((ticket, change));
                    }
                }
                Effect::Changed(_) => {}
            }
        }
    }

    pub fn check(&mut self, shared: &mut Shared) {
        self.look(shared);
        let map = self.map();
        let Some(running) = self.running.as_ref().filter(|_| !self.over) else { return };
        if let (Ok(view), Some(row)) = (running.maps.view(&map), self.disk.get(&map)) {
            shared.oracle.shows(&view, row.version);
        }
    }
}

impl Running {
    fn new(maps: Maps, start: u64, now: Time) -> Self {
        let looked = now.as_micros() / 1000;
        // Every instance has a TTL to report.
        let heard = |n| (n, Heard { epoch: 0, until: looked + TTL_MS, failed: true });
        Self {
            maps,
            commits: Vec::new(),
            calls: Vec::new(),
            heard: (0..INSTANCES).map(heard).collect(),
            over: BTreeSet::new(),
            attempt: None,
            looked,
            start,
        }
    }

    fn epochs(&self) -> BTreeMap<usize, u64> {
        self.heard.iter().map(|(n, heard)| (*n, heard.epoch)).collect()
    }

    fn call(&self, sent: &Sent) -> Call {
        Call { sent: sent.clone(), start: self.start }
    }

    fn ends(&mut self, call: &Call) -> bool {
        let before = self.calls.len();
        self.calls.retain(|(open, ..)| *open != call.sent || call.start != self.start);
        self.calls.len() < before
    }

    fn status(&mut self, instance: usize, epoch: u64, shared: &mut Shared) {
        let Some(heard) = self.heard.get_mut(&instance).filter(|heard| heard.epoch <= epoch) else { return };
        if heard.epoch > 0 && heard.epoch < epoch {
            shared.count("restart heard of");
            self.over.insert(instance);
        }
        let before = heard.epoch;
        *heard = Heard { epoch, until: shared.now + TTL_MS, failed: false };
        let told = if shared.is(Mutant::OldAckCounted) && before > 0 { before.min(epoch) } else { epoch };
        self.maps.instance_reported(&uri(instance), told, TTL_MS, shared.time());
    }

    fn send(&mut self, sent: &Sent, message: &mut ReshardMessage, shared: &mut Shared) {
        let to = number(&sent.instance);
        if let ReshardMessage::Plan(plan) = message
            && self.attempt != plan.attempt.map(|attempt| (plan.map.clone(), attempt))
        {
            self.attempt = plan.attempt.map(|attempt| (plan.map.clone(), attempt));
            self.over.clear();
        }
        if shared.is(Mutant::NothingKept) {
            match message {
                ReshardMessage::Commit { keep, .. } | ReshardMessage::Abort { keep, .. } => keep.clear(),
                ReshardMessage::Plan(_) => {}
            }
        }
        shared.oracle.sends(to, message, &self.over);
        if shared.is(Mutant::NoNumbers) {
            match message {
                ReshardMessage::Plan(plan) => plan.attempt = None,
                ReshardMessage::Commit { attempt, .. } | ReshardMessage::Abort { attempt, .. } => {
                    *attempt = None;
                }
            }
        }
        let until = match message {
            ReshardMessage::Plan(plan) => plan.deadline_ms.min(100),
            _ => ANSWER_MS,
        };
        self.calls.push((sent.clone(), shared.now + until, false));
        let msg = Msg::Tell { sent: self.call(sent), message: message.clone() };
        shared.send(Node::Controller, Node::Instance(to), msg);
    }
}

fn apply(disk: &mut BTreeMap<MapId, Row>, change: Change) {
    match change {
        // What is written is what is read: through JSON, as a driver does.
        Change::Row(row) => {
            let text = serde_json::to_string(&*row).expect("a row is JSON");
            disk.insert(row.map.clone(), serde_json::from_str(&text).expect("and is read again"));
        }
        Change::Erase(map) => {
            disk.remove(&map);
        }
    }
}
