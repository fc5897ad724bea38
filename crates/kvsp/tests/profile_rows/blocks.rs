//! Blocks of a holder.

use serde_json::json;

use crate::rows::{digest, layer_digests, ok, replica_digest, repr_digest, row, try_all};
use crate::support::{
    BLOCK, COMPAT, Process, SCOPE, block_path, coded, container, eventually, hex, key, replicas_path,
};

fn holder(dir: &tempfile::TempDir) -> Process {
    let config = dir.path().join("holder.toml");
    let text = "[holder]\nhost_octets = 1048576\n[holder.limits]\nmax_container_octets = 262144\n";
    std::fs::write(&config, text).unwrap();
    Process::serve(dir.path(), &["holder", "--config", config.to_str().unwrap()])
}

fn descriptor() -> (String, serde_json::Value) {
    // In the order and form of JCS, so that its text is what is hashed.
    let digest_text = format!("sha-256:{}", "5a".repeat(32));
    let text = format!(
        "{{\"block_tokens\":4,\"head_dim\":8,\"kv_dtype\":\"bfloat16\",\"kv_heads\":1,\"layers\":2,\
         \"layout\":\"kvsp-layout-1\",\"model\":\"m\",\"model_digest\":\"{digest_text}\",\
         \"positional\":\"rope\",\"tokenizer_digest\":\"{digest_text}\"}}"
    );
    let compat = hex(&digest(&[b"KVSP-COMPAT-1\0", text.as_bytes()].concat()));
    (compat, serde_json::from_str(&text).unwrap())
}

