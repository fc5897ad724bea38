//! `kvsp serve`: ready lines, listeners, settings, signals and exit statuses.

use std::collections::BTreeSet;
use std::net::TcpListener;

use kvsp_proto::container::Container;
use kvsp_proto::registry::Codec;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Process, complete, eventually, get, run, send};

fn members(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

async fn check_admin(admin: &kvsp_proto::uri::BaseUri) {
    for path in ["livez", "readyz"] {
        assert_eq!(get(admin, path).await.status, 200, "{path}");
    }
    let metrics = get(admin, "metrics").await;
    assert!(metrics.status == 200 && metrics.text().contains("kvsp_"), "{metrics:?}");
}

#[tokio::test]
async fn each_role_says_when_it_is_ready_and_ends_on_sigterm() {
    let dir = TempDir::new().unwrap();
    let index = Process::serve(dir.path(), &["index"]);
    let index_uri = index.base();
    let controller = Process::serve(dir.path(), &["controller", "--index", index_uri.as_str()]);
    let controller_uri = controller.base();
    let peers = ["--index", index_uri.as_str(), "--controller", controller_uri.as_str()];
    let holder = Process::serve(dir.path(), &["holder", "--index", index_uri.as_str()]);
    let holder_uri = holder.base();
    let instance = [&["instance", "--model", "tiny", "--holder", holder_uri.as_str()], &peers[..]].concat();
    let instance = Process::serve(dir.path(), &instance);
    let gateway = ["gateway", "--model", "tiny", "--controller", controller_uri.as_str()];
    let gateway = Process::serve(dir.path(), &gateway);
    let all = [
        ("index", index),
        ("controller", controller),
        ("holder", holder),
        ("instance", instance),
        ("gateway", gateway),
    ];
    for (role, process) in &all {
        assert_eq!(members(&process.ready), BTreeSet::from(["admin", "base", "ready"]), "{role}");
        assert_eq!(process.ready["ready"], true);
        let root = get(&process.base(), "").await.ok();
        assert_eq!((&root["kvsp"], &root["roles"][0]), (&json!(1), &json!(role)), "{root}");
        assert!(root["limits"]["max_json_octets"].is_u64() && root["extensions"].is_array());
        check_admin(&process.uri("admin")).await;
    }
    for (role, mut process) in all.into_iter().rev() {
        assert_eq!(process.stop(), Some(0), "{role}\n{}", process.log());
    }
}

#[tokio::test]
async fn all_roles_in_one_process() {
    let dir = TempDir::new().unwrap();
    let mut bare = Process::serve(dir.path(), &["all"]);
    let roles = members(&bare.ready);
    assert!(roles.is_superset(&BTreeSet::from(["controller", "holder", "index", "ready"])), "{roles:?}");
    assert!(!roles.contains("instance") && !roles.contains("gateway"), "there is no model");
    assert_eq!(bare.stop(), Some(0));

    let mut all = Process::serve(dir.path(), &["all", "--model", "tiny"]);
    assert_eq!(all.ready["ready"], true);
    for role in ["index", "holder", "controller", "instance", "gateway"] {
        let roles = get(&all.uri(role), "").await.ok()["roles"].clone();
        assert!(roles.as_array().unwrap().contains(&json!(role)), "{role}: {roles}");
    }
    let prompt = "All roles in one process answer at once, without waiting for anything to settle.";
    let (cold, cached) = complete(&all.uri("gateway"), prompt).await;
    assert_eq!(cached, 0);
    let (warm, cached) = complete(&all.uri("gateway"), prompt).await;
    assert_eq!(warm, cold);
    assert!(cached >= 64, "the same process reuses what it computed: {cached}");
    assert_eq!(all.stop(), Some(0), "{}", all.log());
}

#[tokio::test]
async fn a_holder_that_is_stopped_withdraws_its_replicas() {
    let dir = TempDir::new().unwrap();
    let index = Process::serve(dir.path(), &["index"]);
    let mut holder = Process::serve(dir.path(), &["holder", "--index", index.base().as_str()]);
    let container = Container::build(Codec::RAW, 0, 4, &[([1; 64], [2; 64])]).unwrap();
    let name = format!("{}/{}/{}", "11".repeat(32), "22".repeat(16), "33".repeat(32));
    let headers = [("content-type", "application/kvsp-block"), ("if-none-match", "*")];
    let stored =
        send(&holder.base(), "PUT", &format!("blocks/{name}"), &headers, container.bytes().clone()).await;
    assert_eq!(stored.status, 201, "{stored:?}");
    let replicas = async || {
        let known = get(&index.base(), &format!("replicas/{name}")).await.ok();
        known["replicas"].as_array().unwrap().len()
    };
    eventually("the publication", async || (replicas().await == 1).then_some(())).await;
    assert_eq!(holder.stop(), Some(0), "{}", holder.log());
    assert_eq!(replicas().await, 0);
}

#[test]
fn what_cannot_be_served_is_told_in_one_line() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy_address = busy.local_addr().unwrap().to_string();
    let unknown_member = path("unknown.toml");
    std::fs::write(&unknown_member, "[service]\nlisten_at = \"127.0.0.1:1\"\n").unwrap();
    let unknown_table = path("table.toml");
    std::fs::write(&unknown_table, "[indexx]\n").unwrap();
    let short_key = path("short.key");
    std::fs::write(&short_key, "too short").unwrap();
    let cases: &[(&[&str], i32, &str)] = &[
        (&[], 2, ""),
        (&["nobody"], 2, "nobody"),
        (&["index", "--no-such-flag"], 2, "--no-such-flag"),
        (&["index", "--listen", "here"], 2, "here"),
        (&["gateway", "--model", "tiny"], 2, "--controller"),
        (&["instance"], 2, "--model"),
        (&["holder", "--index", "not a uri"], 2, "not a uri"),
        (&["holder", "--disk-dir", "d"], 2, "--disk-octets"),
        (&["holder", "--disk-octets", "1GiB"], 2, "--disk-dir"),
        (&["holder", "--object-url", "s3://bucket/prefix"], 2, "--object-octets"),
        (&["holder", "--object-octets", "1GiB"], 2, "--object-url"),
        (&["holder", "--eviction", "random"], 2, "--eviction"),
        (&["index", "--listen", "0.0.0.0:0"], 1, "insecure"),
        (&["index", "--listen", "[::]:0"], 1, "insecure"),
        (&["index", "--listen", &busy_address], 1, &busy_address),
        (&["index", "--config", "/nonexistent/kvsp.toml"], 1, "/nonexistent/kvsp.toml"),
        (&["index", "--config", &unknown_member], 1, "listen_at"),
        (&["index", "--config", &unknown_table], 1, "indexx"),
        (&["instance", "--model", "/nonexistent/model", "--name", "n"], 1, "/nonexistent/model"),
        (&["instance", "--model", "tiny", "--scope-key", &short_key], 1, "short.key"),
        (&["instance", "--model", "tiny", "--kv-dtype", "float8"], 1, "float8"),
    ];
    for (args, status, told) in cases {
        let output = run(&[&["serve"], *args].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(*status), "{args:?}: {stderr}");
        assert!(stderr.contains(told), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    }
}

#[tokio::test]
async fn an_insecure_service_may_listen_everywhere() {
    let dir = TempDir::new().unwrap();
    let mut index = Process::serve(dir.path(), &["index", "--listen", "0.0.0.0:0", "--insecure"]);
    assert_eq!(index.ready["ready"], true);
    assert_eq!(index.stop(), Some(0));
}

#[tokio::test]
async fn flags_beat_the_environment_and_that_the_file() {
    let dir = TempDir::new().unwrap();
    let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
    let address = |n: usize| format!("127.0.0.1:{}", ports[n]);
    let file = dir.path().join("kvsp.toml");
    std::fs::write(
        &file,
        format!(
            "[service]\nlisten = \"{}\"\nbase_path = \"/elsewhere/\"\n[index]\nmax_ttl_ms = 1234\n",
            address(0)
        ),
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let (by_env, by_flag) = (address(1), address(2));
    let config = ("KVSP_CONFIG", file);
    for (args, env, port) in [
        (vec!["index"], vec![config], ports[0]),
        (vec!["index"], vec![config, ("KVSP_LISTEN", &*by_env)], ports[1]),
        (vec!["index", "--listen", &by_flag], vec![config, ("KVSP_LISTEN", &*by_env)], ports[2]),
    ] {
        let index = Process::serve_with(dir.path(), &args, &env);
        assert_eq!(index.base().as_str(), format!("http://127.0.0.1:{port}/elsewhere/"));
        assert_eq!(get(&index.base(), "").await.ok()["limits"]["max_ttl_ms"], 1234);
    }
}
