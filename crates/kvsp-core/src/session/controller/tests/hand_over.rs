//! Sessions that leave an instance that lives.

use super::*;
use crate::session::{Probe, ResumeOutcome, Verdict};

fn asked(machine: &mut Sessions, now: Time) -> Place {
    machine.hand_over(&uri(0), now);
    match &effects(machine)[..] {
        [Effect::Place(place)] => (**place).clone(),
        other => panic!("no placement: {other:?}"),
    }
}

fn view(machine: &mut Sessions) -> (u64, SessionState, BaseUri) {
    let view = machine.view(ID, at(0)).unwrap();
    (view.epoch, view.state, view.instance)
}

#[test]
fn a_session_runs_on_until_its_next_epoch_is_durable_and_is_fenced_then() {
    let mut machine = recorded(&[7, 8]);
    let place = asked(&mut machine, at(0));
    assert!(place.hand_over && place.exclude == [uri(0)] && place.tokens == 12);
    machine.hand_over(&uri(0), at(0));
    assert_eq!(effects(&mut machine), [], "once");
    assert_eq!(view(&mut machine), (1, SessionState::Running, uri(0)));
    // What it computes meanwhile counts.
    let outcome = machine.append(ID, &append(1, 2, &[9]), at(0));
    machine.placed(ID, place.attempt, Some(choice(1)), at(0));
    assert_eq!(effects(&mut machine), [], "a write is under way");
    ended(&mut machine, outcome);
    let Some(Effect::Persist { ticket, .. }) = effects(&mut machine).pop() else { panic!("a write") };
    assert_eq!(machine.append(ID, &append(1, 3, &[10]), at(0)), Ok(Outcome::Busy));
    assert_eq!(view(&mut machine), (1, SessionState::Running, uri(0)), "nothing is shown before");
    machine.persisted(ticket, at(0));
    let [Effect::Resume { instance, request, .. }] = &effects(&mut machine)[..] else { panic!("a resume") };
    assert_eq!((instance, request.epoch), (&uri(1), 2));
    assert_eq!(request.checkpoint.generated, [7, 8, 9], "no token lost");
    assert_eq!(view(&mut machine), (2, SessionState::Resuming, uri(1)));
    let stale = machine.append(ID, &append(1, 3, &[10]), at(0));
    assert_eq!(stale, Err(SessionError::StaleEpoch { known: 2 }), "nor repeated");
    machine.resumed(ID, 2, ResumeOutcome::Taken { needs: None }, at(0));
    own_write(&mut machine, at(0));
    assert_eq!(view(&mut machine), (2, SessionState::Running, uri(1)));
    assert_eq!((machine.hosted(&uri(0)), machine.hosted(&uri(1))), (0, 1));
    machine.hand_over(&uri(0), at(9_000));
    assert_eq!(effects(&mut machine), [], "there is nothing left");
}

#[test]
fn where_nobody_else_can_take_it_it_stays_and_is_asked_for_again() {
    let mut machine = recorded(&[7]);
    let mut now = at(0);
    let place = asked(&mut machine, now);
    machine.placed(ID, place.attempt, None, now);
    assert_eq!(view(&mut machine), (1, SessionState::Running, uri(0)));
    let outcome = machine.append(ID, &append(1, 1, &[8]), now);
    assert_eq!(ended(&mut machine, outcome).output_offset, 2);
    machine.hand_over(&uri(0), at(999));
    assert_eq!(effects(&mut machine), [], "not at once");
    // However long that goes on, it does not fail.
    for second in 1..200 {
        now = at(1_000 * second);
        let place = asked(&mut machine, now);
        machine.placed(ID, place.attempt, None, now);
    }
    machine.tick(now);
    assert_eq!(view(&mut machine), (1, SessionState::Running, uri(0)));
}

#[test]
fn a_choice_that_never_comes_is_no_reason_to_leave() {
    let mut machine = recorded(&[7]);
    let place = asked(&mut machine, at(0));
    for ms in (0..=2_000).step_by(100) {
        machine.tick(at(ms));
    }
    machine.placed(ID, place.attempt, Some(choice(1)), at(2_000));
    assert_eq!(effects(&mut machine), [], "too late");
    assert_eq!(view(&mut machine), (1, SessionState::Running, uri(0)));
}

