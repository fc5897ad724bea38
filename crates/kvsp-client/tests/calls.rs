//! The client against services over real sockets: calls, problems, destinations, connections.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post, put};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use kvsp_client::connect::{BoxFuture, Connect, ConnectError, Stream, TcpConnector};
use kvsp_client::policy::{Denied, DestinationPolicy, LoopbackOnly};
use kvsp_client::{Client, ClientConfig, ClientError};
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::service::ServiceConfig;
use kvsp_net::{Caller, Failure, reply};
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::message::{
    Limits, LookupAnswer, LookupRequest, PrefetchDirective, ReshardMessage, StateBody, TtlAnswer,
};
use kvsp_proto::path::{DESCRIPTOR_ROUTE, REPLICA_ROUTE};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::{InstanceState, ReplicaRecord};
use kvsp_proto::uri::{BaseUri, HolderUri};
use kvsp_testkit::generate::{self, Geometry, Prefix};
use kvsp_testkit::{Behaviour, Hostile, TestService};
use uuid::Uuid;

fn lookup_request(keys: usize) -> LookupRequest {
    LookupRequest {
        scope_id: ScopeId([1; 16]),
        compat_id: CompatId([2; 32]),
        block_keys: vec![BlockKey([3; 32]); keys],
        targets: vec![],
        detail: Default::default(),
        block_tokens: None,
    }
}

fn answering(matched: u64, complete: u64) -> Router {
    let answer = LookupAnswer { matched, complete, blocks: None, targets: None };
    Router::new().route("/lookup", post(async move || reply::json(StatusCode::OK, &answer)))
}

#[tokio::test]
async fn a_record_travels_whole() {
    type Path = (CompatId, ScopeId, BlockKey, HolderUri);
    async fn handler(_: Caller, PathOf(path): PathOf<Path>, body: RequestBody) -> Result<Response, Failure> {
        let record = ReplicaRecord::from_json(&body.json(&Limits::default()).await?)
            .map_err(|error| error.into_problem(ProblemType::InvalidRecord))?;
        if path != (record.compat_id, record.scope_id, record.block_key, record.holder.clone()) {
            return Err(Failure::new(ProblemType::InvalidRecord, "the path names another"));
        }
        Ok(reply::json(StatusCode::CREATED, &TtlAnswer { ttl_ms: record.ttl_ms / 2 }))
    }
    let service = TestService::start(Router::new().route(&format!("/{REPLICA_ROUTE}"), put(handler))).await;
    let prefix = Prefix::new(Geometry::default(), 1, 1);
    let record = prefix.records(&"moqt://relay.example/x".parse().unwrap()).remove(0);
    let client = Client::new(ClientConfig::default());
    let error = client.put_replica(&service.base, &record).await.unwrap_err();
    assert_eq!(error.problem_type(), Some(ProblemType::InvalidRecord), "a moqt holder needs a namespace");
    let record = prefix.records(&HolderUri::from(&service.base)).remove(0);
    assert_eq!(client.put_replica(&service.base, &record).await.unwrap().ttl_ms, 300_000);
    service.stop().await;
}

#[tokio::test]
async fn a_200_acknowledges_whatever_its_body_and_nothing_else_does() {
    let answers = [
        (StatusCode::OK, ""),
        (StatusCode::OK, "{}"),
        (StatusCode::ACCEPTED, "{}"),
        (StatusCode::NO_CONTENT, ""),
        (StatusCode::CONFLICT, "{}"),
    ];
    let message =
        ReshardMessage::Abort { map: "m".parse().unwrap(), version: 2, attempt: None, keep: Vec::new() };
    let mut told = Vec::new();
    for answer in answers {
        let service = TestService::start(Router::new().route("/reshard", post(async move || answer))).await;
        let client = Client::new(ClientConfig::default());
        told.push(client.tell_reshard(&service.base, &message).await);
        service.stop().await;
    }
    assert!(
        matches!(
            told[..],
            [
                Ok(()),
                Ok(()),
                Err(ClientError::Protocol(_)),
                Err(ClientError::Protocol(_)),
                Err(ClientError::Problem(_))
            ]
        ),
        "{told:?}"
    );
}

#[tokio::test]
async fn problems_come_with_their_retry_after() {
    let refuse =
        async || Failure(Problem::new(ProblemType::Overloaded, "later").with("queue", 3).retry_after(7));
    let service = TestService::start(Router::new().route("/lookup", post(refuse))).await;
    let client = Client::new(ClientConfig::default());
    let error = client.lookup(&service.base, &lookup_request(1)).await.unwrap_err();
    let ClientError::Problem(problem) = error else { panic!("{error:?}") };
    assert_eq!(problem, Problem::new(ProblemType::Overloaded, "later").with("queue", 3).retry_after(7));
    service.stop().await;
}

