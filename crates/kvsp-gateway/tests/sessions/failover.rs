//! Streams that break, repeat themselves, skip, or wake up late.

use kvsp_proto::message::SessionState;
use kvsp_proto::problem::ProblemType;
use serde_json::json;

use crate::controller::Controller;
use crate::instance::{Act, Instance, Reply, Sent, part_of, rest_of, tokens_of};
use crate::support::{Gateway, all_ids, chat, completion, error_of, ids, text_of};

const TEXT: &str = "abcdefgh";

/// A controller, and a gateway that asks it.
async fn setup() -> (Controller, Gateway) {
    let controller = Controller::start().await;
    let gateway = Gateway::start(&controller).await;
    (controller, gateway)
}

#[tokio::test]
async fn a_stream_cut_at_any_index_goes_on_at_the_next_instance() {
    let (controller, gateway) = setup().await;
    for cut in 0..=TEXT.len() {
        for how in [Act::Cut, Act::End] {
            let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, cut, how))]).await;
            let b = Instance::start(vec![Reply::Stream(rest_of(TEXT, 2, cut))]).await;
            controller.places_at(&a.base);
            controller.fails_over_to(&b.base);
            let events = gateway.completion(&json!({})).await.rest().await;
            assert_eq!(
                (text_of(&events), ids(&events)),
                (TEXT.into(), all_ids(TEXT).iter().map(|s| &**s).collect())
            );
            assert_eq!(b.asked_from(), [cut as u64]);
            controller.until_deleted().await;
            b.until_deleted().await;
        }
    }
    let cuts = 2 * (TEXT.len() + 1);
    assert_eq!(gateway.metric("kvsp_gateway_session_failovers_total").await, cuts as f64);
    // A cut after the last token makes no gap before another.
    assert_eq!(gateway.metric("kvsp_gateway_session_gap_seconds_count").await, (cuts - 2) as f64);
    assert_eq!(gateway.metric("kvsp_gateway_sessions").await, 0.0);
}

/// Where nothing was recorded the next instance knows nothing: the request goes there, and what was delivered
/// comes again, in the form of a whole answer and of a chat as well.
#[tokio::test]
async fn a_session_without_a_checkpoint_begins_anew_and_delivers_nothing_twice() {
    let (controller, gateway) = setup().await;
    for cut in [0, 1, 5, 8] {
        for (path, body) in [
            ("v1/completions", completion(&json!({"seed": 3}))),
            ("v1/chat/completions", chat(&json!({"seed": 3}))),
            ("v1/completions", completion(&json!({"stream": false, "stream_options": null}))),
            ("v1/chat/completions", chat(&json!({"stream": false, "stream_options": null}))),
        ] {
            let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, cut, Act::Cut))]).await;
            let unknown = Reply::Problem(ProblemType::SessionUnknown);
            let b = Instance::start(vec![unknown, Reply::Stream(rest_of(TEXT, 2, 0))]).await;
            controller.places_at(&a.base);
            controller.fails_over_to(&b.base);
            let text = if body["stream"] == true {
                text_of(&gateway.stream(path, &body).await.rest().await)
            } else {
                let (status, headers, answer) = gateway.whole(path, &body).await;
                assert_eq!(status, 200, "{answer}");
                assert!(headers.contains_key("kvsp-session"));
                assert_eq!(answer["usage"]["completion_tokens"], 8);
                assert_eq!(answer["choices"][0]["finish_reason"], "length");
                let choice = &answer["choices"][0];
                let text = choice.get("text").or(choice.pointer("/message/content"));
                text.and_then(|text| text.as_str()).unwrap().to_owned()
            };
            assert_eq!(text, TEXT);
            let begun = |instance: &Instance| {
                let of = |sent| {
                    if let Sent::Begin { epoch, body, .. } = sent { Some((epoch, body)) } else { None }
                };
                instance.sent().into_iter().filter_map(of).collect::<Vec<_>>()
            };
            let (first, second) = (begun(&a), begun(&b));
            assert_eq!((&*first[0].0, &*second[0].0), ("1", "2"));
            assert_eq!(first[0].1, second[0].1);
            assert_eq!(second.len(), 1);
        }
    }
}

/// The controller has raised the epoch, but not yet resumed the session: an instance that does not know it is
/// not sent the request, which would run beside what was recorded, and not reported either.
#[tokio::test]
async fn a_session_that_is_being_resumed_is_waited_for() {
    let (controller, gateway) = setup().await;
    let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, 3, Act::Hang))]).await;
    let b = Instance::start(vec![]).await;
    controller.places_at(&a.base);
    let mut stream = gateway.completion(&json!({})).await;
    let mut events = stream.take(3).await;
    controller.set(|facts| {
        (facts.epoch, facts.instance, facts.output_offset) = (2, Some(b.base.clone()), 2);
        facts.state = SessionState::Resuming;
    });
    controller.until("looks at a session that is being resumed", |facts| facts.looks >= 3).await;
    b.replies(Reply::Stream(rest_of(TEXT, 2, 3)));
    controller.set(|facts| facts.state = SessionState::Running);
    events.extend(stream.rest().await);
    assert_eq!(text_of(&events), TEXT);
    assert!(b.sent().iter().all(|sent| matches!(sent, Sent::Tokens { from: 3, .. } | Sent::Delete(_))));
    assert_eq!(controller.get(|facts| facts.reports.clone()), [0; 0]);
}

