//! A raw HTTP/1.1 connection and a router to try it on.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by a panic")]

use std::time::Duration;

use axum::Router;
use axum::response::Response;
use axum::routing::{get, post, put};
use http::StatusCode;
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::{Caller, Failure, reply};
use kvsp_proto::id::ScopeId;
use kvsp_proto::message::Limits;
use kvsp_testkit::TestService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

pub const MAX_JSON: u64 = 1000;

/// Routes of every kind that a service has.
pub fn router() -> Router {
    Router::new()
        .route("/lookup", post(echo))
        .route("/scopes/{scope}", get(scope).put(echo))
        .route("/panic", get(panics))
        .route("/blocks/{key}", put(container))
}

async fn echo(_: Caller, body: RequestBody) -> Result<Response, Failure> {
    let limits = Limits { max_json_octets: MAX_JSON, ..Limits::default() };
    let octets = body.json(&limits).await?;
    let value = kvsp_proto::json::parse(&octets)?;
    Ok(reply::json(StatusCode::OK, &value))
}

async fn scope(caller: Caller, PathOf(scope): PathOf<ScopeId>) -> Result<Response, Failure> {
    caller.require_scope(scope)?;
    Ok(reply::json(StatusCode::OK, &scope))
}

async fn container(_: Caller, body: RequestBody) -> Result<Response, Failure> {
    let octets = body.container(64 << 20).await?;
    Ok(reply::json(StatusCode::CREATED, &octets.len()))
}

async fn panics() -> Response {
    panic!("told to")
}

/// An answer as it came over the wire.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let line =
            self.head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")))?;
        line.split_once(':').map(|(_, value)| value.trim())
    }

    /// Requires a problem of this type (the last part of its URI, or `blank`) and returns its detail.
    pub fn problem(&self, name: &str) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        let kind = body["type"].as_str().unwrap();
        assert_eq!(kind.rsplit(['#', ':']).next(), Some(name), "{body}");
        assert_eq!(body["status"], self.status);
        body["detail"].as_str().unwrap().to_owned()
    }
}

/// One connection; octets go out exactly as given.
pub struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    pub async fn open(service: &TestService) -> Self {
        Self::to(&service.authority()).await
    }

    pub async fn to(authority: &str) -> Self {
        Self { stream: TcpStream::connect(authority).await.unwrap(), buffer: Vec::new() }
    }

    pub async fn send(&mut self, octets: impl AsRef<[u8]>) {
        self.stream.write_all(octets.as_ref()).await.unwrap();
    }

    /// Like `send`, where the peer may close meanwhile.
    pub async fn try_send(&mut self, octets: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(octets).await
    }

    /// The next answer, whose length is declared; `None` where the peer closes instead.
    pub async fn answer(&mut self) -> Option<Answer> {
        tokio::time::timeout(Duration::from_secs(10), self.receive())
            .await
            .expect("an answer or an end in time")
    }

    async fn receive(&mut self) -> Option<Answer> {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            self.more().await?;
        };
        let head = String::from_utf8(self.buffer.drain(..end).collect()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { status, head, body: Vec::new() };
        let length: usize = answer.header("content-length").map_or(0, |text| text.parse().unwrap());
        while self.buffer.len() < length {
            self.more().await?;
        }
        answer.body = self.buffer.drain(..length).collect();
        Some(answer)
    }

    /// Everything until the peer closes.
    pub async fn rest(mut self) -> String {
        let all = async { while self.more().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(10), all).await.expect("an end in time");
        String::from_utf8(self.buffer).unwrap()
    }

    async fn more(&mut self) -> Option<()> {
        let mut piece = [0; 4096];
        match self.stream.read(&mut piece).await {
            Ok(0) | Err(_) => None,
            Ok(n) => {
                self.buffer.extend_from_slice(&piece[..n]);
                Some(())
            }
        }
    }

    pub async fn ask(&mut self, request: &str) -> Answer {
        self.send(request).await;
        self.answer().await.expect("an answer")
    }
}

/// A request without a body.
pub fn bare(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

/// A JSON request.
pub fn json(method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// A JSON request that a handler is known to read once 100 comes back; its body is still to be sent.
pub async fn begin(service: &TestService, path: &str, length: usize) -> Wire {
    let mut wire = Wire::open(service).await;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    assert_eq!(wire.ask(&head).await.status, 100);
    wire
}
