//! What outlives the controller's process, and what must not outlive a session.

use std::fs;
use std::path::Path;

use kvsp_controller::ControllerConfig;
use serde_json::json;
use tempfile::TempDir;

use super::{Fixture, TTL, append, checkpoint, checkpoint_path, config, path, place, reaches, wanted};
use crate::instance::Instance;

fn kept_in(folder: &Path) -> ControllerConfig {
    ControllerConfig { state: Some(folder.join("state")), ..config() }
}

#[tokio::test]
async fn sessions_survive_a_restart() {
    let folder = TempDir::new().unwrap();
    let mut instance = Instance::start();
    let fixture = Fixture::start(kept_in(folder.path())).await;
    fixture.report(instance.base.as_str(), 1).await;
    let (with, without) = (place(&fixture.server).await, place(&fixture.server).await);
    let (failed_over, ended) = (place(&fixture.server).await, place(&fixture.server).await);
    fixture.server.put(&checkpoint_path(&with), &checkpoint(&with, 1, 63)).await.ok();
    fixture.server.patch(&checkpoint_path(&with), &append(1, 63, 130)).await.ok();
    fixture.server.put(&checkpoint_path(&failed_over), &checkpoint(&failed_over, 1, 7)).await.ok();
    fixture.server.put(&checkpoint_path(&ended), &checkpoint(&ended, 1, 7)).await.ok();
    assert_eq!(fixture.server.delete(&path(&ended)).await.status, 204);
    fixture.server.post(&format!("{}/failover", path(&failed_over)), &json!({"epoch": 1})).await;
    instance.next().await;
    fixture.server.stop().await.unwrap();

    let fixture = Fixture::start(kept_in(folder.path())).await;
    let server = &fixture.server;
    assert_eq!(server.get(&checkpoint_path(&with)).await.ok(), checkpoint(&with, 1, 130));
    assert_eq!(server.get(&format!("{}/continuation", path(&with))).await.ok(), wanted()["continuation"]);
    let view = server.get(&path(&without)).await.ok();
    assert_eq!(
        (&view["epoch"], &view["state"], &view["output_offset"]),
        (&json!(1), &json!("running"), &json!(0))
    );
    assert_eq!(server.get(&path(&ended)).await.ok()["state"], "done");
    assert_eq!(server.get(&checkpoint_path(&ended)).await.problem(), (404, "kvsp-session-unknown".into()));
    assert_eq!(server.get("sessions").await.ok()["sessions"].as_array().unwrap().len(), 4);
    // The instance has one TTL to report, and then goes on as before.
    fixture.clock.advance(TTL / 2);
    fixture.report(instance.base.as_str(), 1).await;
    fixture.clock.advance(TTL / 2);
    assert_eq!(
        fixture.server.patch(&checkpoint_path(&with), &append(1, 130, 131)).await.ok()["output_offset"],
        131
    );
    let placed = place(&fixture.server).await;
    assert!(![&with, &without, &failed_over, &ended].contains(&&placed));
}

#[tokio::test]
async fn an_instance_that_died_with_the_controller_is_found_lost_after_its_ttl() {
    let folder = TempDir::new().unwrap();
    let fixture = Fixture::start(kept_in(folder.path())).await;
    fixture.report("https://lost.example/kvsp/", 1).await;
    let session = place(&fixture.server).await;
    fixture.server.put(&checkpoint_path(&session), &checkpoint(&session, 1, 70)).await.ok();
    fixture.server.stop().await.unwrap();

    let fixture = Fixture::start(kept_in(folder.path())).await;
    let mut other = Instance::start();
    fixture.clock.advance(TTL / 2);
    fixture.report(other.base.as_str(), 1).await;
    assert_eq!(fixture.server.get(&path(&session)).await.ok()["epoch"], 1);
    fixture.clock.advance(TTL / 2);
    let resume = other.resumed(&session).await;
    assert_eq!((&resume["epoch"], &resume["checkpoint"]), (&json!(2), &checkpoint(&session, 1, 70)));
    reaches(&fixture.server, &session, "running").await;
    fixture.server.stop().await.unwrap();

    let fixture = Fixture::start(kept_in(folder.path())).await;
    let view = fixture.server.get(&path(&session)).await.ok();
    assert_eq!(
        (&view["epoch"], &view["instance"], &view["state"]),
        (&json!(2), &json!(other.base), &json!("running"))
    );
    let stale = fixture.server.put(&checkpoint_path(&session), &checkpoint(&session, 1, 71)).await;
    assert_eq!(stale.problem(), (409, "kvsp-stale-epoch".into()), "the epoch has survived, too");
}

