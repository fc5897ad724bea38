//! A placement without capacity wakes an instance, and is sent its prefetch at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvsp_controller::ControllerConfig;
use kvsp_net::auth::Development;
use kvsp_proto::uri::BaseUri;
use serde_json::{Value, json};

use super::{in_state, path, publish, state_path, until};
use crate::instance::{Instance, Sent as ToInstance};
use crate::peer::{Peer, Sent, States};
use crate::support::{Server, compat, index, key, nowhere, placement, scope, status};

async fn server(index: Option<BaseUri>, acceptable_cost_ms: Option<u64>) -> Arc<Server> {
    let config = ControllerConfig { index, acceptable_cost_ms, ..ControllerConfig::default() };
    Arc::new(Server::with(config, Arc::new(Development::new())).await)
}

async fn asleep(server: &Server, peer: &Peer) {
    server.report(&in_state(peer.base.as_str(), 1, "sleeping")).await.ok();
}

fn active() -> Sent {
    Sent::State(json!({"state": "active"}))
}

/// So many placements at once.
fn place(server: &Arc<Server>, count: usize) -> tokio::task::JoinSet<Value> {
    let mut placing = tokio::task::JoinSet::new();
    for _ in 0..count {
        let server = Arc::clone(server);
        placing.spawn(async move { server.post("placements", &placement(0, 16)).await.ok() });
    }
    placing
}

#[tokio::test]
async fn a_sleeping_instance_is_woken_and_told_what_to_load_at_once() {
    let (index, _guard) = index().await;
    let server = server(Some(index.clone()), None).await;
    let mut peer = Peer::start().await;
    asleep(&server, &peer).await;
    publish(&server, &index, 0).await;
    let mut request = placement(1, 16);
    request["session"] = json!(true);
    let answer = server.post("placements", &request).await.ok();
    assert_eq!(answer["instance"], json!(peer.base));
    assert_eq!(answer["session"]["epoch"], 1);
    assert_eq!(peer.next().await, active());
    let Sent::Prefetch(directive) = peer.next().await else { panic!("a directive") };
    assert_eq!(directive["blocks"][0]["block_key"], key(0));
    let uri = format!("{}prefetch/{}", peer.base, directive["directive"].as_str().unwrap());
    assert_eq!(answer["prefetch"], uri);
    // Its answer counts: it has not reported since.
    let view = server.get(&path(peer.base.as_str())).await.ok();
    assert_eq!((&view["state"], &view["sessions"]), (&json!("active"), &json!(1)));
    assert_eq!(server.post("placements", &placement(0, 16)).await.ok()["instance"], json!(peer.base));
    assert_eq!(server.report(&status(peer.base.as_str(), 1)).await.ok(), json!({"state": "active"}));
    assert!(peer.sent.try_recv().is_err(), "woken once");
    assert!(server.metrics().await.contains("kvsp_controller_wakes_total{outcome=\"awake\"} 1"));
}

