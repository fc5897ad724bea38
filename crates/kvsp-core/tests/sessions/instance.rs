//! An instance: one [`Output`] for each session, an engine that makes one token at a time, and streams.

use std::collections::BTreeMap;
use std::time::Duration;

use kvsp_core::session::{Due, Finish, Output, OutputConfig, Refusal, ResumeOutcome, Verdict};
use kvsp_core::time::Time;
use kvsp_proto::message::{CheckpointAppend, Needs};
use kvsp_proto::record::{SamplerState, SessionCheckpoint};
use uuid::Uuid;

use crate::net::{Answer, Body, Msg, Node};
use crate::rng::mix;
use crate::world::{Job, Mutant, Shared};

/// Before a status expires an instance reports three times.
pub const TTL_MS: u64 = 60;
const CHECKPOINT_TIMEOUT_MS: u64 = 40;
const KEEP_ALIVE_MS: u64 = 15;

pub struct Instance {
    pub number: usize,
    /// Rises with every start.
    pub start: u64,
    pub up: bool,
    pub paused: bool,
    sessions: BTreeMap<Uuid, Session>,
    next_status: u64,
    next_request: u64,
}

struct Session {
    job: usize,
    output: Output,
    needs: Option<Needs>,
    /// The checkpoint without an answer, and until when one is awaited.
    in_flight: Option<(u64, u64)>,
    streams: Vec<Stream>,
    blocks_at: u64,
    /// Only a mutant keeps it from 0: the first index that it streams.
    streams_from: u64,
}

struct Stream {
    conn: u64,
    next: u64,
    told: u64,
    finished: bool,
}

/// What a sampler yields: the same everywhere, or another value wherever and whenever it is asked.
pub fn sample(job: &Job, epoch: u64, instance: usize, start: u64, index: u64) -> u32 {
    let base = mix(job.seed ^ mix(index));
    let draw = if job.deterministic {
        base
    } else {
        mix(base ^ mix(epoch) ^ mix(1000 + instance as u64) ^ mix(start << 20))
    };
    (draw % 50_000) as u32
}

impl Instance {
    pub fn new(number: usize) -> Self {
        Self {
            number,
            start: 1,
            up: true,
            paused: false,
            sessions: BTreeMap::new(),
            next_status: 0,
            next_request: 0,
        }
    }

    fn node(&self) -> Node {
        Node::Instance(self.number)
    }

    /// SIGKILL: the kernel closes the connections.
    pub fn crash(&mut self, shared: &mut Shared) {
        self.up = false;
        self.paused = false;
        for (session, state) in std::mem::take(&mut self.sessions) {
            for stream in state.streams {
                shared.send(self.node(), Node::Front, Msg::Closed { session, conn: stream.conn });
            }
        }
    }

    pub fn restart(&mut self) {
        self.up = true;
        self.start += 1;
        self.next_status = 0;
    }

    fn config(job: &Job) -> OutputConfig {
        OutputConfig {
            max_unacked_tokens: 6,
            max_checkpoint_delay: Duration::from_millis(4),
            interval_tokens: 8,
            block_tokens: 5,
            prompt_tokens: job.prompt_tokens,
            max_store_wait: Duration::from_millis(20),
        }
    }

    fn begin(&mut self, session: Uuid, epoch: u64, generated: Vec<u32>, recorded: bool, shared: &mut Shared) {
        let Some(number) = shared.job_of(session) else { return };
        shared.oracle.serves(session, epoch, self.number);
        let job = &shared.jobs[number];
        let offset = generated.len() as u64;
        let (det, now) = (job.deterministic, shared.time());
        let mut output = Output::new(Self::config(job), epoch, generated, det, recorded, now);
        // The recorded tokens may be all there are, and the end of them may not have been told.
        if output.tokens().len() as u64 >= job.length {
            output.finish(Finish::Length, now);
        }
        let needs = (recorded && !shared.blocks).then_some(Needs::Prompt);
        let skips = recorded && shared.mutant == Some(Mutant::ResumeAtOffset);
        let state = Session {
            job: number,
            output,
            needs,
            in_flight: None,
            streams: Vec::new(),
            blocks_at: shared.now + 3,
            streams_from: if skips { offset } else { 0 },
        };
        self.drop_session(session, shared);
        self.sessions.insert(session, state);
    }

