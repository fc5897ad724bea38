//! Random histories: noisy streams that break anywhere, instances that are left at any moment, clients that come
//! and go. `KVSP_SOAK_OPS` sets the number of histories, `KVSP_SEED` replays one.

use kvsp_net::random::{Random as _, SeededRandom};
use serde_json::json;

use crate::controller::Controller;
use crate::instance::{Instance, Reply};
use crate::support::{Gateway, all_ids, ids, text_of};

const TEXT: &str = "the quick brown fox jumps over the lazy dog";
/// Instances of a history.
const INSTANCES: usize = 4;
/// Connections that each of them answers in one history; far more than breaks are likely.
const REPLIES: u64 = 60;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// One history: what clients got in the end is the text, each token once.
async fn history(seed: u64) {
    let random = SeededRandom::new(seed);
    let upto = |n: u64| random.u64() % n;
    let controller = Controller::start().await;
    let mut gateway = Gateway::start(&controller).await;
    let mut instances = Vec::new();
    for epoch in 1..=INSTANCES as u64 {
        let reply = |_| Reply::Noisy { text: TEXT, epoch, seed: random.u64() };
        instances.push(Instance::start((0..REPLIES).map(reply).collect()).await);
    }
    controller.places_at(&instances[0].base);
    for instance in &instances[1..] {
        for _ in 0..upto(4) {
            controller.set(|facts| facts.on_report.push_back(None));
        }
        controller.fails_over_to(&instance.base);
    }
    let mut stream = gateway.completion(&json!({})).await;
    let session = stream.session.clone();
    let mut events = Vec::new();
    let mut stopped = false;
    loop {
        let part = 1 + upto(12);
        let mut ended = false;
        for _ in 0..part {
            match stream.next().await {
                Some(event) => events.push(event),
                None => ended = true,
            }
        }
        if ended {
            break;
        }
        if upto(8) == 0 {
            gateway.stop().await;
            // What is on its way still arrives.
            events.extend(stream.rest().await);
            if events.last().is_some_and(|event| event.data == "[DONE]") {
                stopped = true;
                break;
            }
            gateway = Gateway::start(&controller).await;
        }
        let last = events.last().and_then(|event| event.id.clone());
        drop(stream);
        stream = gateway.follow(&session, last.as_deref()).await;
    }
    assert_eq!(text_of(&events), TEXT);
    assert_eq!(ids(&events), all_ids(TEXT));
    // A gateway that stops just as it sends the last event cannot know that the client got it.
    if !stopped {
        controller.until_deleted().await;
    }
}

#[tokio::test]
async fn random_histories_deliver_every_token_once() {
    let (first, count) = match number("KVSP_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("KVSP_SOAK_OPS").map_or(12, |ops| ops.div_ceil(100))),
    };
    for seed in first..first + count {
        eprintln!("a history; again with KVSP_SEED={seed}");
        history(seed).await;
    }
}
