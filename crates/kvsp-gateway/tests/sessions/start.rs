//! The first request of a session, and answers without one.

use kvsp_proto::message::SessionState;
use kvsp_proto::problem::ProblemType;
use kvsp_proto::uri::BaseUri;
use serde_json::json;

use crate::controller::Controller;
use crate::instance::{Act, Instance, Reply, Sent, part_of, rest_of};
use crate::support::{Gateway, completion, text_of};

const TEXT: &str = "abcdefgh";

/// The base URI of an address where nothing listens.
async fn nowhere() -> BaseUri {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}/kvsp/", listener.local_addr().unwrap()).parse().unwrap()
}

#[tokio::test]
async fn a_session_is_placed_and_begun() {
    let controller = Controller::start().await;
    let gateway = Gateway::start(&controller).await;
    let a = Instance::start(vec![Reply::Stream(rest_of(TEXT, 1, 0))]).await;
    controller.places_at(&a.base);
    let mut stream = gateway.completion(&json!({"max_tokens": 20, "stop": "X"})).await;
    assert_eq!(text_of(&stream.rest().await), TEXT);
    let placed = controller.get(|facts| facts.placements[0].clone());
    assert_eq!((&placed["session"], &placed["continuation"]["max_tokens"]), (&json!(true), &json!(20)));
    let front_end = &placed["continuation"]["front_end"];
    assert_eq!((&front_end["form"], &front_end["stops"]), (&json!("completion"), &json!(["X"])));
    let Sent::Begin { session, epoch, map: None, body } = &a.sent()[0] else { panic!("{:?}", a.sent()) };
    assert_eq!((session, &**epoch), (&stream.session, "1"));
    let prompt: Vec<u32> = crate::support::PROMPT.bytes().map(u32::from).collect();
    assert_eq!((&body["prompt"], &body["max_tokens"]), (&json!(prompt), &json!(20)));
}

/// A context that is split: the instance is told the map with the request, and so is the next one, where the session
/// begins anew there.
#[tokio::test]
async fn the_map_of_a_split_context_goes_with_the_request() {
    let controller = Controller::start().await;
    controller.set(|facts| facts.splits = true);
    let gateway = Gateway::start(&controller).await;
    let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, 3, Act::Cut))]).await;
    let unknown = Reply::Problem(ProblemType::SessionUnknown);
    let b = Instance::start(vec![unknown, Reply::Stream(rest_of(TEXT, 2, 0))]).await;
    controller.places_at(&a.base);
    controller.fails_over_to(&b.base);
    let mut stream = gateway.completion(&json!({})).await;
    assert_eq!(text_of(&stream.rest().await), TEXT);
    for instance in [&a, &b] {
        let sent = instance.sent();
        let map =
            sent.iter().find_map(|sent| if let Sent::Begin { map, .. } = sent { map.as_ref() } else { None });
        assert_eq!(map, Some(&stream.session), "{sent:?}");
    }
}

/// Instances that do not take the request: each one's session is ended, and the next is another's.
#[tokio::test]
async fn a_request_that_is_refused_is_placed_again() {
    let controller = Controller::start().await;
    let gateway = Gateway::start(&controller).await;
    let full = Instance::start(vec![Reply::Problem(ProblemType::Overloaded)]).await;
    let gone = nowhere().await;
    let good = Instance::start(vec![Reply::Stream(rest_of(TEXT, 1, 0))]).await;
    for instance in [&gone, &full.base, &good.base] {
        controller.places_at(instance);
    }
    let events = gateway.completion(&json!({})).await.rest().await;
    assert_eq!(text_of(&events), TEXT);
    controller.until("three sessions' ends", |facts| facts.deleted.len() == 3).await;
    let excluded = controller.get(|facts| facts.placements[2]["exclude"].clone());
    assert_eq!(excluded, json!([gone, full.base]));
    // Nobody takes it: the client hears so, and no session is left.
    for _ in 0..3 {
        controller.places_at(&nowhere().await);
    }
    let (status, _, answer) = gateway.whole("v1/completions", &completion(&json!({}))).await;
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("overloaded")));
    controller.until("six sessions' ends", |facts| facts.deleted.len() == 6).await;
}

/// What an instance finds wrong with a request goes to the client as it is.
#[tokio::test]
async fn a_bad_request_is_told_and_its_session_ended() {
    let controller = Controller::start().await;
    let gateway = Gateway::start(&controller).await;
    let error = json!({"error": {
        "message": "too long", "type": "invalid_request_error", "param": "prompt", "code": "context_length_exceeded"
    }});
    let a = Instance::start(vec![Reply::Error(400, error.clone())]).await;
    controller.places_at(&a.base);
    let (status, _, answer) = gateway.whole("v1/completions", &completion(&json!({}))).await;
    assert_eq!((status, answer), (400, error));
    controller.until_deleted().await;
}

/// An instance that takes a request and stops before it answers is given up when the controller says so.
#[tokio::test]
async fn an_instance_that_dies_before_its_answer_is_left() {
    let controller = Controller::start().await;
    let gateway = Gateway::start(&controller).await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_base = format!("http://{}/kvsp/", silent.local_addr().unwrap()).parse().unwrap();
    let a = Instance::start(vec![Reply::Stream(rest_of(TEXT, 1, 0))]).await;
    controller.places_at(&silent_base);
    controller.places_at(&a.base);
    let moving = async {
        let (_connection, _) = silent.accept().await.unwrap();
        controller.set(|facts| (facts.epoch, facts.state) = (2, SessionState::Resuming));
        controller.until("the next placement", |facts| facts.placements.len() == 2).await;
    };
    let answering = async { gateway.completion(&json!({})).await.rest().await };
    let (events, ()) = tokio::join!(answering, moving);
    assert_eq!(text_of(&events), TEXT);
    controller.until("both sessions' ends", |facts| facts.deleted.len() == 2).await;
}

/// Without sessions, at the controller's choice or the gateway's, answers are as they always were.
#[tokio::test]
async fn an_answer_without_a_session_is_passed_on() {
    let controller = Controller::start().await;
    controller.set(|facts| facts.offers_sessions = false);
    let gateway = Gateway::start(&controller).await;
    let without = Gateway::start_with(&controller, |config| config.sessions = false).await;
    let chunk = |text: &str, reason: Option<&str>| {
        json!({"id": "x", "object": "text_completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "text": text, "logprobs": null, "finish_reason": reason}]})
    };
    for gateway in [&gateway, &without] {
        let a = Instance::start(vec![Reply::Raw(vec![chunk("ab", None), chunk("", Some("stop"))])]).await;
        controller.places_at(&a.base);
        let mut stream = gateway.completion(&json!({"stop": "X"})).await;
        assert_eq!(stream.session, "");
        let events = stream.rest().await;
        assert_eq!(text_of(&events), "ab");
        assert_eq!((events.len(), &*events[2].data), (3, "[DONE]"));
        assert!(events.iter().all(|event| event.id.is_none()));
        let [Sent::Plain(body)] = &a.sent()[..] else { panic!("{:?}", a.sent()) };
        assert_eq!(body["stop"], "X");
    }
    assert_eq!(controller.get(|facts| facts.placements[0]["session"].clone()), true);
    assert_eq!(controller.get(|facts| facts.placements[1].get("session").cloned()), None);
}