/// An instance that was only stopped wakes up: what it says in the old epoch is dropped, wherever it comes.
#[tokio::test]
async fn an_old_epoch_is_dropped() {
    let (controller, gateway) = setup().await;
    let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, 2, Act::Hang))]).await;
    let mut acts = Vec::new();
    for (index, octet) in TEXT.bytes().enumerate().skip(2) {
        acts.push(Act::Token(1, index as u64, b'x'));
        acts.push(Act::Comment);
        acts.push(Act::Token(2, index as u64, octet));
        acts.push(Act::Token(1, 0, b'z'));
        acts.push(Act::Done("stop", 1, 0));
    }
    acts.push(Act::Done("length", 2, 5));
    let b = Instance::start(vec![Reply::Stream(acts)]).await;
    controller.places_at(&a.base);
    let mut stream = gateway.completion(&json!({})).await;
    let mut events = stream.take(2).await;
    // No stream broke; the controller alone knows.
    controller.raise(&b.base);
    a.until_left().await;
    a.goes_on();
    events.extend(stream.rest().await);
    assert_eq!(text_of(&events), TEXT);
    assert_eq!(events[9].json()["usage"]["prompt_tokens_details"]["cached_tokens"], 5);
    assert_eq!(controller.get(|facts| facts.reports.len()), 0);
    assert_eq!(b.asked_from(), [2]);
}

#[tokio::test]
async fn a_duplicate_that_differs_ends_the_session() {
    let (controller, gateway) = setup().await;
    let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, 4, Act::Cut))]).await;
    let mut other = rest_of(TEXT, 2, 0);
    other[2] = Act::Token(2, 2, b'x');
    let b = Instance::start(vec![Reply::Problem(ProblemType::SessionUnknown), Reply::Stream(other)]).await;
    controller.places_at(&a.base);
    controller.fails_over_to(&b.base);
    let events = gateway.completion(&json!({})).await.rest().await;
    assert_eq!(events.len(), 5);
    assert_eq!(text_of(&events[..4]), "abcd");
    assert!(error_of(&events).contains("index 2"), "{events:?}");
    controller.until_deleted().await;
    b.until_deleted().await;
    assert_eq!(gateway.metric("kvsp_gateway_session_failures_total").await, 1.0);
}

#[tokio::test]
async fn a_gap_is_fetched() {
    let (controller, gateway) = setup().await;
    let mut acts = tokens_of(&TEXT[..2], 1, 0);
    acts.extend(rest_of(TEXT, 1, 4));
    let a = Instance::start(vec![Reply::Stream(acts), Reply::Stream(rest_of(TEXT, 1, 2))]).await;
    controller.places_at(&a.base);
    let events = gateway.completion(&json!({})).await.rest().await;
    assert_eq!(text_of(&events), TEXT);
    assert_eq!(a.asked_from(), [2]);
}

/// A broken connection is not a dead instance: where the controller finds it alive, it goes on there.
#[tokio::test]
async fn a_broken_connection_to_a_living_instance_is_made_again() {
    let (controller, gateway) = setup().await;
    let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, 3, Act::Cut))]).await;
    for (from, to) in [(3, 3), (3, 6), (6, 7)] {
        a.replies(Reply::Stream(part_of(TEXT, 1, from, to, Act::Cut)));
    }
    a.replies(Reply::Stream(rest_of(TEXT, 1, 7)));
    controller.places_at(&a.base);
    let events = gateway.completion(&json!({})).await.rest().await;
    assert_eq!(text_of(&events), TEXT);
    assert_eq!(a.asked_from(), [3, 3, 6, 7]);
    assert_eq!(controller.get(|facts| facts.reports.clone()), [1; 4]);
}

/// While nothing comes the client is told that the answer lives.
#[tokio::test]
async fn a_silent_instance_is_left_when_the_controller_says_so() {
    let (controller, gateway) = setup().await;
    let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, 3, Act::Hang))]).await;
    let b = Instance::start(vec![Reply::Stream(rest_of(TEXT, 2, 3))]).await;
    controller.places_at(&a.base);
    let mut stream = gateway.completion(&json!({})).await;
    let mut events = stream.take(3).await;
    let before = stream.comments;
    while stream.comments < before + 3 {
        stream.read().await.unwrap();
    }
    controller.raise(&b.base);
    events.extend(stream.rest().await);
    assert_eq!(text_of(&events), TEXT);
    a.until_left().await;
}

