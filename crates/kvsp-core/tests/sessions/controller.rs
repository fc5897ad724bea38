//! The controller: [`Sessions`] and [`Instances`], a disk that completes writes late or not at all, and requests
//! that wait.

use std::time::Duration;

use kvsp_core::instances::{Instances, InstancesConfig};
use kvsp_core::session::{
    Change, Choice, Effect, NewSession, Outcome, Place, ResumeOutcome, SessionError, Sessions,
    SessionsConfig, Ticket, Verdict,
};
use kvsp_core::time::Time;
use kvsp_proto::message::{SessionAck, SessionState};
use kvsp_proto::record::InstanceStatus;
use kvsp_proto::uri::BaseUri;
use serde_json::json;
use uuid::Uuid;

use crate::disk::Disk;
use crate::instance::TTL_MS;
use crate::net::{Answer, Body, Msg, Node};
use crate::world::{Mutant, Shared, instance_number, uri};

/// Longer silences are stalls of the controller itself.
pub const STALL_MS: u64 = 30;
const MOST_WAITING: usize = 500;

pub fn config() -> SessionsConfig {
    SessionsConfig {
        attempt_timeout: Duration::from_millis(50),
        backoff: Duration::from_millis(4),
        max_backoff: Duration::from_millis(30),
        give_up: Duration::from_secs(1_000_000),
        idle: Duration::from_secs(1_000_000),
        done_retention: Duration::from_secs(1_000_000),
        max_attempts: u32::MAX,
        max_resumes: 2,
        probe_interval: Duration::from_millis(10),
        probe_timeout: Duration::from_millis(30),
        stall: Duration::from_millis(STALL_MS),
        ..SessionsConfig::default()
    }
}

pub struct Controller {
    running: Option<Running>,
    pub paused: bool,
    pub disk: Disk,
    next_session: u128,
    /// Epochs that went out with a resume, for the mutant that does not raise them.
    resumed: std::collections::BTreeMap<Uuid, u64>,
}

struct Running {
    sessions: Sessions,
    instances: Instances,
    commits: Vec<Commit>,
    /// Requests that met a write of their session.
    waiting: Vec<(Node, Msg)>,
    /// Placements to be answered a little later.
    places: Vec<Place>,
}

/// To whom, what, and the checkpoint that it acknowledges.
type Reply = (Node, Msg, Option<Body>);

struct Commit {
    ticket: Ticket,
    changes: Vec<Change>,
    reply: Option<Reply>,
}

impl Controller {
    pub fn new(now: Time) -> Self {
        let mut controller = Self {
            running: None,
            paused: false,
            disk: Disk::default(),
            next_session: 1,
            resumed: std::collections::BTreeMap::new(),
        };
        controller.start(now);
        controller
    }

    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    pub fn start(&mut self, now: Time) {
        let instances =
            InstancesConfig { stall: Duration::from_millis(STALL_MS), ..InstancesConfig::default() };
        self.running = Some(Running {
            sessions: Sessions::restore(config(), self.disk.scan(), now),
            instances: Instances::new(instances, now),
            commits: Vec::new(),
            waiting: Vec::new(),
            places: Vec::new(),
        });
    }

    /// The process is gone: of each write under way either all rows arrived or none.
    pub fn crash(&mut self, shared: &mut Shared) {
        self.paused = false;
        let Some(running) = self.running.take() else { return };
        for commit in running.commits {
            shared.count("crash in a write");
            if shared.mutant != Some(Mutant::EpochNotDurable) && shared.rng.one_in(2) {
                self.disk.apply(&commit.changes);
            }
        }
        // What was expected or was being resumed may fail over after the start.
        self.disk.heads.keys().for_each(|session| shared.oracle.may_fail_over(*session));
    }

