//! Sessions: checkpoints, failover and what survives (draft section 6.8, profile sections 5 to 7).

mod checkpoints;
mod failover;
mod probes;
mod restart;
mod rights;
mod views;

use std::sync::Arc;
use std::time::Duration;

use kvsp_controller::{ControllerConfig, SessionSettings};
use kvsp_core::time::Time;
use kvsp_net::auth::Development;
use kvsp_net::clock::ManualClock;
use serde_json::{Value, json};

use crate::support::{Server, compat, key, placement, scope, status};

/// Below the second of silence that counts as a stall, so that one step of the clock lets a status expire.
const TTL_MS: u64 = 800;
const TTL: Duration = Duration::from_millis(TTL_MS);

/// A controller whose clock stands until it is advanced.
struct Fixture {
    server: Server,
    clock: Arc<ManualClock>,
}

impl Fixture {
    async fn start(config: ControllerConfig) -> Self {
        let fixture = Self::launch(config).await;
        // Once it answers its sessions are there, and count from this moment of the clock.
        fixture.server.get("").await.ok();
        fixture
    }

    /// One that may not come up.
    async fn launch(config: ControllerConfig) -> Self {
        let clock = Arc::new(ManualClock::new(Time::from_millis(1_000)));
        let server = Server::at(config, Arc::new(Development::new()), clock.clone()).await;
        Self { server, clock }
    }

    /// A status of an instance, which then lasts for [`TTL`].
    async fn report(&self, instance: &str, epoch: u64) {
        let mut status = status(instance, epoch);
        status["ttl_ms"] = json!(TTL_MS);
        self.server.report(&status).await.ok();
    }
}

fn config() -> ControllerConfig {
    let sessions = SessionSettings { attempt_timeout_ms: 300, probe_timeout_ms: 200, ..Default::default() };
    ControllerConfig { sessions, ..ControllerConfig::default() }
}

/// A placement that asks for a session.
fn wanted() -> Value {
    let mut wanted = placement(2, 34);
    wanted["session"] = json!(true);
    wanted["continuation"] = json!({"max_tokens": 100, "front_end": {"of": ["ours"]}});
    wanted
}

/// Places a session; its identifier.
async fn place(server: &Server) -> String {
    let answer = server.post("placements", &wanted()).await.ok();
    assert_eq!(answer["session"]["epoch"], 1, "{answer}");
    answer["session"]["session"].as_str().unwrap().to_owned()
}

/// A checkpoint of the first `tokens` output tokens, which are 100, 101, …
fn checkpoint(session: &str, epoch: u64, tokens: u32) -> Value {
    json!({
        "session": session, "epoch": epoch, "compat_id": compat(), "scope_id": scope(),
        "prompt_blocks": [key(0), key(1)], "prompt_tail": [374, 264],
        "generated": (100..100 + tokens).collect::<Vec<_>>(), "output_offset": tokens,
        "sampler": sampler(tokens)
    })
}

/// More tokens behind the first `from`.
fn append(epoch: u64, from: u32, to: u32) -> Value {
    json!({
        "epoch": epoch, "from_offset": from, "append": (100 + from..100 + to).collect::<Vec<_>>(),
        "sampler": sampler(to)
    })
}

fn sampler(step: u32) -> Value {
    json!({"method": "top-p", "params": {"p": 0.9}, "seed": 7, "step": step, "deterministic": false})
}

fn path(session: &str) -> String {
    format!("sessions/{session}")
}

fn checkpoint_path(session: &str) -> String {
    format!("sessions/{session}/checkpoint")
}

/// Waits until the epoch of a session is above `epoch`, and answers how it stands then.
async fn raised(server: &Server, session: &str, epoch: u64) -> Value {
    let view = server.get(&format!("{}?after_epoch={epoch}&wait_ms=20000", path(session))).await.ok();
    assert!(view["epoch"].as_u64().unwrap() > epoch, "{view}");
    view
}

/// Waits until a session is in a state, and answers how it stands then.
async fn reaches(server: &Server, session: &str, state: &str) -> Value {
    let reached = async {
        loop {
            let view = server.get(&path(session)).await.ok();
            if view["state"] == state {
                return view;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reached).await.unwrap_or_else(|_| panic!("never {state}"))
}
