//! A server that speaks as much S3 as a store needs, with failures to order.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};

/// Keys of one page of a list: few, so that lists have pages.
const PAGE: usize = 3;

/// What the server does with a request instead of what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Answers with that status and does nothing.
    Refuse(u16),
    /// Does it, and answers with that status.
    Lose(u16),
}

#[derive(Debug, Default)]
struct Inner {
    objects: BTreeMap<String, Bytes>,
    /// For the next requests of a method.
    troubles: Vec<(Method, VecDeque<Trouble>)>,
    requests: Vec<(Method, String)>,
    unsigned: usize,
}

/// The server; its objects are `bucket/key`.
#[derive(Debug, Clone, Default)]
pub(super) struct S3 {
    inner: Arc<Mutex<Inner>>,
}

impl S3 {
    /// Starts it on a free port; it ends with the runtime.
    pub(super) async fn start() -> (Self, SocketAddr) {
        let server = Self::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(serve).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (server, address)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.lock().objects.keys().cloned().collect()
    }

    pub(super) fn object(&self, key: &str) -> Bytes {
        self.lock().objects[key].clone()
    }

    pub(super) fn set(&self, key: &str, octets: impl Into<Bytes>) {
        self.lock().objects.insert(key.to_owned(), octets.into());
    }

    /// Troubles for the next requests of that method, one each.
    pub(super) fn trouble(&self, method: Method, troubles: impl IntoIterator<Item = Trouble>) {
        self.lock().troubles.push((method, troubles.into_iter().collect()));
    }

    pub(super) fn calm(&self) {
        self.lock().troubles.clear();
    }

    pub(super) fn requests(&self, method: &Method) -> usize {
        self.lock().requests.iter().filter(|(m, _)| m == method).count()
    }

    /// Requests that were not signed with the key that tests use.
    pub(super) fn unsigned(&self) -> usize {
        self.lock().unsigned
    }
}

async fn serve(State(server): State<S3>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, 1 << 30).await.unwrap();
    let mut inner = server.lock();
    inner.requests.push((parts.method.clone(), parts.uri.to_string()));
    let signed = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if !signed.is_some_and(|value| value.starts_with("AWS4-HMAC-SHA256 Credential=test-key/")) {
        inner.unsigned += 1;
    }
    let waiting = inner.troubles.iter_mut().find(|(m, list)| *m == parts.method && !list.is_empty());
    let trouble = waiting.and_then(|(_, list)| list.pop_front());
    let status = |code| StatusCode::from_u16(code).unwrap().into_response();
    match trouble {
        Some(Trouble::Refuse(code)) => status(code),
        Some(Trouble::Lose(code)) => {
            drop(inner.answer(&parts.method, &parts.uri, &parts.headers, body));
            status(code)
        }
        None => inner.answer(&parts.method, &parts.uri, &parts.headers, body),
    }
}

impl Inner {
    fn answer(&mut self, method: &Method, uri: &Uri, headers: &HeaderMap, body: Bytes) -> Response {
        let key = uri.path().trim_start_matches('/').to_owned();
        let query: BTreeMap<_, _> =
            uri.query().unwrap_or_default().split('&').filter_map(|q| q.split_once('=')).collect();
        match *method {
            Method::GET if query.contains_key("list-type") => self.list(&key, &query),
            Method::GET | Method::HEAD => self.get(&key, headers),
            Method::PUT => self.put(key, headers, body),
            Method::DELETE => {
                self.objects.remove(&key);
                StatusCode::NO_CONTENT.into_response()
            }
            _ => StatusCode::NOT_IMPLEMENTED.into_response(),
        }
    }

    fn get(&self, key: &str, headers: &HeaderMap) -> Response {
        let Some(octets) = self.objects.get(key) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let mut response = Response::builder()
            .header(header::ETAG, "\"e\"")
            .header(header::LAST_MODIFIED, "Thu, 01 Jan 2026 00:00:00 GMT");
        let Some(range) = headers.get(header::RANGE) else {
            return response.body(Body::from(octets.clone())).unwrap();
        };
        let (from, to) = range.to_str().unwrap().strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let from: usize = from.parse().unwrap();
        let to = (to.parse::<usize>().unwrap() + 1).min(octets.len());
        if from >= octets.len() {
            return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
        }
        let content_range = format!("bytes {from}-{}/{}", to - 1, octets.len());
        response = response.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, content_range);
        response.body(Body::from(octets.slice(from..to))).unwrap()
    }

    fn put(&mut self, key: String, headers: &HeaderMap, body: Bytes) -> Response {
        if headers.contains_key(header::IF_NONE_MATCH) && self.objects.contains_key(&key) {
            return StatusCode::PRECONDITION_FAILED.into_response();
        }
        if let Some(source) = headers.get("x-amz-copy-source") {
            let source = source.to_str().unwrap().trim_start_matches('/');
            let Some(octets) = self.objects.get(source).cloned() else {
                return StatusCode::NOT_FOUND.into_response();
            };
            self.objects.insert(key, octets);
            return "<CopyObjectResult><ETag>\"e\"</ETag></CopyObjectResult>".into_response();
        }
        self.objects.insert(key, body);
        ([(header::ETAG, "\"e\"")], "").into_response()
    }

    fn list(&self, bucket: &str, query: &BTreeMap<&str, &str>) -> Response {
        let bucket = bucket.trim_end_matches('/');
        let prefix = query.get("prefix").map_or_else(String::new, |text| text.replace("%2F", "/"));
        let after = query.get("continuation-token").map_or_else(String::new, |text| text.replace("%2F", "/"));
        let keys = self.objects.iter().filter_map(|(key, octets)| {
            let key = key.strip_prefix(bucket)?.strip_prefix('/')?;
            (key.starts_with(&prefix) && key > after.as_str()).then_some((key, octets.len()))
        });
        let found: Vec<_> = keys.collect();
        let mut page = String::new();
        for (key, size) in found.iter().take(PAGE) {
            write!(
                page,
                "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                 <ETag>\"e\"</ETag><Size>{size}</Size></Contents>"
            )
            .unwrap();
        }
        let more = found.len() > PAGE;
        if more {
            let token = found[PAGE - 1].0;
            write!(page, "<NextContinuationToken>{token}</NextContinuationToken>").unwrap();
        }
        format!("<ListBucketResult><IsTruncated>{more}</IsTruncated>{page}</ListBucketResult>")
            .into_response()
    }
}
