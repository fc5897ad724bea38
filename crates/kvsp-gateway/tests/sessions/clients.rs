//! Clients that come back, or do not.

use serde_json::json;

use crate::controller::Controller;
use crate::instance::{Act, Instance, Reply, Sent, part_of, rest_of, tokens_of};
use crate::support::{Event, Events, Gateway, chat, completion, ids, text_of};

const TEXT: &str = "one two";

/// An answer, part of which is held back until its end.
async fn setup() -> (Controller, Gateway, Instance) {
    let controller = Controller::start().await;
    let gateway = Gateway::start(&controller).await;
    let instance = Instance::start(vec![]).await;
    (controller, gateway, instance)
}

/// The whole answer, and what a client gets that comes back after each of its events, and after none.
async fn comes_back_everywhere(gateway: &Gateway, mut stream: Events) -> Vec<Event> {
    let all = stream.rest().await;
    let session = &stream.session;
    assert_eq!(gateway.follow(session, None).await.rest().await, all);
    for (at, event) in all.iter().enumerate() {
        let mut follower = gateway.follow(session, event.id.as_deref()).await;
        assert_eq!(follower.session, *session);
        assert_eq!(follower.rest().await, all[at + 1..], "after {event:?}");
    }
    all
}

#[tokio::test]
async fn a_client_comes_back_after_any_event() {
    let (controller, gateway, a) = setup().await;
    // The last letter is held back: a stop string may begin with it.
    let stop = json!({"stop": ["oX"]});
    let without_usage = json!({"stop": ["oX"], "stream_options": null});
    let mut seen = Vec::new();
    for (path, body) in [
        ("v1/completions", completion(&stop)),
        ("v1/completions", completion(&without_usage)),
        ("v1/chat/completions", chat(&stop)),
        ("v1/chat/completions", chat(&without_usage)),
    ] {
        controller.places_at(&a.base);
        a.replies(Reply::Stream(rest_of(TEXT, 1, 0)));
        let all = comes_back_everywhere(&gateway, gateway.stream(path, &body).await).await;
        assert_eq!(text_of(&all), TEXT);
        seen.push(ids(&all).join(" "));
        controller.until_deleted().await;
        a.until_deleted().await;
    }
    assert_eq!(
        seen,
        [
            "2 3 4 5 6 7:rest 7:end 7:usage 7:done",
            "2 3 4 5 6 7:rest 7:end 7:done",
            "0 2 3 4 5 6 7:rest 7:end 7:usage 7:done",
            "0 2 3 4 5 6 7:rest 7:end 7:done",
        ]
    );
}

/// The connection breaks while the answer is under way, after every event in turn.
#[tokio::test]
async fn a_client_comes_back_while_the_answer_goes_on() {
    let (controller, gateway, _) = setup().await;
    for before in 0..=TEXT.len() {
        let mut acts = part_of(TEXT, 1, 0, before, Act::Hang);
        acts.extend(rest_of(TEXT, 1, before));
        let a = Instance::start(vec![Reply::Stream(acts)]).await;
        controller.places_at(&a.base);
        let mut stream = gateway.completion(&json!({})).await;
        let mut events = stream.take(before).await;
        let session = stream.session.clone();
        drop(stream);
        let last = events.last().and_then(|event| event.id.clone());
        let mut stream = gateway.follow(&session, last.as_deref()).await;
        a.goes_on();
        events.extend(stream.rest().await);
        assert_eq!(text_of(&events), TEXT);
        assert_eq!(events.len(), TEXT.len() + 3);
        controller.until_deleted().await;
    }
}

#[tokio::test]
async fn two_clients_read_one_session_and_nine_do_not() {
    let (controller, gateway, a) = setup().await;
    let mut acts = part_of(TEXT, 1, 0, 3, Act::Hang);
    acts.extend(rest_of(TEXT, 1, 3));
    a.replies(Reply::Stream(acts));
    controller.places_at(&a.base);
    let first = gateway.completion(&json!({})).await;
    let session = first.session.clone();
    let mut readers = vec![first];
    for _ in 1..8 {
        readers.push(gateway.follow(&session, None).await);
    }
    assert_eq!(gateway.not_followed(&session, None).await, (503, json!("overloaded")));
    // One that leaves makes room for another.
    readers.pop();
    let mut late = loop {
        let answer = gateway.try_follow(&session, Some("3")).await;
        if let Some(events) = answer {
            break events;
        }
    };
    a.goes_on();
    for mut reader in readers {
        assert_eq!(text_of(&reader.rest().await), TEXT);
    }
    assert_eq!(text_of(&late.rest().await), &TEXT[3..]);
}

#[tokio::test]
async fn what_is_unknown_or_malformed_is_refused() {
    let (controller, gateway, a) = setup().await;
    let unknown = (404, json!("stream_not_found"));
    assert_eq!(gateway.not_followed("6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11", None).await, unknown);
    let malformed = (400, json!("invalid_request_error"));
    for bad in ["x", "6f1d0a9e2c554d7e9a0e5b7f2f9f6a11", "%00", "%ff"] {
        assert_eq!(gateway.not_followed(bad, None).await, malformed, "{bad}");
    }
    a.replies(Reply::Stream(rest_of(TEXT, 1, 0)));
    controller.places_at(&a.base);
    let mut stream = gateway.completion(&json!({})).await;
    for bad in ["x", "-1", "3:", "3:later", "99999999999999999999"] {
        assert_eq!(gateway.not_followed(&stream.session, Some(bad)).await, malformed, "{bad}");
    }
    assert_eq!(text_of(&stream.rest().await), TEXT);
    // The good one after the bad ones; a place that this answer never had is after all of its text.
    let session = stream.session.to_uppercase();
    assert_eq!(text_of(&gateway.follow(&session, Some("1")).await.rest().await), &TEXT[1..]);
    assert_eq!(text_of(&gateway.follow(&session, Some("99")).await.rest().await), "");
    assert_eq!(
        text_of(&gateway.follow(&session, Some("")).await.rest().await),
        TEXT,
        "an empty name is none"
    );
}

