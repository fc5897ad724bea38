use super::*;

fn ms(n: u64) -> Time {
    Time::from_millis(n)
}

fn config() -> OutputConfig {
    OutputConfig { prompt_tokens: 10, ..OutputConfig::default() }
}

/// A fresh output whose prompt's blocks are stored.
fn stored(deterministic: bool) -> Output {
    let mut output = Output::new(config(), 1, Vec::new(), deterministic, false, ms(0));
    output.blocks_stored(ms(0));
    output
}

fn append(from: u64, to: u64) -> Due {
    Due { whole: false, from, to }
}

#[test]
fn a_sampled_token_is_released_by_an_acknowledgement_only() {
    let mut output = stored(false);
    output.token(7, ms(1));
    assert_eq!(output.released(), 0);
    assert_eq!(output.poll_checkpoint(ms(1)), Some(Due { whole: true, from: 0, to: 1 }));
    output.token(8, ms(2));
    assert_eq!((output.poll_checkpoint(ms(900)), output.poll_timeout()), (None, None));
    assert_eq!(output.released(), 0);
    output.acknowledged(1, ms(3));
    assert_eq!((output.released(), output.tokens()), (1, &[7, 8][..]));
}

#[test]
fn an_acknowledgement_beyond_what_was_sent_covers_what_was_sent() {
    let mut output = stored(false);
    output.token(7, ms(1));
    assert!(output.poll_checkpoint(ms(1)).is_some());
    output.token(8, ms(1));
    output.acknowledged(9, ms(2));
    assert_eq!(output.released(), 1);
    output.acknowledged(0, ms(2));
    assert_eq!(output.released(), 1);
}

#[test]
fn tokens_wait_for_others_no_longer_than_the_delay() {
    let mut output = Output::new(config(), 2, vec![1, 2], false, true, ms(0));
    assert_eq!((output.released(), output.poll_timeout()), (2, None));
    output.token(3, ms(10));
    output.token(4, ms(12));
    assert_eq!((output.poll_checkpoint(ms(14)), output.poll_timeout()), (None, Some(ms(15))));
    assert_eq!(output.poll_checkpoint(ms(15)), Some(append(2, 4)));
    output.token(5, ms(16));
    output.acknowledged(4, ms(18));
    assert_eq!(output.poll_timeout(), Some(ms(21)));
    output.finish(Finish::Stop, ms(19));
    assert_eq!(output.finished(), None);
    assert_eq!(output.poll_checkpoint(ms(19)), Some(append(4, 5)));
    output.acknowledged(5, ms(20));
    assert_eq!((output.finished(), output.released()), (Some(Finish::Stop), 5));
    assert_eq!((output.poll_checkpoint(ms(9_999)), output.poll_timeout()), (None, None));
}

#[test]
fn a_block_that_completes_is_checkpointed_at_once() {
    let mut output = Output::new(config(), 2, vec![0; 5], false, true, ms(0));
    output.token(1, ms(1));
    assert_eq!(output.poll_checkpoint(ms(1)), Some(append(5, 6)), "10 + 6 tokens are a block");
    output.acknowledged(6, ms(1));
    let mut output = Output::new(config(), 2, vec![0; 6], true, true, ms(0));
    (0..15).for_each(|_| output.token(1, ms(1)));
    assert_eq!((output.poll_checkpoint(ms(999)), output.poll_timeout()), (None, None));
    output.token(1, ms(1));
    assert_eq!(output.poll_checkpoint(ms(1)), Some(append(6, 22)));
}

#[test]
fn the_interval_bounds_what_has_no_blocks() {
    let config = OutputConfig { block_tokens: 0, interval_tokens: 3, ..config() };
    let mut output = Output::new(config, 1, Vec::new(), true, false, ms(0));
    output.blocks_stored(ms(0));
    (0..2).for_each(|_| output.token(1, ms(1)));
    assert_eq!(output.poll_checkpoint(ms(99)), None);
    output.token(1, ms(1));
    assert_eq!(output.poll_checkpoint(ms(1)), Some(Due { whole: true, from: 0, to: 3 }));
}

