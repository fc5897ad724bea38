//! A fleet of processes, some of which are killed.

use std::path::Path;

use kvsp_proto::path;
use kvsp_proto::uri::BaseUri;
use serde_json::json;
use tempfile::TempDir;

use crate::support::{JSON, Process, client, complete, eventually, get, metric, send};

struct Fleet {
    index: Process,
    holder: Process,
    controller: Process,
    a: Process,
    b: Process,
    gateway: Process,
}

impl Fleet {
    fn start(dir: &Path) -> Self {
        let file = |name: &str, content: &[u8]| {
            let path = dir.join(name);
            std::fs::write(&path, content).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let key = file("scope.key", &[7; 32]);
        // A short TTL, so that a death is noticed within the test.
        let config = file("kvsp.toml", b"[instance]\nstatus_ttl_ms = 1200\n");
        let index = Process::serve(dir, &["index"]);
        let index_uri = index.base();
        let to_index = ["--index", index_uri.as_str()];
        let holder = Process::serve(dir, &[&["holder"], &to_index[..]].concat());
        let controller = Process::serve(dir, &[&["controller"], &to_index[..]].concat());
        let (holder_uri, controller_uri) = (holder.base(), controller.base());
        let model = ["--model", "tiny", "--scope-key", &key, "--controller", controller_uri.as_str()];
        let instance =
            [&["instance", "--config", &config, "--holder", holder_uri.as_str()], &to_index[..], &model[..]]
                .concat();
        let (a, b) = (Process::serve(dir, &instance), Process::serve(dir, &instance));
        let gateway = Process::serve(dir, &[&["gateway"], &model[..]].concat());
        Self { index, holder, controller, a, b, gateway }
    }

    async fn state_of(&self, instance: &BaseUri) -> String {
        let view = get(&self.controller.base(), &path::instance(instance)).await;
        if view.status == 404 { String::new() } else { view.ok()["state"].as_str().unwrap().to_owned() }
    }

    async fn becomes(&self, instance: &BaseUri, state: &str) {
        eventually(state, async || (self.state_of(instance).await == state).then_some(())).await;
    }

    async fn order(&self, instance: &BaseUri, state: &str) {
        let path = path::instance_state(instance);
        let body = json!({"state": state}).to_string();
        let answer = send(&self.controller.base(), "PUT", &path, &[JSON], body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

fn prompt(n: usize) -> String {
    format!("{n}. {}", "A replica is a copy of a block, and a block is a piece of a prefix. ".repeat(4))
}

#[tokio::test]
async fn answers_stay_right_while_members_of_the_fleet_are_killed() {
    let dir = TempDir::new().unwrap();
    let mut fleet = Fleet::start(dir.path());
    let (a, b, gateway) = (fleet.a.base(), fleet.b.base(), fleet.gateway.base());
    fleet.becomes(&a, "active").await;
    fleet.becomes(&b, "active").await;
    // B sleeps, so that A computes all.
    fleet.order(&b, "sleeping").await;
    fleet.becomes(&b, "sleeping").await;
    let mut cold = Vec::new();
    for n in 0..4 {
        let (text, cached) = complete(&gateway, &prompt(n)).await;
        assert_eq!(cached, 0);
        cold.push(text);
    }
    let computed = metric(&fleet.a.uri("admin"), "kvsp_instance_prompt_tokens_computed_total").await;
    assert!(computed > 4 * 250, "{computed}");
    assert_eq!(metric(&fleet.b.uri("admin"), "kvsp_instance_prompt_tokens_computed_total").await, 0);
    // Each prompt has at least 17 blocks, each at A and at the holder.
    let index_admin = fleet.index.uri("admin");
    eventually("the publication of all blocks", async || {
        (metric(&index_admin, "kvsp_index_replicas").await >= 4 * 17 * 2).then_some(())
    })
    .await;
    fleet.order(&b, "active").await;
    fleet.becomes(&b, "active").await;

    fleet.a.kill();
    // Before the controller knows of the death the request goes to A in vain and then to B; afterwards to B at
    // once. Either way B loads what A had computed.
    for (n, cold) in cold.iter().enumerate().take(2) {
        let (text, cached) = complete(&gateway, &prompt(n)).await;
        assert_eq!(text, *cold);
        assert_eq!(cached, 17 * 16, "B did not load what A had computed");
        fleet.becomes(&a, "failed").await;
    }
    assert_eq!(metric(&fleet.b.uri("admin"), "kvsp_prefetch_blocks_loaded_total").await, 2 * 17);

    fleet.holder.kill();
    let (text, cached) = complete(&gateway, &prompt(2)).await;
    assert_eq!((text, cached), (cold[2].clone(), 0), "the blocks were lost with the holder");

    fleet.index.kill();
    assert_eq!(complete(&gateway, &prompt(3)).await.0, cold[3]);
    assert_eq!(complete(&gateway, &prompt(3)).await.0, cold[3]);

    // The last instance gone, the gateway says so and lives on.
    fleet.b.kill();
    fleet.becomes(&b, "failed").await;
    let body = json!({"model": "kvsp/tiny", "prompt": "Is anybody there?"});
    let answer = crate::support::post(&gateway, "v1/completions", &body).await;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(answer.json()["error"]["type"], "server_error");
    fleet.controller.kill();
    let answer = crate::support::post(&gateway, "v1/completions", &body).await;
    assert_eq!(answer.status, 502, "{answer:?}");
    assert!(client().root(&gateway).await.is_ok());
}

/// A stream whose instance dies ends with an error, and never looks complete.
#[tokio::test]
async fn a_stream_that_breaks_says_so() {
    let dir = TempDir::new().unwrap();
    let controller = Process::serve(dir.path(), &["controller"]);
    let controller_uri = controller.base();
    let model = ["--model", "tiny", "--controller", controller_uri.as_str()];
    let mut instance = Process::serve(dir.path(), &[&["instance"], &model[..]].concat());
    let gateway = Process::serve(dir.path(), &[&["gateway"], &model[..]].concat());
    eventually("the instance's first status", async || {
        let list = client().instances(&controller_uri).await.unwrap();
        (list.instances.len() == 1).then_some(())
    })
    .await;
    for path in ["v1/completions", "v1/chat/completions"] {
        let body = json!({
            "model": "kvsp/tiny", "prompt": "Once", "messages": [{"role": "user", "content": "Once"}],
            "max_tokens": 3900, "temperature": 0, "stream": true,
        });
        let request = http::Request::post("/").header(JSON.0, JSON.1).body(body.to_string().into()).unwrap();
        let answer = client().forward(&gateway.base(), path, request).await.unwrap();
        assert_eq!(answer.status(), 200);
        let mut stream = answer.into_body();
        let mut text = String::new();
        while text.matches("data: ").count() < 3 {
            text.push_str(std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap());
        }
        instance.kill();
        while let Some(data) = stream.chunk().await.unwrap() {
            text.push_str(std::str::from_utf8(&data).unwrap());
        }
        let last = text.trim_end().lines().last().unwrap();
        let error: serde_json::Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(error["error"]["type"], "server_error", "{last}");
        assert!(!text.contains("[DONE]"));
        instance = Process::serve(dir.path(), &[&["instance"], &model[..]].concat());
        let own = instance.base();
        eventually("the next instance's first status", async || {
            let list = client().instances(&controller_uri).await.unwrap();
            list.instances.iter().any(|i| i.status.instance == own).then_some(())
        })
        .await;
    }
}
