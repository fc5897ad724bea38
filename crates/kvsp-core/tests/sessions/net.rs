//! Messages, and a network that loses, repeats, reorders and delays them.

use kvsp_core::session::{Choice, ResumeOutcome, Verdict};
use kvsp_proto::message::{CheckpointAppend, Needs, ResumeRequest, SessionView};
use kvsp_proto::record::SessionCheckpoint;
use uuid::Uuid;

use crate::rng::Rng;

/// Who sends and who receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    Controller,
    Front,
    Instance(usize),
}

#[derive(Debug, Clone)]
pub enum Body {
    Whole(SessionCheckpoint),
    Append(CheckpointAppend),
}

impl Body {
    pub fn epoch(&self) -> u64 {
        match self {
            Self::Whole(body) => body.epoch,
            Self::Append(body) => body.epoch,
        }
    }
}

/// How the controller answered a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Ack(u64),
    Stale,
    Gone,
    Conflict,
    /// 503, or an epoch that is not known.
    Failed,
}

#[derive(Debug, Clone)]
pub enum Msg {
    Status {
        instance: usize,
        epoch: u64,
    },
    // Front end and controller.
    Place {
        job: usize,
        request: u64,
    },
    Placed {
        job: usize,
        request: u64,
        session: Uuid,
        choice: Choice,
    },
    View {
        session: Uuid,
    },
    Viewed(SessionView),
    Broken {
        session: Uuid,
        epoch: u64,
    },
    End {
        session: Uuid,
    },
    Ended {
        session: Uuid,
    },
    // Instance and controller.
    Checkpoint {
        session: Uuid,
        request: u64,
        body: Body,
    },
    Answered {
        session: Uuid,
        request: u64,
        answer: Answer,
    },
    Resume {
        session: Uuid,
        request: Box<ResumeRequest>,
    },
    Resumed {
        session: Uuid,
        epoch: u64,
        outcome: ResumeOutcome,
    },
    Probe {
        session: Uuid,
        epoch: u64,
    },
    Probed {
        session: Uuid,
        epoch: u64,
        verdict: Verdict,
    },
    // Front end and instance. A connection is named by the front end.
    Start {
        session: Uuid,
        epoch: u64,
        conn: u64,
    },
    Connect {
        session: Uuid,
        from: u64,
        conn: u64,
    },
    Accepted {
        session: Uuid,
        conn: u64,
        needs: Option<Needs>,
    },
    /// 404, 409 or no listener: which, as the front end sees it.
    Rejected {
        session: Uuid,
        conn: u64,
        unknown: bool,
    },
    Prompt {
        session: Uuid,
        epoch: u64,
    },
    Prompted {
        session: Uuid,
        epoch: u64,
    },
    Token {
        session: Uuid,
        conn: u64,
        epoch: u64,
        index: u64,
        token: u32,
    },
    KeepAlive {
        session: Uuid,
        conn: u64,
        sent: u64,
    },
    Finished {
        session: Uuid,
        conn: u64,
        epoch: u64,
        count: u64,
    },
    Closed {
        session: Uuid,
        conn: u64,
    },
}

#[derive(Debug, Clone)]
pub struct Packet {
    pub from: Node,
    pub to: Node,
    pub msg: Msg,
    ready_ms: u64,
}

impl Packet {
    /// The connection and the index of a token in a stream.
    fn place(&self) -> Option<(u64, u64)> {
        match self.msg {
            Msg::Token { conn, index, .. } => Some((conn, index)),
            _ => None,
        }
    }
}

/// Packets under way, and the ways that are cut.
#[derive(Debug, Default)]
pub struct Net {
    packets: Vec<Packet>,
    pub cut: Vec<(Node, Node)>,
    pub faulty: bool,
}

/// More than any run needs; a run that reaches it floods the network.
const MOST_PACKETS: usize = 20_000;

impl Net {
    pub fn send(&mut self, from: Node, to: Node, msg: Msg, now: u64, rng: &mut Rng) {
        assert!(self.packets.len() < MOST_PACKETS, "the network is flooded, for one with {msg:?}");
        let delay = match (self.faulty, rng.below(20)) {
            (true, 0) => rng.below(120),
            (true, 1..5) => rng.below(15),
            _ => rng.below(3),
        };
        self.packets.push(Packet { from, to, msg, ready_ms: now + delay as u64 });
    }

    /// Some packet that is ready and whose receiver listens; a lost one is none.
    pub fn deliver(&mut self, now: u64, listens: impl Fn(Node) -> bool, rng: &mut Rng) -> Option<Packet> {
        let begin = rng.below(self.packets.len());
        let (late, early) = self.packets.split_at(begin);
        let ready = |packet: &Packet| packet.ready_ms <= now && listens(packet.to);
        let mut at = match early.iter().position(ready) {
            Some(at) => begin + at,
            None => late.iter().position(ready)?,
        };
        // Streams are mostly in order: else nothing would be seen but gaps.
        if let Some(place) = self.packets[at].place()
            && !rng.one_in(12)
        {
            let before = |packet: &Packet| ready(packet) && packet.place().is_some_and(|p| p.0 == place.0);
            let earlier = self.packets.iter().enumerate().filter(|(_, packet)| before(packet));
            at = earlier.min_by_key(|(_, packet)| packet.place()).map_or(at, |(at, _)| at);
        }
        if self.faulty && rng.one_in(30) {
            return Some(self.packets[at].clone());
        }
        let packet = self.packets.swap_remove(at);
        let lost = self.faulty && rng.one_in(25);
        (!lost && !self.cut.contains(&(packet.from, packet.to))).then_some(packet)
    }

    pub fn is_ready(&self, now: u64, listens: impl Fn(Node) -> bool) -> bool {
        self.packets.iter().any(|packet| packet.ready_ms <= now && listens(packet.to))
    }

    pub fn len(&self) -> usize {
        self.packets.len()
    }
}