#[tokio::test]
async fn answers_are_not_believed() {
    let client = Client::new(ClientConfig::default());
    for (matched, complete, sound) in [(1, 1, true), (2, 1, true), (1, 2, false), (3, 0, false)] {
        let service = TestService::start(answering(matched, complete)).await;
        let answer = client.lookup(&service.base, &lookup_request(2)).await;
        assert_eq!(answer.is_ok(), sound, "{matched} {complete}: {answer:?}");
        service.stop().await;
    }
    let descriptor = generate::descriptor("one", Geometry::default());
    let other = generate::descriptor("two", Geometry::default());
    let served = descriptor.clone();
    let route = get(async move || reply::json(StatusCode::OK, &served));
    let service = TestService::start(Router::new().route(&format!("/{DESCRIPTOR_ROUTE}"), route)).await;
    let got = client.get_descriptor(&service.base, descriptor.compat_id()).await.unwrap();
    assert_eq!(got, descriptor);
    let error = client.get_descriptor(&service.base, other.compat_id()).await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol(_)), "{error:?}");
    assert_eq!(client.root(&service.base).await.unwrap().kvsp, 1);
    service.stop().await;
}

#[tokio::test]
async fn a_directive_is_followed_at_its_instance_only() {
    async fn accept(_: Caller, body: RequestBody) -> Result<Response, Failure> {
        let octets = body.json(&Limits::default()).await?;
        let directive: PrefetchDirective = kvsp_proto::json::from_slice(&octets)?;
        let location = match directive.request_ref.as_deref() {
            Some("elsewhere") => "http://127.0.0.1:1/kvsp/prefetch/x".to_owned(),
            Some("relative") => format!("prefetch/{}", directive.directive),
            _ => format!("/kvsp/prefetch/{}", directive.directive),
        };
        Ok((StatusCode::ACCEPTED, [("location", location)]).into_response())
    }
    let service = TestService::start(Router::new().route("/prefetch", post(accept))).await;
    let client = Client::new(ClientConfig::default());
    let id = Uuid::from_u128(5);
    let mut directive = PrefetchDirective {
        directive: id,
        request_ref: None,
        scope_id: ScopeId([1; 16]),
        compat_id: CompatId([2; 32]),
        blocks: vec![],
        layer_order: Default::default(),
        deadline_ms: 50,
        lease_ms: 1000,
    };
    let want = service.base.join(&format!("prefetch/{id}"));
    assert_eq!(client.prefetch(&service.base, &directive).await.unwrap(), want);
    directive.request_ref = Some("relative".into());
    assert_eq!(client.prefetch(&service.base, &directive).await.unwrap(), want);
    directive.request_ref = Some("elsewhere".into());
    assert!(matches!(client.prefetch(&service.base, &directive).await, Err(ClientError::Protocol(_))));
    assert!(client.directive_status(&want).await.unwrap_err().is_not_found());
    assert!(client.cancel_directive(&want).await.unwrap_err().is_not_found());
    service.stop().await;
}

#[tokio::test]
async fn destinations_are_checked_by_name_and_by_address() {
    /// Allows every name, and no address but public ones.
    struct Rebound;
    impl DestinationPolicy for Rebound {
        fn allow(&self, _uri: &BaseUri) -> Result<(), Denied> {
            Ok(())
        }
        fn allow_address(&self, host: &str, address: IpAddr) -> Result<(), Denied> {
            if address.is_loopback() { Err(Denied { destination: host.to_owned() }) } else { Ok(()) }
        }
    }
    let client = Client::new(ClientConfig::default());
    for uri in ["http://h1.example/", "http://169.254.169.254/", "http://0.0.0.0:1/"] {
        let error = client.root(&uri.parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, ClientError::Denied(_)), "{uri}: {error:?}");
    }
    let error = client.root(&"https://127.0.0.1/".parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, ClientError::Https { .. }), "{error:?}");
    let client = Client::new(ClientConfig { policy: Arc::new(Rebound), ..ClientConfig::default() });
    let error = client.root(&"http://localhost:1/".parse().unwrap()).await.unwrap_err();
    assert!(matches!(&error, ClientError::Denied(denied) if denied.destination == "localhost"), "{error:?}");
}

#[tokio::test]
async fn nobody_there_is_unreachable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = Client::new(ClientConfig::default());
    let error = client.root(&format!("http://{address}/").parse().unwrap()).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }) && error.is_unreachable(), "{error:?}");
    assert!(!error.is_not_found());
}

/// Counts the connections it makes.
struct Counting {
    tcp: TcpConnector,
    made: Arc<AtomicUsize>,
}

impl Connect for Counting {
    fn connect(&self, host: String, port: u16) -> BoxFuture<Result<Box<dyn Stream>, ConnectError>> {
        self.made.fetch_add(1, Ordering::SeqCst);
        self.tcp.connect(host, port)
    }
}

fn counting() -> (Client, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let tcp = TcpConnector::new(Arc::new(LoopbackOnly), Duration::from_secs(1));
    let connector = Arc::new(Counting { tcp, made: Arc::clone(&made) });
    let config = ClientConfig {
        connector: Some(connector),
        idle_timeout: Duration::from_millis(200),
        ..ClientConfig::default()
    };
    (Client::new(config), made)
}