#[test]
fn each_bad_request_has_its_answer() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = holder(&dir);
    let good = block_path(1);
    let block = container(0, 2, 64, 1);
    assert_eq!(service.put_block(&good, &block).status, 201);
    let (compat, described) = descriptor();
    ok(&service, "PUT", &format!("descriptors/{compat}"), &described, 201);
    ok(&service, "PUT", &format!("descriptors/{compat}"), &described, 200);
    let put = |what, octets: Vec<u8>, status, problem| {
        row(what, "PUT", block_path(2), status, problem).header("if-none-match", "*").body(BLOCK, octets)
    };
    let patched = |at: usize, octets: &[u8]| {
        let mut block = container(0, 2, 64, 2);
        block[at..at + octets.len()].copy_from_slice(octets);
        block
    };
    let (c, s) = (hex(&COMPAT), hex(&SCOPE));
    let in_described = format!("blocks/{compat}/{s}/{}", key(3));
    let foreign_digest = repr_digest(b"something else");
    let falsely = |member: &str, value: serde_json::Value| {
        let mut described = described.clone();
        described[member] = value;
        described
    };
    let rows = vec![
        row("a block that is not held", "GET", block_path(9), 404, "kvsp-block-not-found"),
        row(
            "upper-case hex",
            "GET",
            format!("blocks/{}/{s}/{}", "AA".repeat(32), key(1)),
            400,
            "kvsp-bad-identifier",
        ),
        row("a short key", "GET", format!("blocks/{c}/{s}/{}", "1".repeat(63)), 400, "kvsp-bad-identifier"),
        row("a long scope", "GET", format!("blocks/{c}/{s}00/{}", key(1)), 400, "kvsp-bad-identifier"),
        row("no hex", "DELETE", format!("blocks/{c}/{s}/{}", "zz".repeat(32)), 400, "kvsp-bad-identifier"),
        row("an unknown path", "GET", "nothing/here", 404, "about:blank"),
        row("a path outside the base", "GET", "/elsewhere", 404, "about:blank"),
        row("another method", "PATCH", good.clone(), 405, "about:blank"),
        row("layers without a dash", "GET", format!("{good}?layers=1"), 400, "kvsp-invalid-range"),
        row("layers reversed", "GET", format!("{good}?layers=1-0"), 400, "kvsp-invalid-range"),
        row("signed layers", "GET", format!("{good}?layers=+0-1"), 400, "kvsp-invalid-range"),
        row("layers beyond 32 bits", "GET", format!("{good}?layers=0-4294967296"), 400, "kvsp-invalid-range"),
        row("layers given twice", "GET", format!("{good}?layers=0-0&layers=0-0"), 400, "kvsp-invalid-range"),
        row("empty layers", "GET", format!("{good}?layers="), 400, "kvsp-invalid-range"),
        row("layers that are not held", "GET", format!("{good}?layers=1-2"), 404, "kvsp-layers-unavailable"),
        row("codec 0", "GET", format!("{good}?codec=0"), 400, "kvsp-bad-identifier"),
        row("codec 65535", "GET", format!("{good}?codec=65535"), 400, "kvsp-bad-identifier"),
        row("codec that is no number", "GET", format!("{good}?codec=raw"), 400, "kvsp-bad-identifier"),
        row("codec given twice", "GET", format!("{good}?codec=1&codec=1"), 400, "kvsp-bad-identifier"),
        row(
            "a codec that is not offered",
            "GET",
            format!("{good}?codec=65280"),
            406,
            "kvsp-codec-unavailable",
        ),
        put("wrong magic", patched(0, b"KVB2"), 400, "kvsp-malformed-container"),
        put("version 2", patched(4, &[2]), 400, "kvsp-malformed-container"),
        put("flags set", patched(5, &[1]), 400, "kvsp-malformed-container"),
        put("no tokens", patched(16, &[0; 4]), 400, "kvsp-malformed-container"),
        put("no layers", patched(12, &[0; 4]), 400, "kvsp-malformed-container"),
        put("more layers than octets", patched(12, &[0, 0, 1, 0]), 400, "kvsp-malformed-container"),
        put("a length that does not add up", patched(27, &[65]), 400, "kvsp-malformed-container"),
        put("lengths that wrap", patched(20, &[0xFF; 16]), 400, "kvsp-malformed-container"),
        put("cut short", container(0, 2, 64, 2)[..100].to_vec(), 400, "kvsp-malformed-container"),
        put(
            "octets after the end",
            [container(0, 2, 64, 2), vec![0]].concat(),
            400,
            "kvsp-malformed-container",
        ),
        put("empty", Vec::new(), 400, "kvsp-malformed-container"),
        put("an unknown codec", coded(0x0777, 0, 2, 64, 2), 415, "kvsp-unsupported-codec"),
        put("codec 0 sent", coded(0, 0, 2, 64, 2), 415, "kvsp-unsupported-codec"),
        put("codec 65535 sent", coded(0xFFFF, 0, 2, 64, 2), 415, "kvsp-unsupported-codec"),
        put("over the limit", container(0, 1, 200_000, 2), 413, "kvsp-limit-exceeded"),
        put("not from layer 0", container(1, 2, 64, 2), 422, "kvsp-container-mismatch"),
        row("no precondition", "PUT", block_path(2), 428, "about:blank").body(BLOCK, block.clone()),
        row("a precondition that is not *", "PUT", block_path(2), 428, "about:blank")
            .header("if-none-match", "\"x\"")
            .body(BLOCK, block.clone()),
        row("a block that is there", "PUT", good.clone(), 412, "kvsp-block-exists")
            .header("if-none-match", "*")
            .body(BLOCK, block.clone()),
        row("another media type", "PUT", block_path(2), 415, "about:blank")
            .header("if-none-match", "*")
            .body("application/octet-stream", block.clone()),
        row("no media type", "PUT", block_path(2), 415, "about:blank")
            .header("if-none-match", "*")
            .untyped(block.clone()),
        put("a coded body", block.clone(), 415, "about:blank").header("content-encoding", "gzip"),
        put("another Repr-Digest", block.clone(), 422, "kvsp-digest-mismatch")
            .header("repr-digest", &foreign_digest),
        row(
            "sections of another size than the descriptor's",
            "PUT",
            in_described.clone(),
            422,
            "kvsp-container-mismatch",
        )
        .header("if-none-match", "*")
        .body(BLOCK, container(0, 2, 32, 2)),
        row(
            "fewer layers than the descriptor's",
            "PUT",
            in_described.clone(),
            422,
            "kvsp-container-mismatch",
        )
        .header("if-none-match", "*")
        .body(BLOCK, container(0, 1, 64, 2)),
        row(
            "a descriptor under another ID",
            "PUT",
            format!("descriptors/{}", "00".repeat(32)),
            422,
            "kvsp-compat-mismatch",
        )
        .json(&described),
        row(
            "a descriptor that lacks members",
            "PUT",
            format!("descriptors/{compat}"),
            400,
            "kvsp-malformed-json",
        )
        .json(&json!({"model": "m"})),
        row("no adapters in a list", "PUT", format!("descriptors/{compat}"), 422, "kvsp-descriptor-invalid")
            .json(&falsely("adapters", json!([]))),
        row(
            "an element type of no registry",
            "PUT",
            format!("descriptors/{compat}"),
            422,
            "kvsp-descriptor-invalid",
        )
        .json(&falsely("kv_dtype", json!("fp8"))),
        row("no layers at all", "PUT", format!("descriptors/{compat}"), 422, "kvsp-descriptor-invalid")
            .json(&falsely("layers", json!(0))),
        row(
            "a descriptor that nobody registered",
            "GET",
            format!("descriptors/{}", "01".repeat(32)),
            404,
            "kvsp-descriptor-unknown",
        ),
        row("a page's request", "GET", good.clone(), 403, "about:blank")
            .header("origin", "http://evil.example"),
        // The order of the checks: container, codec, precondition, what is there, contents.
        row("malformed before the precondition", "PUT", good.clone(), 400, "kvsp-malformed-container")
            .body(BLOCK, "KVB2"),
        row("codec before the precondition", "PUT", good.clone(), 415, "kvsp-unsupported-codec")
            .body(BLOCK, coded(0x0777, 0, 2, 64, 2)),
        row("the precondition before what is there", "PUT", good.clone(), 428, "about:blank")
            .body(BLOCK, block.clone()),
        row("what is there before the contents", "PUT", good.clone(), 412, "kvsp-block-exists")
            .header("if-none-match", "*")
            .body(BLOCK, container(1, 2, 64, 2)),
        row("the identifier before the media type", "PUT", "blocks/x/y/z", 400, "kvsp-bad-identifier")
            .body("text/plain", "x"),
        row("nothing of the above is stored", "GET", block_path(2), 404, "kvsp-block-not-found"),
    ];
    try_all(&service, &good, rows);
    let allow = service.send("PATCH", &good, &[], b"").header("allow").to_owned();
    for method in ["GET", "HEAD", "PUT", "DELETE"] {
        assert!(allow.split(',').any(|name| name.trim() == method), "{allow}");
    }
    let described = container(0, 2, 64, 5);
    let put =
        service.send("PUT", &in_described, &[("content-type", BLOCK), ("if-none-match", "*")], &described);
    assert_eq!(put.status, 201, "{put:?}");
}

