//! Blocks over sockets: profile section 5 "Holder", and the order of checks of section 3.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use kvsp_proto::container::{Container, LayerRange, Limits};
use kvsp_proto::digest::ReprDigest;
use kvsp_proto::path::MEDIA_BLOCK_SEQUENCE;
use kvsp_proto::registry::Codec;
use serde_json::{Value, json};
use support::{BLOCK, COMPAT, Holder, SCOPE, assert_problem, authority, build, config, container, key, path};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_block_is_stored_and_served_with_its_fields() {
    let holder = Holder::start(config()).await;
    let block = container(1, 3, 50);
    let put = holder.put(&path(1), block.bytes()).await;
    assert_eq!(put.status, 201);
    let got = holder.get(&path(1)).await;
    assert_eq!((got.status, &got.body), (200, block.bytes()));
    assert_eq!(got.header("content-type"), BLOCK);
    assert_eq!(got.header("content-length"), block.size().to_string());
    assert_eq!(got.header("repr-digest"), block.repr_digest().to_string());
    let cache = got.header("cache-control");
    assert!(cache.starts_with("private, immutable, max-age="), "{cache}");
    let etag = got.header("etag");
    assert!(etag.starts_with('"') && etag.ends_with('"'));
    assert_eq!(put.header("etag"), etag);

    let head = holder.send("HEAD", &path(1), &[], b"").await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    for field in ["content-type", "content-length", "repr-digest", "etag"] {
        assert_eq!(head.header(field), got.header(field), "{field}");
    }
    for tags in [etag.to_owned(), format!("\"x\", W/{etag}"), "*".into()] {
        for method in ["GET", "HEAD"] {
            let cached = holder.send(method, &path(1), &[("if-none-match", &tags)], b"").await;
            assert_eq!((cached.status, cached.body.len()), (304, 0), "{tags}");
            assert_eq!(cached.header("etag"), etag);
        }
    }
    assert_eq!(holder.send("GET", &path(1), &[("if-none-match", "\"x\"")], b"").await.status, 200);
    holder.stop().await;
}

#[tokio::test]
async fn layer_ranges_are_containers_of_their_own() {
    let holder = Holder::start(config()).await;
    let block = container(1, 4, 33);
    holder.put(&path(1), block.bytes()).await;
    let mut tags = std::collections::BTreeSet::new();
    for first in 0..4 {
        for last in first..4 {
            let target = format!("{}?layers={first}-{last}", path(1));
            let got = holder.get(&target).await;
            assert_eq!(got.status, 200);
            assert_eq!(got.header("repr-digest"), ReprDigest::of(&got.body).to_string());
            assert_eq!(got.header("content-length"), got.body.len().to_string());
            let part = Container::parse(got.body.clone(), &Limits::default()).unwrap();
            assert_eq!(part.layers(), LayerRange::new(first, last).unwrap());
            assert_eq!(part.layer_digests(), block.layer_digests()[first as usize..=last as usize]);
            tags.insert(got.header("etag").to_owned());
            let head = holder.send("HEAD", &target, &[], b"").await;
            assert_eq!(head.header("content-length"), got.header("content-length"));
            let cached = holder.send("GET", &target, &[("if-none-match", got.header("etag"))], b"").await;
            assert_eq!(cached.status, 304);
        }
    }
    assert_eq!(tags.len(), 10, "each representation has a tag of its own");
    for range in ["", "1", "2-1", "a-b", "0-4294967296", "-1-2", "0-1&layers=0-1", "+0-1"] {
        let got = holder.get(&format!("{}?layers={range}", path(1))).await;
        assert_problem(&got, 400, "kvsp-invalid-range");
    }
    for range in ["0-4", "4-4", "0-4294967295"] {
        let got = holder.get(&format!("{}?layers={range}", path(1))).await;
        assert_problem(&got, 404, "kvsp-layers-unavailable");
    }
    assert_problem(&holder.get(&path(2)).await, 404, "kvsp-block-not-found");
    holder.stop().await;
}

