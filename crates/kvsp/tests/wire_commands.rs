//! The commands on files, black-box: every vector goes through the binary too.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

fn kvsp(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvsp")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// What a command that succeeds prints with `--json`.
fn answer(args: &[&str]) -> Value {
    let output = kvsp(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The exit status of a command that fails with one line on stderr and nothing on stdout.
fn failure(args: &[&str]) -> i32 {
    let output = kvsp(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty(), "{args:?}");
    let status = output.status.code().unwrap();
    assert!(status == 2 || stderr.trim_end().lines().count() == 1, "{args:?}: {stderr}");
    status
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn file(&self, name: &str, octets: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::write(&path, octets).unwrap();
        path
    }

    fn json(&self, name: &str, value: &Value) -> String {
        self.file(name, serde_json::to_vec(value).unwrap())
    }
}

/// The project's vectors, and the shared ones where they lie beside the checkout.
fn vectors(name: &str) -> Vec<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = root.join("../../vectors").join(name);
    let mut vectors: Vec<Value> = serde_json::from_slice(&fs::read(own).unwrap()).unwrap();
    match fs::read(root.join("../../../shared/vectors").join(name)) {
        Ok(text) => vectors.extend(serde_json::from_slice::<Vec<Value>>(&text).unwrap()),
        Err(e) => eprintln!("no shared {name} ({e}): only the project's own vectors are checked"),
    }
    vectors
}

fn text<'a>(vector: &'a Value, member: &str) -> &'a str {
    vector[member].as_str().unwrap()
}

fn octets(vector: &Value, member: &str) -> Vec<u8> {
    hex::decode(text(vector, member)).unwrap()
}

fn descriptor() -> Value {
    let digest = format!("sha-256:{}", "11".repeat(32));
    json!({
        "model": "m", "model_digest": digest, "tokenizer_digest": digest, "layers": 2, "kv_heads": 1,
        "head_dim": 64, "kv_dtype": "bfloat16", "positional": "rope", "block_tokens": 4, "layout": "kvsp-layout-1"
    })
}

/// A raw container of 4 tokens that fits [`descriptor`], its elements alike enough to compress.
fn block(layers: u32) -> Vec<u8> {
    let mut container = b"KVB1\x01\0\0\x01\0\0\0\0".to_vec();
    container.extend(layers.to_be_bytes());
    container.extend(4_u32.to_be_bytes());
    for _ in 0..2 * layers {
        container.extend(512_u64.to_be_bytes());
    }
    container.extend((0..512 * layers).flat_map(|i| [(i % 251) as u8, 0x3F]));
    container
}

fn record(inspected: &Value, compat_id: &str) -> Value {
    json!({
        "block_key": "ab".repeat(32), "compat_id": compat_id, "scope_id": "cd".repeat(16),
        "holder": "https://h1.example/kvsp/", "codec": inspected["codec"], "size": inspected["size"],
        "digest": inspected["digest"], "layer_digests": inspected["layer_digests"],
        "residency": [{"tier": "host", "layers": [0, 1]}], "ttl_ms": 1000
    })
}

#[test]
fn compat_ids_are_those_of_the_vectors() {
    let folder = Folder::new();
    for vector in vectors("compat_id.json") {
        let file = folder.json("d.json", &vector["descriptor"]);
        assert_eq!(answer(&["compat-id", &file]), json!({ "compat_id": vector["compat_id"] }));
    }
    let file = folder.json("d.json", &descriptor());
    let printed = kvsp(&["compat-id", &file]).stdout;
    assert_eq!(
        String::from_utf8(printed).unwrap().trim_end(),
        text(&answer(&["compat-id", &file]), "compat_id")
    );
}

#[test]
fn a_refused_descriptor_fails() {
    let folder = Folder::new();
    for name in ["descriptor_refused.json"] {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors").join(name);
        for vector in serde_json::from_slice::<Vec<Value>>(&fs::read(own).unwrap()).unwrap() {
            let file = folder.file("d.json", text(&vector, "text"));
            assert_eq!(failure(&["compat-id", &file]), 1, "{vector}");
        }
    }
    assert_eq!(failure(&["compat-id", &folder.path("absent.json")]), 1);
    assert_eq!(failure(&["compat-id"]), 2);
}

