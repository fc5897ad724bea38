//! All processes, the network between them, and what happens to them.

use std::collections::BTreeMap;

use kvsp_core::reshard::{Ranges, ranges_of};
use kvsp_core::time::Time;
use kvsp_proto::message::{MapId, Shard, TokenRange};
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use crate::controller::Controller;
use crate::instance::Instance;
use crate::leader::Leader;
use crate::net::{Msg, Net, Node};
use crate::oracle::{Oracle, Violation};
use crate::rng::Rng;

pub const INSTANCES: usize = 4;
/// Tokens that a map covers.
pub const CAPACITY: u64 = 40;

/// A step that a driver leaves out or does wrong, to see that the checks notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The controller goes on as if a decision were durable.
    DecisionInMemory,
    /// A member past its deadline ends its plan itself.
    MemberAbortsAlone,
    /// A member frees what it is to release when it acknowledges.
    ReleaseAtAck,
    /// A member loads what it retains, too.
    RetainedFetched,
    /// The controller does not hear that a member was restarted.
    OldAckCounted,
    /// The controller takes silence for an acknowledgement.
    CommitWithoutAllAcks,
    /// Messages tell the version alone, as in the draft.
    NoNumbers,
    /// A commit never says what to keep.
    NothingKept,
    /// A leader does not say how many tokens were certain when it took over.
    NothingCertain,
}

/// What every process reaches.
pub struct Shared {
    pub now: u64,
    pub rng: Rng,
    pub net: Net,
    pub oracle: Oracle,
    pub mutant: Option<Mutant>,
    /// Whether things go wrong.
    pub faulty: bool,
    pub next_request: u64,
    /// Whether everything that is delivered is told.
    traces: bool,
    /// What has happened, and how often.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Shared {
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn time(&self) -> Time {
        Time::from_millis(self.now)
    }

    pub fn send(&mut self, from: Node, to: Node, msg: Msg) {
        self.net.send(from, to, msg, self.now, &mut self.rng);
    }

