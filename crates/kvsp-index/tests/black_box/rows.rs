//! What else the profile's section 5 says of the index, row by row.

use std::sync::Arc;

use kvsp_index::{IndexServiceConfig, WhenFull};
use kvsp_net::auth::Development;
use kvsp_proto::digest::replica_digest;
use kvsp_proto::id::{Digest, NamedDigest};
use serde_json::{Value, json};

use crate::support::{Server, lookup_of, path_of, record};

const H1: &str = "https://h1.example/kvsp/";
const H2: &str = "https://h2.example/kvsp/";

async fn put(server: &Server, record: &Value) -> u16 {
    server.put(&path_of(record), record).await.status.as_u16()
}

#[tokio::test]
async fn a_record_within_a_record_is_an_object() {
    let server = Server::start().await;
    let good = record(1, H1);
    for residency in [json!([["host", [0, 1]]]), json!([["host", [0, 1], 5]]), json!(["host"]), json!([[]])] {
        let mut bad = good.clone();
        bad["residency"] = residency;
        let answer = server.put(&path_of(&bad), &bad).await;
        assert_eq!(answer.problem(), (400, "kvsp-malformed-json".into()), "{bad}");
        let items = server.post("replicas", &json!({"put": [bad, good]})).await.json();
        assert_eq!(items["put"][0]["status"], 400);
        assert!(items["put"][1]["status"].as_u64().unwrap() < 300, "{items}");
    }
    let mut request = lookup_of(&[1]);
    request["detail"] = json!({"full": null});
    assert_eq!(server.post("lookup", &request).await.problem(), (400, "kvsp-malformed-json".into()));
}

#[tokio::test]
async fn any_codec_and_members_unknown_here_are_taken() {
    let server = Server::start().await;
    for (n, codec) in [(1, 0xff00_u16), (2, 0xfffe), (3, 2), (4, 77)] {
        let mut sent = record(n, H1);
        sent["codec"] = json!(codec);
        let mut with_more = sent.clone();
        with_more["vendor"] = json!({"rack": [1, "b\u{e9}"]});
        with_more["residency"][0]["numa"] = json!(1);
        assert_eq!(put(&server, &with_more).await, 201, "codec {codec}");
        let mut got = server.get(&path_of(&sent)).await.json();
        got["ttl_ms"] = json!(60_000);
        assert_eq!(got, sent);
    }
}

#[tokio::test]
async fn every_optional_member_comes_back_in_every_answer() {
    let server = Server::start().await;
    let mut sent = record(1, H1);
    sent["seq"] = json!(3);
    sent["holder_epoch"] = json!(1_800_000_000_000_u64);
    sent["producer"] = json!("https://i.example/\u{e9}\"\\");
    sent["residency"] = json!([
        {"tier": "host", "layers": [0, 0], "read_mbit_per_s": 400_000.5},
        {"tier": "object", "layers": [1, 1], "read_mbit_per_s": 0.125}
    ]);
    assert_eq!(put(&server, &sent).await, 201);
    let mut got = server.get(&path_of(&sent)).await.json();
    let found = server.post("lookup", &lookup_of(&[1])).await.json();
    let mut full = found["blocks"][0]["replicas"][0].clone();
    for record in [&mut got, &mut full] {
        record["ttl_ms"] = json!(60_000);
        assert_eq!(*record, sent);
    }
    let mut request = lookup_of(&[1]);
    request["detail"] = json!("location");
    let found = server.post("lookup", &request).await.json();
    let mut location = found["blocks"][0]["replicas"][0].clone();
    location["ttl_ms"] = json!(60_000);
    sent.as_object_mut().unwrap().remove("layer_digests");
    assert_eq!(location, sent);
}

#[tokio::test]
async fn layers_of_different_computations_do_not_add_up() {
    let server = Server::start().await;
    let half = |holder: &str, tag: u8, layer: u32, codec: u16| {
        let digests = [Digest([tag; 32]), Digest([1; 32])];
        let mut record = record(1, holder);
        record["digest"] = json!(NamedDigest(replica_digest(&digests)));
        record["layer_digests"] = json!(digests);
        record["residency"] = json!([{"tier": "disk", "layers": [layer, layer]}]);
        record["codec"] = json!(codec);
        record
    };
    let counts = async || {
        let body = server.post("lookup", &lookup_of(&[1])).await.json();
        (body["matched"].as_u64().unwrap(), body["complete"].as_u64().unwrap())
    };
    put(&server, &half(H1, 1, 0, 1)).await;
    put(&server, &half(H2, 2, 1, 1)).await;
    assert_eq!(counts().await, (1, 0), "another digest");
    put(&server, &half(H2, 1, 1, 2)).await;
    assert_eq!(counts().await, (1, 0), "another codec");
    put(&server, &half(H2, 1, 1, 1)).await;
    assert_eq!(counts().await, (1, 1));
}

#[tokio::test]
async fn a_full_index_may_drop_what_ends_first_instead() {
    let config = IndexServiceConfig {
        max_records: 2,
        when_full: WhenFull::OldestExpiryFirst,
        ..IndexServiceConfig::default()
    };
    let server = Server::with(config, Arc::new(Development::new())).await;
    let with_ttl = |n, ttl_ms: u64| {
        let mut record = record(n, H1);
        record["ttl_ms"] = json!(ttl_ms);
        record
    };
    assert_eq!(put(&server, &with_ttl(1, 900_000)).await, 201);
    assert_eq!(put(&server, &with_ttl(2, 30_000)).await, 201);
    assert_eq!(put(&server, &with_ttl(3, 600_000)).await, 201);
    let live = [1, 2, 3].map(|n| path_of(&record(n, H1)));
    let mut statuses = Vec::new();
    for path in &live {
        statuses.push(server.get(path).await.status.as_u16());
    }
    assert_eq!(statuses, [200, 404, 200]);
}

#[tokio::test]
async fn memory_has_a_cap() {
    let config = IndexServiceConfig { max_octets: 4 << 20, ..IndexServiceConfig::default() };
    let server = Server::with(config, Arc::new(Development::new())).await;
    let mut refused = 0;
    for piece in 0..20 {
        let puts: Vec<Value> = (0..1_000).map(|n| record(piece * 1_000 + n, H1)).collect();
        let items = server.post("replicas", &json!({"put": puts})).await.json();
        let statuses = items["put"].as_array().unwrap().iter().map(|item| item["status"].as_u64().unwrap());
        refused += statuses.filter(|status| *status == 507).count();
    }
    assert!(refused > 0, "4 MiB do not hold 20,000 records");
    assert_eq!(put(&server, &record(0, H1)).await, 200, "a refresh takes no room");
    assert_eq!(server.post("lookup", &lookup_of(&[0])).await.json()["matched"], 1);
}
