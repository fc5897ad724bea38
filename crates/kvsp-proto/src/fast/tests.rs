//! The fast readers and writers against serde_json and the strict reader, on generated texts.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::write::RecordParts;
use super::{Batch, HolderHint, batch, lookup_request, record};
use crate::digest::replica_digest;
use crate::id::{Digest, NamedDigest};
use crate::json::{self, JsonError};
use crate::message::{BatchRequest, LookupRequest};
use crate::record::{RecordError, ReplicaRecord};

/// Values that stand where another belongs.
const AWKWARD: &[&str] = &[
    "32.0",
    "3.2e1",
    "1E2",
    "-0",
    "-1",
    "0",
    "00",
    "01",
    "1.",
    ".5",
    "0.5",
    "1.50",
    "+1",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "999999999999999",
    "9007199254740991",
    "9007199254740992",
    "1e400",
    "NaN",
    "null",
    "true",
    "[]",
    "{}",
    "[1]",
    "\"\"",
    "\"x\"",
    "\"\\u0061\"",
    "\"\\ud800\"",
    "\"\\ud83d\\ude00\"",
    "\"\u{ffff}\"",
    "\"é\"",
    "\"\\n\"",
    "\"a\tb\"",
    "\"host\"",
    "\"full\"",
    "{\"full\":null}",
    "[0,1]",
    "[1,0]",
    "[0,1,2]",
    "[[0,1]]",
    "{\"a\":1,\"a\":2}",
    "[[[[[[]]]]]]",
    "\"moqt://m/x\"",
    "\"https://h\"",
    "\"HTTPS://H/\"",
    "\"AWEBYgFjAWQBZQ\"",
    "[\"host\",[0,0]]",
    "[[\"host\",[0,0]]]",
];

/// Members put first: unknown ones, and known ones that then come twice.
const EXTRA: &[&str] = &[
    "\"x\":1,",
    "\"x\":\"y\",",
    "\"x\":1,\"x\":1,",
    "\"x\":{},",
    "\"x\":[1],",
    "\"x\":null,",
    "\"x\":-1,",
    "\"x\":1.5,",
    "\"ttl_ms\":5,",
    "\"block_key\":\"\",",
    "\"\\u0074tl_ms\":5,",
    "\"é\":1,",
    "\"\":true,",
    "\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,",
];

