//! Shard maps and their resharding (draft section 6.9, profile sections 5 and 8).

mod bad_input;
mod create;
mod decisions;
mod failures;
mod groups;
mod member;
mod reshard;
mod restart;
mod rights;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvsp_controller::ControllerConfig;
use kvsp_core::time::Time;
use kvsp_net::auth::Development;
use kvsp_net::clock::ManualClock;
use serde_json::{Value, json};

use crate::support::{Server, compat, scope, status};
use member::{Kind, Member};

/// Below the second of silence that counts as a stall, so that one step of the clock lets a status expire.
const TTL_MS: u64 = 800;
const TTL: Duration = Duration::from_millis(TTL_MS);

/// The deadline of a plan, in ms of the controller's clock.
const DEADLINE_MS: u64 = 500;

const MAP: &str = "context-1";

/// A controller whose clock stands until it is advanced.
struct Fixture {
    server: Server,
    clock: Arc<ManualClock>,
}

impl Fixture {
    async fn start(config: ControllerConfig) -> Self {
        let clock = Arc::new(ManualClock::new(Time::from_millis(1_000)));
        let server = Server::at(config, Arc::new(Development::new()), clock.clone()).await;
        // Once it answers its maps are there, and count from this moment of the clock.
        server.get("").await.ok();
        Self { server, clock }
    }

    async fn report(&self, member: &Member, epoch: u64) {
        self.report_as(member, epoch, &json!({})).await;
    }

    /// A status of a member, which then lasts for [`TTL`].
    async fn report_as(&self, member: &Member, epoch: u64, with: &Value) {
        let mut status = status(member.uri(), epoch);
        status["ttl_ms"] = json!(TTL_MS);
        for (name, value) in with.as_object().unwrap() {
            status[name] = value.clone();
        }
        self.server.report(&status).await.ok();
    }

    /// A map over these shards.
    async fn create(&self, shards: &Value) -> Value {
        let answer = self.server.put(&path(MAP), &body(shards)).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()
    }

    /// Has [`MAP`] split anew from a version; how it stands then.
    async fn reshard(&self, from: u64, shards: &Value) -> Value {
        self.reshard_within(DEADLINE_MS, from, shards).await
    }

    /// The same for a test that lets the clock go on: with a deadline that it does not come to.
    async fn reshard_unhurried(&self, from: u64, shards: &Value) -> Value {
        self.reshard_within(600_000, from, shards).await
    }

    async fn reshard_within(&self, deadline_ms: u64, from: u64, shards: &Value) -> Value {
        let body = json!({"from": from, "shards": shards, "deadline_ms": deadline_ms});
        let answer = self.server.post(&reshard_path(MAP), &body).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.json()
    }

    async fn view(&self) -> Value {
        self.server.get(&path(MAP)).await.ok()
    }

    /// Waits until [`MAP`] stands so.
    async fn reaches(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        reaches(&self.server, MAP, what, is_so).await
    }

    /// Waits until no change of [`MAP`] is under way, at this version.
    async fn settles(&self, version: u64) -> Value {
        let settled = |view: &Value| view["version"] == version && view.get("pending").is_none();
        self.reaches(&format!("settled at {version}"), settled).await
    }

    /// Lets the controller's clock go on in steps below a stall until something has happened. How far it comes depends on
    /// the machine: nothing else may hang on it.
    async fn goes_on_until<T>(&self, what: impl Future<Output = T>) -> T {
        let steps = async {
            loop {
                tokio::time::sleep(Duration::from_millis(5)).await;
                self.clock.advance(Duration::from_millis(50));
            }
        };
        tokio::select! {
            done = what => done,
            () = steps => unreachable!("it has no end"),
        }
    }
}

async fn reaches(server: &Server, map: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let reached = async {
        loop {
            last = server.get(&path(map)).await.ok();
            if is_so(&last) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    };
    let reached = tokio::time::timeout(Duration::from_secs(20), reached).await;
    assert!(reached.is_ok(), "never {what}: {last}");
    last
}

fn kept_in(folder: &Path) -> ControllerConfig {
    ControllerConfig { state: Some(folder.join("state")), ..ControllerConfig::default() }
}

fn path(map: &str) -> String {
    format!("maps/{map}")
}

fn reshard_path(map: &str) -> String {
    format!("maps/{map}/reshard")
}

/// Shards of these ends, beginning at 0.
fn shards(parts: &[(u64, &Member)]) -> Value {
    let starts = std::iter::once(0).chain(parts.iter().map(|(end, _)| *end));
    starts.zip(parts).map(|(a, (b, member))| json!({"tokens": [a, b], "instance": member.uri()})).collect()
}

/// The body that creates a map.
fn body(shards: &Value) -> Value {
    json!({"compat_id": compat(), "scope_id": scope(), "shards": shards})
}

/// What of a plan the draft has, without its extensions.
fn moves(plan: &Value) -> Value {
    json!({"retain": plan["retain"], "fetch": plan["fetch"], "release": plan["release"]})
}

/// Three members and a map over them, of 300 tokens.
async fn three() -> (Fixture, [Member; 3]) {
    let fixture = Fixture::start(ControllerConfig::default()).await;
    let members = [Member::start(), Member::start(), Member::start()];
    fixture.create(&thirds(&members)).await;
    (fixture, members)
}

fn thirds(members: &[Member; 3]) -> Value {
    shards(&[(100, &members[0]), (200, &members[1]), (300, &members[2])])
}

/// The three members' map, over two of them.
fn halves(members: &[Member; 3]) -> Value {
    shards(&[(150, &members[0]), (300, &members[1])])
}

/// Every member has been asked this.
async fn all_asked(members: &mut [Member], kind: Kind) -> Vec<Value> {
    let mut bodies = Vec::new();
    for member in members {
        bodies.push(member.next(kind).await);
    }
    bodies
}
