//! A rolling upgrade: one instance after the other is drained with its sessions handed over, ended and started again,
//! and no answer notices.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cast::Cast;
use crate::command::{order, settings};
use crate::stream::{Event, Sampling, Stream, assert_equal, changed, question};
use crate::support::get;

/// Answers at once.
const ANSWERS: u64 = 4;
/// Output tokens: a drain is over long before such an answer is.
const TOKENS: u64 = 1500;

fn ask(seed: u64) -> Value {
    let sampling = if seed.is_multiple_of(2) { Sampling::Sampled } else { Sampling::Greedy };
    changed(question(sampling), &json!({"seed": seed, "max_tokens": TOKENS}))
}

/// Reads all of them to their ends at the same time.
async fn whole(streams: Vec<Stream>) -> Vec<Vec<Event>> {
    let tasks: Vec<_> = streams.into_iter().map(|stream| tokio::spawn(stream.whole())).collect();
    let mut heard = Vec::new();
    for task in tasks {
        heard.push(task.await.unwrap());
    }
    heard
}

async fn ask_all(cast: &Cast) -> Vec<Stream> {
    let mut streams = Vec::new();
    for seed in 0..ANSWERS {
        streams.push(cast.ask(&ask(seed)).await);
    }
    streams
}

#[tokio::test(flavor = "multi_thread")]
async fn every_instance_is_replaced_while_answers_go_on() {
    let mut cast = Cast::start(&settings(3)).await;
    let wholes = whole(ask_all(&cast).await).await;
    let mut moved = 0;
    let mut drains = Vec::new();
    for at in 0..cast.instances.len() {
        let mut streams = ask_all(&cast).await;
        let sessions: Vec<String> = streams.iter().map(Stream::session).collect();
        for stream in &mut streams {
            stream.until(5).await;
        }
        let hearing = tokio::spawn(whole(streams));
        let base = cast.instances[at].base();
        let begin = Instant::now();
        assert_eq!(order(&cast, &["drain", "--migrate", "--wait"], &base).await, "sleeping");
        drains.push(begin.elapsed());
        let mut left = 0;
        for session in &sessions {
            let view = cast.session(session).await;
            assert!(view["state"] != "running" || view["instance"] != base.as_str(), "{view}");
            left += u64::from(view["state"] == "running");
        }
        assert!(left > 0, "every answer was over before the drain was: {:?}", drains[at]);
        assert_eq!(cast.instances[at].process.stop(), Some(0), "it ends when it is told to");
        cast.revive(at);
        for (session, (heard, whole)) in sessions.iter().zip(hearing.await.unwrap().iter().zip(&wholes)) {
            let view = get(&cast.controller.base(), &format!("sessions/{session}")).await.ok();
            assert_equal(heard, whole, &format!("instance {at} is replaced: {view}"));
            moved += view["epoch"].as_u64().unwrap() - 1;
        }
        cast.all_active().await;
    }
    println!(
        "3 instances were replaced, {moved} sessions handed over, drained in {drains:?}; nothing lost or altered"
    );
    assert!(moved > 0, "no session had to move");
    assert!(drains.iter().all(|took| *took < Duration::from_secs(20)), "{drains:?}");
}

/// Without `--migrate` it finishes what it has.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_the_end_of_its_sessions() {
    let cast = Cast::start(&settings(2)).await;
    let whole = cast.ask(&ask(0)).await.whole().await;
    let mut stream = cast.ask(&ask(0)).await;
    let session = stream.session();
    stream.until(5).await;
    let serving = cast.serving(&session).await;
    let base = cast.instances[serving].base();
    let hearing = tokio::spawn(stream.whole());
    assert_eq!(order(&cast, &["drain", "--wait"], &base).await, "sleeping");
    assert_equal(&hearing.await.unwrap(), &whole, "drained");
    assert_eq!(cast.session(&session).await["epoch"], 1, "it was not handed over");
}
