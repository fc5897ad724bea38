//! All processes, the network between them, and what happens to them.

use std::collections::BTreeMap;

use kvsp_core::session::Verdict;
use kvsp_core::time::Time;
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::record::SamplerState;
use kvsp_proto::registry::SamplerMethod;
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use crate::controller::{Controller, NO_ANSWER};
use crate::front::{Front, Request};
use crate::instance::{Instance, time};
use crate::net::{Msg, Net, Node};
use crate::oracle::{Oracle, Violation};
use crate::rng::Rng;

pub const INSTANCES: usize = 3;
const JOBS: usize = 4;

/// A step that the driver leaves out, to see that the checks notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The controller answers a checkpoint before it is durable.
    AckBeforePersist,
    /// The controller goes on as if an epoch were durable.
    EpochNotDurable,
    /// A second attempt goes out with the epoch of the first.
    EpochNotRaisedAgain,
    /// The controller takes checkpoints of any epoch.
    NoEpochAtController,
    /// The front end takes tokens of any epoch.
    NoEpochAtFront,
    /// A resumed instance serves from `output_offset`.
    ResumeAtOffset,
    /// An instance releases what it has.
    ReleaseBeforeAck,
}

/// One request of a client, and what the client has.
pub struct Job {
    pub seed: u64,
    pub deterministic: bool,
    pub length: u64,
    pub prompt_tokens: u64,
    pub session: Option<Uuid>,
    pub client: Vec<u32>,
}

impl Job {
    pub fn compat(&self) -> CompatId {
        "22".repeat(32).parse().expect("an identifier")
    }

    pub fn scope(&self) -> ScopeId {
        "33".repeat(16).parse().expect("an identifier")
    }

    pub fn prompt_blocks(&self) -> Vec<BlockKey> {
        vec!["44".repeat(32).parse().expect("an identifier")]
    }

    pub fn sampler(&self) -> SamplerState {
        SamplerState {
            method: if self.deterministic { SamplerMethod::Greedy } else { SamplerMethod::Multinomial },
            params: serde_json::Map::new(),
            seed: self.seed >> 11,
            step: 0,
            deterministic: self.deterministic,
        }
    }
}

/// What every process reaches.
pub struct Shared {
    pub now: u64,
    pub rng: Rng,
    pub net: Net,
    pub oracle: Oracle,
    pub jobs: Vec<Job>,
    pub mutant: Option<Mutant>,
    /// Whether things go wrong.
    pub faulty: bool,
    /// Whether blocks outlive an instance.
    pub blocks: bool,
    /// Requests that the controller takes up again.
    pub to_self: Vec<(Node, Msg)>,
    /// What has happened, and how often.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Shared {
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn time(&self) -> Time {
        time(self.now)
    }

    pub fn send(&mut self, from: Node, to: Node, msg: Msg) {
        self.net.send(from, to, msg, self.now, &mut self.rng);
    }

    pub fn job_of(&self, session: Uuid) -> Option<usize> {
        self.jobs.iter().position(|job| job.session == Some(session))
    }
}

pub fn uri(instance: usize) -> BaseUri {
    format!("http://i{instance}/kvsp/").parse().expect("a URI")
}

pub fn instance_number(uri: &BaseUri) -> usize {
    (0..INSTANCES).find(|n| self::uri(*n) == *uri).expect("one of ours")
}

pub struct World {
    pub shared: Shared,
    pub controller: Controller,
    pub instances: Vec<Instance>,
    pub front: Front,
    front_paused: bool,
}