#[tokio::test]
async fn every_malformed_container_is_refused_and_the_next_request_served() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../../../vectors/container_malformed.json")).unwrap();
    assert!(cases.len() >= 15);
    let holder = Holder::start(config()).await;
    let mut connection = holder.connect().await;
    let headers = [("content-type", BLOCK), ("if-none-match", "*")];
    for (n, case) in cases.iter().enumerate() {
        let octets = unhex(case["hex"].as_str().unwrap());
        let refused = connection.send("PUT", &path(1), &headers, &octets).await;
        assert_problem(&refused, 400, "kvsp-malformed-container");
        // Without the precondition it is malformed first.
        let refused = connection.send("PUT", &path(1), &headers[..1], &octets).await;
        assert_problem(&refused, 400, "kvsp-malformed-container");
        let good = container(n as u8, 2, 10);
        assert_eq!(connection.send("PUT", &path(100), &headers, good.bytes()).await.status, 201, "{case}");
        assert_eq!(connection.send("GET", &path(100), &[], b"").await.body, good.bytes());
        assert_eq!(connection.send("DELETE", &path(100), &[], b"").await.status, 204);
    }
    assert_problem(&holder.get(&path(1)).await, 404, "kvsp-block-not-found");
    holder.stop().await;
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

#[tokio::test]
async fn a_put_is_checked_in_order() {
    let holder = Holder::start(config()).await;
    let (media, only_new) = (("content-type", BLOCK), ("if-none-match", "*"));
    let good = container(1, 2, 10);
    let digest = ReprDigest::of(b"other").to_string();
    let wrong = ("repr-digest", digest.as_str());
    let unknown = build(Codec::new(7).unwrap(), 0, 1, 2, 10);
    let later = build(Codec::RAW, 1, 1, 2, 10);

    let bad_path = path(0xaa).replace("aaaa", "AAAA");
    let put = |target: String, headers: Vec<(&'static str, String)>, body: Vec<u8>| {
        let holder = &holder;
        async move {
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            holder.send("PUT", &target, &headers, &body).await
        }
    };
    let own = |headers: &[(&'static str, &str)]| headers.iter().map(|(n, v)| (*n, (*v).to_owned())).collect();
    let cases: [(&str, Vec<_>, &[u8], u16, &str); 14] = [
        (&bad_path, own(&[]), b"x", 400, "kvsp-bad-identifier"),
        (&path(1), own(&[only_new]), good.bytes(), 415, "about:blank"),
        (&path(1), own(&[("content-type", "application/json")]), b"x", 415, "about:blank"),
        (&path(1), own(&[media, ("content-encoding", "gzip")]), b"x", 415, "about:blank"),
        (&path(1), own(&[media]), b"x", 400, "kvsp-malformed-container"),
        (&path(1), own(&[media, wrong]), unknown.bytes(), 415, "kvsp-unsupported-codec"),
        (&path(1), own(&[media, wrong]), later.bytes(), 428, "about:blank"),
        (&path(1), own(&[media, ("if-none-match", "\"x\"")]), good.bytes(), 428, "about:blank"),
        (&path(1), own(&[media, only_new]), later.bytes(), 422, "kvsp-container-mismatch"),
        (&path(1), own(&[media, only_new, wrong]), good.bytes(), 422, "kvsp-digest-mismatch"),
        (&path(1), own(&[media, only_new, ("repr-digest", "sha-256=:")]), good.bytes(), 400, "about:blank"),
        (&path(1), own(&[media, only_new, ("repr-digest", "sha-512=:YWJj:")]), good.bytes(), 201, ""),
        (&path(1), own(&[media, only_new, wrong]), later.bytes(), 412, "kvsp-block-exists"),
        (&path(1), own(&[media]), good.bytes(), 428, "about:blank"),
    ];
    for (n, (target, headers, body, status, name)) in cases.into_iter().enumerate() {
        let answer = put(target.to_owned(), headers, body.to_vec()).await;
        assert_eq!(answer.problem(), (status, name.to_owned()), "case {n}: {answer:?}");
    }
    for number in [0_u16, 0xFFFF] {
        let mut octets = good.bytes().to_vec();
        octets[6..8].copy_from_slice(&number.to_be_bytes());
        assert_problem(&holder.put(&path(2), &octets).await, 415, "kvsp-unsupported-codec");
    }
    let exact = good.repr_digest().to_string();
    let headers = [media, only_new, ("repr-digest", exact.as_str())];
    assert_eq!(holder.send("PUT", &path(2), &headers, good.bytes()).await.status, 201);
    // A private codec is opaque, and kept as it is.
    let private = build(Codec::new(0xFF01).unwrap(), 0, 1, 2, 10);
    assert_eq!(holder.put(&path(3), private.bytes()).await.status, 201);
    assert_eq!(holder.get(&format!("{}?codec=65281", path(3))).await.body, private.bytes());
    holder.stop().await;
}

#[tokio::test]
async fn of_racing_puts_one_wins() {
    for dir in [None, Some(tempfile::TempDir::new().unwrap())] {
        let blocks = dir.as_ref().map_or_else(config, |dir| support::on_disk(dir.path(), 1 << 20));
        let holder = Holder::start(blocks).await;
        let racers: Vec<_> = (1..=8).map(|seed| container(seed, 2, 3000)).collect();
        let target = path(1);
        let answers = racers.iter().map(|block| holder.put(&target, block.bytes()));
        let answers = futures_util::future::join_all(answers).await;
        let won: Vec<_> = answers.iter().zip(&racers).filter(|(answer, _)| answer.status == 201).collect();
        assert_eq!(won.len(), 1);
        for lost in answers.iter().filter(|answer| answer.status != 201) {
            assert_problem(lost, 412, "kvsp-block-exists");
        }
        assert_eq!(holder.get(&path(1)).await.body, won[0].1.bytes());
        holder.stop().await;
    }
}

#[tokio::test]
async fn a_put_that_breaks_off_leaves_nothing() {
    let holder = Holder::start(config()).await;
    let block = container(1, 2, 5000);
    for sent in [0, 10, 1000, block.bytes().len() - 1] {
        let mut stream = TcpStream::connect(authority(&holder.base)).await.unwrap();
        stream.write_all(head(&holder, block.bytes().len(), "").as_bytes()).await.unwrap();
        stream.write_all(&block.bytes()[..sent]).await.unwrap();
        drop(stream);
    }
    let put = holder.put(&path(2), block.bytes()).await;
    assert_eq!(put.status, 201);
    assert_problem(&holder.get(&path(1)).await, 404, "kvsp-block-not-found");
    assert!(holder.metrics().await.contains("kvsp_holder_blocks 1\n"));
    holder.stop().await;
}

fn head(holder: &Holder, length: usize, more: &str) -> String {
    format!(
        "PUT {}{} HTTP/1.1\r\nhost: {}\r\ncontent-type: {BLOCK}\r\nif-none-match: *\r\n{more}content-length: {length}\r\n\r\n",
        holder.base.path(),
        path(1),
        authority(&holder.base)
    )
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_before_it_is_read() {
    let mut blocks = config();
    blocks.limits.max_container_octets = 1000;
    let holder = Holder::start(blocks).await;
    let mut stream = TcpStream::connect(authority(&holder.base)).await.unwrap();
    stream.write_all(head(&holder, 1 << 40, "expect: 100-continue\r\n").as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413", "nothing of the body was sent");
    assert_problem(&holder.put(&path(1), &[0; 1001]).await, 413, "kvsp-limit-exceeded");

    let mut stream = TcpStream::connect(authority(&holder.base)).await.unwrap();
    let head = head(&holder, 0, "").replace("content-length: 0", "transfer-encoding: chunked");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(format!("3e9\r\n{}\r\n0\r\n\r\n", "x".repeat(1001)).as_bytes()).await.unwrap();
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");

    let fits = container(1, 1, 400);
    assert_eq!(holder.put(&path(1), fits.bytes()).await.status, 201);
    assert_eq!(holder.get("").await.value()["limits"]["max_container_octets"], 1000);
    holder.stop().await;
}

#[tokio::test]
async fn a_delete_is_idempotent() {
    let holder = Holder::start(config()).await;
    let block = container(1, 2, 10);
    holder.put(&path(1), block.bytes()).await;
    for _ in 0..2 {
        assert_eq!(holder.send("DELETE", &path(1), &[], b"").await.status, 204);
        assert_problem(&holder.get(&path(1)).await, 404, "kvsp-block-not-found");
    }
    assert_eq!(holder.put(&path(1), container(2, 2, 10).bytes()).await.status, 201);
    holder.stop().await;
}

#[tokio::test]
async fn the_least_recently_used_block_makes_room_and_a_larger_one_than_all_does_not_fit() {
    let holder = Holder::start(kvsp_blocks::BlocksConfig { host_octets: 27_000, ..config() }).await;
    for n in 1..=3 {
        assert_eq!(holder.put(&path(n), container(n, 1, 2500).bytes()).await.status, 201);
    }
    assert_eq!(holder.get(&path(1)).await.status, 200);
    assert_eq!(holder.put(&path(4), container(4, 1, 2500).bytes()).await.status, 201);
    assert_problem(&holder.get(&path(2)).await, 404, "kvsp-block-not-found");
    assert_eq!(holder.get(&path(1)).await.status, 200);
    assert_problem(&holder.put(&path(5), container(5, 1, 15_000).bytes()).await, 507, "kvsp-storage-full");
    assert_eq!(holder.get(&path(1)).await.status, 200);
    let metrics = holder.metrics().await;
    assert!(metrics.contains("kvsp_holder_evictions_total 1\n"), "{metrics}");
    holder.stop().await;
}

#[tokio::test]
async fn paths_and_methods_are_told_apart() {
    let holder = Holder::start(config()).await;
    let short = format!("blocks/{COMPAT}/{SCOPE}/abc");
    for method in ["GET", "HEAD", "PUT", "DELETE"] {
        let answer = holder.send(method, &short, &[], b"").await;
        assert_eq!(answer.status, 400, "{method}");
    }
    assert_problem(&holder.get(&short).await, 400, "kvsp-bad-identifier");
    let wrong = holder.send("PATCH", &path(1), &[], b"").await;
    assert_problem(&wrong, 405, "about:blank");
    let allow = wrong.header("allow").to_owned();
    for method in ["GET", "HEAD", "PUT", "DELETE"] {
        assert!(allow.contains(method), "{allow}");
    }
    assert_problem(&holder.get("nothing").await, 404, "about:blank");
    let root = holder.get("").await.value();
    assert_eq!((&root["kvsp"], &root["roles"]), (&json!(1), &json!(["holder"])));
    assert!(root["extensions"].as_array().unwrap().contains(&json!("layer-stream")));
    holder.stop().await;
}

fn descriptor(layers: u32) -> (String, Value) {
    let digest = format!("sha-256:{}", "ab".repeat(32));
    let value = json!({
        "model": "m", "model_digest": digest, "tokenizer_digest": digest, "layers": layers, "kv_heads": 1,
        "head_dim": 8, "kv_dtype": "bfloat16", "positional": "none", "block_tokens": 4,
        "layout": "kvsp-layout-1"
    });
    let compat = kvsp_proto::descriptor::Descriptor::from_value(value.clone()).unwrap().compat_id();
    (compat.to_string(), value)
}

#[tokio::test]
async fn a_known_descriptor_is_enforced_and_opens_other_codecs() {
    let holder = Holder::start(config()).await;
    let (compat, value) = descriptor(2);
    let at = |n: u8| format!("blocks/{compat}/{SCOPE}/{}", key(n));
    let block = container(1, 2, 64);
    holder.put(&at(1), block.bytes()).await;
    assert_problem(&holder.get(&format!("{}?codec=2", at(1))).await, 406, "kvsp-codec-unavailable");
    assert_eq!(holder.get(&format!("{}?codec=1", at(1))).await.body, block.bytes());
    for bad in ["0", "65535", "x", "1&codec=1"] {
        let answer = holder.get(&format!("{}?codec={bad}", at(1))).await;
        assert_problem(&answer, 400, "kvsp-bad-identifier");
    }

    let target = format!("descriptors/{compat}");
    assert_problem(&holder.get(&target).await, 404, "kvsp-descriptor-unknown");
    let other = format!("descriptors/{COMPAT}");
    assert_problem(&holder.json("PUT", &other, &value).await, 422, "kvsp-compat-mismatch");
    assert_problem(&holder.json("PUT", &target, &json!([])).await, 400, "kvsp-malformed-json");
    let mut invalid = value.clone();
    invalid["layers"] = json!(0);
    assert_problem(&holder.json("PUT", &target, &invalid).await, 422, "kvsp-descriptor-invalid");
    assert_eq!(holder.json("PUT", &target, &value).await.status, 201);
    assert_eq!(holder.json("PUT", &target, &value).await.status, 200);
    assert_eq!(holder.get(&target).await.value(), value);

    for (layers, octets) in [(1, 64), (3, 64), (2, 62)] {
        let answer = holder.put(&at(2), container(1, layers, octets).bytes()).await;
        assert_problem(&answer, 422, "kvsp-container-mismatch");
    }
    let coded = holder.get(&format!("{}?codec=2&layers=1-1", at(1))).await;
    assert_eq!(coded.status, 200);
    assert_eq!(coded.header("repr-digest"), ReprDigest::of(&coded.body).to_string());
    let made = Container::parse(coded.body.clone(), &Limits::default()).unwrap();
    assert_eq!((made.codec(), made.layers().first()), (Codec::SPLIT_ZSTD, 1));
    let raw = kvsp_proto::codec::transcode(&made, Codec::RAW, 2).unwrap();
    assert_eq!(raw.layer_digests(), block.layer_digests()[1..]);
    let head = holder.send("HEAD", &format!("{}?codec=2&layers=1-1", at(1)), &[], b"").await;
    assert_eq!(head.header("content-length"), coded.header("content-length"));
    assert_problem(&holder.get(&format!("{}?codec=77", at(1))).await, 406, "kvsp-codec-unavailable");

    // Held in split-zstd, offered raw.
    let coded = kvsp_proto::codec::transcode(&block, Codec::SPLIT_ZSTD, 2).unwrap();
    assert_eq!(holder.put(&at(2), coded.bytes()).await.status, 201);
    assert_eq!(holder.get(&format!("{}?codec=1", at(2))).await.body, block.bytes());
    holder.stop().await;
}

#[tokio::test]
async fn a_layer_stream_is_layer_major_and_ends_at_the_first_block_missing() {
    let dir = tempfile::TempDir::new().unwrap();
    for blocks in [config(), support::on_disk(dir.path(), 1 << 20)] {
        let holder = Holder::start(blocks).await;
        let held: Vec<_> = (0..3).map(|n| container(n, 4, 40)).collect();
        for (n, block) in held.iter().enumerate() {
            holder.put(&path(n as u8), block.bytes()).await;
        }
        holder.put(&path(9), container(9, 2, 40).bytes()).await;
        let target = format!("blocks/{COMPAT}/{SCOPE}");
        let ask = |keys: &[u8], layers: Value| json!({"block_keys": keys.iter().map(|n| key(*n)).collect::<Vec<_>>(), "layers": layers});
        let got = holder.json("POST", &target, &ask(&[0, 1, 2, 7, 0], json!([1, 3]))).await;
        assert_eq!((got.status, got.header("kvsp-blocks")), (200, "3"));
        assert_eq!(got.header("content-type"), MEDIA_BLOCK_SEQUENCE);
        let mut want = Vec::new();
        for layer in 1..=3 {
            for block in &held {
                want.extend_from_slice(
                    block.slice(LayerRange::new(layer, layer).unwrap()).unwrap().join().bytes(),
                );
            }
        }
        assert_eq!(got.body, want);
        let got = holder.json("POST", &target, &ask(&[0, 9, 1], json!([3, 3]))).await;
        assert_eq!(got.header("kvsp-blocks"), "1");
        for keys in [&[7][..], &[]] {
            let got = holder.json("POST", &target, &ask(keys, json!([0, 0]))).await;
            assert_eq!((got.status, got.header("kvsp-blocks"), got.body.len()), (200, "0", 0));
        }
        let reversed = holder.json("POST", &target, &ask(&[0], json!([1, 0]))).await;
        assert_problem(&reversed, 400, "kvsp-invalid-range");
        let malformed = holder.json("POST", &target, &ask(&[0], json!("0-1"))).await;
        assert_problem(&malformed, 400, "kvsp-malformed-json");
        let mut coded = ask(&[0], json!([0, 0]));
        coded["codec"] = json!(2);
        assert_problem(&holder.json("POST", &target, &coded).await, 406, "kvsp-codec-unavailable");
        coded["codec"] = json!(1);
        assert_eq!(holder.json("POST", &target, &coded).await.header("kvsp-blocks"), "1");
        holder.stop().await;
    }
}

#[tokio::test]
async fn bodies_in_flight_are_bounded() {
    let mut blocks = config();
    blocks.limits.max_container_octets = 100_000;
    (blocks.ingest_octets, blocks.ingest_wait_ms) = (100 << 10, 20);
    let holder = Holder::start(blocks).await;
    let mut slow = TcpStream::connect(authority(&holder.base)).await.unwrap();
    slow.write_all(head(&holder, 100_000, "expect: 100-continue\r\n").as_bytes()).await.unwrap();
    let mut go_on = [0; 21];
    slow.read_exact(&mut go_on).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue");
    let refused = holder.put(&path(2), container(1, 1, 5000).bytes()).await;
    assert_problem(&refused, 503, "kvsp-overloaded");
    assert_eq!(refused.header("retry-after"), "1");
    drop(slow);
    let stored = tokio::time::timeout(Duration::from_secs(10), async {
        while holder.put(&path(2), container(1, 1, 5000).bytes()).await.status != 201 {}
    });
    stored.await.unwrap();
    holder.stop().await;
}
