//! How a table of requests and their answers is tried.

use serde_json::Value;

use crate::support::{Answer, JSON, Process, hex};

/// A request and what it must be answered.
pub(crate) struct Row<'a> {
    pub(crate) what: &'a str,
    pub(crate) method: &'a str,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'a str, &'a str)>,
    pub(crate) body: Vec<u8>,
    pub(crate) status: u16,
    /// The problem's name, or `about:blank`; empty where it is no problem.
    pub(crate) problem: &'a str,
}

/// A row without headers and body.
pub(crate) fn row<'a>(
    what: &'a str,
    method: &'a str,
    path: impl Into<String>,
    status: u16,
    problem: &'a str,
) -> Row<'a> {
    Row { what, method, path: path.into(), headers: Vec::new(), body: Vec::new(), status, problem }
}

impl<'a> Row<'a> {
    pub(crate) fn json(self, body: &Value) -> Self {
        self.body("application/kvsp+json", body.to_string())
    }

    pub(crate) fn body(mut self, media: &'a str, body: impl Into<Vec<u8>>) -> Self {
        self.headers.push(("content-type", media));
        self.body = body.into();
        self
    }

    /// A body without a media type.
    pub(crate) fn untyped(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn header(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.push((name, value));
        self
    }
}

/// Tries rows one after another, on a fresh connection each; after each of them a good request works, on
/// the same connection where it is still open, else on a new one.
pub(crate) fn try_all(service: &Process, good: &str, rows: Vec<Row<'_>>) {
    let mut wrong = Vec::new();
    for row in rows {
        let mut connection = service.connect();
        let answer = connection.send(row.method, &row.path, &row.headers, &row.body).unwrap();
        let found = (answer.status, named(&answer));
        if found != (row.status, row.problem.to_owned()) {
            wrong.push(format!(
                "{}: {} {} gives {found:?}, not ({}, {:?}): {}",
                row.what,
                row.method,
                row.path,
                row.status,
                row.problem,
                String::from_utf8_lossy(&answer.body)
            ));
        }
        let after = connection.send("GET", good, &[], b"").unwrap_or_else(|_| service.get(good));
        assert_eq!(after.status, 200, "after {:?} the good request fails: {after:?}", row.what);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The problem's name of an answer that is one.
fn named(answer: &Answer) -> String {
    if answer.status < 400 {
        return String::new();
    }
    let problem = answer.problem();
    let text = String::from_utf8_lossy(&answer.body);
    assert!(!text.contains("/src/") && !text.contains("panicked"), "{text}");
    problem
}

/// A JSON request that must succeed with this status.
#[track_caller]
pub(crate) fn ok(service: &Process, method: &str, path: &str, body: &Value, status: u16) -> Value {
    let answer = service.send(method, path, &[("content-type", JSON)], body.to_string().as_bytes());
    assert_eq!(answer.status, status, "{method} {path}: {}", String::from_utf8_lossy(&answer.body));
    if answer.body.is_empty() { Value::Null } else { answer.value() }
}

pub(crate) fn digest(octets: &[u8]) -> [u8; 32] {
    use sha2::Digest as _;
    sha2::Sha256::digest(octets).into()
}

/// `layer_digests` of a container made by [`crate::support::container`], computed by another library.
pub(crate) fn layer_digests(container: &[u8]) -> Vec<String> {
    let number = |at: usize| u32::from_be_bytes(container[at..at + 4].try_into().unwrap()) as usize;
    let long = |at: usize| u64::from_be_bytes(container[at..at + 8].try_into().unwrap()) as usize;
    let layers = number(12);
    let mut at = 20 + 16 * layers;
    let mut digests = Vec::new();
    for layer in 0..layers {
        let octets = long(20 + 16 * layer) + long(28 + 16 * layer);
        digests.push(hex(&digest(&container[at..at + octets])));
        at += octets;
    }
    assert_eq!(at, container.len());
    digests
}

/// The replica digest over such a list.
pub(crate) fn replica_digest(layers: &[String]) -> String {
    let octets: Vec<u8> = layers
        .iter()
        .flat_map(|layer| (0..32).map(|at| u8::from_str_radix(&layer[2 * at..2 * at + 2], 16).unwrap()))
        .collect();
    format!("sha-256:{}", hex(&digest(&octets)))
}

/// Base64 with the standard alphabet and padding, or URL-safe without.
pub(crate) fn base64(octets: &[u8], url: bool) -> String {
    let alphabet: Vec<char> = ('A'..='Z')
        .chain('a'..='z')
        .chain('0'..='9')
        .chain(if url { ['-', '_'] } else { ['+', '/'] })
        .collect();
    let mut text = String::new();
    for chunk in octets.chunks(3) {
        let mut bits = 0_u32;
        for at in 0..3 {
            bits = bits << 8 | u32::from(chunk.get(at).copied().unwrap_or(0));
        }
        for at in 0..4 {
            if at <= chunk.len() {
                text.push(alphabet[(bits >> (18 - 6 * at) & 63) as usize]);
            } else if !url {
                text.push('=');
            }
        }
    }
    text
}

/// `Repr-Digest` of these octets.
pub(crate) fn repr_digest(octets: &[u8]) -> String {
    format!("sha-256=:{}:", base64(&digest(octets), false))
}

/// A path segment `{uri64}`.
pub(crate) fn uri64(uri: &str) -> String {
    base64(uri.as_bytes(), true)
}

#[test]
fn base64_is_that_of_rfc_4648() {
    for (octets, padded) in [("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
        assert_eq!(base64(octets.as_bytes(), false), padded);
    }
    assert_eq!((base64(&[0xfb, 0xff], true), base64(&[0xfb, 0xff], false)), ("-_8".into(), "+/8=".into()));
}
