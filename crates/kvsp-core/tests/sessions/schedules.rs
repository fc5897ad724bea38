//! Schedules by name. The first two are those that a model checker found to break the draft's own text
//! (profile section 7, holes 1 and 2); the others are the ones that operators meet.

use kvsp_core::session::{
    Change, Choice, Delivery, Effect, NewSession, Outcome, Output, OutputConfig, Place, Probe, ResumeOutcome,
    Sessions, Taken, Ticket, Verdict,
};
use kvsp_core::time::Time;
use kvsp_proto::message::{ResumeRequest, SessionAck, SessionState};
use kvsp_proto::record::{SamplerState, SessionCheckpoint};
use kvsp_proto::registry::SamplerMethod;
use uuid::Uuid;

use crate::controller::{STALL_MS, config};
use crate::disk::Disk;
use crate::world::uri;

const SESSION: Uuid = Uuid::from_u128(7);
const TTL_MS: u64 = 60;

/// A controller with its disk; writes end when the schedule says so.
struct Desk {
    sessions: Sessions,
    disk: Disk,
    now: u64,
    writes: Vec<(Ticket, Vec<Change>)>,
    places: Vec<Place>,
    resumes: Vec<(usize, ResumeRequest)>,
}

impl Desk {
    /// One session with a token recorded, whose instance has just failed.
    fn lost() -> Self {
        let mut desk = Self::new(1);
        desk.checkpoint(1, &[100]);
        desk.sessions.instance_failed(&uri(0), desk.time());
        desk.drain();
        desk
    }

    /// Sessions 7, 8, … at instance 0.
    fn new(sessions: u128) -> Self {
        let mut desk = Self {
            sessions: Sessions::new(config()),
            disk: Disk::default(),
            now: 0,
            writes: Vec::new(),
            places: Vec::new(),
            resumes: Vec::new(),
        };
        for n in 0..sessions {
            let new = NewSession {
                session: Uuid::from_u128(SESSION.as_u128() + n),
                owner: "front".to_owned(),
                scope_id: "33".repeat(16).parse().unwrap(),
                compat_id: "22".repeat(32).parse().unwrap(),
                tokens: 2,
                block_keys: Vec::new(),
                continuation: None,
                choice: choice(0),
            };
            let made = desk.sessions.create(new, desk.time()).unwrap();
            desk.wait_for(made);
        }
        desk
    }

    fn time(&self) -> Time {
        Time::from_millis(self.now)
    }

    /// Time passes while the controller looks at its clock.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += 1;
            self.sessions.tick(self.time());
        }
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(effect) = self.sessions.poll_effect() {
            match effect {
                Effect::Persist { ticket, changes } => self.writes.push((ticket, changes)),
                Effect::Place(place) => self.places.push(*place),
                Effect::Resume { instance, request, .. } => {
                    let number = (0..3).find(|n| uri(*n) == instance).unwrap();
                    self.resumes.push((number, *request));
                }
                Effect::Changed(_) => {}
            }
        }
    }

    /// Does what a request asks for, to the end.
    fn wait_for<T>(&mut self, outcome: Outcome<T>) -> T {
        match outcome {
            Outcome::Done(then) => then,
            Outcome::Persist { ticket, changes, then } => {
                self.disk.apply(&changes);
                self.sessions.persisted(ticket, self.time());
                self.drain();
                then
            }
            Outcome::Busy => panic!("a write is under way"),
        }
    }

    fn end_writes(&mut self) {
        while let Some((ticket, changes)) = self.writes.pop() {
            self.disk.apply(&changes);
            self.sessions.persisted(ticket, self.time());
            self.drain();
        }
    }

    fn checkpoint(&mut self, epoch: u64, generated: &[u32]) -> SessionAck {
        let body = checkpoint(epoch, generated);
        let outcome = self.sessions.checkpoint(SESSION, &body, Some(16), self.time()).unwrap();
        self.wait_for(outcome)
    }

    /// The controller dies, and starts again from its disk.
    fn crash(&mut self) {
        self.writes.clear();
        self.places.clear();
        self.resumes.clear();
        self.sessions = Sessions::restore(config(), self.disk.scan(), self.time());
        self.drain();
    }

    fn place(&mut self, at: usize) {
        let place = self.places.pop().expect("a placement is asked for");
        self.sessions.placed(place.session, place.attempt, Some(choice(at)), self.time());
        self.drain();
    }

    fn epoch(&mut self) -> u64 {
        self.sessions.view(SESSION, self.time()).unwrap().epoch
    }

    fn epochs(&self) -> Vec<u64> {
        self.sessions.list(usize::MAX, |_| true).sessions.iter().map(|view| view.epoch).collect()
    }
}

