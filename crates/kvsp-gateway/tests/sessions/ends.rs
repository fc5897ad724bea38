//! Where answers end: stop strings, limits, ends that tell the usage.

use serde_json::json;

use crate::controller::Controller;
use crate::instance::{Act, Instance, Reply, Sent, part_of, rest_of, tokens_of};
use crate::support::{Gateway, completion, error_of, ids, text_of};

const TEXT: &str = "abcdefgh";

/// The stop string begins at one instance and ends at the next.
#[tokio::test]
async fn a_stop_string_holds_across_a_failover() {
    let controller = Controller::start().await;
    let gateway = Gateway::start(&controller).await;
    for cut in 0..TEXT.len() {
        let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, cut, Act::Cut))]).await;
        let mut acts = tokens_of(TEXT, 2, cut);
        acts.push(Act::Hang);
        let b = Instance::start(vec![Reply::Stream(acts)]).await;
        controller.places_at(&a.base);
        controller.fails_over_to(&b.base);
        let events = gateway.completion(&json!({"stop": ["defg", "zz"]})).await.rest().await;
        // Cut after its last letter, the stop string has ended the answer at the first instance.
        let last = if cut >= 7 { &a } else { &b };
        assert_eq!(ids(&events), ["1", "2", "3", "7:end", "7:usage", "7:done"], "{cut}");
        assert_eq!(text_of(&events), "abc");
        assert_eq!(events[3].json()["choices"][0]["finish_reason"], "stop");
        let usage = &events[4].json()["usage"];
        assert_eq!((&usage["completion_tokens"], &usage["prompt_tokens"]), (&json!(7), &json!(6)));
        controller.until_deleted().await;
        last.until_deleted().await;
        last.until_left().await;
        let begun = a.sent().into_iter().find_map(|sent| match sent {
            Sent::Begin { body, .. } => Some(body),
            _ => None,
        });
        assert_eq!(begun.unwrap().get("stop"), None, "the instance must not look for stop strings");
        controller.set(|facts| facts.on_report.clear());
    }
}

/// The limit holds whatever instances send.
#[tokio::test]
async fn the_limit_on_tokens_holds_across_a_failover() {
    let controller = Controller::start().await;
    let gateway = Gateway::start(&controller).await;
    for cut in 0..=5 {
        let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, cut, Act::Cut))]).await;
        let b = Instance::start(vec![Reply::Stream(rest_of(TEXT, 2, cut))]).await;
        controller.places_at(&a.base);
        controller.fails_over_to(&b.base);
        let events = gateway.completion(&json!({"max_tokens": 5})).await.rest().await;
        assert_eq!(ids(&events), ["1", "2", "3", "4", "5", "5:end", "5:usage", "5:done"], "{cut}");
        assert_eq!(text_of(&events), "abcde");
        assert_eq!(events[5].json()["choices"][0]["finish_reason"], "length");
        controller.until_deleted().await;
        controller.set(|facts| facts.on_report.clear());
    }
    let placed = controller.get(|facts| facts.placements.last().unwrap().clone());
    assert_eq!(placed["continuation"]["max_tokens"], 5);
}

/// The end may follow the last token, come without it, or not at all.
#[tokio::test]
async fn the_end_tells_the_usage() {
    let controller = Controller::start().await;
    let gateway = Gateway::start(&controller).await;
    let limit = json!({"max_tokens": 3});
    let told = |reused| {
        let mut acts = tokens_of("abc", 1, 0);
        acts.push(Act::Done("length", 1, reused));
        acts
    };
    let mut silent = tokens_of("abc", 1, 0);
    silent.push(Act::Hang);
    let mut early = silent.clone();
    early[0] = Act::First(1, b'a', 4);
    let four = json!({"cached_tokens": 4});
    for (acts, cached) in [(told(4), four.clone()), (early, four), (silent, json!(null))] {
        let a = Instance::start(vec![Reply::Stream(acts)]).await;
        controller.places_at(&a.base);
        let events = gateway.completion(&limit).await.rest().await;
        assert_eq!(text_of(&events), "abc");
        let usage = &events[4].json()["usage"];
        assert_eq!((&usage["total_tokens"], &usage["prompt_tokens_details"]), (&json!(9), &cached));
    }
    // Nothing at all is an answer, too.
    let a = Instance::start(vec![Reply::Stream(vec![Act::Done("stop", 1, 0)])]).await;
    controller.places_at(&a.base);
    let body = completion(&json!({"stream": false, "stream_options": null}));
    let (status, _, answer) = gateway.whole("v1/completions", &body).await;
    assert_eq!((status, &answer["choices"][0]["text"]), (200, &json!("")));
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

/// A token that has no text, and an end that is none.
#[tokio::test]
async fn output_that_cannot_be_told_ends_with_an_error() {
    let controller = Controller::start().await;
    let gateway = Gateway::start(&controller).await;
    let a = Instance::start(vec![Reply::Stream(vec![Act::Token(1, 0, b'a'), Act::Done("fire", 1, 0)])]).await;
    controller.places_at(&a.base);
    let events = gateway.completion(&json!({})).await.rest().await;
    assert!(error_of(&events).contains("fire"));
    controller.until_deleted().await;
}