    pub fn request(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

pub fn uri(instance: usize) -> BaseUri {
    format!("http://i{instance}/kvsp/").parse().expect("a URI")
}

pub fn number(uri: &BaseUri) -> usize {
    (0..INSTANCES).find(|n| self::uri(*n) == *uri).expect("one of ours")
}

pub fn map_of(session: Uuid) -> MapId {
    MapId::from(session)
}

/// Some split over some of these instances.
pub fn random_split(among: &[usize], rng: &mut Rng) -> Vec<Shard> {
    let parts = 1 + rng.below(among.len().min(3));
    let mut cuts: Vec<u64> = (1..parts).map(|_| 1 + rng.below(CAPACITY as usize - 1) as u64).collect();
    cuts.extend([0, CAPACITY]);
    cuts.sort_unstable();
    cuts.dedup();
    let shard = |pair: &[u64]| Shard {
        tokens: TokenRange::new(pair[0], pair[1]).expect("a range"),
        instance: uri(among[rng.below(among.len())]),
    };
    cuts.windows(2).map(shard).collect()
}

pub struct World {
    pub shared: Shared,
    pub controller: Controller,
    pub instances: Vec<Instance>,
}

impl World {
    pub fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut net = Net::default();
        net.faulty = true;
        let shared = Shared {
            now: 0,
            rng: Rng::new(seed),
            net,
            oracle: Oracle::default(),
            mutant,
            faulty: true,
            next_request: 0,
            traces: std::env::var_os("KVSP_TRACE").is_some(),
            counts: BTreeMap::new(),
        };
        let instances = (0..INSTANCES).map(Instance::new).collect();
        Self { shared, controller: Controller::new(Time::from_millis(0)), instances }
    }

    fn listens(&self, node: Node) -> bool {
        match node {
            Node::Controller => !self.controller.paused,
            Node::Instance(n) => !self.instances[n].paused,
        }
    }

    /// One thing happens, and everything that must hold is looked at.
    pub fn step(&mut self) -> Result<(), Violation> {
        match self.shared.rng.below(100) {
            0 if self.shared.faulty => self.fault(),
            1..10 if !self.controller.paused => self.controller.commit(&mut self.shared),
            10..80 => {
                if !self.deliver() {
                    self.pass_time();
                }
            }
            _ => self.pass_time(),
        }
        self.lead();
        self.check()
    }

    fn check(&mut self) -> Result<(), Violation> {
        self.controller.check(&mut self.shared);
        self.shared.oracle.look_at_copies(&self.instances);
        self.shared.oracle.violation.clone().map_or(Ok(()), Err)
    }

    fn deliver(&mut self) -> bool {
        let mut net = std::mem::take(&mut self.shared.net);
        let mut rng = self.shared.rng.clone();
        let packet = net.deliver(self.shared.now, |node| self.listens(node), &mut rng);
        (self.shared.net, self.shared.rng) = (net, rng);
        let Some((from, to, msg)) = packet else { return false };
        if self.shared.traces {
            eprintln!("{} {from:?} to {to:?}: {msg:?}", self.shared.now);
        }
        match to {
            Node::Controller => self.controller.handle(from, msg, &mut self.shared),
            Node::Instance(n) => self.instances[n].handle(from, msg, &mut self.shared),
        }
        true
    }

    fn pass_time(&mut self) {
        self.shared.now += 1 + self.shared.rng.below(3) as u64;
        let shared = &mut self.shared;
        for instance in self.instances.iter_mut().filter(|instance| instance.up && !instance.paused) {
            instance.tick(shared);
        }
        if !self.controller.paused {
            self.controller.tick(shared);
        }
    }

    fn fault(&mut self) {
        let n = self.shared.rng.below(INSTANCES);
        let instance = &mut self.instances[n];
        let before = (instance.start, instance.up, instance.paused);
        if self.shared.traces {
            eprintln!("{} fault near {n} {before:?}", self.shared.now);
        }
        match self.shared.rng.below(14) {
            0..4 if instance.up => {
                self.shared.count("member crashed");
                instance.crash(&mut self.shared);
                if self.shared.rng.one_in(3) {
                    instance.restart();
                }
            }
            0..8 if !instance.up => instance.restart(),
            8 => instance.paused = true,
            9 => instance.paused = false,
            10 if self.controller.is_up() => {
                self.shared.count("controller crashed");
                self.controller.crash(&mut self.shared);
            }
            10 | 11 if !self.controller.is_up() => self.controller.start(&mut self.shared),
            12 => self.controller.paused = !self.controller.paused,
            _ => {}
        }
    }

    /// The controller sees to it that each context has a leader, as it does for sessions; here at one blow.
    fn lead(&mut self) {
        if self.controller.paused || !self.controller.is_up() {
            return;
        }
        let Some(session) = self.controller.session(&mut self.shared) else { return };
        let leads = self.instances.iter().position(|instance| {
            let epoch = self.shared.oracle.epoch;
            instance.up && instance.leader.as_ref().is_some_and(|l| l.epoch == epoch && l.session == session)
        });
        let is_over = leads.is_some_and(|n| self.instances[n].leader.as_ref().is_some_and(Leader::is_done));
        if is_over && self.shared.faulty {
            self.controller.end_session(session, &mut self.shared);
            self.shared.oracle.end();
            return;
        }
        let active = self.controller.active(&self.shared);
        if leads.is_some_and(|n| active.contains(&n)) || !self.shared.rng.one_in(20) {
            return;
        }
        let able: Vec<usize> = active.into_iter().filter(|n| self.instances[*n].up).collect();
        let Some(n) = able.get(self.shared.rng.below(able.len())).copied() else { return };
        // The last tokens may not have been recorded.
        let unsure = self.shared.rng.below(4) as u64;
        let (epoch, tokens) = self.shared.oracle.take_over(session, unsure);
        if epoch > 1 {
            self.shared.count("leader failed over");
        }
        self.controller.leader_moved(session, n, &mut self.shared);
        self.instances[n].lead(session, epoch, tokens);
    }

    /// Nothing goes wrong any more; what is under way comes to an end.
    pub fn heal(&mut self) -> Result<(), Violation> {
        (self.shared.faulty, self.shared.net.faulty) = (false, false);
        self.controller.paused = false;
        if !self.controller.is_up() {
            self.controller.start(&mut self.shared);
        }
        for instance in &mut self.instances {
            instance.paused = false;
            if !instance.up {
                instance.restart();
            }
        }
        for _ in 0..60_000 {
            self.step()?;
            if self.is_settled() {
                if let Some(row) = self.controller.settled_row() {
                    self.shared.oracle.at_rest(&row);
                }
                return self.check();
            }
        }
        let held: Vec<_> = self.instances.iter().map(Instance::standing).collect();
        Err(Violation::Stuck(format!("{held:?}; {}", self.controller.state())))
    }

    /// The context is whole, the map is at rest, and each owner has its part.
    fn is_settled(&self) -> bool {
        let epoch = self.shared.oracle.epoch;
        let leader = self.instances.iter().filter_map(|instance| instance.leader.as_ref());
        let done = leader
            .filter(|leader| leader.epoch == epoch && Some(leader.session) == self.shared.oracle.session)
            .any(Leader::is_done);
        let Some(row) = self.controller.settled_row() else { return false };
        let held = self.instances.iter().enumerate().all(|(n, instance)| {
            let ours = ranges_of(&row.shards, &uri(n)).clip(0..self.shared.oracle.text.len() as u64);
            let memory = instance.held(&row.map);
            // What is not ours is freed, but for what is kept until the next commit.
            let kept = row.spare.iter().filter(|spare| spare.instance == uri(n));
            let kept: Ranges = kept.map(|spare| spare.tokens).collect();
            memory.covers_all(&ours) && ranges_of(&row.shards, &uri(n)).union(&kept).covers_all(&memory)
        });
        let known = self.instances.iter().all(|one| self.controller.knows(one.number, one.start));
        done && held && known
    }
}

/// A run of one seed: what happened, and whether every rule held.
pub fn run(seed: u64, steps: usize, mutant: Option<Mutant>) -> (World, Result<(), Violation>) {
    let mut world = World::new(seed, mutant);
    let outcome = (0..steps).try_for_each(|_| world.step()).and_then(|()| world.heal());
    (world, outcome)
}

pub fn as_ranges(positions: impl IntoIterator<Item = u64>) -> Ranges {
    positions.into_iter().map(|position| position..position + 1).collect()
}