fn choice(at: usize) -> Choice {
    Choice { instance: uri(at), instance_epoch: 1, ttl_ms: TTL_MS }
}

fn checkpoint(epoch: u64, generated: &[u32]) -> SessionCheckpoint {
    SessionCheckpoint {
        session: SESSION,
        epoch,
        compat_id: "22".repeat(32).parse().unwrap(),
        scope_id: "33".repeat(16).parse().unwrap(),
        prompt_blocks: Vec::new(),
        prompt_tail: vec![1, 2],
        generated: generated.to_vec(),
        output_offset: generated.len() as u64,
        sampler: SamplerState {
            method: SamplerMethod::Multinomial,
            params: serde_json::Map::new(),
            seed: 7,
            step: generated.len() as u64,
            deterministic: false,
        },
    }
}

fn resumed_output(request: &ResumeRequest, now: Time) -> Output {
    let generated = request.checkpoint.generated.clone();
    Output::new(OutputConfig::default(), request.epoch, generated, false, true, now)
}

/// What a stream `tokens?from=` of an instance holds.
fn stream(output: &Output, from: u64) -> Vec<(u64, u32)> {
    (from..output.released()).map(|index| (index, output.tokens()[index as usize])).collect()
}

/// Model: sample, checkpoint, acknowledge, die before the release; resume. As the draft has it the new instance
/// labels its first token with `output_offset`, and index 0 never comes.
#[test]
fn tokens_acknowledged_and_not_delivered_come_from_the_resumed_instance() {
    let mut desk = Desk::new(1);
    let mut delivery = Delivery::new(1, uri(0));
    let now = desk.time();
    let mut first = Output::new(OutputConfig::default(), 1, Vec::new(), false, false, now);
    first.blocks_stored(now);
    first.token(100, now);
    assert!(first.poll_checkpoint(now).is_some());
    let ack = desk.checkpoint(1, first.tokens());
    first.acknowledged(ack.output_offset, now);
    assert_eq!(first.released(), 1);
    drop(first);

    desk.sessions.instance_failed(&uri(0), desk.time());
    desk.drain();
    desk.place(1);
    desk.end_writes();
    let (at, request) = desk.resumes.pop().expect("a resume is sent");
    assert_eq!((at, request.epoch), (1, 2));
    let mut second = resumed_output(&request, now);
    second.token(201, now);
    let due = second.poll_checkpoint(now.after_millis(5)).expect("a checkpoint is due");
    assert_eq!((due.whole, due.from, due.to), (false, 1, 2));
    second.acknowledged(desk.checkpoint(2, second.tokens()).output_offset, now);

    assert!(delivery.raised(2, uri(1)));
    // As the draft has it:
    let mut draft = delivery.clone();
    let labelled = stream(&second, request.checkpoint.output_offset);
    assert_eq!(labelled, [(1, 201)]);
    assert_eq!(draft.token(2, 1, 201), Ok(Taken::Ahead), "index 0 would be missing for good");
    // As the profile completes it:
    for (index, token) in stream(&second, delivery.next()) {
        assert_eq!(delivery.token(2, index, token), Ok(Taken::New));
    }
    assert_eq!(delivery.tokens(), [100, 201]);
}

/// Model: fail over, send the resume, die before epoch 2 is durable, fail over again with epoch 2. Two instances
/// sample as epoch 2, and the front end mixes them.
#[test]
fn no_resume_leaves_before_its_epoch_is_durable() {
    let mut desk = Desk::lost();
    desk.place(1);
    assert_eq!(desk.writes.len(), 1, "the epoch is being written");
    assert!(desk.resumes.is_empty(), "and is not sent before it is");
    assert_eq!(desk.epoch(), 1, "nor shown");

    desk.crash();
    assert_eq!(desk.epoch(), 1);
    desk.pass(TTL_MS);
    desk.place(2);
    desk.end_writes();
    let (at, request) = desk.resumes.pop().expect("a resume is sent");
    assert_eq!((at, request.epoch), (2, 2), "the first instance that hears of epoch 2");

    // Once it may have been heard of it is never used again.
    desk.crash();
    desk.place(1);
    desk.end_writes();
    let (at, request) = desk.resumes.pop().expect("a resume is sent");
    assert_eq!((at, request.epoch), (1, 3));
}

/// Model, the same hole from its other side: an acknowledgement that a crash takes back lets the client have a
/// token that the next instance samples anew.
#[test]
fn an_acknowledged_checkpoint_is_what_is_resumed_after_a_crash() {
    let mut desk = Desk::new(1);
    desk.checkpoint(1, &[100]);
    let body = checkpoint(1, &[100, 101]);
    let outcome = desk.sessions.checkpoint(SESSION, &body, None, desk.time()).unwrap();
    assert!(matches!(&outcome, Outcome::Persist { then, .. } if then.output_offset == 2));
    assert_eq!(desk.sessions.read_checkpoint(SESSION, desk.time()).unwrap().generated, [100]);
    desk.crash();
    desk.pass(TTL_MS);
    desk.place(1);
    desk.end_writes();
    assert_eq!(desk.resumes[0].1.checkpoint.generated, [100], "the second was never acknowledged");
}

