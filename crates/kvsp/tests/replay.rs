//! `kvsp replay`, black-box, on recorded traces where they are and on a small one everywhere.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn kvsp(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvsp"));
    command.env_remove("KVSP_JSON").args(args).stdin(Stdio::null()).output().unwrap()
}

fn replay(trace: &Path, args: &[&str]) -> Value {
    let output = kvsp(&[&["replay", "--json", trace.to_str().unwrap()], args].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn hits(report: &Value, policy: &str, blocks: u64) -> u64 {
    let results = report["results"].as_array().unwrap();
    let cell = results.iter().find(|result| result["policy"] == policy && result["blocks"] == blocks);
    cell.unwrap()["hits"].as_u64().unwrap()
}

struct Golden {
    file: &'static str,
    looked_up: u64,
    unbounded: u64,
    lru: [u64; 2],
    /// Percent of LRU's hits that the default policy has at least.
    at_least: [u64; 2],
}

fn check(golden: &Golden) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let trace: PathBuf = folder.join(golden.file);
    if !trace.exists() {
        eprintln!("skipped: there is no recorded trace {}", trace.display());
        return;
    }
    let report = replay(&trace, &[]);
    assert_eq!(report["looked_up"], golden.looked_up);
    assert_eq!(report["unbounded"]["hits"], golden.unbounded);
    for (blocks, lru, percent) in
        [(10_000, golden.lru[0], golden.at_least[0]), (30_000, golden.lru[1], golden.at_least[1])]
    {
        assert_eq!(hits(&report, "lru", blocks), lru);
        let (tiny_lfu, belady) = (hits(&report, "tiny-lfu", blocks), hits(&report, "belady", blocks));
        assert!(tiny_lfu * 100 >= lru * percent, "{blocks} blocks: {tiny_lfu} hits where LRU has {lru}");
        assert!(tiny_lfu <= belady && lru <= belady && belady <= golden.unbounded);
    }
}

#[test]
fn conversation() {
    check(&Golden {
        file: "mooncake_conversation.jsonl",
        looked_up: 276_491,
        unbounded: 105_592,
        lru: [61_996, 95_308],
        at_least: [105, 99],
    });
}

#[test]
fn synthetic() {
    check(&Golden {
        file: "mooncake_synthetic.jsonl",
        looked_up: 117_888,
        unbounded: 77_740,
        lru: [52_888, 76_350],
        at_least: [99, 99],
    });
}

#[test]
fn a_small_trace() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace.jsonl");
    let line = |ids: &str, tokens: u64| format!("{{\"input_length\": {tokens}, \"hash_ids\": {ids}}}\n");
    let text = [line("[1, 2, 3]", 48), line("[4, 5]", 17), line("[1, 2, 3, 6]", 50)].concat();
    std::fs::write(&trace, text).unwrap();

    let report = replay(&trace, &["--blocks", "3", "--blocks", "9", "--block-tokens", "16"]);
    assert_eq!((&report["requests"], &report["looked_up"]), (&Value::from(3), &Value::from(7)));
    assert_eq!(report["results"].as_array().unwrap().len(), 6);
    let cells = ["lru", "tiny-lfu", "belady"].map(|policy| [3, 9].map(|n| hits(&report, policy, n)));
    assert_eq!(cells, [[0, 3], [0, 3], [3, 3]]);

    let file = trace.to_str().unwrap();
    let text = kvsp(&["replay", file, "--policy", "belady", "--blocks", "3", "--block-tokens", "16"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("belady") && !text.contains("tiny-lfu") && text.contains("42.86 %"), "{text}");

    // Its blocks are of 16 tokens, not of 512.
    let refused = kvsp(&["replay", file]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("line 1"));
    assert_eq!(kvsp(&["replay", "no-such-file"]).status.code(), Some(1));
    assert_eq!(kvsp(&["replay", file, "--blocks", "0"]).status.code(), Some(2));
}
