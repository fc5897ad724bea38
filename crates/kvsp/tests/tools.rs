//! `bench`, `doctor` and the commands on services, black-box, against services in this process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::TcpListener;
use std::process::{Output, Stdio};
use std::sync::Arc;

use kvsp_blocks::{BlocksConfig, BlocksDeps};
use kvsp_client::{Client, ClientConfig};
use kvsp_holder::HolderConfig;
use kvsp_net::clock::SystemClock;
use kvsp_net::metrics::Metrics;
use kvsp_net::random::SeededRandom;
use kvsp_net::service::{ServeError, ServiceConfig};
use kvsp_proto::container::{Container, Limits};
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::uri::BaseUri;
use kvsp_testkit::{Behaviour, Geometry, Hostile, Prefix, Running, run};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

async fn kvsp(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvsp"));
    for name in
        ["HOLDER", "INDEX", "CONTROLLER", "ALLOW", "COMPAT", "SCOPE", "TIMEOUT_MS", "JSON", "DISK_DIR"]
    {
        command.env_remove(format!("KVSP_{name}"));
    }
    command.args(args).stdin(Stdio::null()).output().await.unwrap()
}

/// The exit status and, where stdout is JSON, what it says.
async fn asked(args: &[&str]) -> (i32, Value) {
    let output = kvsp(&[args, &["--json"]].concat()).await;
    let value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let status = output.status.code().unwrap();
    // A usage error tells more; every other error is one line.
    assert!(status == 2 || stderr.trim_end().lines().count() <= 1, "{args:?}: {stderr}");
    (status, value)
}

async fn status(args: &[&str]) -> i32 {
    asked(args).await.0
}

struct Served {
    base: BaseUri,
    _running: Running<Result<(), ServeError>>,
}

async fn index() -> Served {
    let bound = run::bind(ServiceConfig::default()).await;
    let base = bound.base();
    let deps = kvsp_index::Deps {
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SeededRandom::new(1)),
        metrics: Metrics::new(),
    };
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let ready = move || ready.send(()).unwrap();
    let running = Running::spawn(|stop| kvsp_index::serve(Default::default(), bound, deps, ready, stop));
    is_ready.await.unwrap();
    Served { base, _running: running }
}

async fn holder() -> Served {
    let bound = run::bind(ServiceConfig::default()).await;
    let base = bound.base();
    let deps = BlocksDeps {
        client: Client::new(ClientConfig::default()),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SeededRandom::new(2)),
        metrics: Metrics::new(),
    };
    let config = HolderConfig { blocks: BlocksConfig { host_octets: 1 << 20, ..BlocksConfig::default() } };
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    let ready = move || ready.send(()).unwrap();
    let running = Running::spawn(|stop| kvsp_holder::serve(config, bound, deps, ready, stop));
    is_ready.await.unwrap();
    Served { base, _running: running }
}

/// A prefix, and a folder for files.
struct Case {
    prefix: Prefix,
    compat: String,
    scope: String,
    keys: Vec<String>,
    folder: TempDir,
}

impl Case {
    fn new(seed: u64) -> Self {
        let prefix = Prefix::new(Geometry::default(), seed, 3);
        Self {
            compat: prefix.compat().to_string(),
            scope: prefix.scope().to_string(),
            keys: prefix.keys.iter().map(ToString::to_string).collect(),
            prefix,
            folder: TempDir::new().unwrap(),
        }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn file(&self, name: &str, octets: &[u8]) -> String {
        std::fs::write(self.path(name), octets).unwrap();
        self.path(name)
    }

    /// `command` about block `key`, with more arguments.
    fn args<'a>(&'a self, command: &'a str, key: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut args = vec![command, "--compat", &self.compat, "--scope", &self.scope, "--key", key];
        args.extend(more);
        args
    }

    fn parsed(&self, name: &str) -> Container {
        let octets = std::fs::read(self.path(name)).unwrap();
        Container::parse(octets.into(), &Limits::default()).unwrap()
    }

