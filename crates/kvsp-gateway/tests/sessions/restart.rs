//! A gateway that is started again goes on with the sessions of the one before.

use kvsp_proto::problem::ProblemType;
use serde_json::json;

use crate::controller::Controller;
use crate::instance::{Act, Instance, Reply, part_of, rest_of};
use crate::support::{Event, Gateway, chat, completion, error_of, ids, text_of};

const TEXT: &str = "abcdefgh";

#[tokio::test]
async fn a_client_goes_on_at_a_gateway_that_was_started_again() {
    let controller = Controller::start().await;
    for (path, body) in [
        ("v1/completions", completion(&json!({"stop": ["hX"]}))),
        ("v1/chat/completions", chat(&json!({"stop": ["hX"]}))),
    ] {
        let mut acts = part_of(TEXT, 1, 0, 4, Act::Hang);
        acts.extend(rest_of(TEXT, 1, 4));
        let a = Instance::start(vec![Reply::Stream(acts)]).await;
        controller.places_at(&a.base);
        let gateway = Gateway::start(&controller).await;
        let mut stream = gateway.stream(path, &body).await;
        let opening = usize::from(path.contains("chat"));
        let mut events = stream.take(opening + 4).await;
        let session = stream.session.clone();
        gateway.stop().await;
        assert_eq!(stream.next().await, None);
        assert!(controller.get(|facts| facts.deleted.is_empty() || !facts.deleted.contains(&facts.session)));

        let gateway = Gateway::start(&controller).await;
        a.replies(Reply::Stream(rest_of(TEXT, 1, 0)));
        let mut stream = gateway.follow(&session, Some("4")).await;
        events.extend(stream.rest().await);
        assert_eq!(a.asked_from(), [0]);
        assert_eq!(text_of(&events), TEXT);
        let mut expected = vec!["1", "2", "3", "4", "5", "6", "7", "8:rest", "8:end", "8:usage", "8:done"];
        if opening == 1 {
            expected.insert(0, "0");
        }
        assert_eq!(ids(&events), expected);
        // As if nothing had happened: the same name, time and usage.
        let id = |event: &Event| event.json()["id"].as_str().unwrap().to_owned();
        assert_eq!(id(&events[0]), id(&events[opening + 9]));
        assert_eq!(events[opening + 9].json()["usage"]["total_tokens"], 14);
        controller.until_deleted().await;
        a.until_deleted().await;
    }
}

/// The instance dies as well, with a checkpoint: the session goes on, from its first token for this gateway.
#[tokio::test]
async fn both_may_die() {
    let controller = Controller::start().await;
    let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, 4, Act::Hang))]).await;
    let b = Instance::start(vec![Reply::Stream(part_of(TEXT, 2, 0, 6, Act::Cut))]).await;
    let c = Instance::start(vec![Reply::Stream(rest_of(TEXT, 3, 6))]).await;
    controller.places_at(&a.base);
    let gateway = Gateway::start(&controller).await;
    let mut stream = gateway.completion(&json!({})).await;
    let mut events = stream.take(4).await;
    gateway.stop().await;
    controller.raise(&b.base);
    controller.fails_over_to(&c.base);
    let gateway = Gateway::start(&controller).await;
    let mut stream = gateway.follow(&stream.session, Some("4")).await;
    events.extend(stream.rest().await);
    assert_eq!(text_of(&events), TEXT);
    assert_eq!((b.asked_from(), c.asked_from()), (vec![0], vec![6]));
}

/// What only the first gateway had is lost with it; that is said, and the session ended.
#[tokio::test]
async fn a_lost_prompt_is_told() {
    let controller = Controller::start().await;
    for reply in [Reply::NeedsPrompt(vec![]), Reply::Problem(ProblemType::SessionUnknown)] {
        let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, 4, Act::Hang))]).await;
        let b = Instance::start(vec![reply]).await;
        controller.places_at(&a.base);
        let gateway = Gateway::start(&controller).await;
        let mut stream = gateway.completion(&json!({})).await;
        stream.take(4).await;
        gateway.stop().await;
        controller.raise(&b.base);
        let gateway = Gateway::start(&controller).await;
        let events = gateway.follow(&stream.session, Some("4")).await.rest().await;
        assert!(error_of(&events).contains("lost with the gateway"), "{events:?}");
        controller.until_deleted().await;
    }
}

#[tokio::test]
async fn what_the_controller_does_not_know_is_unknown() {
    let controller = Controller::start().await;
    let gateway = Gateway::start(&controller).await;
    let a = Instance::start(vec![Reply::Stream(rest_of(TEXT, 1, 0))]).await;
    controller.places_at(&a.base);
    let mut stream = gateway.completion(&json!({})).await;
    stream.rest().await;
    controller.until_deleted().await;
    gateway.stop().await;
    let gateway = Gateway::start(&controller).await;
    let unknown = (404, json!("stream_not_found"));
    assert_eq!(gateway.not_followed(&stream.session, Some("1")).await, unknown);
    controller.go().await;
    let away = (502, json!("upstream_failed"));
    assert_eq!(gateway.not_followed(&stream.session, Some("1")).await, away);
    // A gateway without sessions has no streams.
    let gateway = Gateway::start_with(&controller, |config| config.sessions = false).await;
    assert_eq!(gateway.not_followed(&stream.session, None).await, unknown);
}
