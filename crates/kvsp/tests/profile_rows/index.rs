//! The Index Service.

use serde_json::{Value, json};

use crate::rows::{ok, replica_digest, row, try_all, uri64};
use crate::support::{COMPAT, JSON, Process, SCOPE, eventually, hex, key, replicas_path};

const HOLDER: &str = "https://h1.example/kvsp/";

fn serve(dir: &tempfile::TempDir, more: &str) -> Process {
    let config = dir.path().join("index.toml");
    std::fs::write(&config, format!("[index]\n{more}")).unwrap();
    Process::serve(dir.path(), &["index", "--config", config.to_str().unwrap()])
}

fn layers() -> Vec<String> {
    (1..=4).map(|layer| format!("{layer:02x}").repeat(32)).collect()
}

fn record(n: u64, holder: &str) -> Value {
    json!({
        "block_key": key(n), "compat_id": hex(&COMPAT), "scope_id": hex(&SCOPE), "holder": holder,
        "codec": 1, "size": 2_097_152, "digest": replica_digest(&layers()), "layer_digests": layers(),
        "residency": [{"tier": "host", "layers": [0, 3], "read_mbit_per_s": 400_000}], "ttl_ms": 600_000
    })
}

fn with(mut record: Value, member: &str, value: Value) -> Value {
    record[member] = value;
    record
}

fn without(mut record: Value, member: &str) -> Value {
    record.as_object_mut().unwrap().remove(member);
    record
}

fn path(n: u64, holder: &str) -> String {
    format!("{}/{}", replicas_path(n), uri64(holder))
}

fn lookup(keys: std::ops::Range<u64>) -> Value {
    let keys: Vec<_> = keys.map(key).collect();
    json!({"compat_id": hex(&COMPAT), "scope_id": hex(&SCOPE), "block_keys": keys})
}

#[test]
fn a_record_is_put_refreshed_returned_and_withdrawn() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = serve(&dir, "");
    let at = path(1, HOLDER);
    assert_eq!(ok(&service, "PUT", &at, &record(1, HOLDER), 201), json!({"ttl_ms": 600_000}));
    assert_eq!(ok(&service, "PUT", &at, &record(1, HOLDER), 200), json!({"ttl_ms": 600_000}));
    let got = service.get(&at).value();
    for (name, value) in record(1, HOLDER).as_object().unwrap() {
        match name.as_str() {
            "ttl_ms" => assert!(got["ttl_ms"].as_u64().unwrap() <= 600_000),
            "residency" => assert_eq!(got["residency"][0]["read_mbit_per_s"].as_f64(), Some(400_000.0)),
            _ => assert_eq!(&got[name], value, "{name}"),
        }
    }
    ok(&service, "PUT", &path(1, "https://h2.example/"), &record(1, "https://h2.example/"), 201);
    let list = service.get(&replicas_path(1)).value();
    assert_eq!(list["replicas"].as_array().unwrap().len(), 2);
    assert_eq!(service.get(&replicas_path(9)).value(), json!({"replicas": []}));
    for _ in 0..2 {
        assert_eq!(service.send("DELETE", &at, &[], b"").status, 204, "it is idempotent");
    }
    assert_eq!(service.get(&at).problem(), "kvsp-block-not-found");
    // A URI is compared after normalisation.
    let odd = "HTTPS://H3.example:443/";
    ok(&service, "PUT", &path(1, "https://h3.example/"), &record(1, odd), 201);
    assert_eq!(service.get(&path(1, "https://h3.example/")).value()["holder"], "https://h3.example/");
}

