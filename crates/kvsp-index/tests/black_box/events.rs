//! The feed of changes over real sockets (extension `events`).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvsp_client::{Client, ClientConfig, ClientError, EventsQuery, IndexEvent, IndexEvents};
use kvsp_index::IndexServiceConfig;
use kvsp_net::auth::Authenticator;
use kvsp_net::principal::{Grant, Principal, Role};
use kvsp_net::service::ServiceConfig;
use kvsp_proto::problem::Problem;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{Server, Setup, compat, key, path_of, record, scope};

const H1: &str = "https://h1.example/kvsp/";

/// A record in another scope.
fn elsewhere(n: u32) -> Value {
    let mut record = record(n, H1);
    record["scope_id"] = json!("0d".repeat(16));
    record
}

async fn publish(server: &Server, record: &Value) {
    assert!(server.put(&path_of(record), record).await.status.is_success());
}

async fn follow(server: &Server, query: EventsQuery) -> IndexEvents {
    Client::new(ClientConfig::default()).index_events(&server.base, query).await.unwrap()
}

async fn next(events: &mut IndexEvents) -> IndexEvent {
    tokio::time::timeout(Duration::from_secs(10), events.next()).await.expect("an event comes").unwrap()
}

/// Kind and block of an event.
fn short(event: &IndexEvent) -> (&'static str, String) {
    match event {
        IndexEvent::Publish(name) => ("publish", name.block_key.to_string()),
        IndexEvent::Withdraw(name) => ("withdraw", name.block_key.to_string()),
        IndexEvent::Expire(name) => ("expire", name.block_key.to_string()),
        IndexEvent::Resync => ("resync", String::new()),
    }
}