/// What is done to a text.
#[derive(Debug, Clone)]
enum Fault {
    None,
    Octet(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Insert(prop::sample::Index, &'static str),
    Extra(prop::sample::Index, &'static str),
    /// The value after a colon.
    Replace(prop::sample::Index, &'static str),
    Mark,
    Tail,
}

fn fault() -> impl Strategy<Value = Fault> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        2 => Just(Fault::None),
        2 => (index(), any::<u8>()).prop_map(|(at, octet)| Fault::Octet(at, octet)),
        1 => index().prop_map(Fault::Cut),
        2 => (index(), prop::sample::select(AWKWARD)).prop_map(|(at, text)| Fault::Insert(at, text)),
        3 => (index(), prop::sample::select(EXTRA)).prop_map(|(at, text)| Fault::Extra(at, text)),
        6 => (index(), prop::sample::select(AWKWARD)).prop_map(|(at, text)| Fault::Replace(at, text)),
        1 => Just(Fault::Mark),
        1 => Just(Fault::Tail),
    ]
}

fn splice(text: &mut Vec<u8>, at: usize, end: usize, with: &str) {
    text.splice(at..end, with.bytes());
}

fn places(text: &[u8], octet: u8) -> Vec<usize> {
    (0..text.len()).filter(|&at| text[at] == octet).collect()
}

fn apply(fault: &Fault, mut text: Vec<u8>) -> Vec<u8> {
    match fault {
        Fault::None => {}
        Fault::Octet(at, octet) => {
            let at = at.index(text.len());
            text[at] = *octet;
        }
        Fault::Cut(at) => text.truncate(at.index(text.len())),
        Fault::Insert(at, with) => {
            let at = at.index(text.len());
            splice(&mut text, at, at, with);
        }
        Fault::Extra(at, with) => {
            let open = places(&text, b'{');
            let at = at.get(&open) + 1;
            splice(&mut text, at, at, with);
        }
        Fault::Replace(at, with) => {
            let colons = places(&text, b':');
            let at = at.get(&colons) + 1;
            let mut depth = 0_i32;
            let goes_on = |octet: &&u8| {
                depth += i32::from(b"[{".contains(octet)) - i32::from(b"]}".contains(octet));
                depth > 0 || (depth == 0 && **octet != b',')
            };
            let length = text[at..].iter().take_while(goes_on).count();
            splice(&mut text, at, at + length, with);
        }
        Fault::Mark => splice(&mut text, 0, 0, "\u{feff}"),
        Fault::Tail => text.extend_from_slice(b" {}"),
    }
    text
}

/// A text of a value: its members in the order of their names or turned round, with or without spaces.
fn print(value: &Value, pretty: bool, turned: bool) -> Vec<u8> {
    let Value::Object(members) = value else { return value.to_string().into_bytes() };
    let mut parts: Vec<String> = members
        .iter()
        .map(|(name, value)| {
            let value = if pretty { serde_json::to_string_pretty(value).unwrap() } else { value.to_string() };
            format!("\"{name}\"{}:{value}", if pretty { "\t" } else { "" })
        })
        .collect();
    if turned {
        parts.reverse();
    }
    format!("{{{}}}", parts.join(if pretty { " ,\r\n" } else { "," })).into_bytes()
}

prop_compose! {
    fn some_record()(
        octets in any::<[u8; 4]>(),
        holder in prop::sample::select(&["https://h1.example/kvsp/", "https://h2.example:8443/", "moqt://m/x",
            "HTTPS://H1.example:443/%7ea/"][..]),
        codec in prop::sample::select(&[1_u16, 2, 0xff00][..]),
        layers in 1_u32..5,
        listed: bool,
        rates in prop::collection::vec(prop::option::of(prop_oneof![
            Just(json!(400_000)), Just(json!(0)), (0.0..1e9_f64).prop_map(|rate| json!(rate))]), 1..3),
        ttl_ms in 1_u64..1_000_000_000_000,
        seq in prop::option::of(0_u64..1_000_000_000_000_000),
        epoch in prop::option::of(0_u64..1_800_000_000_000),
        producer in prop::option::of("[ -~é\n\"]{0,12}"),
    ) -> Value {
        let digests: Vec<Digest> = (0..layers).map(|layer| Digest([octets[0] ^ layer as u8; 32])).collect();
        let cut = if layers > 1 { rates.len() as u32 } else { 1 };
        let span = |n: u32| if cut == 1 { [0, layers - 1] } else if n == 0 { [0, 0] } else { [1, layers - 1] };
        let residency: Vec<Value> = (0..cut).map(|n| {
            let mut held = json!({"tier": if n == 0 { "host" } else { "disk" }, "layers": span(n)});
            if let Some(rate) = &rates[n as usize] {
                held["read_mbit_per_s"] = rate.clone();
            }
            held
        }).collect();
        let mut record = json!({
            "block_key": Digest([octets[1]; 32]), "compat_id": Digest([octets[2]; 32]),
            "scope_id": hex::encode([octets[3]; 16]), "holder": holder, "codec": codec, "size": ttl_ms,
            "digest": NamedDigest(replica_digest(&digests)), "residency": residency, "ttl_ms": ttl_ms
        });
        if listed {
            record["layer_digests"] = json!(digests);
        }
        let optional = [("seq", seq.map(Value::from)), ("holder_epoch", epoch.map(Value::from)),
            ("producer", producer.map(Value::from)),
            ("moqt_namespace", holder.starts_with("moqt").then(|| "AWEBYgFjAWQBZQ".into()))];
        for (member, value) in optional {
            if let Some(value) = value {
                record[member] = value;
            }
        }
        record
    }
}

prop_compose! {
    fn some_name()(record in some_record(), seq in prop::option::of(0_u64..1_000_000_000)) -> Value {
        let mut name = json!({});
        for member in ["compat_id", "scope_id", "block_key", "holder"] {
            name[member] = record[member].clone();
        }
        if let Some(seq) = seq {
            name["seq"] = json!(seq);
        }
        name
    }
}

prop_compose! {
    fn some_lookup()(
        keys in prop::collection::vec(any::<[u8; 32]>(), 0..5),
        targets in prop::option::of(prop::collection::vec(
            prop::sample::select(&["https://i1/", "HTTP://I2:80/a/"][..]), 0..3)),
        detail in prop::option::of(prop::sample::select(&["full", "location", "none"][..])),
        block_tokens in prop::option::of(1_u32..1000),
    ) -> Value {
        let keys: Vec<String> = keys.iter().map(hex::encode).collect();
        let mut request = json!({
            "scope_id": "5c".repeat(16), "compat_id": "2c".repeat(32), "block_keys": keys
        });
        let optional = [("targets", targets.map(|list| json!(list))), ("detail", detail.map(Value::from)),
            ("block_tokens", block_tokens.map(Value::from))];
        for (member, value) in optional {
            if let Some(value) = value {
                request[member] = value;
            }
        }
        request
    }
}

fn strict_record(text: &[u8]) -> Result<ReplicaRecord, RecordError> {
    ReplicaRecord::from_value(json::parse(text)?)
}

/// The items of a batch by the strict reader; `None` unless each is true by itself.
fn strict_batch(text: &[u8]) -> Result<Option<Batch>, JsonError> {
    let request: BatchRequest = json::from_value(json::parse(text)?)?;
    let records: Result<_, _> = request.put.into_iter().map(ReplicaRecord::from_value).collect();
    let names: Result<_, _> = request.delete.into_iter().map(json::from_value).collect();
    Ok(records.ok().zip(names.ok()).map(|(put, delete)| Batch { put, delete }))
}

proptest! {
    #[test]
    fn records_read_alike(value in some_record(), pretty: bool, turned: bool, fault in fault()) {
        let text = apply(&fault, print(&value, pretty, turned));
        let want = strict_record(&text);
        let shown = String::from_utf8_lossy(&text).into_owned();
        if let Some(got) = record(&text, &mut HolderHint::default()) {
            prop_assert_eq!(Ok(&got), want.as_ref(), "{}", shown);
            let mut hint = HolderHint::new(&got.holder);
            prop_assert_eq!(record(&text, &mut hint), Some(got), "{}", shown);
        } else if matches!(fault, Fault::None) {
            let plain = text.is_ascii() && !text.contains(&b'\\') && want.is_ok();
            let exponent = value["residency"].to_string().contains("e-");
            prop_assert!(!plain || exponent, "the fast reader gave up on {}", shown);
        }
        prop_assert_eq!(ReplicaRecord::from_json(&text), want, "{}", shown);
    }

    #[test]
    fn lookups_read_alike(value in some_lookup(), pretty: bool, turned: bool, fault in fault()) {
        let text = apply(&fault, print(&value, pretty, turned));
        let want: Result<LookupRequest, _> = json::from_slice(&text);
        let shown = String::from_utf8_lossy(&text).into_owned();
        match lookup_request(&text) {
            Some(got) => prop_assert_eq!(Ok(&got), want.as_ref(), "{}", shown),
            None => prop_assert!(!matches!(fault, Fault::None), "the fast reader gave up on {}", shown),
        }
        prop_assert_eq!(LookupRequest::from_json(&text), want, "{}", shown);
    }

    #[test]
    fn batches_read_alike(
        put in prop::collection::vec(some_record(), 0..3),
        delete in prop::collection::vec(some_name(), 0..3),
        pretty: bool, turned: bool, fault in fault()
    ) {
        let items = put.len() + delete.len();
        let text = apply(&fault, print(&json!({"put": put, "delete": delete}), pretty, turned));
        if let Some(got) = batch(&text, items + 1) {
            prop_assert_eq!(Ok(Some(got)), strict_batch(&text));
        }
        if items > 0 && matches!(fault, Fault::None) {
            prop_assert!(batch(&text, items - 1).is_none(), "too many items are for the caller to refuse");
        }
    }

    #[test]
    fn records_are_written_alike(value in some_record(), digests: bool) {
        let mut record = ReplicaRecord::from_value(value).unwrap();
        if !digests {
            record.layer_digests = None;
        }
        let mut text = b"[".to_vec();
        RecordParts::of(&record).write(&mut text);
        prop_assert_eq!(&text[1..], &*serde_json::to_vec(&record).unwrap());
    }

    #[test]
    fn scalars_are_written_alike(number: u64, double: f64, text in "\\PC{0,9}|[ -~\\n\\u{7f}]{0,9}") {
        let mut out = Vec::new();
        super::write::push_integer(&mut out, number);
        super::write::push_double(&mut out, double);
        super::write::push_text(&mut out, &text);
        let want = [json!(number).to_string(), serde_json::to_string(&double).unwrap(), json!(text).to_string()];
        prop_assert_eq!(String::from_utf8(out).unwrap(), want.concat());
    }

    #[test]
    fn uris_that_look_normal_are(
        scheme in prop::sample::select(&["http://", "https://", "HTTP://", "moqt://"][..]),
        host in prop_oneof![
            "[a-z0-9.-]{1,12}", "[a-cx0-3.-]{1,9}", "xn--[a-z0-9]{1,8}", "[0-9]{1,3}(\\.[0-9]{1,3}){3}",
            "[0-9]{1,3}(\\.(0x)?[0-9a-f]{1,3}){1,4}", "[a-zA-Z%_é]{1,5}", "\\[::1\\]", "a{60,70}"
        ],
        port in prop_oneof![Just(String::new()), ":[0-9]{0,6}", Just(":80".into()), Just(":443".into())],
        path in "/(([a-zA-Z0-9._~%-]{0,3}|\\.{1,3}|%2[eE]|%7[eE])/){0,3}[a-z?#]{0,1}",
    ) {
        let text = format!("{scheme}{host}{port}{path}");
        if super::is_plainly_normal(&text) {
            let parsed = crate::uri::parsed(&text, true);
            prop_assert_eq!(parsed.as_deref(), Ok(&*text));
        }
    }

    #[test]
    fn random_octets_never_panic(text in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = (record(&text, &mut HolderHint::default()), lookup_request(&text), batch(&text, 9));
    }
}

#[test]
fn usual_uris_look_normal() {
    for uri in [
        "http://127.0.0.1:40123/kvsp/",
        "https://h1.example/kvsp/",
        "http://localhost:8080/",
        "https://n-7.rack2.example:9/",
    ] {
        assert!(super::is_plainly_normal(uri), "{uri}");
    }
    for uri in [
        "http://h:80/",
        "https://h:443/",
        "http://1.2.3/",
        "http://256.1.1.1/",
        "http://h",
        "http://h/a",
        "moqt://h/",
        "http://h/../",
        "http://h:70000/",
    ] {
        assert!(!super::is_plainly_normal(uri), "{uri}");
    }
}

#[test]
fn plain_texts_take_the_fast_way() {
    let digest = NamedDigest(replica_digest(&[Digest([7; 32])]));
    let text = json!({
        "block_key": "11".repeat(32), "compat_id": "22".repeat(32), "scope_id": "33".repeat(16),
        "holder": "https://h1.example/kvsp/", "codec": 1, "size": 2_097_152, "digest": digest,
        "layer_digests": [Digest([7; 32])], "ttl_ms": 600_000, "seq": 3, "holder_epoch": 1_800_000_000_000_u64,
        "residency": [{"tier": "host", "layers": [0, 0], "read_mbit_per_s": 400_000, "x": 1}],
        "producer": "https://i1.example/kvsp/", "new": "member"
    })
    .to_string();
    assert!(record(text.as_bytes(), &mut HolderHint::default()).is_some());
    assert!(batch(format!("{{\"put\": [{text},{text}]}}").as_bytes(), 2).is_some());
}