/// A client that does not come back in time: the session is ended everywhere.
#[tokio::test]
async fn a_session_nobody_reads_is_ended() {
    let controller = Controller::start().await;
    let gateway = Gateway::start_with(&controller, |config| config.reconnect_ms = 50).await;
    let a = Instance::start(vec![Reply::Stream(part_of(TEXT, 1, 0, 2, Act::Hang))]).await;
    controller.places_at(&a.base);
    let mut stream = gateway.completion(&json!({})).await;
    stream.take(2).await;
    let session = stream.session.clone();
    drop(stream);
    controller.until_deleted().await;
    a.until_deleted().await;
    a.until_left().await;
    assert_eq!(gateway.not_followed(&session, Some("2")).await, (404, json!("stream_not_found")));
    assert_eq!(gateway.metric("kvsp_gateway_sessions_abandoned_total").await, 1.0);
    // A client that waits for a whole answer has no way to come back.
    let gateway = Gateway::start(&controller).await;
    a.replies(Reply::Stream(vec![Act::Hang]));
    controller.places_at(&a.base);
    let body = completion(&json!({"stream": false, "stream_options": null}));
    let begun = a.until("the request", |sent| matches!(sent, Sent::Begin { body, .. } if body["seed"] == 77));
    let mut with_seed = body.clone();
    with_seed["seed"] = json!(77);
    tokio::select! {
        _ = gateway.whole("v1/completions", &with_seed) => panic!("no answer can come"),
        () = begun => {}
    }
    controller.until_deleted().await;
    a.until_left().await;
}

/// A client that does not read holds up nothing but itself: the instance has long been heard to the end.
#[tokio::test]
async fn a_slow_client_does_not_hold_the_session_up() {
    let controller = Controller::start().await;
    // Each event repeats the model's name, so that the answer is more than any socket takes.
    let name = "m".repeat(4000);
    let gateway = Gateway::start_with(&controller, |config| config.served_name = Some(name.clone())).await;
    let text: &str = &"0123456789".repeat(250);
    let mut acts = tokens_of(text, 1, 0);
    acts.push(Act::Done("length", 1, 0));
    let a = Instance::start(vec![Reply::Stream(acts)]).await;
    controller.places_at(&a.base);
    let body = completion(&json!({"model": name, "max_tokens": 4000}));
    let mut slow = gateway.stream("v1/completions", &body).await;
    assert_eq!(text_of(&slow.take(1).await), "0");
    a.until_left().await;
    // Another reads all of it meanwhile.
    let mut fast = gateway.follow(&slow.session, None).await;
    assert_eq!(text_of(&fast.rest().await), text);
    assert_eq!(text_of(&slow.rest().await), text[1..]);
}

/// Few polls at the controller are shared by more sessions; what the controller has forgotten still streams.
#[tokio::test]
async fn sessions_take_turns_to_ask_for_the_epoch() {
    let controller = Controller::start().await;
    let gateway = Gateway::start_with(&controller, |config| config.max_polls = 1).await;
    let hanging = |epoch, text| {
        let mut acts = part_of(text, epoch, 0, 2, Act::Hang);
        acts.extend(rest_of(text, epoch, 2));
        vec![Reply::Stream(acts)]
    };
    let (a, b) = (Instance::start(hanging(1, TEXT)).await, Instance::start(hanging(1, TEXT)).await);
    let c = Instance::start(vec![Reply::Stream(rest_of(TEXT, 2, 2))]).await;
    controller.places_at(&a.base);
    let mut forgotten = gateway.completion(&json!({})).await;
    controller.places_at(&b.base);
    let mut moved = gateway.completion(&json!({})).await;
    controller.raise(&c.base);
    assert_eq!(text_of(&moved.rest().await), TEXT);
    a.goes_on();
    assert_eq!(text_of(&forgotten.rest().await), TEXT);
}

/// An answer that has ended is kept for a while, and then is not.
#[tokio::test]
async fn an_ended_answer_is_kept_for_a_while() {
    let controller = Controller::start().await;
    let gateway = Gateway::start_with(&controller, |config| config.stream_retention_ms = 0).await;
    let a = Instance::start(vec![Reply::Stream(rest_of(TEXT, 1, 0))]).await;
    controller.places_at(&a.base);
    let mut stream = gateway.completion(&json!({})).await;
    assert_eq!(text_of(&stream.rest().await), TEXT);
    controller.until_deleted().await;
    while gateway.try_follow(&stream.session, None).await.is_some() {}
    assert_eq!(gateway.not_followed(&stream.session, None).await, (404, json!("stream_not_found")));
    // With room for one session an older answer makes room for the next.
    let gateway = Gateway::start_with(&controller, |config| config.max_sessions = 1).await;
    let mut sessions = Vec::new();
    for _ in 0..2 {
        a.replies(Reply::Stream(rest_of(TEXT, 1, 0)));
        controller.places_at(&a.base);
        let mut stream = loop {
            // The room of the session before comes free once it is ended everywhere.
            match gateway.try_stream("v1/completions", &completion(&json!({}))).await {
                Ok(stream) => break stream,
                Err((status, code)) => assert_eq!((status, code), (503, json!("overloaded"))),
            }
        };
        stream.rest().await;
        sessions.push(stream.session.clone());
    }
    controller.until_deleted().await;
    while gateway.try_follow(&sessions[0], None).await.is_some() {}
    assert_eq!(text_of(&gateway.follow(&sessions[1], None).await.rest().await), TEXT);
}