#[tokio::test]
async fn many_placements_wake_one_and_a_crowd_wakes_as_many_as_it_fills() {
    let server = server(None, None).await;
    let mut peers = [Peer::start().await, Peer::start().await, Peer::start().await];
    for peer in &peers {
        peer.answers_states(States::Holds);
        asleep(&server, peer).await;
    }
    let told = async |peers: &mut [Peer; 3]| {
        let mut told = Vec::new();
        for peer in peers {
            told.extend(peer.sent.try_recv().ok());
        }
        told.len()
    };
    // A batch is 8: up to there one is enough.
    let mut placing = place(&server, 8);
    let [one, two, three] = &mut peers;
    tokio::select! {
        sent = one.next() => assert_eq!(sent, active()),
        sent = two.next() => assert_eq!(sent, active()),
        sent = three.next() => assert_eq!(sent, active()),
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(told(&mut peers).await, 0, "nobody else");
    let mut more = place(&server, 4);
    let [one, two, three] = &mut peers;
    tokio::select! {
        sent = one.next() => assert_eq!(sent, active()),
        sent = two.next() => assert_eq!(sent, active()),
        sent = three.next() => assert_eq!(sent, active()),
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(told(&mut peers).await, 0, "12 fill two");
    peers.iter().for_each(|peer| peer.answers_states(States::Takes));
    let mut placed = std::collections::BTreeSet::new();
    while let Some(answer) = placing.join_next().await {
        placed.insert(answer.unwrap()["instance"].to_string());
    }
    while let Some(answer) = more.join_next().await {
        placed.insert(answer.unwrap()["instance"].to_string());
    }
    assert!((1..=2).contains(&placed.len()), "{placed:?}");
    assert_eq!(told(&mut peers).await, 0);
}

#[tokio::test]
async fn one_that_does_not_wake_is_passed_over() {
    let server = server(None, None).await;
    let (gone, mut stays, mut wakes) = (nowhere().await, Peer::start().await, Peer::start().await);
    stays.answers_states(States::Sleeps);
    server.report(&in_state(gone.as_str(), 1, "sleeping")).await.ok();
    asleep(&server, &stays).await;
    asleep(&server, &wakes).await;
    let answer = server.post("placements", &placement(0, 16)).await.ok();
    assert_eq!(answer["instance"], json!(wakes.base));
    assert_eq!(wakes.next().await, active());

    let server = self::server(None, None).await;
    asleep(&server, &stays).await;
    while stays.sent.try_recv().is_ok() {}
    let begun = Instant::now();
    let answer = server.post("placements", &placement(0, 16)).await;
    assert_eq!(answer.problem(), (503, "kvsp-no-capacity".into()));
    assert!(answer.headers.contains_key("retry-after"));
    assert!(begun.elapsed() < Duration::from_secs(5), "nothing is to be expected");
    assert_eq!(stays.next().await, active());
    let mut excluded = placement(0, 16);
    excluded["exclude"] = json!([wakes.base]);
    asleep(&server, &wakes).await;
    assert_eq!(
        server.post("placements", &excluded).await.problem().0,
        503,
        "not the one that refused before"
    );
    assert_eq!(server.post("placements", &placement(0, 16)).await.ok()["instance"], json!(wakes.base));
}

#[tokio::test]
async fn an_instance_of_another_compatibility_is_left_asleep() {
    let server = server(None, None).await;
    let mut other = Peer::start().await;
    let mut status = in_state(other.base.as_str(), 1, "sleeping");
    status["compat_ids"] = json!(["00".repeat(32)]);
    server.report(&status).await.ok();
    assert_eq!(server.post("placements", &placement(0, 16)).await.problem().0, 503);
    assert!(other.sent.try_recv().is_err());
}

#[tokio::test]
async fn where_the_best_costs_too_much_another_is_woken() {
    let server = server(None, Some(1_000)).await;
    let slow = "https://slow.example/";
    let mut status = status(slow, 1);
    status["prefill_tokens_per_s"] = json!(10);
    server.report(&status).await.ok();
    // 48 tokens take 4.8 s there. Nobody sleeps, so that is what there is.
    let begun = Instant::now();
    assert_eq!(server.post("placements", &placement(0, 48)).await.ok()["instance"], slow);
    let mut peer = Peer::start().await;
    asleep(&server, &peer).await;
    assert_eq!(server.post("placements", &placement(0, 48)).await.ok()["instance"], json!(peer.base));
    assert_eq!(peer.next().await, active());
    assert!(begun.elapsed() < Duration::from_secs(4));
    let cheap = server.post("placements", &placement(0, 9)).await.ok();
    assert!(peer.sent.try_recv().is_err(), "{cheap}");
    // One that does not wake: the expensive one is better than none.
    server.put(&state_path(peer.base.as_str()), &json!({"state": "sleeping"})).await.ok();
    assert_eq!(peer.next().await, Sent::State(json!({"state": "sleeping"})));
    peer.answers_states(States::Sleeps);
    assert_eq!(server.post("placements", &placement(0, 48)).await.ok()["instance"], slow);
    assert_eq!(peer.next().await, active());
}

#[tokio::test]
async fn a_session_that_lost_its_instance_wakes_another() {
    let server = server(None, None).await;
    let mut lost = status("https://lost.example/kvsp/", 1);
    lost["ttl_ms"] = json!(300);
    server.report(&lost).await.ok();
    let mut request = placement(0, 2);
    request["session"] = json!(true);
    let placed = server.post("placements", &request).await.ok();
    let session = placed["session"]["session"].as_str().unwrap().to_owned();
    let checkpoint = json!({
        "session": session, "epoch": 1, "compat_id": compat(), "scope_id": scope(),
        "prompt_blocks": [], "prompt_tail": [374, 264], "generated": [1, 2], "output_offset": 2,
        "sampler": {"method": "greedy", "params": {}, "seed": 7, "step": 2, "deterministic": false}
    });
    server.put(&format!("sessions/{session}/checkpoint"), &checkpoint).await.ok();
    let mut sleeps = Instance::start();
    server.report(&in_state(sleeps.base.as_str(), 1, "sleeping")).await.ok();
    assert_eq!(sleeps.next().await, ToInstance::State(json!({"state": "active"})));
    let resumed = sleeps.resumed(&session).await;
    assert_eq!((&resumed["epoch"], &resumed["checkpoint"]["generated"]), (&json!(2), &json!([1, 2])));
    until("it runs", async || server.get(&format!("sessions/{session}")).await.ok()["state"] == "running")
        .await;
}
