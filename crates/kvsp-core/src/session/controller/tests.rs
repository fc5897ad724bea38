//! Checkpoints, ends and limits; what all tests of the machine share.

mod failover;
mod hand_over;
mod restart;

use std::time::Duration;

use kvsp_proto::message::{CheckpointAppend, SessionAck};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::{SamplerState, SessionCheckpoint};
use kvsp_proto::registry::SamplerMethod;
use serde_json::json;

use super::*;

const ID: Uuid = Uuid::from_u128(1);

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn uri(n: u32) -> BaseUri {
    format!("http://i{n}/kvsp/").parse().unwrap()
}

fn choice(n: u32) -> Choice {
    Choice { instance: uri(n), instance_epoch: 1, ttl_ms: 3000 }
}

fn new_session(session: Uuid) -> NewSession {
    NewSession {
        session,
        owner: "front".to_owned(),
        scope_id: "33".repeat(16).parse().unwrap(),
        compat_id: "22".repeat(32).parse().unwrap(),
        tokens: 10,
        block_keys: vec!["55".repeat(32).parse().unwrap()],
        continuation: Some(json!({"max_tokens": 9})),
        choice: choice(0),
    }
}

fn body(epoch: u64, generated: &[u32]) -> SessionCheckpoint {
    SessionCheckpoint {
        session: ID,
        epoch,
        compat_id: "22".repeat(32).parse().unwrap(),
        scope_id: "33".repeat(16).parse().unwrap(),
        prompt_blocks: vec!["44".repeat(32).parse().unwrap()],
        prompt_tail: vec![1, 2],
        generated: generated.to_vec(),
        output_offset: generated.len() as u64,
        sampler: sampler(generated.len() as u64),
    }
}

fn sampler(step: u64) -> SamplerState {
    let method = SamplerMethod::TopP;
    SamplerState { method, params: serde_json::Map::new(), seed: 7, step, deterministic: false }
}

fn append(epoch: u64, from_offset: u64, append: &[u32]) -> CheckpointAppend {
    let sampler = sampler(from_offset + append.len() as u64);
    CheckpointAppend { epoch, from_offset, append: append.to_vec(), sampler }
}

/// The write of an outcome and its answer.
fn write<T: std::fmt::Debug>(outcome: Result<Outcome<T>, SessionError>) -> (Ticket, Vec<Change>, T) {
    match outcome {
        Ok(Outcome::Persist { ticket, changes, then }) => (ticket, changes, then),
        other => panic!("no write: {other:?}"),
    }
}

/// Ends the write of an outcome well.
fn ended<T: std::fmt::Debug>(machine: &mut Sessions, outcome: Result<Outcome<T>, SessionError>) -> T {
    let (ticket, _, then) = write(outcome);
    machine.persisted(ticket, at(0));
    then
}

/// One session, [`ID`], at epoch 1.
fn one(config: SessionsConfig) -> Sessions {
    let mut machine = Sessions::new(config);
    let outcome = machine.create(new_session(ID), at(0));
    assert_eq!(ended(&mut machine, outcome), PlacedSession { session: ID, epoch: 1 });
    machine
}

/// The same with tokens recorded.
fn recorded(generated: &[u32]) -> Sessions {
    let mut machine = one(SessionsConfig::default());
    let outcome = machine.checkpoint(ID, &body(1, generated), None, at(0));
    assert_eq!(ended(&mut machine, outcome).output_offset, generated.len() as u64);
    machine
}

fn effects(machine: &mut Sessions) -> Vec<Effect> {
    std::iter::from_fn(|| machine.poll_effect()).filter(|e| !matches!(e, Effect::Changed(_))).collect()
}

/// Ends the one write that the machine began itself.
fn own_write(machine: &mut Sessions, now: Time) -> Vec<Change> {
    let mut effects = effects(machine);
    let Some(Effect::Persist { ticket, changes }) = effects.pop() else { panic!("no write of its own") };
    assert_eq!(effects, []);
    machine.persisted(ticket, now);
    changes
}

/// Fails instance 0 and moves the session to instance 1.
fn fail_over(machine: &mut Sessions) {
    machine.instance_failed(&uri(0), at(0));
    let [Effect::Place(place)] = &effects(machine)[..] else { panic!("no placement") };
    machine.placed(ID, place.attempt, Some(choice(1)), at(0));
    own_write(machine, at(0));
}

