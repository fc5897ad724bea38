//! What a controller finds when it starts.

use super::*;

/// What a store has of a session.
fn stored(state: SessionState, tokens: &[u32], offset: u64) -> Stored {
    let checkpoint = body(1, &[]);
    let (prompt_blocks, prompt_tail) = (checkpoint.prompt_blocks, checkpoint.prompt_tail);
    let mut machine = one(SessionsConfig::default());
    let head = machine.sessions.remove(&ID).unwrap().head;
    Stored {
        head: Head {
            state,
            epoch: 4,
            checkpoint: Some(CheckpointHead { prompt_blocks, prompt_tail }),
            ..head
        },
        progress: Some(Progress { epoch: 3, output_offset: offset, sampler: sampler(offset) }),
        tokens: tokens.to_vec(),
        segments: u32::from(!tokens.is_empty()),
    }
}

#[test]
fn a_restart_gives_instances_their_ttl_and_resumes_what_was_being_resumed() {
    let config = SessionsConfig::default();
    let mut machine = Sessions::restore(config, vec![stored(SessionState::Running, &[5, 6, 7], 2)], at(0));
    assert_eq!(effects(&mut machine), []);
    assert_eq!(
        machine.read_checkpoint(ID, at(0)).unwrap(),
        SessionCheckpoint { epoch: 3, ..body(1, &[5, 6]) }
    );
    let mut silent = machine.clone();
    for second in 1..=3 {
        assert_eq!(effects(&mut silent), []);
        silent.tick(at(1000 * second));
    }
    assert!(matches!(effects(&mut silent)[..], [Effect::Place(_)]));
    machine.instance_reported(&uri(0), 1, 3000, at(500));
    (1..=60).for_each(|n| machine.tick(at(500 + 500 * n)));
    assert_eq!(effects(&mut machine), []);

    let mut resuming = Sessions::restore(config, vec![stored(SessionState::Resuming, &[5, 6], 2)], at(0));
    let [Effect::Place(place)] = &effects(&mut resuming)[..] else { panic!("no placement") };
    resuming.placed(ID, place.attempt, Some(choice(1)), at(0));
    own_write(&mut resuming, at(0));
    assert!(matches!(&effects(&mut resuming)[..], [Effect::Resume { request, .. }] if request.epoch == 5));
}

#[test]
fn a_restart_remembers_what_has_ended() {
    let done = Stored { progress: None, ..stored(SessionState::Done, &[], 0) };
    let done = Stored { head: Head { checkpoint: None, final_offset: 9, ..done.head }, ..done };
    let mut machine = Sessions::restore(SessionsConfig::default(), vec![done], at(0));
    let view = machine.view(ID, at(0)).unwrap();
    assert_eq!((view.state, view.output_offset, machine.hosts.len()), (SessionState::Done, 9, 0));
    let failed = stored(SessionState::Failed, &[5], 1);
    let mut machine = Sessions::restore(SessionsConfig::default(), vec![failed], at(0));
    assert_eq!(machine.view(ID, at(0)).unwrap().state, SessionState::Failed);
    assert_eq!(effects(&mut machine), []);
}

#[test]
fn a_session_whose_tokens_are_not_whole_fails_with_a_reason() {
    for tokens in [&[5][..], &[]] {
        let torn = stored(SessionState::Running, tokens, 2);
        let mut machine = Sessions::restore(SessionsConfig::default(), vec![torn], at(0));
        let writes: Vec<Effect> =
            effects(&mut machine).into_iter().filter(|e| matches!(e, Effect::Persist { .. })).collect();
        let [Effect::Persist { ticket, .. }] = &writes[..] else { panic!("{writes:?}") };
        machine.persisted(*ticket, at(0));
        let view = machine.view(ID, at(0)).unwrap();
        assert_eq!((view.state, view.epoch, view.reason.is_some()), (SessionState::Failed, 5, true));
        assert_eq!((machine.active, machine.queue.len()), (0, 0));
    }
}