#[test]
fn an_instance_that_is_lost_meanwhile_is_failed_over() {
    for phase in 0..3 {
        let mut machine = recorded(&[7]);
        let place = asked(&mut machine, at(0));
        match phase {
            0 => machine.instance_failed(&uri(0), at(0)),
            1 => machine.instance_reported(&uri(0), 2, 3_000, at(0)),
            _ => {
                assert_eq!(machine.stream_broken(ID, 1, at(0)), Ok(None), "it is about to move");
                machine.probed(ID, 1, Verdict::Lost, at(0));
            }
        }
        assert_eq!(view(&mut machine), (1, SessionState::Resuming, uri(0)));
        // The choice under way serves; and where it finds nobody the session waits for one, and does not stay.
        machine.placed(ID, place.attempt, None, at(0));
        machine.tick(at(60));
        let [Effect::Place(again)] = &effects(&mut machine)[..] else { panic!("another placement") };
        assert!(!again.hand_over);
        machine.placed(ID, again.attempt, Some(choice(1)), at(60));
        own_write(&mut machine, at(60));
        assert_eq!(view(&mut machine).0, 2);
    }
}

#[test]
fn those_who_lost_their_instance_come_first() {
    let config = SessionsConfig { max_resumes: 1, ..SessionsConfig::default() };
    let mut machine = Sessions::new(config);
    for n in 1..=4 {
        let new = NewSession { choice: choice(u32::from(n > 2)), ..new_session(Uuid::from_u128(n)) };
        let outcome = machine.create(new, at(0));
        ended(&mut machine, outcome);
    }
    let first = asked(&mut machine, at(0));
    machine.instance_failed(&uri(1), at(1));
    let mut order = vec![first.session.as_u128()];
    let mut place = first;
    for _ in 0..3 {
        machine.placed(place.session, place.attempt, Some(choice(2)), at(1));
        let mut effects = effects(&mut machine);
        let Some(Effect::Persist { ticket, .. }) = effects.pop() else { panic!("a write") };
        machine.persisted(ticket, at(1));
        let next = self::effects(&mut machine).pop();
        let Some(Effect::Place(next)) = next else { panic!("the next one: {next:?}") };
        order.push(next.session.as_u128());
        place = *next;
    }
    assert_eq!(order, [1, 3, 4, 2]);
}

#[test]
fn a_target_that_refuses_is_followed_by_another() {
    let mut machine = recorded(&[7]);
    let place = asked(&mut machine, at(0));
    machine.placed(ID, place.attempt, Some(choice(1)), at(0));
    own_write(&mut machine, at(0));
    machine.resumed(ID, 2, ResumeOutcome::Refused, at(0));
    let next = effects(&mut machine).pop();
    let Some(Effect::Place(next)) = next else { panic!("another placement: {next:?}") };
    assert_eq!(next.exclude, [uri(0), uri(1)]);
    assert!(!next.hand_over, "the old one is fenced already");
}

#[test]
fn a_crash_before_the_epoch_is_durable_leaves_the_session_where_it_was() {
    let mut machine = recorded(&[7]);
    let head = {
        let outcome = machine.append(ID, &append(1, 1, &[8]), at(0));
        ended(&mut machine, outcome);
        machine.sessions[&ID].head.clone()
    };
    let progress = machine.sessions[&ID].progress.clone();
    let stored = Stored { head, progress, tokens: vec![7, 8], segments: 1 };
    let place = asked(&mut machine, at(0));
    machine.placed(ID, place.attempt, Some(choice(1)), at(0));
    let mut machine = Sessions::restore(SessionsConfig::default(), vec![stored], at(0));
    assert_eq!(view(&mut machine), (1, SessionState::Running, uri(0)));
    assert_eq!(machine.stream_broken(ID, 1, at(0)), Ok(Some(Probe { instance: uri(0), epoch: 1 })));
    let place = asked(&mut machine, at(0));
    assert!(place.hand_over, "said again, it leaves");
}