#[test]
fn a_descriptor_may_come_from_stdin() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvsp"))
        .args(["compat-id", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(descriptor().to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout.len(), 65);
}

#[test]
fn scope_ids_are_those_of_the_vectors() {
    let folder = Folder::new();
    for vector in vectors("scope_id.json") {
        let key = folder.file("key", octets(&vector, "scope_key_hex"));
        assert_eq!(answer(&["scope-id", "--scope-key", &key]), json!({ "scope_id": vector["scope_id"] }));
    }
    let short = folder.file("key", [7; 31]);
    assert_eq!(failure(&["scope-id", "--scope-key", &short]), 1);
}

#[test]
fn block_keys_are_those_of_the_vectors() {
    let folder = Folder::new();
    let mut checked = 0;
    // A vector names only the Compatibility ID: those whose descriptor is known go through here.
    let known: Vec<Value> = vectors("compat_id.json");
    for vector in vectors("block_keys.json") {
        let Some(of) = known.iter().find(|known| known["compat_id"] == vector["compat_id"]) else { continue };
        let descriptor = folder.json("d.json", &of["descriptor"]);
        let key = folder.file("key", octets(&vector, "scope_key_hex"));
        let tokens = folder.json("t.json", &vector["tokens"]);
        let args = ["block-keys", "--descriptor", &descriptor, "--scope-key", &key, "--tokens", &tokens];
        assert_eq!(answer(&args), json!({ "block_keys": vector["block_keys"] }));
        checked += 1;
    }
    assert!(checked > 0);
    let descriptor = folder.json("d.json", &descriptor());
    let key = folder.file("key", [7; 32]);
    for bad in ["[4294967296]", "[-1]", "[1.5]", "{}", "[", "[\"1\"]", "[1,1", "[null]"] {
        let tokens = folder.file("t.json", bad);
        let args = ["block-keys", "--descriptor", &descriptor, "--scope-key", &key, "--tokens", &tokens];
        assert_eq!(failure(&args), 1, "{bad}");
    }
}

#[test]
fn containers_are_those_of_the_vectors() {
    let folder = Folder::new();
    for vector in vectors("container.json") {
        let container = octets(&vector, "container_hex");
        let file = folder.file("c.kvb1", &container);
        let inspected = answer(&["block", "inspect", &file]);
        assert_eq!(
            inspected,
            json!({
                "version": 1, "codec": vector.get("codec").unwrap_or(&json!(1)), "first_layer": vector["first_layer"],
                "layer_count": vector["layer_count"], "token_count": vector["token_count"], "size": container.len(),
                "layer_digests": vector["layer_digests"], "digest": vector["digest"], "repr_digest": vector["repr_digest"],
            })
        );
        assert_eq!(answer(&["block", "verify", &file])["verified"], true);
        let layers = format!("{}-{}", vector["slice"]["layers"][0], vector["slice"]["layers"][1]);
        let out = folder.path("slice.kvb1");
        let sliced = answer(&["block", "slice", &file, "--layers", &layers, "-o", &out]);
        assert_eq!(sliced["repr_digest"], vector["slice"]["repr_digest"]);
        assert_eq!(fs::read(&out).unwrap(), octets(&vector["slice"], "container_hex"));
        if let Some(raw) = vector.get("raw_container_hex") {
            answer(&["block", "transcode", &file, "--codec", "1", "-o", &out]);
            assert_eq!(hex::encode(fs::read(&out).unwrap()), raw.as_str().unwrap());
        }
    }
}

#[test]
fn a_malformed_container_fails_verification() {
    let folder = Folder::new();
    for vector in vectors("container_malformed.json") {
        let file = folder.file("c.kvb1", octets(&vector, "hex"));
        for command in ["inspect", "verify"] {
            assert_eq!(failure(&["block", command, &file]), 4, "{}", vector["why"]);
        }
        let out = folder.path("out.kvb1");
        assert_eq!(failure(&["block", "slice", &file, "--layers", "0-0", "-o", &out]), 1);
        assert!(!Path::new(&out).exists());
    }
    assert_eq!(failure(&["block", "inspect", &folder.path("absent")]), 1);
}

#[test]
fn a_slice_needs_a_range_that_is_there() {
    let folder = Folder::new();
    let file = folder.file("c.kvb1", block(2));
    let out = folder.path("out.kvb1");
    for (layers, status) in
        [("1-2", 1), ("2-2", 1), ("1-0", 2), ("a-b", 2), ("1", 2), ("0-4294967296", 2), ("+0-1", 2)]
    {
        assert_eq!(failure(&["block", "slice", &file, "--layers", layers, "-o", &out]), status, "{layers}");
        assert!(!Path::new(&out).exists());
    }
    assert_eq!(
        failure(&["block", "slice", &file, "--layers", "0-0", "-o", &folder.path("no/such/folder")]),
        1
    );
    let left: Vec<PathBuf> =
        fs::read_dir(folder.0.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [PathBuf::from(&file)]);
}

#[test]
fn transcoding_there_and_back_changes_nothing() {
    let folder = Folder::new();
    let file = folder.file("c.kvb1", block(2));
    let (split, back) = (folder.path("split.kvb1"), folder.path("back.kvb1"));
    let answered = answer(&["block", "transcode", &file, "--codec", "2", "-o", &split]);
    assert_eq!(answered["codec"], 2);
    assert!(answered["size"].as_u64().unwrap() < block(2).len() as u64);
    assert_eq!(answer(&["block", "inspect", &split])["codec"], 2);
    let fits = folder.json("d.json", &descriptor());
    answer(&["block", "transcode", &split, "--codec", "raw", "--descriptor", &fits, "-o", &back]);
    assert_eq!(fs::read(&back).unwrap(), block(2));
    for (codec, status) in [("0", 2), ("65535", 2), ("x", 2), ("65281", 1), ("3", 1)] {
        assert_eq!(failure(&["block", "transcode", &file, "--codec", codec, "-o", &back]), status, "{codec}");
    }
    assert_eq!(fs::read(&back).unwrap(), block(2));
}

#[test]
fn verification_checks_record_and_descriptor() {
    let folder = Folder::new();
    let file = folder.file("c.kvb1", block(2));
    let fits = folder.json("d.json", &descriptor());
    let compat_id = answer(&["compat-id", &fits]);
    let good = record(&answer(&["block", "inspect", &file]), text(&compat_id, "compat_id"));
    let good_file = folder.json("r.json", &good);
    let verified = answer(&["block", "verify", &file, "--record", &good_file, "--descriptor", &fits]);
    assert_eq!(verified["checked"], json!(["container", "descriptor", "record"]));

    let upper = folder.path("upper.kvb1");
    answer(&["block", "slice", &file, "--layers", "1-1", "-o", &upper]);
    answer(&["block", "verify", &upper, "--record", &good_file, "--descriptor", &fits]);

    let mut flipped = block(2);
    *flipped.last_mut().unwrap() ^= 1;
    let flipped = folder.file("flipped.kvb1", flipped);
    assert_eq!(failure(&["block", "verify", &flipped, "--record", &good_file]), 4);

    for (member, value) in [
        ("size", json!(1)),
        ("codec", json!(2)),
        ("digest", json!(format!("sha-256:{}", "00".repeat(32)))),
        ("compat_id", json!("00".repeat(32))),
    ] {
        let mut bad = good.clone();
        bad[member] = value;
        let bad = folder.json("bad.json", &bad);
        assert_eq!(
            failure(&["block", "verify", &file, "--record", &bad, "--descriptor", &fits]),
            4,
            "{member}"
        );
    }
    let mut without = good.clone();
    without.as_object_mut().unwrap().remove("layer_digests");
    let without = folder.json("without.json", &without);
    answer(&["block", "verify", &file, "--record", &without]);
    assert_eq!(failure(&["block", "verify", &flipped, "--record", &without]), 4);

    for (member, value) in [
        ("block_tokens", json!(8)),
        ("layers", json!(1)),
        ("head_dim", json!(65)),
        ("kv_dtype", json!("int8")),
    ] {
        let mut other = descriptor();
        other[member] = value;
        let other = folder.json("other.json", &other);
        assert_eq!(failure(&["block", "verify", &file, "--descriptor", &other]), 4, "{member}");
    }
    let broken = folder.file("broken.json", "{");
    assert_eq!(failure(&["block", "verify", &file, "--record", &broken]), 1);
    assert_eq!(failure(&["block", "verify", &file, "--descriptor", &broken]), 1);
}

#[test]
fn a_model_is_digested_over_its_files() {
    use sha2::{Digest as _, Sha256};

    let folder = Folder::new();
    folder.file("model.safetensors", b"weights");
    folder.file("tokenizer.json", b"tokenizer");
    let sha = |octets: &[u8]| format!("sha-256:{}", hex::encode(Sha256::digest(octets)));
    assert_eq!(
        answer(&["digest", "model", folder.0.path().to_str().unwrap()]),
        json!({ "model_digest": sha(b"weights"), "tokenizer_digest": sha(b"tokenizer") })
    );
    let empty = Folder::new();
    assert_eq!(failure(&["digest", "model", empty.0.path().to_str().unwrap()]), 1);
}

#[test]
fn the_tiny_model_has_a_descriptor() {
    let folder = Folder::new();
    let described = answer(&["descriptor", "tiny", "--block-tokens", "8", "--kv-dtype", "bfloat16"]);
    assert_eq!((&described["block_tokens"], &described["kv_dtype"]), (&json!(8), &json!("bfloat16")));
    let file = folder.json("d.json", &described);
    assert_eq!(text(&answer(&["compat-id", &file]), "compat_id").len(), 64);
    assert_eq!(failure(&["descriptor", "tiny", "--kv-dtype", "auto"]), 2);
}

#[test]
fn every_help_has_an_example() {
    for command in [
        ["compat-id"].as_slice(),
        &["scope-id"],
        &["block-keys"],
        &["block", "inspect"],
        &["block", "verify"],
        &["block", "slice"],
        &["block", "transcode"],
        &["digest", "model"],
        &["descriptor"],
    ] {
        let output = kvsp(&[command, &["--help"]].concat());
        assert!(output.status.success());
        let example = format!("Example:\n  {}", if command == ["scope-id"] { "head" } else { "kvsp" });
        assert!(String::from_utf8(output.stdout).unwrap().contains(&example), "{command:?}");
    }
}