fn names(error: SessionError) -> (Option<ProblemType>, u16) {
    let problem = Problem::from(error);
    (problem.problem_type(), problem.status())
}

#[test]
fn a_session_exists_once_it_is_durable() {
    let mut machine = Sessions::new(SessionsConfig::default());
    let (ticket, changes, _) = write(machine.create(new_session(ID), at(0)));
    assert!(matches!(&changes[..], [Change::Head(head)] if head.epoch == 1 && head.owner == "front"));
    assert_eq!(machine.view(ID, at(0)), Err(SessionError::Unknown));
    assert_eq!(machine.end(ID, at(0)), Err(SessionError::Unknown));
    machine.persist_failed(ticket, at(0));
    assert_eq!((machine.view(ID, at(0)), machine.octets), (Err(SessionError::Unknown), 0));
    assert!(machine.hosts.is_empty());
    let outcome = machine.create(new_session(ID), at(0));
    ended(&mut machine, outcome);
    let view = machine.view(ID, at(0)).unwrap();
    assert_eq!((view.epoch, view.state, view.output_offset), (1, SessionState::Running, 0));
    assert_eq!(machine.continuation(ID, at(0)).unwrap(), &json!({"max_tokens": 9}));
    assert_eq!((machine.owner(ID), machine.instance(ID)), (Ok("front"), Ok(&uri(0))));
    assert_eq!(machine.read_checkpoint(ID, at(0)), Err(SessionError::Unknown), "none is recorded");
}

#[test]
fn an_instance_that_fails_while_its_session_is_made_does_not_keep_it() {
    let mut machine = Sessions::new(SessionsConfig::default());
    let outcome = machine.create(new_session(ID), at(0));
    machine.instance_failed(&uri(0), at(0));
    assert_eq!(effects(&mut machine), []);
    ended(&mut machine, outcome);
    assert!(matches!(effects(&mut machine)[..], [Effect::Place(_)]));
}

#[test]
fn bad_checkpoints_are_refused_in_order() {
    let mut machine = recorded(&[5, 6]);
    let mut bad = body(9, &[1]);
    bad.session = Uuid::from_u128(2);
    bad.compat_id = "00".repeat(32).parse().unwrap();
    bad.scope_id = "00".repeat(16).parse().unwrap();
    bad.output_offset = 7;
    bad.prompt_tail = vec![0; 16];
    let mut refused =
        |id: Uuid, bad: &SessionCheckpoint| machine.checkpoint(id, bad, Some(16), at(0)).unwrap_err();
    let unknown = Uuid::from_u128(2);
    assert_eq!(refused(unknown, &bad), SessionError::Unknown);
    assert_eq!(refused(ID, &bad), SessionError::UnknownEpoch { known: 1 });
    bad.epoch = 0;
    assert_eq!(refused(ID, &bad), SessionError::StaleEpoch { known: 1 });
    bad.epoch = 1;
    assert_eq!(refused(ID, &bad), Invalid::Session.into());
    bad.session = ID;
    assert_eq!(refused(ID, &bad), Invalid::Compat.into());
    bad.compat_id = body(1, &[]).compat_id;
    assert_eq!(refused(ID, &bad), Invalid::Scope.into());
    bad.scope_id = body(1, &[]).scope_id;
    assert_eq!(refused(ID, &bad), Invalid::Offset.into());
    bad.output_offset = 1;
    assert_eq!(refused(ID, &bad), Invalid::PromptTail { block_tokens: 16 }.into());
    bad.prompt_tail.pop();
    assert_eq!(refused(ID, &bad), Conflict::Prompt.into());
    bad.prompt_tail = vec![1, 2];
    assert_eq!(refused(ID, &bad), Conflict::Tokens { index: 0 }.into());
    bad.prompt_blocks.clear();
    assert_eq!(refused(ID, &bad), Conflict::Prompt.into());
    // After all that the next good one is taken.
    let outcome = machine.checkpoint(ID, &body(1, &[5, 6, 7]), Some(16), at(0));
    assert_eq!(ended(&mut machine, outcome), SessionAck { epoch: 1, output_offset: 3 });
}