    pub fn handle(&mut self, from: Node, msg: Msg, shared: &mut Shared) {
        let now = shared.time();
        let Some(running) = &mut self.running else { return };
        match msg {
            Msg::Status { instance, epoch } => running.status(instance, epoch, shared),
            Msg::Place { job, request } => {
                let Some(choice) = running.choose(&[], shared) else { return };
                let session = Uuid::from_u128(self.next_session);
                self.next_session += 1;
                let new = NewSession {
                    session,
                    owner: "front".to_owned(),
                    scope_id: shared.jobs[job].scope(),
                    compat_id: shared.jobs[job].compat(),
                    tokens: shared.jobs[job].prompt_tokens,
                    block_keys: shared.jobs[job].prompt_blocks(),
                    continuation: Some(json!({"max_tokens": 40})),
                    choice: choice.clone(),
                };
                let outcome = running.sessions.create(new, now).expect("there is room");
                let reply = Msg::Placed { job, request, session, choice };
                running.outcome(outcome.map_reply(|_| reply.clone()), from, None, reply.clone(), shared);
            }
            Msg::View { session } => {
                if let Ok(view) = running.sessions.view(session, now) {
                    shared.send(Node::Controller, from, Msg::Viewed(view));
                }
            }
            Msg::Broken { session, epoch } => {
                if let Ok(Some(probe)) = running.sessions.stream_broken(session, epoch, now) {
                    let to = Node::Instance(instance_number(&probe.instance));
                    shared.send(Node::Controller, to, Msg::Probe { session, epoch: probe.epoch });
                }
            }
            Msg::Probed { session, epoch, verdict } => {
                let current = running.sessions.view(session, now).is_ok_and(|view| view.epoch == epoch);
                if verdict == Verdict::Lost && current {
                    shared.count("probe said lost");
                    shared.oracle.may_fail_over(session);
                }
                running.sessions.probed(session, epoch, verdict, now);
            }
            Msg::Resumed { session, epoch, outcome } => {
                running.sessions.resumed(session, epoch, outcome, now);
            }
            Msg::End { session } => match running.sessions.end(session, now) {
                Ok(outcome) => {
                    let reply = Msg::Ended { session };
                    let again = Msg::End { session };
                    running.outcome(outcome.map_reply(|()| reply), from, None, again, shared);
                }
                Err(_) => shared.send(Node::Controller, from, Msg::Ended { session }),
            },
            Msg::Checkpoint { session, request, body } => {
                running.checkpoint(from, session, request, body, shared);
            }
            other => unreachable!("{other:?} is not for a controller"),
        }
        self.effects(shared);
    }

    /// An instance is to be left: its sessions go on elsewhere where somebody takes them.
    pub fn hand_over(&mut self, instance: usize, shared: &mut Shared) {
        let (now, uri) = (shared.time(), uri(instance));
        let Some(running) = self.running.as_mut().filter(|_| !self.paused) else { return };
        let at = shared.oracle.sessions_at(uri.as_str());
        at.into_iter().for_each(|session| shared.oracle.may_fail_over(session));
        running.sessions.hand_over(&uri, now);
        self.effects(shared);
    }

    pub fn tick(&mut self, shared: &mut Shared) {
        let now = shared.time();
        let Some(running) = &mut self.running else { return };
        for failed in running.instances.tick(now) {
            let at = shared.oracle.sessions_at(failed.as_str());
            at.into_iter().for_each(|session| shared.oracle.may_fail_over(session));
            running.sessions.instance_failed(&failed, now);
        }
        running.sessions.tick(now);
        for place in std::mem::take(&mut running.places) {
            let choice = running.choose(&place.exclude, shared);
            running.sessions.placed(place.session, place.attempt, choice, now);
        }
        self.effects(shared);
    }