#[tokio::test]
async fn a_connection_is_used_again_also_after_problems() {
    let prefix = Prefix::new(Geometry::default(), 3, 1);
    let holder = Hostile::start(&prefix).await;
    let record = prefix.records(&HolderUri::from(holder.base())).remove(0);
    let (client, made) = counting();
    for behaviour in
        [Behaviour::Honest, Behaviour::NotFound, Behaviour::WrongReprDigest, Behaviour::Html(500)]
    {
        holder.behave(behaviour);
        for _ in 0..3 {
            let _ = client.get_verified(&record, None).await;
        }
    }
    assert_eq!(made.load(Ordering::SeqCst), 1, "every answer was read to its end");
    holder.behave(Behaviour::Truncated);
    assert!(client.get_verified(&record, None).await.is_err());
    holder.behave(Behaviour::HangInBody);
    assert!(client.get_verified(&record, None).await.is_err());
    holder.behave(Behaviour::Honest);
    for _ in 0..3 {
        client.get_verified(&record, None).await.unwrap();
    }
    assert_eq!(made.load(Ordering::SeqCst), 3, "a broken or half-read connection is not used again");
}

#[tokio::test]
async fn a_restarted_service_is_reached_again() {
    let (client, _) = counting();
    let service = TestService::start(answering(0, 0)).await;
    let config = ServiceConfig { listen: service.authority().parse().unwrap(), ..ServiceConfig::default() };
    client.lookup(&service.base, &lookup_request(0)).await.unwrap();
    service.stop().await;
    let service = TestService::start_with(answering(0, 0), config).await;
    client.lookup(&service.base, &lookup_request(0)).await.unwrap();
    service.stop().await;
}

#[tokio::test]
async fn many_calls_at_once_all_return() {
    let (client, made) = counting();
    let service = TestService::start(answering(0, 0)).await;
    let calls: Vec<_> = (0..100)
        .map(|_| {
            let (client, base) = (client.clone(), service.base.clone());
            tokio::spawn(async move { client.lookup(&base, &lookup_request(0)).await.unwrap() })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    assert!(made.load(Ordering::SeqCst) <= 100);
    service.stop().await;
}

#[tokio::test]
async fn a_refused_upload_is_answered() {
    async fn refuse(_: Caller, body: RequestBody) -> Result<Response, Failure> {
        body.container(1000).await?;
        Ok(reply::empty(StatusCode::CREATED))
    }
    let service = TestService::start(Router::new().route("/blocks/{c}/{s}/{k}", put(refuse))).await;
    let (client, _) = counting();
    let octets = Bytes::from(vec![1; 16 << 20]);
    for _ in 0..3 {
        let (compat, scope, key) = (CompatId([1; 32]), ScopeId([2; 16]), BlockKey([3; 32]));
        let error = client.put_block(&service.base, compat, scope, key, octets.clone()).await.unwrap_err();
        assert_eq!(error.problem_type(), Some(ProblemType::LimitExceeded), "{error:?}");
        client.put_block(&service.base, compat, scope, key, octets.slice(..1000)).await.unwrap();
    }
    service.stop().await;
}

#[tokio::test]
async fn a_request_is_passed_on_and_its_answer_streamed() {
    async fn completion(headers: HeaderMap, body: Bytes) -> Response {
        let seen =
            format!("{:?} {:?} {body:?}", headers.get("authorization"), headers.get("kvsp-request-ref"));
        let pieces = futures_util::stream::iter([Ok::<_, std::io::Error>(seen), Ok("!".to_owned())]);
        (StatusCode::IM_A_TEAPOT, [("content-type", "application/json")], Body::from_stream(pieces))
            .into_response()
    }
    let service = TestService::start(Router::new().route("/v1/completions", post(completion))).await;
    let (client, _) = counting();
    let request = Request::post("http://elsewhere.example/ignored")
        .header("host", "elsewhere.example")
        .header("authorization", "Bearer secret")
        .header("kvsp-request-ref", "r1")
        .body(Bytes::from_static(b"{}"))
        .unwrap();
    let response = client.forward(&service.base, "v1/completions", request).await.unwrap();
    assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
    let mut body = response.into_body();
    let mut text = String::new();
    while let Some(piece) = body.chunk().await.unwrap() {
        text.push_str(std::str::from_utf8(&piece).unwrap());
    }
    assert_eq!(text, "None Some(\"r1\") b\"{}\"!");
    service.stop().await;
}

#[tokio::test]
async fn states_are_put() {
    async fn state(_: Caller, body: RequestBody) -> Result<Response, Failure> {
        let body: StateBody = kvsp_proto::json::from_slice(&body.json(&Limits::default()).await?)?;
        Ok(reply::json(StatusCode::OK, &body))
    }
    let service = TestService::start(Router::new().route("/state", put(state))).await;
    let client = Client::new(ClientConfig::default());
    let answer = client.put_state(&service.base, InstanceState::Draining).await.unwrap();
    assert_eq!(answer.state, InstanceState::Draining);
    service.stop().await;
}