#[test]
fn seq_and_epoch_order_the_records_of_a_replica() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = serve(&dir, "");
    let at = path(1, HOLDER);
    let seq = |seq: u64| with(record(1, HOLDER), "seq", json!(seq));
    let stale = |body: &Value| {
        let answer = service.json("PUT", &at, body);
        assert_eq!((answer.status, answer.problem().as_str()), (409, "kvsp-stale-record"));
    };
    ok(&service, "PUT", &at, &seq(5), 201);
    ok(&service, "PUT", &at, &seq(5), 200);
    stale(&seq(4));
    stale(&record(1, HOLDER));
    let late = service.send("DELETE", &format!("{at}?seq=4"), &[], b"");
    assert_eq!((late.status, late.problem().as_str()), (409, "kvsp-stale-record"));
    let bare = service.send("DELETE", &at, &[], b"");
    assert_eq!((bare.status, bare.problem().as_str()), (409, "kvsp-stale-record"));
    assert_eq!(service.send("DELETE", &format!("{at}?seq=6"), &[], b"").status, 204);
    assert_eq!(service.get(&at).status, 404);
    stale(&seq(5));
    ok(&service, "PUT", &at, &seq(7), 201);

    let epoch = |n: u64, epoch: u64| with(record(n, HOLDER), "holder_epoch", json!(epoch));
    for n in 2..4 {
        ok(&service, "PUT", &path(n, HOLDER), &epoch(n, 10), 201);
    }
    // A new start of the holder drops what the earlier one published.
    ok(&service, "PUT", &path(4, HOLDER), &epoch(4, 11), 201);
    assert_eq!((service.get(&path(2, HOLDER)).status, service.get(&path(4, HOLDER)).status), (404, 200));
    let late = service.json("PUT", &path(2, HOLDER), &epoch(2, 10));
    assert_eq!((late.status, late.problem().as_str()), (409, "kvsp-stale-record"));
}

#[test]
fn a_ttl_is_capped_and_ends_a_record() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = serve(&dir, "max_ttl_ms = 100000\n");
    assert_eq!(service.get("").value()["limits"]["max_ttl_ms"], 100_000);
    assert_eq!(ok(&service, "PUT", &path(1, HOLDER), &record(1, HOLDER), 201), json!({"ttl_ms": 100_000}));
    let short = with(record(2, HOLDER), "ttl_ms", json!(80));
    assert_eq!(ok(&service, "PUT", &path(2, HOLDER), &short, 201), json!({"ttl_ms": 80}));
    eventually("it expires", || (service.get(&path(2, HOLDER)).status == 404).then_some(()));
    assert_eq!(ok(&service, "POST", "lookup", &lookup(1..3), 200)["matched"], 1);
}

#[test]
fn a_batch_judges_each_item_alone_and_in_order() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = serve(&dir, "");
    ok(&service, "PUT", &path(9, HOLDER), &with(record(9, HOLDER), "seq", json!(5)), 201);
    let name = |n: u64| json!({"compat_id": hex(&COMPAT), "scope_id": hex(&SCOPE), "block_key": key(n), "holder": HOLDER});
    let batch = json!({
        "put": [
            record(1, HOLDER),
            with(record(2, HOLDER), "digest", json!(format!("sha-256:{}", "00".repeat(32)))),
            record(1, HOLDER),
            {"block_key": 1},
        ],
        "delete": [with(name(1), "seq", json!(1)), name(9), name(8), with(name(7), "scope_id", json!("x"))],
    });
    let answer = ok(&service, "POST", "replicas", &batch, 200);
    let statuses = |list: &str| -> Vec<u64> {
        answer[list].as_array().unwrap().iter().map(|item| item["status"].as_u64().unwrap()).collect()
    };
    assert_eq!(statuses("put"), [201, 422, 200, 400], "{answer}");
    assert_eq!(statuses("delete"), [204, 409, 204, 400], "{answer}");
    assert_eq!(answer["put"][0]["ttl_ms"], 600_000);
    assert!(answer["put"][1]["problem"]["type"].as_str().unwrap().ends_with("#kvsp-invalid-record"));
    assert!(answer["delete"][1]["problem"]["type"].as_str().unwrap().ends_with("#kvsp-stale-record"));
    assert_eq!(service.get(&path(1, HOLDER)).status, 404);
}

