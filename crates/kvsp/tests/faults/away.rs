//! An index that is away for longer than the TTL of the records, dead or merely silent.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::support::{COMPAT, Process, SCOPE, block_path, container, eventually, hex, key, replicas_path};

const TTL_MS: u64 = 1_500;
/// Octets by which a holder may grow while it waits; its blocks are a few MiB.
const MAX_GROWTH: u64 = 96 << 20;

fn contents(n: u64) -> Vec<u8> {
    container(0, 2, 1024, n)
}

fn start_holder(dir: &Path, index: &Process) -> Process {
    let config = dir.join("holder.toml");
    std::fs::write(&config, format!("[holder]\nreplica_ttl_ms = {TTL_MS}\n")).unwrap();
    Process::serve(dir, &["holder", "--index", &index.base, "--config", config.to_str().unwrap()])
}

/// The leading ones of blocks `from..to` that the index knows.
fn matched(index: &Process, from: u64, to: u64) -> u64 {
    let keys: Vec<_> = (from..to).map(key).collect();
    let body = json!({
        "compat_id": hex(&COMPAT), "scope_id": hex(&SCOPE), "block_keys": keys, "detail": "none"
    });
    index.json("POST", "lookup", &body).value()["matched"].as_u64().unwrap()
}

/// Puts and deletes for a time; every request is answered as if nothing were wrong.
fn work(holder: &Process, lasts: Duration, next: &mut u64) -> u64 {
    let begin = Instant::now();
    let first = *next;
    let mut connection = holder.connect();
    while begin.elapsed() < lasts {
        let n = *next;
        *next += 1;
        let headers = [("content-type", "application/kvsp-block"), ("if-none-match", "*")];
        let put = connection.send("PUT", &block_path(n), &headers, &contents(n)).unwrap();
        assert_eq!(put.status, 201, "{put:?}");
        let got = connection.send("GET", &block_path(n), &[], b"").unwrap();
        assert_eq!((got.status, got.body), (200, contents(n)));
        // Of what is put, every fourth block stays.
        if !n.is_multiple_of(4) {
            assert_eq!(connection.send("DELETE", &block_path(n), &[], b"").unwrap().status, 204);
        }
    }
    *next - first
}

fn the_index_is_right(index: &Process, blocks: u64) {
    let stay: Vec<_> = (0..blocks).filter(|n| n % 4 == 0).map(key).collect();
    let body = json!({
        "compat_id": hex(&COMPAT), "scope_id": hex(&SCOPE), "block_keys": stay, "detail": "none"
    });
    eventually("all that is held is known", || {
        (index.json("POST", "lookup", &body).value()["matched"] == stay.len()).then_some(())
    });
    for n in (0..blocks).filter(|n| n % 4 != 0).step_by(7) {
        eventually("nothing else is known", || {
            let list = index.get(&replicas_path(n)).value();
            list["replicas"].as_array().unwrap().is_empty().then_some(())
        });
    }
}

#[test]
fn a_holder_goes_on_while_the_index_is_dead() {
    let dir = tempfile::TempDir::new().unwrap();
    let mut index = Process::serve(dir.path(), &["index"]);
    let listen = index.authority();
    let holder = start_holder(dir.path(), &index);
    let mut next = 0;
    work(&holder, Duration::from_millis(300), &mut next);
    eventually("the first block is published", || (matched(&index, 0, 1) == 1).then_some(()));
    index.kill();
    let before = holder.resident_octets();
    let worked = work(&holder, Duration::from_millis(2 * TTL_MS), &mut next);
    let grown = holder.resident_octets().saturating_sub(before);
    assert!(grown <= MAX_GROWTH, "{grown} octets more after {worked} blocks");
    let index = Process::serve(dir.path(), &["index", "--listen", &listen]);
    the_index_is_right(&index, next);
    println!("{worked} blocks put while the index was away; {} KiB more memory", grown >> 10);
}

#[test]
fn a_holder_goes_on_while_the_index_is_silent() {
    let dir = tempfile::TempDir::new().unwrap();
    let index = Process::serve(dir.path(), &["index"]);
    let holder = start_holder(dir.path(), &index);
    let mut next = 0;
    work(&holder, Duration::from_millis(300), &mut next);
    eventually("the first block is published", || (matched(&index, 0, 1) == 1).then_some(()));
    let index_pid = Pid::from_raw(index.pid());
    kill(index_pid, Signal::SIGSTOP).unwrap();
    let before = holder.resident_octets();
    work(&holder, Duration::from_millis(2 * TTL_MS), &mut next);
    let grown = holder.resident_octets().saturating_sub(before);
    assert!(grown <= MAX_GROWTH, "{grown} octets more");
    kill(index_pid, Signal::SIGCONT).unwrap();
    the_index_is_right(&index, next);
}

#[test]
fn a_holder_stops_in_time_although_the_index_is_silent() {
    let dir = tempfile::TempDir::new().unwrap();
    let index = Process::serve(dir.path(), &["index"]);
    let mut holder = start_holder(dir.path(), &index);
    assert_eq!(holder.put_block(&block_path(0), &contents(0)).status, 201);
    eventually("the block is published", || (matched(&index, 0, 1) == 1).then_some(()));
    kill(Pid::from_raw(index.pid()), Signal::SIGSTOP).unwrap();
    holder.stop();
}