impl World {
    pub fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut rng = Rng::new(seed);
        let job = |n: usize, rng: &mut Rng| Job {
            seed: rng.next(),
            deterministic: n % 2 == 1,
            // One in three is longer than a segment of the controller's table.
            length: if rng.one_in(3) { 60 + rng.below(90) } else { 1 + rng.below(40) } as u64,
            prompt_tokens: 18,
            session: None,
            client: Vec::new(),
        };
        let jobs: Vec<Job> = (0..JOBS).map(|n| job(n, &mut rng)).collect();
        let mut front = Front::default();
        front.requests.extend((0..JOBS).map(|n| Request::new(40 * n as u64)));
        let shared = Shared {
            now: 0,
            rng,
            net: Net::default(),
            oracle: Oracle::default(),
            jobs,
            mutant,
            faulty: true,
            blocks: true,
            to_self: Vec::new(),
            counts: BTreeMap::new(),
        };
        let instances = (0..INSTANCES).map(Instance::new).collect();
        Self { shared, controller: Controller::new(time(0)), instances, front, front_paused: false }
    }

    fn listens(&self, node: Node) -> bool {
        match node {
            Node::Controller => !self.controller.paused,
            Node::Front => !self.front_paused,
            Node::Instance(n) => !self.instances[n].paused,
        }
    }

    /// One thing happens, and everything that must hold is looked at.
    pub fn step(&mut self) -> Result<(), Violation> {
        match self.shared.rng.below(100) {
            0 | 1 if self.shared.faulty => self.fault(),
            0..15 if !self.controller.paused => self.controller.commit(&mut self.shared),
            0..97 if self.shared.net.is_ready(self.shared.now, |node| self.listens(node)) => self.deliver(),
            _ => self.pass_time(),
        }
        self.take_up();
        self.check()
    }

    fn check(&mut self) -> Result<(), Violation> {
        self.controller.check(&mut self.shared);
        self.shared.oracle.violation.clone().map_or(Ok(()), Err)
    }

    /// Requests that had met a write are taken up when it has ended.
    fn take_up(&mut self) {
        for (from, msg) in std::mem::take(&mut self.shared.to_self) {
            self.controller.handle(from, msg, &mut self.shared);
        }
    }

    fn pass_time(&mut self) {
        self.shared.now += 1 + self.shared.rng.below(4) as u64;
        let shared = &mut self.shared;
        for instance in self.instances.iter_mut().filter(|instance| instance.up && !instance.paused) {
            instance.tick(shared);
        }
        if !self.front_paused {
            self.front.tick(shared);
        }
        if !self.controller.paused {
            self.controller.tick(shared);
        }
    }

    fn deliver(&mut self) {
        let mut net = std::mem::take(&mut self.shared.net);
        let mut rng = self.shared.rng.clone();
        let packet = net.deliver(self.shared.now, |node| self.listens(node), &mut rng);
        (self.shared.net, self.shared.rng) = (net, rng);
        let Some(packet) = packet else { return };
        match packet.to {
            Node::Controller => self.controller.handle(packet.from, packet.msg, &mut self.shared),
            Node::Front => self.front.handle(packet.msg, &mut self.shared),
            Node::Instance(n) if self.instances[n].up => {
                self.instances[n].handle(packet.from, packet.msg, &mut self.shared);
            }
            Node::Instance(_) => self.refuse(packet.to, packet.from, packet.msg),
        }
    }

    /// Nobody listens: the sender is told so.
    fn refuse(&mut self, down: Node, to: Node, msg: Msg) {
        let answer = match msg {
            Msg::Start { session, conn, .. } | Msg::Connect { session, conn, .. } => {
                Msg::Rejected { session, conn, unknown: false }
            }
            Msg::Resume { session, request } => {
                Msg::Resumed { session, epoch: request.epoch, outcome: NO_ANSWER }
            }
            Msg::Probe { session, epoch } => Msg::Probed { session, epoch, verdict: Verdict::Lost },
            _ => return,
        };
        self.shared.send(down, to, answer);
    }

    fn fault(&mut self) {
        let shared = &mut self.shared;
        let n = shared.rng.below(INSTANCES);
        match shared.rng.below(23) {
            0 | 1 => self.instances[n].crash(shared),
            2..5 if !self.instances[n].up => self.instances[n].restart(),
            2..5 => {
                // Down and up within its TTL: only the epoch of its status tells.
                self.instances[n].crash(shared);
                self.instances[n].restart();
            }
            5 | 6 => {
                self.controller.crash(shared);
                if shared.rng.one_in(2) {
                    self.controller.start(shared.time());
                }
            }
            7..10 => {
                if !self.controller.is_up() {
                    self.controller.start(shared.time());
                }
            }
            10 => self.front.crash(),
            11 => self.instances[n].paused = self.instances[n].up,
            12 => self.controller.paused = self.controller.is_up(),
            13 => self.front_paused = true,
            14 => {
                let ends = [Node::Controller, Node::Front, Node::Instance(n)];
                let (a, b) = (ends[shared.rng.below(3)], ends[shared.rng.below(3)]);
                shared.net.cut.push((a, b));
            }
            15 => shared.net.cut.clear(),
            16 => shared.blocks = !shared.blocks,
            17..20 => self.controller.hand_over(n, shared),
            _ => {
                self.instances.iter_mut().for_each(|instance| instance.paused = false);
                self.controller.paused = false;
                self.front_paused = false;
            }
        }
    }

    /// Nothing goes wrong from now on.
    pub fn heal(&mut self) {
        self.shared.faulty = false;
        self.shared.net.faulty = false;
        self.shared.net.cut.clear();
        self.front_paused = false;
        self.controller.paused = false;
        if !self.controller.is_up() {
            self.controller.start(self.shared.time());
        }
        for instance in &mut self.instances {
            instance.paused = false;
            if !instance.up {
                instance.restart();
            }
        }
    }

    /// Runs until every client has all of its output.
    pub fn finish(&mut self, most_steps: usize) -> Result<(), Violation> {
        for _ in 0..most_steps {
            if self.front.requests.iter().all(|request| request.ended) {
                break;
            }
            self.step()?;
        }
        let whole = |(_, job): &(usize, &Job)| job.client.len() as u64 == job.length;
        let ended = self.front.requests.iter().all(|request| request.ended);
        let missing = self.shared.jobs.iter().enumerate().filter(|job| !whole(job) || !ended);
        let jobs: Vec<_> = missing.map(|(n, job)| (n, job.client.len() as u64, job.length)).collect();
        if jobs.is_empty() { Ok(()) } else { Err(Violation::Gap { jobs }) }
    }
}

/// One run: faults for so many steps, then peace.
pub fn run(seed: u64, steps: usize, mutant: Option<Mutant>) -> (World, Result<(), Violation>) {
    let mut world = World::new(seed, mutant);
    world.shared.net.faulty = true;
    for _ in 0..steps {
        if let Err(violation) = world.step() {
            return (world, Err(violation));
        }
    }
    world.heal();
    let outcome = world.finish(60_000);
    (world, outcome)
}
