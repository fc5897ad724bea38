//! `drain --migrate`: sessions go on elsewhere, and lose no token.

use std::path::Path;
use std::sync::Arc;

use kvsp_controller::ControllerConfig;
use kvsp_net::auth::Development;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{in_state, path, state_path, until};
use crate::instance::{Answer, Instance, Sent};
use crate::support::{Server, compat, placement, scope, status};

async fn kept_in(folder: &Path) -> Server {
    let config = ControllerConfig { state: Some(folder.join("state")), ..ControllerConfig::default() };
    Server::with(config, Arc::new(Development::new())).await
}

/// A session with so many tokens recorded.
async fn place(server: &Server, tokens: u32) -> String {
    let mut wanted = placement(0, 2);
    wanted["session"] = json!(true);
    let placed = server.post("placements", &wanted).await.ok();
    let session = placed["session"]["session"].as_str().unwrap().to_owned();
    record(server, &session, 1, tokens).await.unwrap();
    session
}

/// The epoch that is acknowledged, or the problem.
async fn record(server: &Server, session: &str, epoch: u64, tokens: u32) -> Result<Value, (u16, String)> {
    let checkpoint = json!({
        "session": session, "epoch": epoch, "compat_id": compat(), "scope_id": scope(),
        "prompt_blocks": [], "prompt_tail": [374, 264],
        "generated": (0..tokens).collect::<Vec<_>>(), "output_offset": tokens,
        "sampler": {"method": "greedy", "params": {}, "seed": 7, "step": tokens, "deterministic": false}
    });
    let answer = server.put(&format!("sessions/{session}/checkpoint"), &checkpoint).await;
    if answer.status == 200 { Ok(answer.json()) } else { Err(answer.problem()) }
}

async fn view(server: &Server, session: &str) -> (u64, String, String) {
    let view = server.get(&format!("sessions/{session}")).await.ok();
    let text = |member: &str| view[member].as_str().unwrap().to_owned();
    (view["epoch"].as_u64().unwrap(), text("state"), text("instance"))
}

fn leave() -> Value {
    json!({"state": "draining", "migrate": true})
}

#[tokio::test]
async fn sessions_go_on_elsewhere_at_once() {
    let folder = TempDir::new().unwrap();
    let server = kept_in(folder.path()).await;
    let (mut old, mut new) = (Instance::start(), Instance::start());
    server.report(&status(old.base.as_str(), 1)).await.ok();
    let mut sessions = Vec::new();
    for n in 0..12 {
        sessions.push(place(&server, n).await);
    }
    server.report(&status(new.base.as_str(), 1)).await.ok();
    let counts = async || {
        let list = server.get("instances").await.ok();
        let of = |base: &str| {
            let all = list["instances"].as_array().unwrap();
            all.iter().find(|i| i["instance"] == base).unwrap()["sessions"].as_u64().unwrap()
        };
        (of(old.base.as_str()), of(new.base.as_str()))
    };
    assert_eq!(counts().await, (12, 0));
    let answer = server.put(&state_path(old.base.as_str()), &leave()).await.ok();
    assert_eq!(answer, json!({"state": "draining"}));
    until("all have left", async || counts().await == (0, 12)).await;
    assert_eq!(old.next().await, Sent::State(json!({"state": "draining"})), "the extension stays between us");
    for _ in &sessions {
        let Sent::Resume { session, body } = new.next().await else { panic!("a resume") };
        let tokens = sessions.iter().position(|of| *of == session).unwrap();
        assert_eq!((&body["epoch"], &body["checkpoint"]["output_offset"]), (&json!(2), &json!(tokens)));
    }
    for (session, tokens) in sessions.iter().zip(0..) {
        until("it runs", async || view(&server, session).await.1 == "running").await;
        assert_eq!(record(&server, session, 1, tokens + 1).await, Err((409, "kvsp-stale-epoch".into())));
        assert_eq!(record(&server, session, 2, tokens + 1).await.unwrap()["output_offset"], tokens + 1);
    }
    assert!(new.sent.try_recv().is_err(), "each once");
    assert!(old.sent.try_recv().is_err());
    assert_eq!(
        server.report(&in_state(old.base.as_str(), 1, "sleeping")).await.ok(),
        json!({"state": "sleeping"})
    );
}

#[tokio::test]
async fn where_nobody_else_is_there_it_is_finished_where_it_is_until_somebody_comes() {
    let folder = TempDir::new().unwrap();
    let server = kept_in(folder.path()).await;
    let (old, mut new) = (Instance::start(), Instance::start());
    server.report(&status(old.base.as_str(), 1)).await.ok();
    let session = place(&server, 3).await;
    server.put(&state_path(old.base.as_str()), &leave()).await.ok();
    let drains = in_state(old.base.as_str(), 1, "draining");
    for tokens in 4..8 {
        assert_eq!(server.report(&drains).await.ok(), json!({"state": "draining"}));
        assert_eq!(record(&server, &session, 1, tokens).await.unwrap()["output_offset"], tokens);
    }
    let stays = (1, "running".to_owned(), old.base.as_str().to_owned());
    assert_eq!(view(&server, &session).await, stays);
    // That it is to be left is remembered over a restart of the controller, and done once somebody can take it.
    server.stop().await.unwrap();
    let server = kept_in(folder.path()).await;
    server.report(&drains).await.ok();
    assert_eq!(view(&server, &session).await, stays);
    server.report(&status(new.base.as_str(), 1)).await.ok();
    let resumed = async {
        loop {
            server.report(&drains).await.ok();
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let body = tokio::select! {
        body = new.resumed(&session) => body,
        () = resumed => unreachable!(),
    };
    assert_eq!((&body["epoch"], &body["checkpoint"]["output_offset"]), (&json!(2), &json!(7)));
}

#[tokio::test]
async fn a_target_that_refuses_is_followed_by_another_and_a_drain_without_migrate_moves_nothing() {
    let folder = TempDir::new().unwrap();
    let server = kept_in(folder.path()).await;
    let (old, mut one, mut two) = (Instance::start(), Instance::start(), Instance::start());
    server.report(&status(old.base.as_str(), 1)).await.ok();
    let session = place(&server, 3).await;
    one.will_answer(Answer::problem(409, "kvsp-instance-not-active"));
    two.will_answer(Answer::problem(409, "kvsp-instance-not-active"));
    server.report(&status(one.base.as_str(), 1)).await.ok();
    server.report(&status(two.base.as_str(), 1)).await.ok();
    let orders = state_path(old.base.as_str());
    server.put(&orders, &json!({"state": "draining"})).await.ok();
    server.report(&in_state(old.base.as_str(), 1, "draining")).await.ok();
    assert_eq!(view(&server, &session).await.0, 1);
    assert!(one.sent.try_recv().is_err() && two.sent.try_recv().is_err());
    server.put(&orders, &leave()).await.ok();
    let (a, b) = tokio::join!(one.resumed(&session), two.resumed(&session));
    let mut epochs = [a["epoch"].as_u64().unwrap(), b["epoch"].as_u64().unwrap()];
    epochs.sort_unstable();
    assert_eq!(epochs, [2, 3], "each attempt has its own");
    until("it runs", async || view(&server, &session).await.1 == "running").await;
    assert!(view(&server, &session).await.0 > 3);
    // Told to be active again nothing leaves any more.
    server.put(&orders, &json!({"state": "active"})).await.ok();
    assert_eq!(server.get(&path(old.base.as_str())).await.ok()["wanted"], "active");
}