    /// Some write ends.
    pub fn commit(&mut self, shared: &mut Shared) {
        let now = shared.time();
        let Some(running) = &mut self.running else { return };
        if running.commits.is_empty() {
            return;
        }
        // A session has one write under way, so their order does not matter; but to a mutant it would.
        let in_order = shared.mutant == Some(Mutant::EpochNotDurable);
        let at = if in_order { 0 } else { shared.rng.below(running.commits.len()) };
        let commit = running.commits.remove(at);
        let fails = shared.faulty && shared.rng.one_in(12);
        if !fails || shared.rng.one_in(2) {
            self.disk.apply(&commit.changes);
        }
        if fails {
            shared.count("write failed");
            running.sessions.persist_failed(commit.ticket, now);
            if let Some((to, Msg::Answered { session, request, .. }, _)) = commit.reply {
                let msg = Msg::Answered { session, request, answer: Answer::Failed };
                shared.send(Node::Controller, to, msg);
            }
        } else {
            running.sessions.persisted(commit.ticket, now);
            if let Some((to, msg, body)) = commit.reply {
                reply(to, msg, body.as_ref(), shared);
            }
        }
        self.effects(shared);
    }

    fn effects(&mut self, shared: &mut Shared) {
        let now = shared.time();
        let Some(running) = &mut self.running else { return };
        while let Some(effect) = running.sessions.poll_effect() {
            match effect {
                Effect::Persist { ticket, changes } if shared.mutant == Some(Mutant::EpochNotDurable) => {
                    // What is to be durable is told to be so and written later.
                    running.sessions.persisted(ticket, now);
                    running.commits.push(Commit { ticket: Ticket(u64::MAX), changes, reply: None });
                }
                Effect::Persist { ticket, changes } => {
                    running.commits.push(Commit { ticket, changes, reply: None });
                }
                Effect::Place(place) if shared.rng.one_in(3) => running.places.push(*place),
                Effect::Place(place) => {
                    if place.hand_over {
                        shared.count("hand over asked");
                    }
                    let choice = running.choose(&place.exclude, shared);
                    running.sessions.placed(place.session, place.attempt, choice, now);
                }
                Effect::Resume { session, instance, mut request } => {
                    if shared.mutant == Some(Mutant::EpochNotRaisedAgain)
                        && let Some(epoch) = self.resumed.get(&session)
                    {
                        request.epoch = *epoch;
                    }
                    shared.count("resume sent");
                    self.resumed.insert(session, request.epoch);
                    let to = Node::Instance(instance_number(&instance));
                    shared.send(Node::Controller, to, Msg::Resume { session, request });
                }
                Effect::Changed(_) => {
                    for (from, msg) in std::mem::take(&mut running.waiting) {
                        shared.to_self.push((from, msg));
                    }
                }
            }
        }
    }

    /// Every session that a client could ask for is looked at.
    pub fn check(&mut self, shared: &mut Shared) {
        shared.oracle.check_disk(&self.disk);
        if self.paused {
            return;
        }
        let now = shared.time();
        let Some(running) = &mut self.running else { return };
        for view in running.sessions.list(usize::MAX, |_| true).sessions {
            let recorded = running.sessions.read_checkpoint(view.session, now);
            let recorded = recorded.map(|checkpoint| checkpoint.generated).unwrap_or_default();
            assert!(view.state == SessionState::Done || recorded.len() as u64 == view.output_offset);
            shared.oracle.check_view(view, recorded);
        }
    }
}

impl Running {
    fn status(&mut self, instance: usize, epoch: u64, shared: &mut Shared) {
        let (now, uri) = (shared.time(), uri(instance));
        let before = self.instances.view(&uri, now).map(|held| held.status.epoch);
        let record = json!({"instance": uri, "epoch": epoch, "state": "active", "ttl_ms": TTL_MS});
        let status = InstanceStatus::from_value(record).expect("a status");
        if self.instances.report(status, now).is_err() {
            return;
        }
        if before.is_none_or(|before| before < epoch) {
            let at = shared.oracle.sessions_at(uri.as_str());
            at.into_iter().for_each(|session| shared.oracle.may_fail_over(session));
        }
        self.sessions.instance_reported(&uri, epoch, TTL_MS, now);
    }