#[test]
fn bad_appends_are_refused_in_order() {
    let mut machine = one(SessionsConfig::default());
    let mut refused = |body: CheckpointAppend| machine.append(ID, &body, at(0)).unwrap_err();
    assert_eq!(refused(append(0, 0, &[5])), SessionError::StaleEpoch { known: 1 });
    assert_eq!(refused(append(2, 0, &[5])), SessionError::UnknownEpoch { known: 1 });
    assert_eq!(refused(append(1, 0, &[5])), Conflict::NotRecorded.into());
    assert_eq!(machine.append(Uuid::nil(), &append(1, 0, &[5]), at(0)), Err(SessionError::Unknown));
    let mut machine = recorded(&[5, 6]);
    let mut refused = |body: CheckpointAppend| machine.append(ID, &body, at(0)).unwrap_err();
    assert_eq!(refused(append(1, 3, &[7])), Conflict::Gap { recorded: 2 }.into());
    assert_eq!(refused(append(1, u64::MAX / 2, &[7])), Conflict::Gap { recorded: 2 }.into());
    assert_eq!(refused(append(1, 1, &[7, 8])), Conflict::Tokens { index: 1 }.into());
    let outcome = machine.append(ID, &append(1, 1, &[6, 7]), at(0));
    assert_eq!(ended(&mut machine, outcome).output_offset, 3);
    assert_eq!(machine.read_checkpoint(ID, at(0)).unwrap(), body(1, &[5, 6, 7]));
}

#[test]
fn refusals_have_the_problem_types_of_the_profile() {
    use ProblemType::{CheckpointConflict, InvalidCheckpoint, StaleEpoch, UnknownEpoch};
    let mut machine = recorded(&[5]);
    let mut of = |body: SessionCheckpoint| names(machine.checkpoint(ID, &body, Some(16), at(0)).unwrap_err());
    assert_eq!(of(body(0, &[5])), (Some(StaleEpoch), 409));
    assert_eq!(of(body(2, &[5])), (Some(UnknownEpoch), 409));
    assert_eq!(of(body(1, &[6])), (Some(CheckpointConflict), 409));
    assert_eq!(of(SessionCheckpoint { output_offset: 2, ..body(1, &[5]) }), (Some(InvalidCheckpoint), 422));
}

#[test]
fn a_lower_or_equal_offset_that_agrees_changes_nothing() {
    let mut machine = recorded(&[5, 6, 7]);
    let same = Outcome::Done(SessionAck { epoch: 1, output_offset: 3 });
    assert_eq!(machine.checkpoint(ID, &body(1, &[5, 6, 7]), None, at(0)), Ok(same.clone()));
    assert_eq!(machine.checkpoint(ID, &body(1, &[5]), None, at(0)), Ok(same.clone()));
    assert_eq!(machine.append(ID, &append(1, 1, &[6]), at(0)), Ok(same.clone()));
    assert_eq!(machine.append(ID, &append(1, 3, &[]), at(0)), Ok(same));
    // Right after a resume, too: the new epoch goes on from what is recorded.
    fail_over(&mut machine);
    let same = Outcome::Done(SessionAck { epoch: 2, output_offset: 3 });
    assert_eq!(machine.checkpoint(ID, &body(2, &[5]), None, at(0)), Ok(same));
    let stale = Err(SessionError::StaleEpoch { known: 2 });
    assert_eq!(machine.checkpoint(ID, &body(1, &[5, 6, 7, 8]), None, at(0)), stale);
    assert_eq!(machine.read_checkpoint(ID, at(0)).unwrap().epoch, 1, "the epoch that it was taken in");
}

#[test]
fn the_former_instance_is_told_that_its_epoch_is_stale() {
    let mut machine = recorded(&[5]);
    assert_eq!(machine.reporter(ID, 1), Ok(&uri(0)));
    assert_eq!(machine.reporter(ID, 2), Ok(&uri(0)), "first whether it is the instance, then the epoch");
    fail_over(&mut machine);
    assert_eq!(machine.reporter(ID, 1), Err(SessionError::StaleEpoch { known: 2 }));
    assert_eq!(machine.reporter(ID, 2), Ok(&uri(1)));
    assert_eq!(machine.reporter(Uuid::nil(), 1), Err(SessionError::Unknown));
}

