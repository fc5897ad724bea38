//! The start hook: what it is run with, how often, and what becomes of the placement.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvsp_controller::{ControllerConfig, StartSettings};
use kvsp_net::auth::Development;
use kvsp_proto::uri::BaseUri;
use serde_json::json;
use tempfile::TempDir;

use super::{publish, until};
use crate::peer::{Peer, Sent};
use crate::support::{Server, compat, index, placement, status};

async fn server(index: Option<BaseUri>, start: StartSettings) -> Arc<Server> {
    let config = ControllerConfig { index, start, ..ControllerConfig::default() };
    Arc::new(Server::with(config, Arc::new(Development::new())).await)
}

/// A program of the operator's, which is a script here; `$0` is the file that it is given.
fn script(text: &str, file: &Path) -> Vec<String> {
    ["/bin/sh", "-c", text, file.to_str().unwrap()].map(str::to_owned).to_vec()
}

fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

async fn written(file: &Path) -> Vec<String> {
    until("the hook ran", async || !lines(file).is_empty()).await;
    lines(file)
}

#[tokio::test]
async fn a_placement_waits_for_the_instance_that_is_started_and_loads_at_once() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("ran");
    let (index, _guard) = index().await;
    let text =
        "printf '%s %s\\n' \"$KVSP_CONTROLLER\" \"$KVSP_COMPAT_ID\" >> \"$0\"; echo said; echo too >&2";
    let command = script(text, &file);
    let server = server(Some(index.clone()), StartSettings { command, ..StartSettings::default() }).await;
    publish(&server, &index, 0).await;
    let mut placing = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let server = Arc::clone(&server);
        placing.spawn(async move { server.post("placements", &placement(1, 16)).await });
    }
    assert_eq!(written(&file).await, [format!("{} {}", server.base, compat())]);
    assert!(placing.try_join_next().is_none(), "they wait");
    let mut other = status("https://other.example/", 1);
    other["compat_ids"] = json!(["00".repeat(32)]);
    server.report(&other).await.ok();
    let mut peer = Peer::start().await;
    server.report(&status(peer.base.as_str(), 1)).await.ok();
    while let Some(answer) = placing.join_next().await {
        let answer = answer.unwrap().ok();
        assert_eq!(answer["instance"], json!(peer.base));
        assert!(answer["prefetch"].is_string(), "{answer}");
        assert!(matches!(peer.next().await, Sent::Prefetch(_)));
    }
    assert_eq!(lines(&file).len(), 1, "one for all");
    let metrics = server.metrics().await;
    for step in ["begun", "reported"] {
        assert!(metrics.contains(&format!("kvsp_controller_starts_total{{step=\"{step}\"}} 1")), "{metrics}");
    }
}

#[tokio::test]
async fn arguments_are_no_shells() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("a b; $(false) *'\"");
    let command = vec!["touch".to_owned(), file.to_str().unwrap().to_owned()];
    let start = StartSettings { command, wait_ms: 10, ..StartSettings::default() };
    let server = server(None, start).await;
    assert_eq!(server.post("placements", &placement(0, 16)).await.problem().0, 503);
    until("the file is there", async || file.exists()).await;
}

#[tokio::test]
async fn a_start_that_does_not_come_in_time_is_no_capacity() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("ran");
    let command = script("echo ran >> \"$0\"", &file);
    let start = StartSettings { command, wait_ms: 300, min_interval_ms: 0, ..StartSettings::default() };
    let server = server(None, start).await;
    for _ in 0..2 {
        let begun = Instant::now();
        let answer = server.post("placements", &placement(0, 16)).await;
        assert_eq!(answer.problem(), (503, "kvsp-no-capacity".into()));
        assert!(answer.headers.contains_key("retry-after"));
        assert!(begun.elapsed() >= Duration::from_millis(300));
    }
    assert_eq!(lines(&file).len(), 1, "the first is still awaited");
    server.report(&status("https://late.example/", 1)).await.ok();
    assert_eq!(server.post("placements", &placement(0, 16)).await.status, 200);
}

#[tokio::test]
async fn a_hook_that_fails_is_not_run_again_at_once() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("ran");
    let command = script("echo ran >> \"$0\"; exit 3", &file);
    let start = StartSettings { command, wait_ms: 150, min_interval_ms: 60_000, ..StartSettings::default() };
    let server = server(None, start).await;
    for _ in 0..3 {
        assert_eq!(server.post("placements", &placement(0, 16)).await.problem().0, 503);
    }
    assert_eq!(lines(&file).len(), 1);
    assert!(server.metrics().await.contains("kvsp_controller_starts_total{step=\"failed\"} 1"));

    let again = folder.path().join("again");
    let command = script("echo ran >> \"$0\"; exit 3", &again);
    let start = StartSettings { command, wait_ms: 5_000, min_interval_ms: 50, ..StartSettings::default() };
    let server = self::server(None, start).await;
    let placing = tokio::spawn({
        let server = Arc::clone(&server);
        async move { server.post("placements", &placement(0, 16)).await }
    });
    until("it is tried again", async || lines(&again).len() >= 3).await;
    server.report(&status("https://i.example/", 1)).await.ok();
    assert_eq!(placing.await.unwrap().status, 200);
}

#[tokio::test]
async fn a_program_that_is_not_there_is_no_capacity() {
    let command = vec!["/nonexistent/kvsp-start".to_owned()];
    let start = StartSettings { command, wait_ms: 100, ..StartSettings::default() };
    let server = server(None, start).await;
    assert_eq!(
        server.post("placements", &placement(0, 16)).await.problem(),
        (503, "kvsp-no-capacity".into())
    );
    server.report(&status("https://i.example/", 1)).await.ok();
    assert_eq!(server.post("placements", &placement(0, 16)).await.status, 200, "the next good one");
}

#[tokio::test]
async fn starts_and_the_fleet_are_bounded() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("ran");
    let start = |max_starts, max_instances| StartSettings {
        command: script("echo ran >> \"$0\"", &file),
        max_starts,
        max_instances,
        min_interval_ms: 0,
        wait_ms: 100,
        ..StartSettings::default()
    };
    let other = |n: usize| {
        let mut other = placement(0, 16);
        other["compat_id"] = json!(format!("{n:064x}"));
        other
    };
    let server = server(None, start(2, 9)).await;
    for n in 0..4 {
        assert_eq!(server.post("placements", &other(n)).await.problem().0, 503);
    }
    until("the hooks ran", async || lines(&file).len() >= 2).await;
    assert_eq!(lines(&file).len(), 2, "each compatibility one, but two at most");

    let server = self::server(None, start(9, 1)).await;
    let mut lives = status("https://i.example/", 1);
    lives["compat_ids"] = json!([format!("{:064x}", 9)]);
    server.report(&lives).await.ok();
    assert_eq!(server.post("placements", &other(1)).await.problem().0, 503);
    assert_eq!(lines(&file).len(), 2, "the fleet is as large as it may be");
}

#[tokio::test]
async fn a_hook_that_stays_outlives_the_controller() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("pid");
    let command = script("echo $$ > \"$0\"; exec sleep 600", &file);
    let start = StartSettings { command, wait_ms: 50, ..StartSettings::default() };
    let server = server(None, start).await;
    assert_eq!(server.post("placements", &placement(0, 16)).await.problem().0, 503);
    let pid = written(&file).await.remove(0);
    let command = Path::new("/proc").join(&pid).join("cmdline");
    Arc::into_inner(server).unwrap().stop().await.unwrap();
    assert_eq!(std::fs::read(command).unwrap(), b"sleep\x00600\x00", "a zombie's would be empty");
    assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
}