#[test]
fn all_records_of_a_holder_are_withdrawn_at_once() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = serve(&dir, "");
    let other = "https://h2.example/";
    for n in 0..3 {
        ok(&service, "PUT", &path(n, HOLDER), &record(n, HOLDER), 201);
        ok(&service, "PUT", &path(n, other), &record(n, other), 201);
    }
    assert_eq!(service.send("DELETE", &format!("holders/{}", uri64(HOLDER)), &[], b"").status, 204);
    for n in 0..3 {
        assert_eq!((service.get(&path(n, HOLDER)).status, service.get(&path(n, other)).status), (404, 200));
    }
}

#[test]
fn a_lookup_counts_leading_blocks() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = serve(&dir, "");
    let part = |n: u64, holder: &str, layers: [u32; 2]| {
        with(record(n, holder), "residency", json!([{"tier": "host", "layers": layers}]))
    };
    let (one, two) = ("https://h1.example/", "https://h2.example/");
    // Whole; two halves of one computation; two halves of different ones; nothing; whole.
    ok(&service, "PUT", &path(0, one), &record(0, one), 201);
    ok(&service, "PUT", &path(1, one), &part(1, one, [0, 1]), 201);
    ok(&service, "PUT", &path(1, two), &part(1, two, [2, 3]), 201);
    ok(&service, "PUT", &path(2, one), &part(2, one, [0, 1]), 201);
    let foreign: Vec<String> = (5..=8).map(|layer| format!("{layer:02x}").repeat(32)).collect();
    let other = with(part(2, two, [2, 3]), "layer_digests", json!(foreign));
    ok(&service, "PUT", &path(2, two), &with(other, "digest", json!(replica_digest(&foreign))), 201);
    ok(&service, "PUT", &path(4, one), &record(4, one), 201);
    let answer = ok(&service, "POST", "lookup", &lookup(0..5), 200);
    assert_eq!((&answer["matched"], &answer["complete"]), (&json!(3), &json!(2)), "{answer}");
    let blocks = answer["blocks"].as_array().unwrap();
    assert_eq!(blocks.len(), 3);
    assert_eq!(
        (&blocks[1]["block_key"], blocks[1]["replicas"].as_array().unwrap().len()),
        (&json!(key(1)), 2)
    );
    assert!(blocks[0]["replicas"][0]["layer_digests"].is_array());
    let detail =
        |detail: &str| ok(&service, "POST", "lookup", &with(lookup(0..5), "detail", json!(detail)), 200);
    assert_eq!(detail("full")["blocks"][0]["replicas"][0]["layer_digests"], json!(layers()));
    let location = detail("location");
    let replica = &location["blocks"][0]["replicas"][0];
    assert!(replica["layer_digests"].is_null() && replica["digest"].is_string(), "{replica}");
    let none = detail("none");
    assert_eq!((&none["matched"], &none["complete"], none.get("blocks")), (&json!(3), &json!(2), None));
    let empty = ok(&service, "POST", "lookup", &lookup(0..0), 200);
    assert_eq!((&empty["matched"], &empty["complete"]), (&json!(0), &json!(0)));
    // Another scope sees nothing of it.
    let foreign = with(lookup(0..5), "scope_id", json!("33".repeat(16)));
    assert_eq!(ok(&service, "POST", "lookup", &foreign, 200)["matched"], 0);
}