/// One failover after the other, the last instance's output ended by the second that was sent the rest.
#[tokio::test]
async fn a_session_moves_again_and_again() {
    let (controller, gateway) = setup().await;
    let mut instances = Vec::new();
    for index in 0..TEXT.len() {
        let acts = part_of(TEXT, index as u64 + 1, index, index + 1, Act::Cut);
        instances.push(Instance::start(vec![Reply::Stream(acts)]).await);
    }
    instances.push(Instance::start(vec![Reply::Stream(vec![Act::Done("stop", 9, 1)])]).await);
    controller.places_at(&instances[0].base);
    for instance in &instances[1..] {
        controller.fails_over_to(&instance.base);
    }
    let events = gateway.completion(&json!({})).await.rest().await;
    assert_eq!(text_of(&events), TEXT);
    assert_eq!(events[8].json()["choices"][0]["finish_reason"], "stop");
    assert_eq!(controller.get(|facts| facts.reports.clone()), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[tokio::test]
async fn an_instance_that_needs_the_prompt_is_given_it() {
    let (controller, gateway) = setup().await;
    let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, 5, Act::Cut))]).await;
    let b = Instance::start(vec![Reply::NeedsPrompt(rest_of(TEXT, 2, 5))]).await;
    controller.places_at(&a.base);
    controller.fails_over_to(&b.base);
    let events = gateway.completion(&json!({})).await.rest().await;
    assert_eq!(text_of(&events), TEXT);
    let prompt: Vec<u32> = crate::support::PROMPT.bytes().map(u32::from).collect();
    assert!(b.sent().contains(&Sent::Prompt(json!({"epoch": 2, "tokens": prompt}))));
}

#[tokio::test]
async fn a_session_that_fails_says_why() {
    let (controller, gateway) = setup().await;
    let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, 2, Act::Hang))]).await;
    controller.places_at(&a.base);
    let mut stream = gateway.completion(&json!({})).await;
    assert_eq!(text_of(&stream.take(2).await), "ab");
    controller.set(|facts| {
        (facts.epoch, facts.state) = (2, SessionState::Failed);
        facts.reason = Some("no instance is left".into());
    });
    let events = stream.rest().await;
    assert_eq!(events.len(), 1);
    assert!(error_of(&events).contains("no instance is left"));
    controller.until_deleted().await;
    // The whole answer's form of it.
    controller.places_at(&a.base);
    controller.set(|facts| (facts.state, facts.reason) = (SessionState::Running, None));
    a.replies(Reply::Stream(vec![Act::Cut]));
    controller.set(|facts| facts.on_report.push_back(None));
    let body = completion(&json!({"stream": false, "stream_options": null}));
    let failing = async {
        controller.until("a report", |facts| facts.reports.contains(&1)).await;
        controller.set(|facts| (facts.epoch, facts.state) = (2, SessionState::Failed));
    };
    let ((status, _, answer), ()) = tokio::join!(gateway.whole("v1/completions", &body), failing);
    assert_eq!((status, &answer["error"]["code"]), (502, &json!("upstream_failed")));
}

/// What the controller says of lower epochs, or again, changes nothing.
#[tokio::test]
async fn a_session_without_progress_is_given_up_in_time() {
    let controller = Controller::start().await;
    let gateway = Gateway::start_with(&controller, |config| config.stalled_ms = 300).await;
    let mut a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, 2, Act::Hang))]).await;
    controller.places_at(&a.base);
    let mut stream = gateway.completion(&json!({})).await;
    stream.take(2).await;
    a.die().await;
    let events = stream.rest().await;
    assert!(error_of(&events).contains("in time"), "{events:?}");
    assert!(controller.get(|facts| facts.reports.len()) > 1);
    controller.until_deleted().await;
}

#[tokio::test]
async fn the_controller_may_be_away_for_a_while() {
    let (controller, gateway) = setup().await;
    let mut acts = part_of(TEXT, 1, 0, 2, Act::Hang);
    acts.extend(part_of(TEXT, 1, 2, 4, Act::Cut));
    let a = Instance::start(vec![Reply::Stream(acts), Reply::Stream(part_of(TEXT, 1, 4, 6, Act::Cut))]).await;
    controller.places_at(&a.base);
    let mut stream = gateway.completion(&json!({})).await;
    let mut events = stream.take(2).await;
    controller.go().await;
    a.goes_on();
    events.extend(stream.take(4).await);
    let b = Instance::start(vec![Reply::Stream(rest_of(TEXT, 2, 6))]).await;
    controller.raise(&b.base);
    controller.come_back().await;
    events.extend(stream.rest().await);
    assert_eq!(text_of(&events), TEXT);
    controller.until_deleted().await;
}