    /// Ends a session here: its streams end without a reason.
    fn drop_session(&mut self, session: Uuid, shared: &mut Shared) {
        let Some(state) = self.sessions.remove(&session) else { return };
        for stream in state.streams {
            shared.send(self.node(), Node::Front, Msg::Closed { session, conn: stream.conn });
        }
    }

    pub fn handle(&mut self, from: Node, msg: Msg, shared: &mut Shared) {
        let known = |session: &Uuid| self.sessions.get(session).map(|state| state.output.epoch());
        match msg {
            Msg::Start { session, epoch, conn } => match known(&session) {
                Some(known) if known > epoch => self.reject(from, session, conn, false, shared),
                Some(known) if known == epoch => self.connect(from, session, 0, conn, shared),
                _ => {
                    self.begin(session, epoch, Vec::new(), false, shared);
                    self.connect(from, session, 0, conn, shared);
                }
            },
            Msg::Connect { session, from: index, conn } => match known(&session) {
                Some(_) => self.connect(from, session, index, conn, shared),
                None => self.reject(from, session, conn, true, shared),
            },
            Msg::Resume { session, request } => {
                let epoch = request.epoch;
                let outcome = match known(&session) {
                    Some(known) if known > epoch => ResumeOutcome::Refused,
                    Some(known) if known == epoch => ResumeOutcome::Taken { needs: self.needs(session) },
                    _ => {
                        self.begin(session, epoch, request.checkpoint.generated, true, shared);
                        ResumeOutcome::Taken { needs: self.needs(session) }
                    }
                };
                shared.send(self.node(), from, Msg::Resumed { session, epoch, outcome });
            }
            Msg::Probe { session, epoch } => {
                let has = known(&session).is_some();
                let verdict = if has { Verdict::Alive } else { Verdict::Lost };
                shared.send(self.node(), from, Msg::Probed { session, epoch, verdict });
            }
            Msg::Prompt { session, epoch } => {
                if let Some(state) = self.sessions.get_mut(&session).filter(|s| s.output.epoch() == epoch) {
                    state.needs = None;
                    shared.count("prompt given");
                    shared.send(Node::Instance(self.number), from, Msg::Prompted { session, epoch });
                }
            }
            Msg::Answered { session, request, answer } => self.answered(session, request, answer, shared),
            Msg::End { session } => self.drop_session(session, shared),
            other => unreachable!("{other:?} is not for an instance"),
        }
    }

    fn needs(&self, session: Uuid) -> Option<Needs> {
        self.sessions.get(&session).and_then(|state| state.needs)
    }

    fn reject(&self, to: Node, session: Uuid, conn: u64, unknown: bool, shared: &mut Shared) {
        shared.send(self.node(), to, Msg::Rejected { session, conn, unknown });
    }

    fn connect(&mut self, to: Node, session: Uuid, from: u64, conn: u64, shared: &mut Shared) {
        let node = self.node();
        let Some(state) = self.sessions.get_mut(&session) else { return };
        let next = from.max(state.streams_from);
        // One reader is served, and a stale one beside it.
        if state.streams.len() >= 2 {
            state.streams.remove(0);
        }
        state.streams.push(Stream { conn, next, told: shared.now, finished: false });
        let needs = state.needs;
        shared.send(node, to, Msg::Accepted { session, conn, needs });
    }