#[test]
fn a_deterministic_token_is_released_at_once() {
    let mut output = stored(true);
    output.token(7, ms(1));
    output.finish(Finish::Length, ms(1));
    assert_eq!((output.released(), output.finished()), (1, Some(Finish::Length)));
    assert_eq!(output.may_compute_to(), u64::MAX);
}

#[test]
fn the_first_checkpoint_waits_for_the_prompts_blocks_but_not_for_ever() {
    let mut output = Output::new(config(), 1, Vec::new(), false, false, ms(0));
    assert_eq!(output.poll_timeout(), None, "nothing to record");
    output.token(7, ms(5));
    assert_eq!((output.poll_checkpoint(ms(2004)), output.poll_timeout()), (None, Some(ms(2005))));
    let mut patient = output.clone();
    assert!(patient.poll_checkpoint(ms(2005)).is_some());
    output.blocks_stored(ms(6));
    assert!(output.poll_checkpoint(ms(6)).is_some());
}

#[test]
fn the_engine_waits_for_acknowledgements() {
    let mut output = stored(false);
    assert_eq!(output.may_compute_to(), 64);
    (0..64).for_each(|_| output.token(7, ms(1)));
    assert!(output.poll_checkpoint(ms(1)).is_some());
    assert_eq!(output.may_compute_to(), 64);
    output.acknowledged(64, ms(2));
    assert_eq!(output.may_compute_to(), 128);
}

#[test]
fn a_failed_checkpoint_is_tried_again_ever_more_slowly_with_all_there_is() {
    let mut output = stored(false);
    output.token(7, ms(1));
    let mut now = ms(1);
    let mut waits = Vec::new();
    for _ in 0..9 {
        assert!(output.poll_checkpoint(now).is_some());
        output.token(8, now);
        output.refused(Refusal::Failed, now);
        let next = output.poll_timeout().unwrap();
        waits.push(now.millis_until(next));
        assert_eq!(output.poll_checkpoint(Time::from_micros(next.as_micros() - 1)), None);
        now = next;
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    assert_eq!(output.poll_checkpoint(now), Some(Due { whole: true, from: 0, to: 10 }));
    output.acknowledged(10, now);
    output.token(9, now);
    assert_eq!(output.poll_timeout(), Some(now.after_millis(5)), "the wait begins anew");
}

#[test]
fn an_append_that_conflicts_is_followed_by_all_and_that_decides() {
    let mut output = Output::new(config(), 2, vec![1], false, true, ms(0));
    output.token(2, ms(1));
    output.finish(Finish::Stop, ms(1));
    assert_eq!(output.poll_checkpoint(ms(1)), Some(append(1, 2)));
    output.refused(Refusal::Conflict, ms(2));
    assert_eq!((output.is_fenced(), output.released()), (None, 1));
    assert_eq!(output.poll_checkpoint(ms(2)), Some(Due { whole: true, from: 0, to: 2 }));
    output.refused(Refusal::Conflict, ms(3));
    assert_eq!((output.is_fenced(), output.finished()), (Some(Refusal::Conflict), None));
}

#[test]
fn a_fenced_output_stays_as_it_is() {
    for deterministic in [false, true] {
        let mut output = stored(deterministic);
        output.token(7, ms(1));
        let released = u64::from(deterministic);
        output.refused(Refusal::Stale, ms(2));
        output.token(8, ms(3));
        output.finish(Finish::Stop, ms(3));
        output.acknowledged(1, ms(3));
        output.refused(Refusal::Gone, ms(3));
        assert_eq!((output.is_fenced(), output.released()), (Some(Refusal::Stale), released));
        assert_eq!((output.tokens(), output.finished()), (&[7][..], None));
        assert_eq!((output.poll_checkpoint(ms(9999)), output.poll_timeout()), (None, None));
        assert_eq!(output.may_compute_to(), 1);
    }
}

#[test]
fn an_end_that_was_shown_is_not_taken_back() {
    let mut output = stored(true);
    output.token(7, ms(1));
    output.finish(Finish::Stop, ms(1));
    output.refused(Refusal::Gone, ms(2));
    assert_eq!(output.finished(), Some(Finish::Stop));
}
