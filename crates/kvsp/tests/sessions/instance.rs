//! The instance that serves an answer is killed with SIGKILL.

use std::time::Instant;

use crate::cast::{Cast, count};
use crate::relay::{Blow, MOMENTS};
use crate::stream::{BOTH, assert_equal};

fn kills() -> u64 {
    count("KVSP_SESSION_KILLS", 6)
}

#[tokio::test]
async fn killed_at_a_checkpoint() {
    let mut cast = Cast::start().await;
    let mut wholes = Vec::new();
    for sampling in BOTH {
        let whole = cast.whole(sampling).await;
        wholes.push((sampling, whole, cast.plan.checkpoints()));
    }
    let (kills, moments) = (kills(), MOMENTS.len() as u64);
    let mut done = 0;
    for n in 0..kills {
        let (sampling, whole, checkpoints) = &wholes[usize::try_from(n / moments).unwrap() % 2];
        // The checkpoints of an answer one after the other, each at every moment.
        let turn = n / moments / 2;
        let turns = kills.div_ceil(moments * 2);
        let checkpoint = 1 + turn * checkpoints / turns;
        let moment = MOMENTS[usize::try_from(n % moments).unwrap()];
        let what = format!("{sampling:?}, killed {moment:?} checkpoint {checkpoint} of {checkpoints}");
        cast.plan.arm(Some(Blow { checkpoint, moment }));
        let stream = cast.ask(*sampling).await;
        let session = stream.session();
        let before = cast.serving(&session).await;
        assert_equal(&stream.whole().await, whole, &what);
        // How a run's time is cut into checkpoints differs from run to run: one may have come to its end first.
        done += u64::from(!cast.plan.is_armed());
        cast.plan.arm(None);
        cast.revive(before).await;
    }
    let [sampled, greedy] = [0, 1].map(|n: usize| wholes[n].2);
    println!(
        "{done} of {kills} instances were killed at one of {sampled} checkpoints of a sampled answer or {greedy} of a \
         greedy one; nothing lost, repeated or altered"
    );
    assert!(done * 2 > kills, "{done} of {kills} answers were interrupted");
}

#[tokio::test]
async fn killed_between_checkpoints() {
    let mut cast = Cast::start().await;
    let mut wholes = Vec::new();
    for sampling in BOTH {
        wholes.push((sampling, cast.whole(sampling).await));
    }
    let kills = kills();
    for n in 0..kills {
        let (sampling, whole) = &wholes[usize::try_from(n).unwrap() % 2];
        let tokens = whole.last().unwrap().tokens();
        let after = 1 + n * (tokens / 2) / kills;
        let mut stream = cast.ask(*sampling).await;
        let session = stream.session();
        let before = cast.serving(&session).await;
        stream.until(after).await;
        cast.instances[before].process.kill();
        assert_equal(&stream.whole().await, whole, &format!("{sampling:?}, killed at token {after}"));
        assert!(cast.moves(&session).await >= 1);
        cast.revive(before).await;
    }
    println!("{kills} instances were killed between checkpoints; nothing lost, repeated or altered");
}

/// The next one is killed as well, and the first is there again.
#[tokio::test]
async fn killed_twice_in_one_answer() {
    let mut cast = Cast::start().await;
    for sampling in BOTH {
        let whole = cast.whole(sampling).await;
        let mut stream = cast.ask(sampling).await;
        let session = stream.session();
        let tokens = whole.last().unwrap().tokens();
        let mut killed = Vec::new();
        for after in [tokens / 8, tokens / 3] {
            stream.until(after).await;
            let serving = cast.serving(&session).await;
            cast.instances[serving].process.kill();
            cast.revive_quietly(serving);
            killed.push(serving);
        }
        assert_equal(&stream.whole().await, &whole, &format!("{sampling:?}, {killed:?} killed"));
        assert!(cast.moves(&session).await >= 2, "{killed:?}");
        cast.two_active().await;
    }
}

/// A status with a higher epoch ends the former incarnation: nobody waits for the TTL.
#[tokio::test]
async fn an_instance_that_restarts_within_its_ttl() {
    const LONG_TTL_MS: u64 = 30_000;
    let mut cast = Cast::with_ttl(LONG_TTL_MS).await;
    for sampling in BOTH {
        let whole = cast.whole(sampling).await;
        let mut stream = cast.ask(sampling).await;
        let session = stream.session();
        stream.until(20).await;
        let before = cast.serving(&session).await;
        let begin = Instant::now();
        cast.instances[before].process.kill();
        cast.revive_quietly(before);
        assert_equal(&stream.whole().await, &whole, &format!("{sampling:?}, restarted"));
        assert!(cast.moves(&session).await >= 1);
        let took = begin.elapsed();
        assert!(u128::from(LONG_TTL_MS) > 2 * took.as_millis(), "it waited for the TTL: {took:?}");
        cast.two_active().await;
    }
}