    fn answered(&mut self, session: Uuid, request: u64, answer: Answer, shared: &mut Shared) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        if state.in_flight.is_none_or(|(awaited, _)| awaited != request) {
            return;
        }
        state.in_flight = None;
        let now = shared.time();
        match answer {
            Answer::Ack(offset) => state.output.acknowledged(offset, now),
            Answer::Stale => state.output.refused(Refusal::Stale, now),
            Answer::Gone => state.output.refused(Refusal::Gone, now),
            Answer::Conflict => state.output.refused(Refusal::Conflict, now),
            Answer::Failed => state.output.refused(Refusal::Failed, now),
        }
        if let Some(refusal) = state.output.is_fenced() {
            shared.count(match refusal {
                Refusal::Conflict => "fenced by a conflict",
                _ => "fenced by an epoch or an end",
            });
            self.drop_session(session, shared);
        }
    }

    pub fn tick(&mut self, shared: &mut Shared) {
        if shared.now >= self.next_status {
            self.next_status = shared.now + TTL_MS / 3;
            let status = Msg::Status { instance: self.number, epoch: self.start };
            shared.send(self.node(), Node::Controller, status);
        }
        let sessions: Vec<Uuid> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.compute(session, shared);
            self.checkpoint(session, shared);
            self.stream(session, shared);
        }
    }

    fn compute(&mut self, session: Uuid, shared: &mut Shared) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        let (job, now) = (&shared.jobs[state.job], shared.time());
        if shared.now >= state.blocks_at {
            state.output.blocks_stored(now);
        }
        let index = state.output.tokens().len() as u64;
        if state.needs.is_some() || index >= job.length.min(state.output.may_compute_to()) {
            return;
        }
        let token = sample(job, state.output.epoch(), self.number, self.start, index);
        state.output.token(token, now);
        if index + 1 == job.length {
            state.output.finish(Finish::Length, now);
        }
    }

    fn checkpoint(&mut self, session: Uuid, shared: &mut Shared) {
        let node = self.node();
        let Some(state) = self.sessions.get_mut(&session) else { return };
        let now = shared.time();
        if state.in_flight.is_some_and(|(_, until)| until <= shared.now) {
            state.in_flight = None;
            state.output.refused(Refusal::Failed, now);
        }
        let Some(due) = state.output.poll_checkpoint(now) else { return };
        self.next_request += 1;
        let request = self.next_request;
        state.in_flight = Some((request, shared.now + CHECKPOINT_TIMEOUT_MS));
        let body = body(session, &shared.jobs[state.job], &state.output, due);
        shared.send(node, Node::Controller, Msg::Checkpoint { session, request, body });
    }

    fn stream(&mut self, session: Uuid, shared: &mut Shared) {
        const BURST: u64 = 3;
        let node = self.node();
        let Some(state) = self.sessions.get_mut(&session) else { return };
        let deterministic = shared.jobs[state.job].deterministic;
        let early = shared.mutant == Some(Mutant::ReleaseBeforeAck);
        let all = state.output.tokens().len() as u64;
        let released = if early { all } else { state.output.released() };
        let epoch = state.output.epoch();
        for stream in &mut state.streams {
            let conn = stream.conn;
            for index in (stream.next..released).take(BURST as usize) {
                let token = state.output.tokens()[index as usize];
                shared.oracle.released(session, deterministic, index, token);
                shared.send(node, Node::Front, Msg::Token { session, conn, epoch, index, token });
                stream.next = index + 1;
                stream.told = shared.now;
            }
            // A reader of a real stream knows that nothing is missing before what it reads; here what was sent is
            // told again and again.
            let ended = state.output.finished().is_some() && stream.next >= released;
            if (ended && !stream.finished) || shared.now >= stream.told + KEEP_ALIVE_MS {
                stream.told = shared.now;
                stream.finished = ended;
                let sent = stream.next;
                let msg = match ended {
                    true => Msg::Finished { session, conn, epoch, count: all },
                    false => Msg::KeepAlive { session, conn, sent },
                };
                shared.send(node, Node::Front, msg);
            }
        }
    }
}

fn body(session: Uuid, job: &Job, output: &Output, due: Due) -> Body {
    let sampler = SamplerState { step: due.to, ..job.sampler() };
    let tokens = output.tokens()[due.from as usize..due.to as usize].to_vec();
    if due.whole {
        assert_eq!(due.from, 0);
        Body::Whole(SessionCheckpoint {
            session,
            epoch: output.epoch(),
            compat_id: job.compat(),
            scope_id: job.scope(),
            prompt_blocks: job.prompt_blocks(),
            prompt_tail: vec![7, 8],
            generated: tokens,
            output_offset: due.to,
            sampler,
        })
    } else {
        let (epoch, from_offset) = (output.epoch(), due.from);
        Body::Append(CheckpointAppend { epoch, from_offset, append: tokens, sampler })
    }
}

/// The time of a machine.
pub fn time(ms: u64) -> Time {
    Time::from_millis(ms)
}
