//! Asleep and awake by command, by need, and by an instance's own wish.

use kvsp_proto::uri::BaseUri;
use serde_json::json;

use crate::cast::Cast;
use crate::command::{order, run, settings};
use crate::stream::{Sampling, changed, question};
use crate::support::{MODEL, complete, eventually, get, metric, post};

async fn state(cast: &Cast, base: &BaseUri) -> String {
    let list = get(&cast.controller.base(), "instances").await.ok();
    let views = list["instances"].as_array().unwrap();
    let view = views.iter().find(|view| view["instance"] == base.as_str()).expect("it has reported");
    view["state"].as_str().unwrap().to_owned()
}

async fn becomes(cast: &Cast, base: &BaseUri, wanted: &str) {
    eventually(wanted, async || (state(cast, base).await == wanted).then_some(())).await;
}

#[tokio::test]
async fn by_command() {
    let cast = Cast::start(&settings(2)).await;
    let prompt = "What a sleeping instance holds stays served. ".repeat(4);
    let [a, b] = [0, 1].map(|at: usize| cast.instances[at].base());
    assert_eq!(order(&cast, &["sleep", "--wait"], &b).await, "sleeping");
    let (first, cached) = complete(&cast.gateway.base(), &prompt).await;
    assert_eq!(cached, 0);
    let body = json!({"model": MODEL, "prompt": "x", "max_tokens": 1});
    let refused = post(&b, "v1/completions", &body).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.json()["type"].as_str().unwrap().ends_with("#kvsp-instance-not-active"), "{refused:?}");
    // The other way round: what A has computed is served while it sleeps, and B loads it.
    assert_eq!(order(&cast, &["wake", "--wait"], &b).await, "active");
    let index = cast.index.uri("admin");
    let replicas = prompt.len() as u64 / 16 * 2;
    eventually("the prompt's blocks at the index", async || {
        (metric(&index, "kvsp_index_replicas").await >= replicas).then_some(())
    })
    .await;
    assert_eq!(order(&cast, &["sleep", "--wait"], &a).await, "sleeping");
    let (again, cached) = complete(&cast.gateway.base(), &prompt).await;
    assert_eq!(again, first);
    assert!(cached > 0, "nothing of what the sleeping one computed was used");
    let (status, told) = run(&cast, &["status"]).await;
    assert_eq!(status, 0, "{told}");
    let text = told.to_string();
    assert!(text.contains(a.as_str()) && text.contains("sleeping"), "{told}");
    let (status, _) = run(&cast, &["wake", "http://127.0.0.1:9/kvsp/"]).await;
    assert_eq!(status, 5, "an instance that nobody knows");
}

/// No active instance is left: the next request wakes one.
#[tokio::test]
async fn a_request_wakes_who_sleeps() {
    let cast = Cast::start(&settings(2)).await;
    let prompt = "Who sleeps is woken when there is need. ".repeat(4);
    let (first, _) = complete(&cast.gateway.base(), &prompt).await;
    for instance in &cast.instances {
        assert_eq!(order(&cast, &["sleep", "--wait"], &instance.base()).await, "sleeping");
    }
    let (again, _) = complete(&cast.gateway.base(), &prompt).await;
    assert_eq!(again, first);
    let mut awake = 0;
    for instance in &cast.instances {
        awake += u64::from(state(&cast, &instance.base()).await == "active");
    }
    assert_eq!(awake, 1, "one was enough");
}

/// An instance without work asks to sleep, the last active one in vain.
#[tokio::test]
async fn by_its_own_wish() {
    let mut settings = settings(2);
    settings.instance = "sleep_after_ms = 600\n".to_owned();
    let cast = Cast::start(&settings).await;
    let [a, b] = [0, 1].map(|at: usize| cast.instances[at].base());
    eventually("one asleep", async || {
        (state(&cast, &a).await == "sleeping" || state(&cast, &b).await == "sleeping").then_some(())
    })
    .await;
    let awake = if state(&cast, &a).await == "sleeping" { &b } else { &a };
    // It goes on asking, and serves.
    let long = changed(question(Sampling::Greedy), &json!({"max_tokens": 400}));
    cast.ask(&long).await.whole().await;
    becomes(&cast, awake, "active").await;
}