#[tokio::test]
async fn an_instance_that_restarted_meanwhile_has_lost_its_sessions() {
    let folder = TempDir::new().unwrap();
    let mut instance = Instance::start();
    let fixture = Fixture::start(kept_in(folder.path())).await;
    fixture.report(instance.base.as_str(), 1).await;
    let session = place(&fixture.server).await;
    fixture.server.put(&checkpoint_path(&session), &checkpoint(&session, 1, 3)).await.ok();
    fixture.server.stop().await.unwrap();
    let fixture = Fixture::start(kept_in(folder.path())).await;
    fixture.report(instance.base.as_str(), 2).await;
    assert_eq!(instance.resumed(&session).await["epoch"], 2);
}

#[tokio::test]
async fn a_second_controller_is_refused() {
    let folder = TempDir::new().unwrap();
    let first = Fixture::start(kept_in(folder.path())).await;
    first.server.get("sessions").await.ok();
    let second = Fixture::launch(kept_in(folder.path())).await;
    let error = second.server.ended().await.expect_err("the folder is in use").to_string();
    assert!(error.contains("another controller has them open"), "{error}");
    first.server.get("sessions").await.ok();
    first.server.stop().await.unwrap();
    let third = Fixture::start(kept_in(folder.path())).await;
    third.server.get("sessions").await.ok();
}

#[tokio::test]
async fn another_key_does_not_open_the_sessions() {
    let folder = TempDir::new().unwrap();
    let first = Fixture::start(kept_in(folder.path())).await;
    first.report("https://i1.example/kvsp/", 1).await;
    place(&first.server).await;
    first.server.stop().await.unwrap();
    fs::remove_file(folder.path().join("state/key")).unwrap();
    let second = Fixture::launch(kept_in(folder.path())).await;
    assert!(second.server.ended().await.is_err());
}

/// Octets that stand for a session's secrets in a form that nothing else has.
struct Secrets {
    tokens: Vec<[u8; 4]>,
    texts: Vec<Vec<u8>>,
}

impl Secrets {
    fn found_in(&self, folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().path();
            let octets = fs::read(&file).unwrap();
            // Three tokens in a row do not come about by chance.
            let run: Vec<u8> = self.tokens.concat();
            let reversed: Vec<u8> = self.tokens.iter().flat_map(|t| t.iter().rev().copied()).collect();
            for secret in self.texts.iter().chain([&run, &reversed]) {
                if octets.windows(secret.len()).any(|window| window == secret.as_slice()) {
                    found.push(format!("{secret:?} in {}", file.display()));
                }
            }
        }
        found
    }
}

#[tokio::test]
async fn nothing_of_a_session_is_in_clear_on_the_disk() {
    let folder = TempDir::new().unwrap();
    let fixture = Fixture::start(kept_in(folder.path())).await;
    let Fixture { server, .. } = &fixture;
    fixture.report("https://i1.example/kvsp/", 1).await;
    let mut secret = wanted();
    secret["continuation"] = json!({"front_end": "a-secret-continuation"});
    let placed = server.post("placements", &secret).await.ok();
    let session = placed["session"]["session"].as_str().unwrap().to_owned();
    let tokens: Vec<u32> = (0..70).map(|n| 0x5ec2_e700 + n).collect();
    let mut body = checkpoint(&session, 1, 70);
    body["generated"] = json!(tokens);
    body["prompt_tail"] = json!([1_234_567_891_u32, 987_654_321]);
    server.put(&checkpoint_path(&session), &body).await.ok();
    let secrets = Secrets {
        tokens: tokens[..3].iter().map(|token| token.to_be_bytes()).collect(),
        texts: [&b"a-secret-continuation"[..], b"1234567891", b"prompt_tail", b"lost.example", b"i1.example"]
            .map(<[u8]>::to_vec)
            .to_vec(),
    };
    let state = folder.path().join("state");
    assert_eq!(secrets.found_in(&state), Vec::<String>::new(), "while it runs");
    assert_eq!(server.delete(&path(&session)).await.status, 204);
    assert_eq!(secrets.found_in(&state), Vec::<String>::new(), "after its end");
    fixture.server.stop().await.unwrap();
    assert_eq!(secrets.found_in(&state), Vec::<String>::new(), "after the controller's");
    let fixture = Fixture::start(kept_in(folder.path())).await;
    assert_eq!(fixture.server.get(&checkpoint_path(&session)).await.problem().0, 404, "erased");
}
