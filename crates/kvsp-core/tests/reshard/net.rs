//! Messages on their way: lost, repeated, late and out of order.

use kvsp_core::reshard::{Answer, Ask, LengthOutcome, Sent};
use kvsp_proto::message::{HeldView, LengthRequest, MapId, MapView, OpenContext, ReshardMessage};

use crate::rng::Rng;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    Controller,
    Instance(usize),
}

/// Positions and what their keys and values are.
pub type Values = Vec<(u64, u64)>;

#[derive(Debug, Clone)]
pub enum Msg {
    /// Controller to instance, each answered with its `Call`.
    Tell {
        sent: Call,
        message: ReshardMessage,
    },
    AskLength {
        sent: Call,
        request: LengthRequest,
    },
    Forget {
        sent: Call,
    },
    /// Instance to controller.
    Status {
        instance: usize,
        epoch: u64,
    },
    Answered {
        sent: Call,
        answer: Answer,
    },
    LengthIs {
        sent: Call,
        outcome: LengthOutcome,
    },
    GetMap {
        map: MapId,
        why: Why,
    },
    View {
        map: MapId,
        view: Option<MapView>,
        why: Why,
    },
    /// Instance to instance; each request has a number that its answer repeats.
    Ask {
        request: u64,
        map: MapId,
        what: Request,
    },
    Reply {
        request: u64,
        what: Reply,
    },
}

/// A message of one start of the controller; an answer to another start's reaches nobody.
#[derive(Debug, Clone)]
pub struct Call {
    pub sent: Sent,
    pub start: u64,
}

/// Why a view is asked for.
#[derive(Debug, Clone)]
pub enum Why {
    /// By this start of a member; an answer to another does not reach it.
    Member(Ask, u64),
    Leader(u64),
}

#[derive(Debug, Clone)]
pub enum Request {
    /// K and V of positions from `start` to `end`, as far as they are there.
    Fetch {
        version: u64,
        start: u64,
        end: u64,
    },
    Open(OpenContext),
    Store {
        version: u64,
        epoch: u64,
        values: Values,
    },
    /// K and V are computed from tokens, which is the same as being told what they are.
    Prefill {
        version: u64,
        epoch: u64,
        values: Values,
    },
    Attend {
        version: u64,
        epoch: u64,
        start: u64,
        end: u64,
    },
}

#[derive(Debug, Clone)]
pub enum Reply {
    Fetched { values: Values, epoch: u64 },
    Opened(HeldView),
    Done,
    Attended(Values),
    Refused,
}

#[derive(Debug, Clone)]
struct Packet {
    ready: u64,
    from: Node,
    to: Node,
    msg: Msg,
}

#[derive(Debug, Default, Clone)]
pub struct Net {
    packets: Vec<Packet>,
    pub faulty: bool,
}

impl Net {
    pub fn send(&mut self, from: Node, to: Node, msg: Msg, now: u64, rng: &mut Rng) {
        if self.faulty && rng.one_in(14) {
            return;
        }
        let faulty = self.faulty;
        let late = |rng: &mut Rng| {
            let late = if faulty && rng.one_in(12) { 1 + rng.below(120) } else { 1 + rng.below(3) };
            now + late as u64
        };
        if self.faulty && rng.one_in(14) {
            let ready = late(rng);
            self.packets.push(Packet { ready, from, to, msg: msg.clone() });
        }
        let ready = late(rng);
        self.packets.push(Packet { ready, from, to, msg });
    }

    /// Some packet that is ready for a node that listens.
    pub fn deliver(
        &mut self,
        now: u64,
        listens: impl Fn(Node) -> bool,
        rng: &mut Rng,
    ) -> Option<(Node, Node, Msg)> {
        let ready = |packet: &Packet| packet.ready <= now && listens(packet.to);
        let at: Vec<usize> = (0..self.packets.len()).filter(|at| ready(&self.packets[*at])).collect();
        let at = *at.get(rng.below(at.len()))?;
        let Packet { from, to, msg, .. } = self.packets.swap_remove(at);
        Some((from, to, msg))
    }

    pub fn len(&self) -> usize {
        self.packets.len()
    }
}
