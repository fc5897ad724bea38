//! An index that is killed and started again, empty or with a snapshot, while a holder goes on.

use std::path::Path;
use std::time::Instant;

use serde_json::json;

use crate::hammer::contents;
use crate::support::{COMPAT, Process, SCOPE, block_path, count, eventually, hex, key};

fn serve_index(dir: &Path, listen: &str, snapshot: bool) -> Process {
    let config = dir.join("index.toml");
    let mut text = "[index]\n".to_owned();
    if snapshot {
        text.push_str(&format!(
            "snapshot_path = {:?}\nsnapshot_every_ms = 200\n",
            dir.join("index.snapshot").to_str().unwrap()
        ));
    }
    std::fs::write(&config, text).unwrap();
    Process::serve(dir, &["index", "--listen", listen, "--config", config.to_str().unwrap()])
}

fn matched(index: &Process, keys: &[String]) -> usize {
    let body =
        json!({"compat_id": hex(&COMPAT), "scope_id": hex(&SCOPE), "block_keys": keys, "detail": "none"});
    usize::try_from(index.json("POST", "lookup", &body).value()["matched"].as_u64().unwrap()).unwrap()
}

fn lookups_are_complete_again(snapshot: bool) {
    let dir = tempfile::TempDir::new().unwrap();
    let blocks = count("KVSP_CRASH_BLOCKS", 200).min(2_000);
    let mut index = serve_index(dir.path(), "127.0.0.1:0", snapshot);
    let listen = index.authority();
    let holder = Process::serve(dir.path(), &["holder", "--index", &index.base]);
    let mut connection = holder.connect();
    let mut keys = Vec::new();
    for block in 0..blocks {
        let headers = [("content-type", "application/kvsp-block"), ("if-none-match", "*")];
        let answer = connection.send("PUT", &block_path(block), &headers, &contents(block)).unwrap();
        assert_eq!(answer.status, 201, "{answer:?}");
        keys.push(key(block));
        if block == blocks / 2 && snapshot {
            eventually("a snapshot", || dir.path().join("index.snapshot").exists().then_some(()));
        }
    }
    eventually("all is published", || (matched(&index, &keys) == keys.len()).then_some(()));
    index.kill();
    // What happens while it is away must be told too.
    assert_eq!(holder.put_block(&block_path(blocks), &contents(blocks)).status, 201);
    keys.push(key(blocks));
    assert_eq!(holder.send("DELETE", &block_path(0), &[], b"").status, 204);
    let gone = keys.remove(0);
    let index = serve_index(dir.path(), &listen, snapshot);
    let (begin, at_once) = (Instant::now(), matched(&index, &keys));
    eventually("lookups are complete again", || (matched(&index, &keys) == keys.len()).then_some(()));
    eventually("the withdrawal arrives", || {
        (matched(&index, std::slice::from_ref(&gone)) == 0).then_some(())
    });
    println!(
        "snapshot {snapshot}: {at_once} of {} matched at once, all after {:.1} s",
        keys.len(),
        begin.elapsed().as_secs_f64()
    );
    assert_eq!(holder.get(&block_path(1)).body, contents(1));
}

#[test]
fn lookups_are_complete_soon_after_a_kill_of_the_index() {
    lookups_are_complete_again(false);
}

#[test]
fn lookups_are_complete_soon_after_a_kill_of_an_index_with_snapshots() {
    lookups_are_complete_again(true);
}

#[test]
fn an_idle_holder_notices_that_the_index_came_back_empty() {
    let dir = tempfile::TempDir::new().unwrap();
    let mut index = serve_index(dir.path(), "127.0.0.1:0", false);
    let listen = index.authority();
    let config = dir.path().join("holder.toml");
    std::fs::write(&config, "[holder]\ncanary_ms = 500\n").unwrap();
    let args = ["holder", "--index", &index.base, "--config", config.to_str().unwrap()];
    let holder = Process::serve(dir.path(), &args);
    for block in 0..3 {
        assert_eq!(holder.put_block(&block_path(block), &contents(block)).status, 201);
    }
    let keys: Vec<_> = (0..3).map(key).collect();
    eventually("all is published", || (matched(&index, &keys) == 3).then_some(()));
    index.kill();
    let index = serve_index(dir.path(), &listen, false);
    eventually("the idle holder publishes again", || (matched(&index, &keys) == 3).then_some(()));
}