/// A write that was reported failed may be on the disk all the same, and must not come back in a later epoch.
#[test]
fn a_write_that_failed_does_not_come_back_under_another_epoch() {
    let mut desk = Desk::new(1);
    desk.checkpoint(1, &[100]);
    let body = checkpoint(1, &[100, 101, 102]);
    let outcome = desk.sessions.checkpoint(SESSION, &body, None, desk.time()).unwrap();
    let Outcome::Persist { ticket, changes, .. } = outcome else { panic!("a write") };
    desk.disk.apply(&changes);
    desk.sessions.persist_failed(ticket, desk.time());
    desk.sessions.instance_failed(&uri(0), desk.time());
    desk.drain();
    desk.place(1);
    desk.end_writes();
    assert_eq!(desk.resumes[0].1.checkpoint.generated, [100]);
    desk.crash();
    let recorded = desk.sessions.read_checkpoint(SESSION, desk.time()).unwrap();
    assert_eq!((recorded.generated, recorded.output_offset), (vec![100], 1));
    assert_eq!(desk.disk.recorded(SESSION).unwrap(), (2, vec![100]));
}

/// Found by the random schedules: an end that was reported failed had erased the tokens, the session went on,
/// and a crash later they were missing.
#[test]
fn an_end_that_failed_does_not_take_the_tokens_of_a_session_that_goes_on() {
    let mut desk = Desk::new(1);
    let tokens: Vec<u32> = (0..70).collect();
    desk.checkpoint(1, &tokens);
    let outcome = desk.sessions.end(SESSION, desk.time()).unwrap();
    let Outcome::Persist { ticket, changes, .. } = outcome else { panic!("a write") };
    desk.disk.apply(&changes);
    desk.sessions.persist_failed(ticket, desk.time());
    let longer: Vec<u32> = (0..71).collect();
    desk.checkpoint(1, &longer);
    desk.crash();
    assert_eq!(desk.sessions.read_checkpoint(SESSION, desk.time()).unwrap().generated, longer);
    assert_eq!(desk.disk.recorded(SESSION).unwrap(), (1, longer));
}

/// Found by the random schedules: a write that was reported failed had left a second segment, the next checkpoint was
/// shorter than the first one, and after a crash the tokens of both looked like one segment.
#[test]
fn an_end_erases_also_what_a_write_that_failed_left() {
    let mut desk = Desk::new(1);
    let tokens: Vec<u32> = (0..65).collect();
    desk.checkpoint(1, &tokens[..21]);
    let outcome = desk.sessions.checkpoint(SESSION, &checkpoint(1, &tokens), None, desk.time()).unwrap();
    let Outcome::Persist { ticket, changes, .. } = outcome else { panic!("a write") };
    desk.disk.apply(&changes);
    desk.sessions.persist_failed(ticket, desk.time());
    desk.checkpoint(1, &tokens[..47]);
    desk.crash();
    assert_eq!(desk.sessions.read_checkpoint(SESSION, desk.time()).unwrap().generated, tokens[..47]);
    let outcome = desk.sessions.end(SESSION, desk.time()).unwrap();
    let Outcome::Persist { changes, .. } = &outcome else { panic!("a write") };
    assert!(matches!(changes[..], [Change::Erase { segments: 2, .. }]), "{changes:?}");
    desk.wait_for(outcome);
}

#[test]
fn a_controller_that_was_stopped_fails_nobody_over() {
    let mut desk = Desk::new(5);
    desk.checkpoint(1, &[100]);
    desk.crash();
    desk.pass(1);
    // Stopped for an hour: the instances have a full TTL from here.
    desk.now += 3_600_000;
    desk.pass(TTL_MS - 1);
    assert_eq!(desk.epochs(), [1; 5]);
    assert!(desk.places.is_empty());
    desk.sessions.instance_reported(&uri(0), 1, TTL_MS, desk.time());
    desk.pass(10 * TTL_MS);
    assert!(desk.places.is_empty());
}

#[test]
fn an_attempt_that_met_a_stall_is_not_given_up() {
    let mut desk = Desk::lost();
    desk.place(1);
    desk.end_writes();
    desk.now += 10 * STALL_MS;
    desk.pass(1);
    assert_eq!((desk.epoch(), desk.places.len()), (2, 0));
    desk.sessions.resumed(SESSION, 2, ResumeOutcome::Taken { needs: None }, desk.time());
    desk.drain();
    desk.end_writes();
    assert_eq!(desk.sessions.view(SESSION, desk.time()).unwrap().state, SessionState::Running);
}