#[test]
fn a_block_is_got_as_it_was_put() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = holder(&dir);
    let (path, block) = (block_path(1), container(0, 3, 64, 1));
    let sent = repr_digest(&block);
    let headers = [("content-type", BLOCK), ("if-none-match", "*"), ("repr-digest", sent.as_str())];
    assert_eq!(service.send("PUT", &path, &headers, &block).status, 201);
    let got = service.get(&path);
    assert_eq!((got.status, &got.body), (200, &block));
    assert_eq!((got.header("content-type"), got.header("repr-digest")), (BLOCK, sent.as_str()));
    assert_eq!(got.header("content-length"), block.len().to_string());
    let caching = got.header("cache-control");
    assert!(caching.starts_with("private, immutable, max-age="), "{caching}");
    let tag = got.header("etag").to_owned();
    let cached = service.send("GET", &path, &[("if-none-match", &tag)], b"");
    assert_eq!((cached.status, cached.body.len(), cached.header("etag")), (304, 0, tag.as_str()));

    let head = service.send("HEAD", &path, &[], b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
    for name in ["content-type", "content-length", "repr-digest", "etag"] {
        assert_eq!(head.header(name), got.header(name), "{name}");
    }
    // A range of layers is a container of its own: its layers, and their octets.
    let range = service.get(&format!("{path}?layers=1-2"));
    let mut expected = block[..20].to_vec();
    expected[8..16].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 2]);
    expected.extend(&block[36..68]);
    expected.extend(&block[68 + 128..]);
    assert_eq!((range.status, &range.body), (200, &expected));
    assert_eq!(range.header("repr-digest"), repr_digest(&expected));
    let head = service.send("HEAD", &format!("{path}?layers=1-2"), &[], b"");
    assert_eq!(head.header("repr-digest"), range.header("repr-digest"));
    assert_eq!(head.header("content-length"), range.header("content-length"));
    assert_eq!(service.get(&format!("{path}?codec=1")).body, block);

    assert_eq!(service.send("DELETE", &path, &[], b"").status, 204);
    assert_eq!(service.get(&path).problem(), "kvsp-block-not-found");
    assert_eq!(service.send("DELETE", &path, &[], b"").status, 204, "it is idempotent");
}

