//! Moving to another instance.

use super::*;

#[test]
fn a_session_without_a_checkpoint_moves_without_a_resume() {
    let mut machine = one(SessionsConfig::default());
    fail_over(&mut machine);
    assert_eq!(effects(&mut machine), []);
    let view = machine.view(ID, at(0)).unwrap();
    assert_eq!((view.epoch, view.instance, view.state), (2, uri(1), SessionState::Running));
    assert_eq!((machine.active, machine.failing.len()), (0, 0));
}

#[test]
fn a_checkpoint_of_the_new_epoch_says_that_the_resume_was_taken() {
    let mut machine = recorded(&[5]);
    fail_over(&mut machine);
    assert_eq!(machine.view(ID, at(0)).unwrap().state, SessionState::Resuming);
    let (ticket, changes, _) = write(machine.append(ID, &append(2, 1, &[6]), at(0)));
    assert!(matches!(&changes[0], Change::Head(head) if head.state == SessionState::Running));
    machine.persisted(ticket, at(0));
    assert_eq!(machine.view(ID, at(0)).unwrap().state, SessionState::Running);
    assert_eq!((machine.active, machine.failing.len()), (0, 0));
}

#[test]
fn an_instance_that_dies_while_its_resume_is_settled_is_left() {
    let mut machine = recorded(&[5]);
    fail_over(&mut machine);
    assert!(matches!(effects(&mut machine)[..], [Effect::Resume { .. }]));
    machine.resumed(ID, 2, ResumeOutcome::Taken { needs: None }, at(0));
    machine.instance_failed(&uri(1), at(0));
    own_write(&mut machine, at(0));
    assert_eq!(machine.view(ID, at(0)).unwrap().state, SessionState::Resuming);
    assert!(matches!(effects(&mut machine)[..], [Effect::Place(_)]));
}

#[test]
fn what_an_instance_needs_is_shown_until_it_has_it() {
    use kvsp_proto::message::Needs::Prompt;
    let mut machine = recorded(&[5]);
    fail_over(&mut machine);
    let _ = effects(&mut machine);
    machine.resumed(ID, 2, ResumeOutcome::Taken { needs: Some(Prompt) }, at(0));
    own_write(&mut machine, at(0));
    assert_eq!(machine.view(ID, at(0)).unwrap().needs, Some(Prompt));
    let outcome = machine.append(ID, &append(2, 1, &[6]), at(0));
    ended(&mut machine, outcome);
    assert_eq!(machine.view(ID, at(0)).unwrap().needs, None);
}

#[test]
fn a_failover_that_takes_too_long_fails_the_session_and_fences_its_instance() {
    let config = SessionsConfig { give_up: Duration::from_millis(300), ..SessionsConfig::default() };
    let mut machine = one(config);
    let outcome = machine.checkpoint(ID, &body(1, &[5]), None, at(0));
    ended(&mut machine, outcome);
    machine.instance_failed(&uri(0), at(0));
    let mut asked = Vec::new();
    let mut now = at(0);
    let changes = loop {
        let mut pending = effects(&mut machine);
        match pending.pop() {
            Some(Effect::Place(place)) => {
                asked.push(now.as_micros() / 1000);
                machine.placed(ID, place.attempt, None, now);
            }
            Some(Effect::Persist { ticket, changes }) => {
                machine.persisted(ticket, now);
                break changes;
            }
            Some(other) => panic!("{other:?}"),
            None => {
                now = machine.poll_timeout().unwrap();
                machine.tick(now);
            }
        }
    };
    assert_eq!(asked, [0, 50, 150, 300]);
    assert!(matches!(&changes[0], Change::Head(head) if head.epoch == 2));
    let view = machine.view(ID, now).unwrap();
    assert_eq!((view.epoch, view.state), (2, SessionState::Failed));
    assert!(view.reason.is_some());
    assert_eq!(
        machine.checkpoint(ID, &body(1, &[5, 6]), None, now),
        Err(SessionError::StaleEpoch { known: 2 })
    );
    assert_eq!(
        machine.checkpoint(ID, &body(2, &[5, 6]), None, now),
        Err(SessionError::StaleEpoch { known: 2 })
    );
    assert_eq!(machine.stream_broken(ID, 2, now), Ok(None));
    let outcome = machine.end(ID, now);
    ended(&mut machine, outcome);
    assert_eq!((machine.active, machine.hosts.len()), (0, 0));
}

#[test]
fn attempts_are_counted() {
    let config = SessionsConfig { max_attempts: 2, ..SessionsConfig::default() };
    let mut machine = one(config);
    let outcome = machine.checkpoint(ID, &body(1, &[5]), None, at(0));
    ended(&mut machine, outcome);
    fail_over(&mut machine);
    let _ = effects(&mut machine);
    machine.resumed(ID, 2, ResumeOutcome::Unreachable, at(0));
    let [Effect::Place(place)] = &effects(&mut machine)[..] else { panic!("no placement") };
    machine.placed(ID, place.attempt, Some(choice(2)), at(0));
    own_write(&mut machine, at(0));
    let _ = effects(&mut machine);
    machine.resumed(ID, 3, ResumeOutcome::Refused, at(0));
    own_write(&mut machine, at(0));
    let view = machine.view(ID, at(0)).unwrap();
    assert_eq!((view.epoch, view.state), (4, SessionState::Failed));
}

#[test]
fn a_new_start_of_an_instance_that_was_excluded_may_be_tried() {
    let mut machine = recorded(&[5]);
    let probe = machine.stream_broken(ID, 1, at(0)).unwrap().unwrap();
    machine.probed(ID, probe.epoch, Verdict::Lost, at(0));
    let [Effect::Place(place)] = &effects(&mut machine)[..] else { panic!("no placement") };
    assert_eq!(place.exclude, [uri(0)]);
    machine.placed(ID, place.attempt, None, at(0));
    machine.instance_reported(&uri(0), 1, 3000, at(1));
    assert_eq!(effects(&mut machine), [], "the start that is gone");
    machine.instance_reported(&uri(0), 2, 3000, at(2));
    let [Effect::Place(place)] = &effects(&mut machine)[..] else { panic!("no placement") };
    assert_eq!(place.exclude, []);
}

#[test]
fn a_failed_write_of_a_failover_is_tried_again() {
    let mut machine = recorded(&[5]);
    machine.instance_failed(&uri(0), at(0));
    let [Effect::Place(place)] = &effects(&mut machine)[..] else { panic!("no placement") };
    machine.placed(ID, place.attempt, Some(choice(1)), at(0));
    let [Effect::Persist { ticket, .. }] = effects(&mut machine)[..] else { panic!("no write") };
    machine.persist_failed(ticket, at(0));
    assert_eq!((effects(&mut machine), machine.active), (Vec::new(), 0));
    assert!(!machine.hosts.contains_key(&uri(1)));
    machine.tick(at(50));
    assert!(matches!(effects(&mut machine)[..], [Effect::Place(_)]));
}