#[test]
fn one_expiry_is_one_failover_of_each_session_and_few_at_once() {
    let mut desk = Desk::new(5);
    desk.checkpoint(1, &[100]);
    for _ in 0..3 {
        desk.sessions.instance_failed(&uri(0), desk.time());
    }
    desk.drain();
    assert_eq!(desk.places.len(), config().max_resumes);
    while !desk.places.is_empty() {
        assert!(desk.places.len() <= config().max_resumes);
        desk.place(1);
        desk.end_writes();
        if desk.resumes.pop().is_some() {
            desk.sessions.resumed(SESSION, 2, ResumeOutcome::Taken { needs: None }, desk.time());
            desk.drain();
            desk.end_writes();
        }
    }
    desk.sessions.instance_failed(&uri(0), desk.time());
    desk.pass(10 * TTL_MS);
    assert_eq!(desk.epochs(), [2; 5]);
    assert_eq!(desk.sessions.count(SessionState::Running), 5);
}

#[test]
fn an_instance_that_restarts_within_its_ttl_loses_its_sessions_at_once() {
    let mut desk = Desk::new(2);
    desk.sessions.instance_reported(&uri(0), 1, TTL_MS, desk.time());
    desk.drain();
    assert!(desk.places.is_empty());
    desk.sessions.instance_reported(&uri(0), 2, TTL_MS, desk.time());
    desk.drain();
    assert_eq!(desk.places.len(), 2);
    assert!(desk.places.iter().all(|place| place.exclude.is_empty()), "the new start may take them");
}

#[test]
fn a_broken_stream_fails_over_at_once_where_nobody_listens() {
    let mut desk = Desk::new(1);
    desk.checkpoint(1, &[100]);
    let now = desk.time();
    let probe = desk.sessions.stream_broken(SESSION, 1, now).unwrap();
    assert_eq!(probe, Some(Probe { instance: uri(0), epoch: 1 }));
    assert_eq!(desk.sessions.stream_broken(SESSION, 1, now), Ok(None), "one probe at a time");
    for verdict in [Verdict::Silent, Verdict::Alive] {
        desk.sessions.probed(SESSION, 1, verdict, desk.time());
        desk.drain();
        assert!(desk.places.is_empty());
        assert_eq!(desk.sessions.stream_broken(SESSION, 1, desk.time()), Ok(None), "not so soon again");
        desk.pass(10);
        assert!(desk.sessions.stream_broken(SESSION, 1, desk.time()).unwrap().is_some());
    }
    desk.sessions.probed(SESSION, 1, Verdict::Lost, desk.time());
    desk.drain();
    assert_eq!(desk.places[0].exclude, [uri(0)], "its status still says that it is active");
    desk.place(1);
    desk.end_writes();
    assert_eq!(desk.epoch(), 2);
    assert_eq!(desk.sessions.stream_broken(SESSION, 1, desk.time()), Ok(None), "that is known");
    desk.sessions.probed(SESSION, 1, Verdict::Lost, desk.time());
    desk.pass(1);
    assert!(desk.places.is_empty());
}

#[test]
fn every_attempt_has_an_epoch_and_an_instance_of_its_own() {
    let mut desk = Desk::lost();
    desk.place(1);
    desk.end_writes();
    desk.sessions.resumed(SESSION, 2, ResumeOutcome::Refused, desk.time());
    desk.drain();
    assert_eq!(desk.places[0].exclude, [uri(1)]);
    desk.place(2);
    assert_eq!(desk.resumes.len(), 1, "the second is not sent before its epoch is durable");
    desk.end_writes();
    let sent: Vec<_> = desk.resumes.iter().map(|(at, request)| (*at, request.epoch)).collect();
    assert_eq!(sent, [(1, 2), (2, 3)]);
    // The answer to the first comes late, and says nothing of the second.
    desk.sessions.resumed(SESSION, 2, ResumeOutcome::Taken { needs: None }, desk.time());
    desk.drain();
    assert!(desk.writes.is_empty());
    // No answer within the time of an attempt is as good as a refusal.
    desk.pass(60);
    assert_eq!(desk.places[0].exclude, [uri(1), uri(2)]);
    let place = desk.places.pop().unwrap();
    desk.sessions.placed(SESSION, place.attempt, None, desk.time());
    desk.pass(1);
    assert!(desk.places.is_empty());
    desk.pass(4);
    assert!(desk.places[0].exclude.is_empty(), "after a wait all may be tried again");
}