#[test]
fn of_racing_puts_one_is_stored() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = holder(&dir);
    for round in 0..20 {
        let path = block_path(100 + round);
        let answers: Vec<(u64, u16)> = std::thread::scope(|scope| {
            let put = |seed| (seed, service.put_block(&path, &container(0, 2, 4096, seed)).status);
            let threads: Vec<_> = (1..=4).map(|seed| scope.spawn(move || put(seed))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let stored: Vec<_> = answers.iter().filter(|(_, status)| *status == 201).collect();
        assert_eq!(stored.len(), 1, "{answers:?}");
        assert!(answers.iter().all(|(_, status)| matches!(status, 201 | 412)), "{answers:?}");
        assert_eq!(service.get(&path).body, container(0, 2, 4096, stored[0].0));
    }
}

#[test]
fn a_put_that_breaks_off_leaves_nothing() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = holder(&dir);
    let block = container(0, 2, 8192, 1);
    let mut connection = service.connect();
    let head = format!(
        "PUT /kvsp/{} HTTP/1.1\r\nhost: {}\r\ncontent-type: {BLOCK}\r\nif-none-match: *\r\ncontent-length: {}\r\n\r\n",
        block_path(1),
        service.authority(),
        block.len()
    );
    connection.write(head.as_bytes()).unwrap();
    connection.write(&block[..block.len() - 1]).unwrap();
    drop(connection);
    assert_eq!(service.get(&block_path(1)).status, 404);
    assert_eq!(service.put_block(&block_path(1), &block).status, 201, "its name is free");
}

#[test]
fn a_block_that_finds_no_room_is_refused() {
    let dir = tempfile::TempDir::new().unwrap();
    let args = ["holder", "--host-octets", "65536"];
    let service = Process::serve(dir.path(), &args);
    let small = container(0, 1, 1024, 1);
    assert_eq!(service.put_block(&block_path(1), &small).status, 201);
    let answer = service.put_block(&block_path(2), &container(0, 1, 40_000, 2));
    assert_eq!((answer.status, answer.problem().as_str()), (507, "kvsp-storage-full"));
    assert_eq!(service.get(&block_path(1)).body, small, "what is there stays");
}

#[test]
fn layers_are_streamed_layer_by_layer() {
    let dir = tempfile::TempDir::new().unwrap();
    let service = holder(&dir);
    let blocks: Vec<_> = (0..2).map(|n| container(0, 3, 64, n)).collect();
    for (n, block) in (0..).zip(&blocks) {
        assert_eq!(service.put_block(&block_path(n), block).status, 201);
    }
    let path = format!("blocks/{}/{}", hex(&COMPAT), hex(&SCOPE));
    let ask = |keys: Vec<String>, layers: [u32; 2]| {
        let answer = service.json("POST", &path, &json!({"block_keys": keys, "layers": layers}));
        assert_eq!((answer.status, answer.header("content-type")), (200, "application/kvsp-block-sequence"));
        (answer.header("kvsp-blocks").to_owned(), answer.body)
    };
    let one =
        |n: usize, layer: u32| service.get(&format!("{}?layers={layer}-{layer}", block_path(n as u64))).body;
    let expected = [one(0, 1), one(1, 1), one(0, 2), one(1, 2)].concat();
    assert_eq!(ask(vec![key(0), key(1)], [1, 2]), ("2".into(), expected));
    assert_eq!(ask(vec![key(0), key(9), key(1)], [0, 0]), ("1".into(), one(0, 0)));
    assert_eq!(ask(vec![key(9), key(0)], [0, 0]), ("0".into(), Vec::new()));
    assert_eq!(ask(vec![key(0)], [2, 3]), ("0".into(), Vec::new()));
    let root = service.get("").value();
    assert!(root["extensions"].as_array().unwrap().contains(&json!("layer-stream")), "{root}");
    let rows = vec![
        row("layers that are no pair", "POST", path.clone(), 400, "kvsp-malformed-json")
            .json(&json!({"block_keys": [key(0)], "layers": 0})),
        row("no keys", "POST", path.clone(), 400, "kvsp-malformed-json").json(&json!({"layers": [0, 0]})),
        row("a bad key", "POST", path.clone(), 400, "kvsp-bad-identifier")
            .json(&json!({"block_keys": ["x"], "layers": [0, 0]})),
    ];
    try_all(&service, &block_path(0), rows);
}

#[test]
fn the_record_of_a_block_says_what_is_held() {
    let dir = tempfile::TempDir::new().unwrap();
    let index = Process::serve(dir.path(), &["index"]);
    let mut service = Process::serve(dir.path(), &["holder", "--index", &index.base]);
    let block = container(0, 3, 64, 1);
    assert_eq!(service.put_block(&block_path(1), &block).status, 201);
    let replicas = |n| index.get(&replicas_path(n)).value()["replicas"].as_array().unwrap().clone();
    let record = eventually("the record", || replicas(1).first().cloned());
    let layers = layer_digests(&block);
    let expected = json!({
        "block_key": key(1), "compat_id": hex(&COMPAT), "scope_id": hex(&SCOPE), "holder": service.base,
        "codec": 1, "size": block.len(), "digest": replica_digest(&layers), "layer_digests": layers,
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&record[name], value, "{name}");
    }
    assert_eq!(record["residency"][0]["tier"], "host");
    assert_eq!(record["residency"][0]["layers"], json!([0, 2]));
    assert!(record["producer"].is_string() && record["seq"].is_u64() && record["holder_epoch"].is_u64());
    // A cached copy does not outlive the record.
    let got = service.get(&block_path(1));
    let age: u64 = got.header("cache-control").rsplit_once('=').unwrap().1.parse().unwrap();
    assert!(age * 1000 <= record["ttl_ms"].as_u64().unwrap(), "{age}");
    assert_eq!(service.send("DELETE", &block_path(1), &[], b"").status, 204);
    eventually("a DELETE withdraws", || replicas(1).is_empty().then_some(()));
    assert_eq!(service.put_block(&block_path(2), &block).status, 201);
    eventually("the record", || replicas(2).first().cloned());
    service.stop();
    assert!(replicas(2).is_empty(), "a stop withdraws");
}