#[test]
fn a_moqt_holder_is_stored_and_returned() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = serve(&dir, "");
    let holder = "moqt://relay.example/";
    let space =
        |octets: &[u8]| with(record(1, holder), "moqt_namespace", json!(crate::rows::base64(octets, true)));
    let good = space(b"\x01a\x02bb\x01c\x01d\x01e");
    ok(&service, "PUT", &path(1, holder), &good, 201);
    let got = service.get(&path(1, holder)).value();
    assert_eq!((&got["holder"], &got["moqt_namespace"]), (&json!(holder), &good["moqt_namespace"]));
    let bad = |what, body: Value| row(what, "PUT", path(1, holder), 422, "kvsp-invalid-record").json(&body);
    let rows = vec![
        bad("four fields", space(b"\x01a\x01b\x01c\x01d")),
        bad("an empty field", space(b"\x01a\x01b\x01c\x01d\x00")),
        bad("six fields", space(b"\x01a\x01b\x01c\x01d\x01e\x01f")),
        bad("no namespace", record(1, holder)),
    ];
    try_all(&service, &path(1, holder), rows);
}

#[test]
fn each_bad_request_has_its_answer() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = serve(&dir, "max_lookup_keys = 8\nmax_batch_items = 4\nmax_json_octets = 65536\n");
    let good = path(1, HOLDER);
    ok(&service, "PUT", &good, &record(1, HOLDER), 201);
    let put =
        |what, status, problem, body: Value| row(what, "PUT", path(1, HOLDER), status, problem).json(&body);
    let r = || record(1, HOLDER);
    let residency = |list: Value| with(r(), "residency", list);
    let mut rows = vec![
        row(
            "a bad key",
            "GET",
            format!("replicas/{}/{}/x/{}", hex(&COMPAT), hex(&SCOPE), uri64(HOLDER)),
            400,
            "kvsp-bad-identifier",
        ),
        row(
            "a holder that is no URI",
            "GET",
            format!("{}/{}", replicas_path(1), uri64("nothing")),
            400,
            "kvsp-bad-identifier",
        ),
        row(
            "a holder that is not normalised",
            "GET",
            path(1, "HTTPS://H1.example/kvsp/"),
            400,
            "kvsp-bad-identifier",
        ),
        row(
            "a holder without a slash",
            "GET",
            path(1, "https://h1.example/kvsp"),
            400,
            "kvsp-bad-identifier",
        ),
        row("a holder with a query", "GET", path(1, "https://h1.example/?a/"), 400, "kvsp-bad-identifier"),
        row("a holder with userinfo", "GET", path(1, "https://u@h1.example/"), 400, "kvsp-bad-identifier"),
        row("a padded holder", "GET", format!("{}=", path(1, HOLDER)), 400, "kvsp-bad-identifier"),
        row("an absent record", "GET", path(2, HOLDER), 404, "kvsp-block-not-found"),
        row(
            "a seq that is no number",
            "DELETE",
            format!("{}?seq=x", path(3, HOLDER)),
            400,
            "kvsp-bad-identifier",
        ),
        row("another method", "POST", path(1, HOLDER), 405, "about:blank"),
        row("an unknown path", "GET", "replica", 404, "about:blank"),
        put("another key than the path's", 422, "kvsp-invalid-record", record(2, HOLDER)),
        put("another holder than the path's", 422, "kvsp-invalid-record", record(1, "https://h2.example/")),
        put(
            "overlapping residency",
            422,
            "kvsp-invalid-record",
            residency(json!([{"tier": "host", "layers": [0, 2]}, {"tier": "disk", "layers": [2, 3]}])),
        ),
        put(
            "an unknown tier",
            422,
            "kvsp-invalid-record",
            residency(json!([{"tier": "tape", "layers": [0, 3]}])),
        ),
        put(
            "a reversed range",
            422,
            "kvsp-invalid-record",
            residency(json!([{"tier": "host", "layers": [3, 0]}])),
        ),
        put(
            "layers beyond the digests",
            422,
            "kvsp-invalid-record",
            residency(json!([{"tier": "host", "layers": [0, 4]}])),
        ),
        put(
            "a digest of another list",
            422,
            "kvsp-invalid-record",
            with(r(), "digest", json!(format!("sha-256:{}", "00".repeat(32)))),
        ),
        put(
            "a malformed base URI",
            422,
            "kvsp-invalid-record",
            with(r(), "holder", json!("https://h1.example/kvsp")),
        ),
        put(
            "a layer digest that is no hex",
            400,
            "kvsp-bad-identifier",
            with(r(), "layer_digests", json!(["zz"])),
        ),
        put("an upper-case key", 400, "kvsp-bad-identifier", with(r(), "block_key", json!("AA".repeat(32)))),
        put("TTL 0", 400, "kvsp-malformed-json", with(r(), "ttl_ms", json!(0))),
        put("a size that is a string", 400, "kvsp-malformed-json", with(r(), "size", json!("1"))),
        put("a negative size", 400, "kvsp-malformed-json", with(r(), "size", json!(-1))),
        put("an array", 400, "kvsp-malformed-json", json!([])),
        row("another media type", "PUT", path(1, HOLDER), 415, "about:blank").body("text/plain", "{}"),
        row("a coded body", "PUT", path(1, HOLDER), 415, "about:blank")
            .json(&r())
            .header("content-encoding", "gzip"),
        row("too many octets", "PUT", path(1, HOLDER), 413, "kvsp-limit-exceeded")
            .body(JSON, vec![b' '; 70_000]),
        row("too many keys", "POST", "lookup", 413, "kvsp-limit-exceeded").json(&lookup(0..9)),
        row("no keys", "POST", "lookup", 400, "kvsp-malformed-json")
            .json(&without(lookup(0..1), "block_keys")),
        row("a bad key in a lookup", "POST", "lookup", 400, "kvsp-bad-identifier").json(&with(
            lookup(0..1),
            "block_keys",
            json!(["x"]),
        )),
        row("a key that is no string", "POST", "lookup", 400, "kvsp-malformed-json").json(&with(
            lookup(0..1),
            "block_keys",
            json!([1]),
        )),
        row("too many items", "POST", "replicas", 413, "kvsp-limit-exceeded")
            .json(&json!({"put": [{}, {}, {}, {}, {}], "delete": []})),
        row("a batch that is no object", "POST", "replicas", 400, "kvsp-malformed-json").json(&json!([])),
        row(
            "a descriptor that nobody registered",
            "GET",
            format!("descriptors/{}", "01".repeat(32)),
            404,
            "kvsp-descriptor-unknown",
        ),
        row("a page's request", "GET", path(1, HOLDER), 403, "about:blank")
            .header("origin", "http://evil.example"),
    ];
    for member in
        ["block_key", "compat_id", "scope_id", "holder", "codec", "size", "digest", "residency", "ttl_ms"]
    {
        rows.push(put("a required member is missing", 400, "kvsp-malformed-json", without(r(), member)));
    }
    try_all(&service, &good, rows);
    ok(&service, "PUT", &good, &with(r(), "unknown", json!({"x": 1})), 200);
    ok(&service, "PUT", &path(5, HOLDER), &without(record(5, HOLDER), "layer_digests"), 201);
}

#[test]
fn the_root_and_the_admin_listener_tell_what_a_service_is() {
    let dir = tempfile::TempDir::new().unwrap();
    for (role, service) in [("index", serve(&dir, "")), ("holder", Process::serve(dir.path(), &["holder"]))] {
        let root = service.get("").value();
        assert_eq!((&root["kvsp"], &root["roles"]), (&json!(1), &json!([role])));
        assert!(root["extensions"].is_array());
        for limit in [
            "max_json_octets",
            "max_container_octets",
            "max_lookup_keys",
            "max_batch_items",
            "max_ttl_ms",
            "max_lease_ttl_ms",
        ] {
            assert!(root["limits"][limit].is_u64(), "{limit} of {root}");
        }
        for path in ["livez", "readyz", "metrics"] {
            let mut admin = crate::support::Connection::open(&service.admin).unwrap();
            assert_eq!(admin.send("GET", path, &[], b"").unwrap().status, 200, "{path}");
        }
    }
}
