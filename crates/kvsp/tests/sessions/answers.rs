//! Answers of every kind go on: stopped by a string, as a chat, in one piece, and many at once.

use serde_json::{Value, json};

use crate::cast::Cast;
use crate::relay::{Blow, Moment};
use crate::stream::{BOTH, Event, Sampling, assert_equal, changed, question, text};
use crate::support::post;

/// Hears an answer once as it is and once with its instance killed at token `after`; both are equal.
async fn interrupted(cast: &mut Cast, question: &Value, after: u64) -> Vec<Event> {
    let whole = cast.ask_for(question).await.whole().await;
    let mut stream = cast.ask_for(question).await;
    let session = stream.session();
    stream.until(after).await;
    let serving = cast.serving(&session).await;
    cast.instances[serving].process.kill();
    assert_equal(&stream.whole().await, &whole, &question.to_string());
    assert!(cast.moves(&session).await >= 1);
    cast.revive(serving).await;
    whole
}

#[tokio::test]
async fn a_stop_string_is_found_over_a_failover() {
    let mut cast = Cast::start().await;
    for sampling in BOTH {
        let said: Vec<char> = text(&cast.whole(sampling).await).chars().collect();
        // A piece of the answer's second half that is nowhere before: it begins at one instance or the other.
        let stop = (said.len() * 6 / 10..said.len() - 5).find_map(|at| {
            let piece: String = said[at..at + 5].iter().collect();
            let before: String = said[..at + 4].iter().collect();
            (!before.contains(&piece)).then_some(piece)
        });
        let stop = stop.expect("an answer that does not only repeat itself");
        let stopped = changed(question(sampling), &json!({"stop": [stop]}));
        let heard = interrupted(&mut cast, &stopped, 20).await;
        let told = text(&heard);
        assert!(!told.contains(&stop) && !told.is_empty(), "{stop:?} in {told:?}");
        let finish: Value = serde_json::from_str(&heard[heard.len() - 3].data).unwrap();
        assert_eq!(finish["choices"][0]["finish_reason"], "stop", "{finish}");
    }
}

#[tokio::test]
async fn a_chat_goes_on_and_its_end_has_places_too() {
    let mut cast = Cast::start().await;
    let mut chat = question(Sampling::Sampled);
    let members = chat.as_object_mut().unwrap();
    let prompt = members.remove("prompt").unwrap();
    members.insert("messages".to_owned(), json!([{"role": "user", "content": prompt}]));
    let heard = interrupted(&mut cast, &chat, 30).await;
    let ends: Vec<&str> = heard.iter().filter_map(|event| Some(event.id.split_once(':')?.1)).collect();
    assert!(ends.ends_with(&["end", "usage", "done"]), "{ends:?}");
}

#[tokio::test]
async fn an_answer_in_one_piece_goes_on() {
    let mut cast = Cast::start().await;
    for sampling in BOTH {
        let whole = text(&cast.whole(sampling).await);
        let plain = changed(question(sampling), &json!({"stream": false, "stream_options": null}));
        cast.plan.arm(Some(Blow { checkpoint: 3, moment: Moment::Unacknowledged }));
        let answer = post(&cast.gateway.base(), "v1/completions", &plain).await.ok();
        assert!(!cast.plan.is_armed(), "nobody was killed");
        assert_eq!(answer["choices"][0]["text"], whole.as_str(), "{sampling:?}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        let dead = (0..2).filter(|&at| !cast.instances[at].process.is_alive()).collect::<Vec<_>>();
        assert_eq!(dead.len(), 1);
        cast.revive(dead[0]).await;
    }
}

/// All sessions of an instance are lost with it, and each goes on.
#[tokio::test]
async fn many_answers_at_once() {
    const MANY: u64 = 8;
    let mut cast = Cast::start().await;
    let ask = |seed: u64| changed(question(Sampling::Sampled), &json!({"seed": seed}));
    let mut wholes = Vec::new();
    for seed in 0..MANY {
        wholes.push(cast.ask_for(&ask(seed)).await.whole().await);
    }
    let mut streams = Vec::new();
    for seed in 0..MANY {
        streams.push(cast.ask_for(&ask(seed)).await);
    }
    let first = streams.first_mut().unwrap();
    first.until(20).await;
    let serving = cast.serving(&first.session()).await;
    cast.instances[serving].process.kill();
    let mut moved = 0;
    for (stream, whole) in streams.into_iter().zip(&wholes) {
        let session = stream.session();
        assert_equal(&stream.whole().await, whole, "one of many");
        moved += u64::from(cast.moves(&session).await >= 1);
    }
    assert!(moved >= 1, "nobody went on elsewhere");
    cast.revive(serving).await;
}