    async fn publish(&self, index: &BaseUri, holder: &BaseUri) {
        let client = Client::new(ClientConfig::default());
        for record in self.prefix.records(&holder.into()) {
            client.put_replica(index, &record).await.unwrap();
        }
    }
}

/// The URI of a port at which nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}/kvsp/", listener.local_addr().unwrap())
}

/// The rows of each bench, by its name; every number is one, and in order.
async fn benched(names: &[&str]) -> Vec<Vec<Value>> {
    let (status, report) = asked(&[&["bench", "--quick"], names].concat()).await;
    assert_eq!(status, 0);
    assert!(report["machine"]["cores"].as_u64().unwrap() >= 1);
    assert!(!report["machine"]["cpu_model"].as_str().unwrap().is_empty());
    let benches = report["benches"].as_array().unwrap();
    assert_eq!(benches.iter().map(|bench| &bench["name"]).collect::<Vec<_>>(), names);
    let rows = benches.iter().map(|bench| {
        assert!(bench["notes"].as_array().unwrap().iter().all(Value::is_string));
        let rows = bench["rows"].as_array().unwrap().clone();
        for row in &rows {
            let number = |member: &str| row[member].as_f64().unwrap();
            assert!(number("min") > 0.0 && number("min") <= number("value"), "{row}");
            assert!(number("value") <= number("max") && number("max").is_finite(), "{row}");
            if let Some(goal) = row.get("goal") {
                let met = match (goal["at_least"].as_f64(), goal["at_most"].as_f64()) {
                    (Some(least), None) => number("value") >= least,
                    (None, Some(most)) => number("value") <= most,
                    _ => panic!("{row}"),
                };
                assert_eq!(goal["met"], met, "{row}");
            }
        }
        rows
    });
    rows.collect()
}

#[tokio::test]
async fn bench_measures_block_keys() {
    let rows = benched(&["block-keys"]).await.remove(0);
    // Of three block sizes: one prompt, two together, two libraries; each of the ways by each library.
    assert_eq!(rows.len(), 3 * (4 + 4));
    for row in rows {
        assert!(["keys/s", "ratio"].contains(&row["unit"].as_str().unwrap()), "{row}");
    }
    assert_eq!(asked(&["bench", "nothing"]).await.0, 2);
}

#[tokio::test]
async fn bench_measures_services_beside_limits_that_are_processes_of_their_own() {
    let benches = benched(&["hash", "get", "put", "index-http"]).await;
    // What the figures are is the machine's matter; that the goals have one each is not.
    let goals = |bench: usize, name: &str| {
        let rows = benches[bench].iter().filter(|row| row.get("goal").is_some());
        rows.filter(|row| row["name"].as_str().unwrap().starts_with(name)).count()
    };
    assert_eq!(goals(1, "host verified / raw with two lanes"), 2, "by the clock and by CPU time");
    assert_eq!(goals(1, "CPU of the holder, host tier"), 1);
    assert_eq!(goals(1, "one connection, receive path"), 2, "of the client and of both ends");
    assert_eq!(goals(1, "four connections, "), 4);
    assert_eq!(goals(2, "PUT / raw with two lanes"), 2);
    assert_eq!(goals(3, "CPU of full / (writing JSON"), 1);
    assert_eq!(goals(3, "PUT of one record / hyper"), 1);
    assert_eq!(goals(3, "batches of "), 2);
    assert_eq!(goals(3, "p99 of a lookup"), 3);
}