    fn choose(&mut self, exclude: &[BaseUri], shared: &mut Shared) -> Option<Choice> {
        let mut active = self.instances.active(shared.jobs[0].compat(), shared.time());
        active.retain(|instance| !exclude.contains(&instance.status.instance));
        let chosen = active.get(shared.rng.below(active.len()))?;
        let instance = chosen.status.instance.clone();
        Some(Choice { instance, instance_epoch: chosen.status.epoch, ttl_ms: chosen.status.ttl_ms })
    }

    fn checkpoint(&mut self, from: Node, session: Uuid, request: u64, body: Body, shared: &mut Shared) {
        let now = shared.time();
        let mut given = body.clone();
        if shared.mutant == Some(Mutant::NoEpochAtController)
            && let Ok(view) = self.sessions.view(session, now)
        {
            match &mut given {
                Body::Whole(body) => body.epoch = view.epoch,
                Body::Append(body) => body.epoch = view.epoch,
            }
        }
        let outcome = match &given {
            Body::Whole(body) => self.sessions.checkpoint(session, body, Some(16), now),
            Body::Append(body) => self.sessions.append(session, body, now),
        };
        let answer = |answer| Msg::Answered { session, request, answer };
        match outcome {
            Ok(outcome) => {
                let again = Msg::Checkpoint { session, request, body: body.clone() };
                let outcome = outcome.map_reply(|ack: SessionAck| answer(Answer::Ack(ack.output_offset)));
                self.outcome(outcome, from, Some(body), again, shared);
            }
            Err(error) => {
                shared.count("checkpoint refused");
                let refusal = match error {
                    SessionError::StaleEpoch { .. } => Answer::Stale,
                    SessionError::Unknown => Answer::Gone,
                    SessionError::Conflict(_) => Answer::Conflict,
                    SessionError::Invalid(_) => unreachable!("instances send valid checkpoints: {error}"),
                    _ => Answer::Failed,
                };
                shared.send(Node::Controller, from, answer(refusal));
            }
        }
    }

    fn outcome(
        &mut self,
        outcome: Outcome<Msg>,
        to: Node,
        body: Option<Body>,
        again: Msg,
        shared: &mut Shared,
    ) {
        match outcome {
            Outcome::Done(msg) => reply(to, msg, body.as_ref(), shared),
            Outcome::Persist { ticket, changes, then } => {
                if shared.mutant == Some(Mutant::AckBeforePersist) {
                    reply(to, then, body.as_ref(), shared);
                    self.commits.push(Commit { ticket, changes, reply: None });
                } else {
                    self.commits.push(Commit { ticket, changes, reply: Some((to, then, body)) });
                }
            }
            Outcome::Busy => {
                shared.count("request waited");
                assert!(self.waiting.len() < MOST_WAITING);
                self.waiting.push((to, again));
            }
        }
    }
}

fn reply(to: Node, msg: Msg, body: Option<&Body>, shared: &mut Shared) {
    if let (Msg::Answered { session, answer: Answer::Ack(offset), .. }, Some(body)) = (&msg, body) {
        shared.oracle.acknowledged(*session, body, *offset);
    }
    shared.send(Node::Controller, to, msg);
}

trait MapReply<T> {
    fn map_reply(self, reply: impl FnOnce(T) -> Msg) -> Outcome<Msg>;
}

impl<T> MapReply<T> for Outcome<T> {
    fn map_reply(self, reply: impl FnOnce(T) -> Msg) -> Outcome<Msg> {
        match self {
            Self::Done(then) => Outcome::Done(reply(then)),
            Self::Persist { ticket, changes, then } => {
                Outcome::Persist { ticket, changes, then: reply(then) }
            }
            Self::Busy => Outcome::Busy,
        }
    }
}

/// An instance that cannot be reached answers a resume so.
pub const NO_ANSWER: ResumeOutcome = ResumeOutcome::Unreachable;
