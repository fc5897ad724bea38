//! An instance that is not dead: stopped for longer than the TTL, or cut off from its controller. What it says
//! afterwards counts for nothing.

use nix::sys::signal::Signal;
use serde_json::json;

use crate::cast::{Cast, Instance};
use crate::stream::{BOTH, Sampling, assert_equal};
use crate::support::{JSON, PATIENCE, eventually, get, metric, send, signal};

#[tokio::test]
async fn stopped_for_longer_than_its_ttl() {
    let cast = Cast::start().await;
    for sampling in BOTH {
        let (whole, stream, session) = cast.begin(sampling).await;
        let old = &cast.instances[cast.serving(&session).await];
        signal(old.process.id(), Signal::SIGSTOP);
        let before = old.relay.answers().len();
        let heard = stream.whole().await;
        signal(old.process.id(), Signal::SIGCONT);
        assert_equal(&heard, &whole, &format!("{sampling:?}, stopped"));
        assert!(cast.moves(&session).await >= 1);
        cast.two_active().await;
        refused(old, &session, before).await;
    }
}

/// It wakes up while the other one is at work.
#[tokio::test]
async fn stopped_and_awake_before_the_end() {
    let cast = Cast::start().await;
    for sampling in BOTH {
        let (whole, stream, session) = cast.begin(sampling).await;
        let had = stream.tokens();
        let old = &cast.instances[cast.serving(&session).await];
        signal(old.process.id(), Signal::SIGSTOP);
        let before = old.relay.answers().len();
        eventually("a raised epoch", async || {
            (cast.session(&session).await["epoch"].as_u64() > Some(1)).then_some(())
        })
        .await;
        let path = format!("sessions/{session}/checkpoint");
        let sampler = json!({"method": "greedy", "seed": 0, "step": 1, "deterministic": true});
        let late = json!({"epoch": 1, "from_offset": 0, "append": [1], "sampler": sampler}).to_string();
        let answer = send(&cast.controller.base(), "PATCH", &path, &[JSON], late).await;
        assert_eq!(answer.status, 409, "{answer:?}");
        assert!(answer.json()["type"].as_str().unwrap().ends_with("#kvsp-stale-epoch"), "{answer:?}");
        signal(old.process.id(), Signal::SIGCONT);
        assert_equal(&stream.whole().await, &whole, &format!("{sampling:?}, awake at token {had}"));
        cast.two_active().await;
        refused(old, &session, before).await;
    }
}

/// A partition in one direction: the controller and the gateway reach the instance, which reaches no controller.
#[tokio::test]
async fn cut_off_from_its_controller() {
    let cast = Cast::start().await;
    for sampling in BOTH {
        let (whole, stream, session) = cast.begin(sampling).await;
        let old = &cast.instances[cast.serving(&session).await];
        old.relay.cut(true);
        let before = old.relay.answers().len();
        let heard = stream.whole().await;
        old.relay.cut(false);
        assert_equal(&heard, &whole, &format!("{sampling:?}, cut off"));
        // What is deterministic is released without the controller, and may be delivered to its end.
        assert!(cast.moves(&session).await >= 1 || sampling == Sampling::Greedy);
        cast.two_active().await;
        refused(old, &session, before).await;
    }
}

/// Of all that the old instance said since it was stopped nothing was recorded, and it serves the session no more.
async fn refused(old: &Instance, session: &str, before: usize) {
    // One was on its way before, and counts.
    let later = old.relay.answers().split_off(before);
    let taken = later.iter().filter(|status| **status == 200).count();
    assert!(taken <= 1, "an old epoch is recorded: {later:?}");
    assert!(later.iter().all(|status| matches!(status, 200 | 404 | 409)), "{later:?}");
    let (base, path) = (old.process.base(), format!("sessions/{session}/tokens?from=0"));
    eventually("the end of the session at the old instance", async || {
        let answer = tokio::time::timeout(PATIENCE, get(&base, &path)).await.expect("its stream ends");
        (answer.status != 200 || !answer.text().contains("\"done\"")).then_some(())
    })
    .await;
    let admin = old.process.uri("admin");
    eventually("the end of its work on the session", async || {
        (metric(&admin, "kvsp_instance_sessions").await == 0).then_some(())
    })
    .await;
}
