//! `kvsp drain`: finishing where it is, or going on elsewhere.

use serde_json::json;

use crate::cast::{Cast, outcome};
use crate::stream::{BOTH, Event, Sampling, Stream, assert_equal, changed, question};
use crate::support::{eventually, post};

/// Long enough that an order comes in the middle of the answer.
const TOKENS: u64 = 700;

/// The answer that nothing interrupts, and the same one begun again.
async fn begin(cast: &Cast, sampling: Sampling) -> (Vec<Event>, Stream, String) {
    let question = changed(question(sampling), &json!({"max_tokens": TOKENS}));
    let whole = Stream::ask(&cast.gateway.base(), &question).await.whole().await;
    let mut stream = Stream::ask(&cast.gateway.base(), &question).await;
    let session = stream.session();
    stream.until(30).await;
    (whole, stream, session)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_instance_finishes_its_session_and_sleeps() {
    let cast = Cast::start(2, &[], &[]).await;
    let (whole, stream, session) = begin(&cast, Sampling::Sampled).await;
    let at = cast.serving(&session).await;
    let uri = cast.uri(at);
    let ordered = cast.kvsp(&["drain", uri.as_str()]);
    assert_eq!((ordered.status, &ordered.json), (Some(0), &json!({"instance": uri, "state": "draining"})));
    assert_eq!(cast.session(&session).await["state"], "running", "the answer is too short for this test");
    let waiting = cast.kvsp_beside(&["drain", "--wait", uri.as_str()]);

    // What is asked now goes to the other one.
    let body = json!({"model": crate::support::MODEL, "prompt": "Who takes this?", "max_tokens": 2});
    let answer = post(&uri, "v1/completions", &body).await;
    assert_eq!(answer.status, 409, "{answer:?}");
    post(&cast.gateway.base(), "v1/completions", &body).await.ok();

    assert_equal(&stream.whole().await, &whole, "the session of a draining instance");
    assert_eq!(cast.session(&session).await["epoch"], 1, "it was finished where it was");
    let waited = waiting.await.unwrap();
    assert_eq!((waited.status, &waited.json["state"]), (Some(0), &json!("sleeping")), "{waited:?}");
    assert!(waited.stderr.is_empty(), "no terminal, no bar: {waited:?}");

    let status = cast.kvsp(&["status"]);
    let view = status.json["instances"].as_array().unwrap().iter().find(|v| v["instance"] == uri.as_str());
    assert_eq!(view.unwrap()["state"], "sleeping");
    let woken = cast.kvsp(&["wake", "--wait", uri.as_str()]);
    assert_eq!((woken.status, &woken.json["state"]), (Some(0), &json!("active")), "{woken:?}");
    post(&uri, "v1/completions", &body).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_handed_over_loses_no_token() {
    let cast = Cast::start(2, &[], &[]).await;
    for sampling in BOTH {
        let (whole, stream, session) = begin(&cast, sampling).await;
        let at = cast.serving(&session).await;
        let uri = cast.uri(at);
        let drained = cast.kvsp(&["drain", "--migrate", "--wait", uri.as_str()]);
        assert_eq!((drained.status, &drained.json["state"]), (Some(0), &json!("sleeping")), "{drained:?}");
        let moved = cast.session(&session).await;
        assert_eq!(moved["instance"], cast.uri(1 - at).as_str(), "{moved}");
        assert!(moved["epoch"].as_u64() >= Some(2), "{moved}");
        assert_equal(&stream.whole().await, &whole, &format!("{sampling:?}, handed over"));
        assert_eq!(cast.kvsp(&["wake", "--wait", uri.as_str()]).status, Some(0));
    }
}

/// Two upgrades in a row: each instance in its turn, while one answer goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_is_drained_one_after_the_other_during_one_answer() {
    let cast = Cast::start(2, &[], &[]).await;
    let (whole, stream, session) = begin(&cast, Sampling::Greedy).await;
    let first = cast.serving(&session).await;
    for at in [first, 1 - first] {
        let uri = cast.uri(at);
        let drained = cast.kvsp(&["drain", "--migrate", "--wait", uri.as_str()]);
        assert_eq!(drained.status, Some(0), "{drained:?}");
        assert_eq!(cast.kvsp(&["wake", "--wait", uri.as_str()]).status, Some(0));
    }
    assert_equal(&stream.whole().await, &whole, "handed over twice");
}

/// Nobody else is there: the session stays and is finished, and the instance sleeps then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_nobody_else_can_take_is_finished_where_it_is() {
    let cast = Cast::start(1, &[], &[]).await;
    let (whole, stream, session) = begin(&cast, Sampling::Greedy).await;
    let uri = cast.uri(0);
    let waiting = cast.kvsp_beside(&["drain", "--migrate", "--wait", uri.as_str()]);
    assert_equal(&stream.whole().await, &whole, "with nobody to take it");
    assert_eq!(cast.session(&session).await["instance"], uri.as_str());
    let waited = waiting.await.unwrap();
    assert_eq!((waited.status, &waited.json["state"]), (Some(0), &json!("sleeping")), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_come_to_nothing_say_so_by_their_exit_status() {
    let mut cast = Cast::start(1, &[], &[]).await;
    let uri = cast.uri(0);
    for command in ["drain", "sleep", "wake"] {
        let unknown = cast.kvsp(&[command, "http://127.0.0.1:9/kvsp/"]);
        assert_eq!(unknown.status, Some(5), "{command}: {unknown:?}");
        let nobody = outcome(&[command, uri.as_str(), "--controller", "http://127.0.0.1:9/kvsp/"]);
        assert_eq!(nobody.status, Some(3), "{command}: {nobody:?}");
        assert!(nobody.text.is_empty() && nobody.stderr.lines().count() == 1, "{nobody:?}");
        assert_eq!(outcome(&[command, "--controller", "http://127.0.0.1:9/kvsp/"]).status, Some(2));
        let help = outcome(&[command, "--help"]);
        assert!(help.status == Some(0) && help.text.contains(&format!("kvsp {command} ")), "{help:?}");
    }
    // An answer that does not end in time: the order stands.
    let question = changed(question(Sampling::Greedy), &json!({"max_tokens": 3000}));
    let mut stream = Stream::ask(&cast.gateway.base(), &question).await;
    stream.until(5).await;
    let late = cast.kvsp(&["drain", "--wait", "--wait-ms", "300", uri.as_str()]);
    assert_eq!(late.status, Some(1), "{late:?}");
    assert!(late.stderr.contains("still draining"), "{late:?}");
    // Somebody else changes his mind.
    let waiting = cast.kvsp_beside(&["drain", "--wait", uri.as_str()]);
    cast.is(0, "draining").await;
    eventually("another order", async || {
        let woken = cast.kvsp(&["wake", uri.as_str()]);
        (woken.status == Some(0) && cast.view(0).await["state"] == "active").then_some(())
    })
    .await;
    let waited = waiting.await.unwrap();
    assert!(matches!(waited.status, Some(0 | 1)), "{waited:?}");
    // It dies.
    let waiting = cast.kvsp_beside(&["sleep", "--wait", uri.as_str()]);
    cast.instances[0].kill();
    let waited = waiting.await.unwrap();
    assert_eq!(waited.status, Some(1), "{waited:?}");
    assert!(waited.stderr.contains("has failed"), "{waited:?}");
}
