//! Instances that sleep at their own wish, as far as the controller's policy lets them.

use std::time::Duration;

use serde_json::json;

use crate::cast::Cast;
use crate::support::{MODEL, eventually, post};

async fn states(cast: &Cast) -> Vec<String> {
    let mut states = Vec::new();
    for at in 0..cast.instances.len() {
        states.push(cast.view(at).await["state"].as_str().unwrap().to_owned());
    }
    states
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiet_instances_sleep_until_the_least_number_is_left() {
    let cast = Cast::start(3, &["--sleep-after-ms", "300"], &["--min-active", "1"]).await;
    let asleep = async || states(&cast).await.iter().filter(|state| *state == "sleeping").count();
    eventually("two that sleep", async || (asleep().await == 2).then_some(())).await;
    // The last one asks again and again, and stays.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let states = states(&cast).await;
    assert_eq!(states.iter().filter(|state| *state == "active").count(), 1, "{states:?}");
    let body = json!({"model": MODEL, "prompt": "Who is awake?", "max_tokens": 4});
    post(&cast.gateway.base(), "v1/completions", &body).await.ok();

    let sleeper = states.iter().position(|state| state == "sleeping").unwrap();
    let uri = cast.uri(sleeper);
    assert_eq!(cast.kvsp(&["wake", "--wait", uri.as_str()]).status, Some(0));
    post(&uri, "v1/completions", &body).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_to_sleep_needs_no_wish() {
    let cast = Cast::start(2, &[], &[]).await;
    let uri = cast.uri(1);
    let slept = cast.kvsp(&["sleep", "--wait", uri.as_str()]);
    assert_eq!((slept.status, &slept.json), (Some(0), &json!({"instance": uri, "state": "sleeping"})));
    let text = crate::support::run(&["status", "--controller", cast.controller.base().as_str()]);
    let text = String::from_utf8(text.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with(uri.as_str())).unwrap();
    assert!(line.contains("sleeping, epoch "), "{text}");
}