async fn expect(events: &mut IndexEvents, want: &[(&'static str, u32)]) {
    for (kind, n) in want {
        assert_eq!(short(&next(events).await), (*kind, key(*n)));
    }
}

/// A follower by hand: what comes is looked at as text.
struct Raw {
    stream: TcpStream,
    text: String,
}

impl Raw {
    async fn open(server: &Server, target: &str, headers: &str) -> Self {
        let address = server.base.as_str().split('/').nth(2).unwrap().to_owned();
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let request = format!("GET /kvsp/{target} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        Self { stream, text: String::new() }
    }

    /// Reads until the text has this.
    async fn until(&mut self, what: &str) -> &str {
        let reading = async {
            let mut piece = [0; 4096];
            while !self.text.contains(what) {
                let length = self.stream.read(&mut piece).await.unwrap();
                assert_ne!(length, 0, "the stream ended without {what:?}:\n{}", self.text);
                self.text.push_str(std::str::from_utf8(&piece[..length]).unwrap());
            }
        };
        tokio::time::timeout(Duration::from_secs(10), reading).await.expect(what);
        &self.text
    }

    fn count(&self, what: &str) -> usize {
        self.text.matches(what).count()
    }
}

#[tokio::test]
async fn changes_are_told_in_order() {
    let server = Server::start().await;
    publish(&server, &record(9, H1)).await;
    let mut events = follow(&server, EventsQuery::default()).await;
    let mut one = record(1, H1);
    publish(&server, &one).await;
    publish(&server, &one).await;
    one["residency"] = json!([{"tier": "disk", "layers": [0, 1]}]);
    publish(&server, &one).await;
    server.delete(&path_of(&one)).await;
    server.delete(&path_of(&one)).await;
    let mut two = record(2, H1);
    two["ttl_ms"] = json!(1);
    publish(&server, &two).await;
    let want = [("publish", 1), ("publish", 1), ("withdraw", 1), ("publish", 2), ("expire", 2)];
    expect(&mut events, &want).await;
    let puts: Vec<Value> = (10..13).map(|n| record(n, H1)).collect();
    server.post("replicas", &json!({"put": puts})).await;
    expect(&mut events, &[("publish", 10), ("publish", 11), ("publish", 12)]).await;
    let holder = format!("holders/{}", crate::support::uri64(H1));
    server.delete(&holder).await;
    let mut gone: Vec<_> = vec![];
    for _ in 0..4 {
        gone.push(short(&next(&mut events).await));
    }
    gone.sort();
    assert_eq!(gone, [9, 10, 11, 12].map(|n| ("withdraw", key(n))));
    assert_eq!(server.get("").await.json()["extensions"], json!(["events"]));
}

#[tokio::test]
async fn the_text_is_as_documented() {
    let server = Server::start().await;
    let mut raw = Raw::open(&server, "events", "").await;
    let head = raw.until("\n\n").await.to_owned();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("content-type: text/event-stream\r\n"), "{head}");
    assert!(head.contains("cache-control: no-store\r\n"), "{head}");
    let id = raw.text.split("id: ").nth(1).unwrap().lines().next().unwrap().to_owned();
    let (life, number) = id.split_once('-').unwrap();
    assert_eq!((life.len(), number), (16, "0"));
    publish(&server, &record(1, H1)).await;
    let data = json!({"compat_id": compat(), "scope_id": scope(), "block_key": key(1), "holder": H1});
    raw.until("\"}\n\n").await;
    let event = raw.text.split("event: ").nth(1).unwrap();
    let mut lines = event.lines();
    assert_eq!((lines.next(), lines.next()), (Some("publish"), Some(&*format!("id: {life}-1"))));
    let told: Value = serde_json::from_str(lines.next().unwrap().strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(told, data);
}

#[tokio::test]
async fn a_follower_goes_on_from_its_cursor() {
    let server = Server::start().await;
    let mut events = follow(&server, EventsQuery::default()).await;
    for n in 1..=3 {
        publish(&server, &record(n, H1)).await;
    }
    expect(&mut events, &[("publish", 1)]).await;
    let cursor = events.cursor().unwrap().to_owned();
    drop(events);
    let query = EventsQuery { after: Some(cursor.clone()), ..EventsQuery::default() };
    let mut events = follow(&server, query).await;
    expect(&mut events, &[("publish", 2), ("publish", 3)]).await;
    let last = events.cursor().unwrap();
    // The header is newer than the query.
    let header = format!("Last-Event-ID: {last}\r\n");
    let mut raw = Raw::open(&server, &format!("events?after={cursor}"), &header).await;
    raw.until(&format!("id: {last}\n\n")).await;
    publish(&server, &record(4, H1)).await;
    raw.until(&key(4)).await;
    assert_eq!((raw.count("event: "), raw.count("resync")), (1, 0), "{}", raw.text);
}

#[tokio::test]
async fn a_gap_is_told_once() {
    let config = IndexServiceConfig { max_changes: 4, ..IndexServiceConfig::default() };
    let server = Server::of(Setup { index: config, ..Setup::default() }).await;
    let mut events = follow(&server, EventsQuery::default()).await;
    publish(&server, &record(0, H1)).await;
    expect(&mut events, &[("publish", 0)]).await;
    let cursor = events.cursor().unwrap().to_owned();
    drop(events);
    for n in 1..=10 {
        publish(&server, &record(n, H1)).await;
    }
    for after in [&*cursor, "00000000000000aa-3", "another service's", "0-0", "x"] {
        let header = format!("Last-Event-ID: {after}\r\n");
        let mut raw = Raw::open(&server, "events", &header).await;
        raw.until("event: resync\n").await;
        publish(&server, &record(20, H1)).await;
        raw.until(&key(20)).await;
        assert_eq!((raw.count("event: resync"), raw.count("event: ")), (1, 2), "{after}: {}", raw.text);
        let mut fresh = record(20, H1);
        fresh["residency"] = json!([{"tier": "disk", "layers": [0, 1]}]);
        publish(&server, &fresh).await;
    }
    // The client goes on after it as well.
    let query = EventsQuery { after: Some(cursor), ..EventsQuery::default() };
    let mut events = follow(&server, query).await;
    assert_eq!(next(&mut events).await, IndexEvent::Resync);
    publish(&server, &record(30, H1)).await;
    expect(&mut events, &[("publish", 30)]).await;
}

/// One principal, of one scope.
struct OneScope;

impl Authenticator for OneScope {
    fn authenticate(&self, _: &http::request::Parts, _peer: SocketAddr) -> Result<Principal, Problem> {
        let scopes = Grant::Only(BTreeSet::from([scope().parse().unwrap()]));
        Ok(Principal::new(H1, [Role::Holder], scopes, Grant::Only(BTreeSet::new())))
    }
}

/// Everyone may publish anywhere; a follower that names itself sees one scope.
struct Reader;

impl Authenticator for Reader {
    fn authenticate(&self, parts: &http::request::Parts, peer: SocketAddr) -> Result<Principal, Problem> {
        if parts.headers.contains_key("authorization") {
            return OneScope.authenticate(parts, peer);
        }
        Ok(Principal::development())
    }
}

#[tokio::test]
async fn nobody_sees_the_changes_of_a_foreign_scope() {
    let server = Server::of(Setup { authenticator: Arc::new(Reader), ..Setup::default() }).await;
    let mut raw = Raw::open(&server, "events", "Authorization: me\r\n").await;
    raw.until("\n\n").await;
    for n in 1..=600 {
        // Told one by one, they would come before the last.
        publish(&server, &elsewhere(n)).await;
    }
    publish(&server, &record(1_000, H1)).await;
    raw.until(&key(1_000)).await;
    assert_eq!(raw.count("event: "), 1, "{}", raw.text);
    assert!(raw.text.contains("-601\ndata"), "the numbers go on: {}", raw.text);

    let other = "0d".repeat(16);
    let mut denied = Raw::open(&server, &format!("events?scope={other}"), "Authorization: me\r\n").await;
    denied.until("kvsp-scope-denied").await;
    let mut all =
        follow(&server, EventsQuery { scope: Some(other.parse().unwrap()), ..EventsQuery::default() }).await;
    let mut none = follow(
        &server,
        EventsQuery { compat: Some("00".repeat(32).parse().unwrap()), ..EventsQuery::default() },
    )
    .await;
    publish(&server, &record(1_001, H1)).await;
    publish(&server, &elsewhere(1_002)).await;
    expect(&mut all, &[("publish", 1_002)]).await;
    assert!(tokio::time::timeout(Duration::from_millis(50), none.next()).await.is_err());
}

#[tokio::test]
async fn what_is_asked_for_has_one_form() {
    let server = Server::start().await;
    let scope = scope();
    for query in
        ["scope=x", "scope=", "compat=AB", "after=1&after=1", &format!("scope={scope}&scope={scope}")]
    {
        let answer = server.get(&format!("events?{query}")).await;
        assert_eq!(answer.problem(), (400, "kvsp-bad-identifier".into()), "{query}");
    }
    assert_eq!(server.post("events", &json!({})).await.status, 405);
}

#[tokio::test]
async fn there_is_room_for_so_many_followers() {
    let config = IndexServiceConfig { max_subscribers: 1, ..IndexServiceConfig::default() };
    let server = Server::of(Setup { index: config, ..Setup::default() }).await;
    let first = follow(&server, EventsQuery::default()).await;
    let client = Client::new(ClientConfig::default());
    let refused = client.index_events(&server.base, EventsQuery::default()).await.unwrap_err();
    let ClientError::Problem(problem) = refused else { panic!("{refused}") };
    assert_eq!((problem.status(), problem.retry_after_s), (503, Some(5)));
    assert_eq!(server.metric("kvsp_index_subscribers").await, 1);
    drop(first);
    server.until("kvsp_index_subscribers", 0).await;
    follow(&server, EventsQuery::default()).await;
}

#[tokio::test]
async fn silence_is_filled_with_the_followers_place() {
    let config = IndexServiceConfig { event_keep_alive_ms: 10, ..IndexServiceConfig::default() };
    let server = Server::of(Setup { index: config, ..Setup::default() }).await;
    let other = "0d".repeat(16);
    let mut raw = Raw::open(&server, &format!("events?scope={other}"), "").await;
    raw.until("-0\n\n").await;
    for n in 0..3 {
        publish(&server, &record(n, H1)).await;
    }
    raw.until(": still here\n").await;
    raw.until("-3\n\n").await;
    assert_eq!(raw.count("event: "), 0);
}

#[tokio::test]
async fn streams_end_now_and_then_and_clients_go_on() {
    let config = IndexServiceConfig { max_event_stream_ms: 30, ..IndexServiceConfig::default() };
    let server = Server::of(Setup { index: config, ..Setup::default() }).await;
    let mut events = follow(&server, EventsQuery::default()).await;
    for n in 0..20 {
        publish(&server, &record(n, H1)).await;
        expect(&mut events, &[("publish", n)]).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_stop_lets_followers_go() {
    let server = Server::start().await;
    let mut raw = Raw::open(&server, "events", "").await;
    raw.until("\n\n").await;
    tokio::time::timeout(Duration::from_secs(5), server.stop()).await.expect("it stops at once").unwrap();
}

#[tokio::test]
async fn one_who_does_not_read_is_cut_off() {
    let service = ServiceConfig { write_timeout_ms: 100, ..ServiceConfig::default() };
    let server = Server::of(Setup { service, ..Setup::default() }).await;
    let address: SocketAddr = server.base.as_str().split('/').nth(2).unwrap().parse().unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut silent = socket.connect(address).await.unwrap();
    silent
        .write_all(format!("GET /kvsp/events HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    server.until("kvsp_index_subscribers", 1).await;
    let mut reading = follow(&server, EventsQuery::default()).await;
    let cut_off = async {
        let mut tier = ["host", "disk"].into_iter().cycle();
        loop {
            // Every record is a change each time.
            let tier = tier.next();
            let puts: Vec<Value> = (0..2_000)
                .map(|n| {
                    let mut record = record(n, H1);
                    record["residency"] = json!([{"tier": tier, "layers": [0, 1]}]);
                    record
                })
                .collect();
            server.post("replicas", &json!({"put": puts})).await;
            while tokio::time::timeout(Duration::from_millis(5), reading.next()).await.is_ok() {}
            if server.metric("kvsp_index_subscribers").await == 1 {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), cut_off).await.expect("it is cut off");
}