#[tokio::test]
async fn bench_measures_what_sessions_cost() {
    let benches = benched(&["checkpoints", "sessions"]).await;
    let goals = |bench: usize| benches[bench].iter().filter(|row| row.get("goal").is_some()).count();
    assert_eq!(goals(0), 1, "the share of the lower limit");
    assert_eq!(goals(1), 2, "alone and four at once");
    assert_eq!(asked(&["bench", "checkpoints", "--quick", "--state-dir", "/nowhere"]).await.0, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_is_put_and_got_and_verified_against_its_record() {
    let (case, index, holder) = (Case::new(1), index().await, holder().await);
    let (index, holder) = (index.base.as_str(), holder.base.as_str());
    let file = case.file("block", case.prefix.containers[0].bytes());
    let key = &case.keys[0];
    let (status_put, record) = asked(&case.args("put", key, &["--to", holder, "--record", &file])).await;
    assert_eq!(status_put, 0);
    let record = ReplicaRecord::from_value(record).unwrap();
    let want = &case.prefix.records(&holder.parse().unwrap())[0];
    assert_eq!((&record.digest, &record.layer_digests), (&want.digest, &want.layer_digests));
    assert!(record.ttl_ms > 1000);
    assert_eq!(status(&case.args("put", key, &["--to", holder, &file])).await, 1, "it has it already");

    let out = case.path("whole");
    let (got, told) = asked(&case.args("get", key, &["--from", holder, "-o", &out])).await;
    assert_eq!((got, &told["verified"], &told["layers"]), (0, &json!("repr-digest"), &json!([0, 3])));
    assert_eq!(case.parsed("whole"), case.prefix.containers[0]);
    assert_eq!(told["digest"], json!(want.digest));

    let client = Client::new(ClientConfig::default());
    client.put_replica(&index.parse().unwrap(), &record).await.unwrap();
    let out = case.path("part");
    let (got, told) = asked(&case.args("get", key, &["--index", index, "--layers", "1-2", "-o", &out])).await;
    assert_eq!((got, &told["verified"], &told["holder"]), (0, &json!("record"), &json!(holder)));
    let part = case.parsed("part");
    assert_eq!((part.layers().first(), part.layers().last()), (1, 2));
    assert_eq!(part.layer_octets(2), case.prefix.containers[0].layer_octets(2));
    let more = ["--index", index, "--codec", "2", "-o", &out];
    assert_eq!(
        status(&case.args("get", key, &more)).await,
        1,
        "without a descriptor it cannot be transcoded"
    );
    client.put_descriptor(&holder.parse().unwrap(), &case.prefix.descriptor).await.unwrap();
    let (got, told) = asked(&case.args("get", key, &more)).await;
    assert_eq!((got, &told["verified"], &told["codec"]), (0, &json!("repr-digest"), &json!(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_tells_how_much_is_there() {
    let (case, index) = (Case::new(2), index().await);
    case.publish(&index.base, &"http://127.0.0.1:9/kvsp/".parse().unwrap()).await;
    let base = index.base.as_str();
    let space = ["lookup", "--index", base, "--compat", &case.compat, "--scope", &case.scope];
    let other = "ab".repeat(32);
    let keys = [case.keys[0].as_str(), case.keys[1].as_str(), &other];
    let (status, answer) = asked(&[&space[..], &keys].concat()).await;
    assert_eq!((status, &answer["matched"], &answer["complete"]), (0, &json!(2), &json!(2)));
    let replica = &answer["blocks"][1]["replicas"][0];
    assert_eq!(replica["block_key"], json!(case.keys[1]));
    assert_eq!(replica["layer_digests"].as_array().unwrap().len(), 4);
    let (_, answer) = asked(&[&space[..], &keys, &["--detail", "location"]].concat()).await;
    assert_eq!(answer["blocks"][1]["replicas"][0]["layer_digests"], Value::Null);
    let (status, answer) = asked(&[&space[..], &keys, &["--detail", "none"]].concat()).await;
    assert_eq!((status, &answer["blocks"]), (0, &Value::Null));
    let (status, answer) = asked(&[&space[..], &[other.as_str()]].concat()).await;
    assert_eq!((status, &answer["matched"]), (5, &json!(0)), "a miss is told and has its own status");

    let forms =
        [json!(case.keys).to_string(), json!({ "block_keys": case.keys }).to_string(), case.keys.join("\n")];
    for form in forms {
        let file = case.file("keys", form.as_bytes());
        let (status, answer) = asked(&[&space[..], &["--keys", &file]].concat()).await;
        assert_eq!((status, &answer["matched"]), (0, &json!(3)), "{form}");
    }
    let file = case.file("keys", b"[1]");
    assert_eq!(asked(&[&space[..], &["--keys", &file]].concat()).await.0, 1);
    assert_eq!(asked(&space).await.0, 2, "no keys");
    assert_eq!(asked(&[&space[..], &["AB"]].concat()).await.0, 2, "not a key");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_an_index_are_followed_a_line_each() {
    let (case, index) = (Case::new(5), index().await);
    let holder: BaseUri = "http://127.0.0.1:9/kvsp/".parse().unwrap();
    // A cursor of no life of this index: what may have been missed is told first, so the stream stands.
    let never = "0000000000000000-0";
    let args = ["events", "--index", index.base.as_str(), "--after", never, "--scope", &case.scope];
    let mut follower = Command::new(env!("CARGO_BIN_EXE_kvsp"))
        .args(args)
        .args(["--count", "4", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut next =
        async || -> Value { serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap() };
    assert_eq!(next().await["event"], "resync");
    case.publish(&index.base, &holder).await;
    for key in &case.keys {
        let line = next().await;
        assert_eq!((&line["event"], &line["block_key"]), (&json!("publish"), &json!(key)));
        assert_eq!((&line["holder"], &line["scope_id"]), (&json!(holder), &json!(case.scope)));
        assert!(line["cursor"].is_string());
    }
    assert_eq!(follower.wait().await.unwrap().code(), Some(0), "that was the count");
    assert_eq!(status(&["events", "--index", &nobody()]).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_has_its_exit_status() {
    let (case, index, holder) = (Case::new(3), index().await, holder().await);
    let hostile = Hostile::start(&case.prefix).await;
    case.publish(&index.base, hostile.base()).await;
    let (nobody, out) = (nobody(), case.path("out"));
    let key = &case.keys[0];
    let from = |base: &str| -> Vec<String> {
        let args = case.args("get", key, &["-o", &out, "--from", base]);
        args.into_iter().map(str::to_owned).collect()
    };
    let got = async |base: &str, more: &[&str]| {
        let args = from(base);
        status(&[&args.iter().map(String::as_str).collect::<Vec<_>>()[..], more].concat()).await
    };
    assert_eq!(got(&nobody, &[]).await, 3);
    assert_eq!(got(holder.base.as_str(), &[]).await, 5);
    let base = hostile.base().as_str().to_owned();
    let index = ["--index", index.base.as_str()];
    for (behaviour, alone, with_record) in [
        (Behaviour::WrongReprDigest, 4, 4),
        (Behaviour::NoReprDigest, 4, 4),
        (Behaviour::NotAContainer, 4, 4),
        (Behaviour::CorruptUnderItsDigest, 0, 4),
        (Behaviour::NotFound, 5, 5),
        (Behaviour::Truncated, 3, 3),
        (Behaviour::Redirect, 1, 1),
    ] {
        hostile.behave(behaviour);
        assert_eq!(got(&base, &[]).await, alone, "{behaviour:?}");
        let _ = std::fs::remove_file(&out);
        assert_eq!(got(&base, &index).await, with_record, "{behaviour:?} with a record");
        assert!(!std::path::Path::new(&out).exists(), "{behaviour:?}: nothing unverified is written");
    }
    hostile.behave(Behaviour::HangBeforeAnswer);
    assert_eq!(got(&base, &["--timeout-ms", "50"]).await, 3);
    assert_eq!(got(holder.base.as_str(), &index).await, 5, "the index has no record of that holder");

    let junk = case.file("junk", b"KVB2");
    assert_eq!(status(&case.args("put", key, &["--to", holder.base.as_str(), &junk])).await, 4);
    assert_eq!(status(&case.args("get", "00", &["--from", &nobody, "-o", &out])).await, 2);
    assert_eq!(status(&case.args("get", key, &["-o", &out])).await, 2, "neither holder nor index");
    assert_eq!(status(&["status", &nobody]).await, 3);
    let session = "6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11";
    let sessions =
        async |args: &[&str]| status(&[&["sessions", "--controller", &nobody], args].concat()).await;
    assert_eq!(sessions(&[]).await, 3);
    assert_eq!(sessions(&["show", session]).await, 3);
    assert_eq!(sessions(&["show"]).await, 2, "which one");
    assert_eq!(sessions(&["show", "six"]).await, 2, "not an identifier");
    assert_eq!(sessions(&["list", session]).await, 2, "that is what show does");
    assert_eq!(status(&["sessions"]).await, 2, "no controller");
    let elsewhere = case.args("get", key, &["--index", &nobody, "--allow", "10.0.0.0/40", "-o", &out]);
    assert_eq!(status(&elsewhere).await, 2, "not a network");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_holder_is_asked_where_one_fails() {
    let (case, index) = (Case::new(4), index().await);
    let (bad, good) = (Hostile::start(&case.prefix).await, Hostile::start(&case.prefix).await);
    let out = case.path("out");
    for hostile in [&bad, &good] {
        case.publish(&index.base, hostile.base()).await;
        hostile.behave(Behaviour::CorruptUnderItsDigest);
    }
    let args = case.args("get", &case.keys[1], &["--index", index.base.as_str(), "-o", &out]);
    assert_eq!(status(&args).await, 4);
    bad.behave(Behaviour::NotFound);
    assert_eq!(status(&args).await, 4, "a block that is false outweighs a miss");
    good.behave(Behaviour::Honest);
    let (status, told) = asked(&args).await;
    assert_eq!((status, &told["holder"]), (0, &json!(good.base())));
    assert_eq!(case.parsed("out"), case.prefix.containers[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_doctor_tell_what_services_are() {
    let (index, holder) = (index().await, holder().await);
    let (index, holder) = (index.base.as_str(), holder.base.as_str());
    let (status, root) = asked(&["status", index]).await;
    assert_eq!((status, &root["kvsp"], &root["roles"]), (0, &json!(1), &json!(["index"])));
    let text = String::from_utf8(kvsp(&["status", holder]).await.stdout).unwrap();
    assert!(text.starts_with("roles      holder\n"), "{text}");

    let folder = TempDir::new().unwrap();
    let dir = folder.path().to_str().unwrap();
    let (status, told) = asked(&["doctor", "--disk-dir", dir, "--index", index, "--holder", holder]).await;
    assert_eq!((status, &told["ok"]), (0, &json!(true)), "{told}");
    let checks = told["checks"].as_array().unwrap();
    let names: Vec<&str> = checks.iter().map(|check| check["check"].as_str().unwrap()).collect();
    let machine = ["cpu", "memory", "open files", "loopback", "monotonic clock", "disk directory"];
    assert_eq!(names, [&machine[..], &["index", "holder"]].concat());
    assert!(std::fs::read_dir(dir).unwrap().next().is_none(), "the doctor leaves nothing behind");

    let missing = format!("{dir}/missing");
    for wrong in [["--controller", holder], ["--index", &nobody()], ["--disk-dir", &missing]] {
        let (status, told) = asked(&[&["doctor"][..], &wrong].concat()).await;
        assert_eq!((status, &told["ok"]), (1, &json!(false)), "{wrong:?}");
        let last = told["checks"].as_array().unwrap().last().unwrap();
        assert_eq!(last["verdict"], "wrong", "{wrong:?}");
    }
}
