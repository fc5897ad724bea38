//! `kvsp demo`: it shows what it should, and leaves no process behind, however it ends.

use std::process::{Child, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{eventually, kvsp, signal, wait};

/// A demo whose processes carry a mark in their environment.
struct Marked {
    mark: String,
    demo: Child,
    /// Its place for temporary files.
    temporary: TempDir,
}

impl Marked {
    fn start() -> Self {
        let mark = format!("KVSP_TEST_MARK={}", uuid::Uuid::new_v4());
        let (name, value) = mark.split_once('=').unwrap();
        let temporary = TempDir::new().unwrap();
        let demo = kvsp()
            .args(["demo", "--model", "tiny", "--json"])
            .env(name, value)
            .env("TMPDIR", temporary.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { mark, demo, temporary }
    }

    /// Processes with the mark that have not ended.
    fn alive(&self) -> Vec<u32> {
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let process: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let environment = std::fs::read(format!("/proc/{process}/environ")).ok()?;
            let marked = environment.split(|octet| *octet == 0).any(|v| v == self.mark.as_bytes());
            marked.then_some(process)
        });
        processes.collect()
    }

    /// Its logs and its scope key.
    fn files(&self) -> usize {
        std::fs::read_dir(self.temporary.path()).unwrap().count()
    }

    async fn in_the_middle(&self) {
        eventually("the demo's services", async || (self.alive().len() >= 4).then_some(())).await;
    }

    async fn none_left(&self) {
        eventually("the end of all processes", async || self.alive().is_empty().then_some(())).await;
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        let _ = self.demo.kill();
        let _ = self.demo.wait();
    }
}

#[tokio::test]
async fn the_demo_shows_that_the_cache_is_reused() {
    let mut marked = Marked::start();
    let stdout = marked.demo.stdout.take().unwrap();
    let report = std::thread::spawn(move || std::io::read_to_string(stdout).unwrap());
    let status = wait(&mut marked.demo).expect("the demo ends");
    assert!(marked.alive().is_empty(), "a process outlived the demo");
    assert_eq!(marked.files(), 0);
    let report: Value = serde_json::from_str(&report.join().unwrap()).unwrap();
    assert_eq!(status.code(), Some(0), "{report:#}");
    assert_eq!(report["ok"], true);
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() >= 8 && checks.iter().all(|check| check["holds"] == true), "{checks:#?}");
    assert!(report["octets_fetched"].as_u64() > Some(0));
    assert_eq!(report["octets_fetched"], report["octets_verified"]);
    let failover = &report["failover"];
    assert_eq!(failover["text"], failover["text_uninterrupted"]);
    let number = |member: &str| failover[member].as_f64().unwrap();
    assert!(number("epoch") >= 2.0 && number("gap_ms") > 0.0, "{failover}");
    assert!(number("killed_at_token") >= 1.0 && number("killed_at_token") < number("tokens"), "{failover}");
    let reshard = &report["reshard"];
    assert_eq!(reshard["text"], reshard["text_alone"]);
    let changes = reshard["changes"].as_array().unwrap();
    let sizes: Vec<_> =
        changes.iter().map(|c| (c["from"].as_u64().unwrap(), c["to"].as_u64().unwrap())).collect();
    assert_eq!(sizes, [(3, 2), (2, 1), (1, 3)]);
    for change in changes {
        assert!(
            change["octets_fetched"].as_u64() > Some(0) && change["pause_ms"].as_f64() > Some(0.0),
            "{change}"
        );
    }
    let answers = report["answers"].as_array().unwrap();
    assert_eq!(answers[0]["text"], answers[1]["text"]);
    assert_eq!(
        (&answers[0]["cached_tokens"], answers[1]["cached_tokens"].as_u64() > Some(0)),
        (&0.into(), true)
    );
}

#[tokio::test]
async fn an_interrupted_demo_stops_its_services() {
    for how in [Signal::SIGINT, Signal::SIGTERM] {
        let mut marked = Marked::start();
        marked.in_the_middle().await;
        signal(marked.demo.id(), how);
        let status = wait(&mut marked.demo).expect("the demo ends");
        assert_eq!(status.code(), Some(1));
        assert!(marked.alive().is_empty(), "a process outlived the demo");
        assert_eq!(marked.files(), 0);
    }
}

#[tokio::test]
async fn the_services_of_a_demo_that_was_killed_end_by_themselves() {
    let mut marked = Marked::start();
    marked.in_the_middle().await;
    signal(marked.demo.id(), Signal::SIGKILL);
    wait(&mut marked.demo).expect("the demo ends");
    marked.none_left().await;
}