#[test]
fn a_checkpoint_counts_once_it_is_durable_and_the_next_waits() {
    let mut machine = recorded(&[5]);
    let (ticket, _, ack) = write(machine.append(ID, &append(1, 1, &[6]), at(0)));
    assert_eq!(ack.output_offset, 2);
    assert_eq!(machine.view(ID, at(0)).unwrap().output_offset, 1);
    assert_eq!(machine.append(ID, &append(1, 2, &[7]), at(0)), Ok(Outcome::Busy));
    assert_eq!(machine.checkpoint(ID, &body(1, &[5, 6, 7]), None, at(0)), Ok(Outcome::Busy));
    assert_eq!(machine.end(ID, at(0)), Ok(Outcome::Busy));
    // What is no news needs no write, and what is wrong stays wrong.
    assert!(matches!(machine.append(ID, &append(1, 0, &[5]), at(0)), Ok(Outcome::Done(_))));
    assert_eq!(machine.append(ID, &append(0, 0, &[5]), at(0)), Err(SessionError::StaleEpoch { known: 1 }));
    let _ = effects(&mut machine);
    machine.persist_failed(ticket, at(0));
    assert_eq!(machine.poll_effect(), Some(Effect::Changed(ID)));
    assert_eq!(machine.view(ID, at(0)).unwrap().output_offset, 1);
    machine.persisted(ticket, at(0));
    assert_eq!(machine.view(ID, at(0)).unwrap().output_offset, 1, "a write ends once");
}

#[test]
fn rows_hold_segments_and_the_head_is_written_only_when_it_changes() {
    let mut machine = one(SessionsConfig::default());
    let tokens: Vec<u32> = (0..70).collect();
    let (ticket, changes, _) = write(machine.checkpoint(ID, &body(1, &tokens), None, at(0)));
    let of = |segment, tokens: &[u32]| Change::Tokens { session: ID, segment, tokens: tokens.to_vec() };
    assert!(matches!(&changes[..2], [Change::Head(_), Change::Progress { .. }]));
    assert_eq!(changes[2..], [of(0, &tokens[..64]), of(1, &tokens[64..])]);
    machine.persisted(ticket, at(0));
    let (ticket, changes, _) = write(machine.append(ID, &append(1, 70, &[70]), at(0)));
    assert!(matches!(&changes[0], Change::Progress { progress, .. } if progress.output_offset == 71));
    assert_eq!(changes[1..], [of(1, &(64..71).collect::<Vec<_>>())]);
    machine.persisted(ticket, at(0));
    let (ticket, changes, _) = write(machine.append(ID, &append(1, 71, &[0; 57]), at(0)));
    assert_eq!(changes.len(), 2, "a segment that just fills");
    machine.persisted(ticket, at(0));
    let (_, changes, _) = write(machine.append(ID, &append(1, 128, &[3]), at(0)));
    assert_eq!(changes[1..], [of(2, &[3])]);
}

#[test]
fn an_empty_checkpoint_is_one() {
    let mut machine = recorded(&[]);
    assert_eq!(machine.read_checkpoint(ID, at(0)).unwrap(), body(1, &[]));
    fail_over(&mut machine);
    assert!(matches!(&effects(&mut machine)[..], [Effect::Resume { request, .. }] if request.epoch == 2));
}

#[test]
fn a_session_that_ends_is_erased_and_remembered_for_a_while() {
    let mut machine = recorded(&[5; 65]);
    let (ticket, changes, ()) = write(machine.end(ID, at(0)));
    let [Change::Erase { segments: 2, tombstone: Some(head), .. }] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!((head.continuation.clone(), head.checkpoint.clone()), (None, None));
    assert!(head.block_keys.is_empty());
    machine.persisted(ticket, at(0));
    let view = machine.view(ID, at(0)).unwrap();
    assert_eq!((view.state, view.output_offset), (SessionState::Done, 65));
    assert_eq!(machine.end(ID, at(0)), Ok(Outcome::Done(())));
    assert_eq!(machine.checkpoint(ID, &body(1, &[5]), None, at(0)), Err(SessionError::Unknown));
    assert_eq!(machine.append(ID, &append(9, 0, &[5]), at(0)), Err(SessionError::Unknown));
    assert_eq!(machine.read_checkpoint(ID, at(0)), Err(SessionError::Unknown));
    assert_eq!(machine.continuation(ID, at(0)), Err(SessionError::Unknown));
    assert_eq!(machine.stream_broken(ID, 1, at(0)), Err(SessionError::Unknown));
    machine.instance_failed(&uri(0), at(0));
    assert_eq!(effects(&mut machine), []);
    let retention = machine.config.done_retention;
    let erased = wait(&mut machine, retention);
    assert_eq!(erased, [Change::Erase { session: ID, segments: 0, tombstone: None }]);
    assert_eq!(machine.view(ID, at(0)), Err(SessionError::Unknown));
    assert_eq!((machine.octets, machine.timers.len(), machine.done.len()), (0, 0, 0));
}

/// Time passes without a stall, as long as `span`; the write that the machine then begins.
fn wait(machine: &mut Sessions, span: Duration) -> Vec<Change> {
    let end = at(0) + span;
    let mut now = at(0);
    while now < end {
        assert_eq!(effects(machine), [], "before {span:?}");
        now = (now + Duration::from_millis(900)).min(end);
        machine.tick(now);
    }
    own_write(machine, now)
}

#[test]
fn a_session_that_nobody_asks_for_is_ended() {
    let mut machine = recorded(&[5]);
    let idle = machine.config.idle;
    let changes = wait(&mut machine, idle);
    assert!(matches!(&changes[..], [Change::Erase { tombstone: Some(_), .. }]));
    assert_eq!(machine.view(ID, at(0) + idle).unwrap().state, SessionState::Done);
}

#[test]
fn limits_are_kept() {
    let config = SessionsConfig { max_sessions: 2, max_tokens: 3, ..SessionsConfig::default() };
    let mut machine = one(config);
    let over = machine.checkpoint(ID, &body(1, &[5; 4]), None, at(0)).unwrap_err();
    assert_eq!(
        (over, names(over)),
        (SessionError::TooLong { max: 3 }, (Some(ProblemType::LimitExceeded), 413))
    );
    let second = Uuid::from_u128(2);
    let outcome = machine.create(new_session(second), at(0));
    ended(&mut machine, outcome);
    let third = new_session(Uuid::from_u128(3));
    assert_eq!(machine.create(third.clone(), at(0)), Err(SessionError::Full));
    assert_eq!(machine.create(new_session(second), at(0)), Err(SessionError::Full), "a name is given once");
    // One that is done makes room.
    let outcome = machine.end(second, at(0));
    ended(&mut machine, outcome);
    let (ticket, changes, _) = write(machine.create(third, at(0)));
    assert_eq!(changes[0], Change::Erase { session: second, segments: 0, tombstone: None });
    machine.persisted(ticket, at(0));
    assert_eq!(machine.list(9, |_| true).sessions.len(), 2);

    let mut machine = one(SessionsConfig { max_octets: 3000, ..SessionsConfig::default() });
    assert_eq!(machine.checkpoint(ID, &body(1, &[5; 1000]), None, at(0)), Err(SessionError::Full));
    let outcome = machine.checkpoint(ID, &body(1, &[5; 10]), None, at(0));
    ended(&mut machine, outcome);
    let (before, weight) = (machine.octets, machine.sessions[&ID].weigh());
    assert_eq!(before, weight, "what was reserved is charged once");
    assert_eq!(machine.create(new_session(second), at(0)).map(|_| ()), Ok(()));
    assert_eq!(machine.create(new_session(Uuid::from_u128(3)), at(0)), Err(SessionError::Full));
    assert_eq!((machine.sessions.len(), machine.hosts[&uri(0)].count()), (2, 2));
}

#[test]
fn lists_are_in_order_and_show_only_what_they_may() {
    let mut machine = Sessions::new(SessionsConfig::default());
    for n in [3, 1, 2] {
        let owner = if n == 2 { "other" } else { "front" }.to_owned();
        let outcome = machine.create(NewSession { owner, ..new_session(Uuid::from_u128(n)) }, at(0));
        ended(&mut machine, outcome);
    }
    let ids = |list: SessionList| list.sessions.iter().map(|v| v.session.as_u128()).collect::<Vec<_>>();
    assert_eq!(ids(machine.list(9, |_| true)), [1, 2, 3]);
    assert_eq!(ids(machine.list(9, |head| head.owner == "front")), [1, 3]);
    assert_eq!(ids(machine.list(1, |_| true)), [1]);
    assert_eq!(machine.count(SessionState::Running), 3);
}
