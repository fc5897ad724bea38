//! Sources that lie, stall, or are none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bytes::Bytes;
use http::Uri;
use kvsp_net::Failure;
use kvsp_proto::container::{self, Container};
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::message::TokenRange;
use kvsp_proto::problem::ProblemType;
use kvsp_proto::registry::Codec;
use kvsp_testkit::TestService;

use crate::support::{Instance, Setup};
use crate::team::*;

/// What a source answers to the request for a range.
type Answers = Arc<dyn Fn(TokenRange) -> Response + Send + Sync>;

/// A source that knows nothing but tokens.
async fn source(answers: Answers) -> TestService {
    let tokens = move |uri: Uri| {
        let answers = answers.clone();
        async move {
            let query = uri.query().unwrap().strip_prefix("range=").unwrap();
            answers(query.parse().unwrap())
        }
    };
    TestService::start(Router::new().route("/maps/{map}/{version}/tokens", get(tokens))).await
}

fn answer(octets: Bytes, of: &[u8]) -> Response {
    let headers = [("content-type", "application/kvsp-block".to_owned()), digest(of)];
    (headers, octets).into_response()
}

/// A container in which some of the sections of the last layer are another's.
fn built(
    descriptor: &Descriptor,
    tokens: TokenRange,
    codec: Codec,
    change: impl Fn(&mut Vec<(Bytes, Bytes)>),
) -> Bytes {
    let honest = sections(descriptor, tokens);
    let mut layers: Vec<_> =
        (0..descriptor.layers).map(|l| honest.layer(l).unwrap()).map(|s| (s.k, s.v)).collect();
    change(&mut layers);
    container::encode(codec, 0, u32::try_from(tokens.tokens()).unwrap(), &layers).unwrap()
}

async fn refuses(taker: &Instance, answers: impl Fn(TokenRange) -> Response + Send + Sync + 'static) {
    let source = source(Arc::new(answers)).await;
    let plan = Plan::new().retain(0, 37).fetch(37, 100, &source.base).length(60);
    let (status, _) = problem(taker.plan(plan).await);
    assert_eq!(status, 502);
    assert_eq!((taker.held().await, taker.metric(RESERVED).await), (vec![range(0, 37)], 37));
}

async fn taker() -> Instance {
    let taker = member().await;
    taker.open(0, 37, shards(&[(37, &taker.base)])).await;
    taker.fill(range(0, 37)).await;
    taker
}

#[tokio::test]
async fn what_is_not_verified_is_not_written() {
    let taker = taker().await;
    let descriptor = descriptor_of(&taker);
    let honest = {
        let descriptor = descriptor.clone();
        move |tokens| sections(&descriptor, tokens).bytes().clone()
    };
    let of = |change: fn(&mut Vec<(Bytes, Bytes)>)| {
        let descriptor = descriptor.clone();
        move |tokens| {
            let octets = built(&descriptor, tokens, Codec::RAW, change);
            answer(octets.clone(), &octets)
        }
    };
    let plain = honest.clone();
    refuses(&taker, move |tokens| answer(plain(tokens), b"others")).await;
    let plain = honest.clone();
    refuses(&taker, move |tokens| {
        ([("content-type", "application/kvsp-block")], plain(tokens)).into_response()
    })
    .await;
    // Another token count.
    let plain = honest.clone();
    refuses(&taker, move |tokens| {
        let octets = plain(range(tokens.start(), tokens.end() - 1));
        answer(octets.clone(), &octets)
    })
    .await;
    // Other sizes: one octet too many in K and one too few in V, a layer less, a layer more.
    refuses(
        &taker,
        of(|layers| {
            let (k, v) = layers[1].clone();
            layers[1] = ([&k[..], &v[..1]].concat().into(), v.slice(1..));
        }),
    )
    .await;
    refuses(&taker, of(|layers| drop(layers.pop()))).await;
    refuses(&taker, of(|layers| layers.push(layers[0].clone()))).await;
    // Another codec.
    let coded = descriptor.clone();
    refuses(&taker, move |tokens| {
        let octets = built(&coded, tokens, Codec::SPLIT_ZSTD, |_| {});
        answer(octets.clone(), &octets)
    })
    .await;
    // Broken off, rubbish, an error, another type.
    let plain = honest.clone();
    refuses(&taker, move |tokens| {
        let octets = plain(tokens);
        answer(octets.slice(..octets.len() - 1), &octets)
    })
    .await;
    refuses(&taker, |_| answer(Bytes::from_static(b"KVB1 or not"), b"KVB1 or not")).await;
    refuses(&taker, |_| Failure::new(ProblemType::LayersUnavailable, "gone").into_response()).await;
    refuses(&taker, |_| ([("content-type", "text/plain")], "hello").into_response()).await;

    // The next good source is taken, whole.
    let source = source(Arc::new(move |tokens| {
        let octets = honest(tokens);
        answer(octets.clone(), &octets)
    }))
    .await;
    taker.plan(Plan::new().retain(0, 37).fetch(37, 100, &source.base).length(60)).await.unwrap();
    taker.commit(2).await.unwrap();
    assert_eq!(taker.tokens(2, range(0, 60)).await.unwrap(), sections(&taker.descriptor, range(0, 60)));
}

#[tokio::test]
async fn one_bad_piece_spoils_the_whole_plan() {
    let mut setup = Setup::alone();
    setup.agent.limits.max_container_octets = 100_000;
    let taker = Instance::start(setup).await;
    let descriptor = descriptor_of(&taker);
    let piece = 100_000 / octets_of(&descriptor, 1);
    let bad = 7 * piece;
    let source = source(Arc::new(move |tokens| {
        let octets = sections(&descriptor, tokens).bytes().clone();
        if tokens.end() > bad { answer(octets, b"others") } else { answer(octets.clone(), &octets) }
    }))
    .await;
    let plan = Plan::new().fetch(0, bad + 1, &source.base).length(bad + 1);
    assert_eq!(problem(taker.plan(plan).await).0, 502);
    assert!(taker.metric(FETCHED).await > 0, "pieces before it were good");
    assert_eq!((taker.held().await, taker.metric(RESERVED).await), (vec![], 0));
}

#[tokio::test]
async fn a_source_that_stalls_is_given_up_at_the_deadline() {
    let taker = taker().await;
    let stalls = |_: TokenRange| {
        let never = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
        let headers = [("content-type", "application/kvsp-block".to_owned()), digest(b"")];
        (headers, Body::from_stream(never)).into_response()
    };
    let source = source(Arc::new(stalls)).await;
    let plan = Plan::new().retain(0, 37).fetch(37, 100, &source.base).length(60).within(150);
    assert_eq!(problem(taker.plan(plan.clone()).await).0, 504);
    assert_eq!((taker.held().await, taker.metric(RESERVED).await), (vec![range(0, 37)], 37));
    assert_eq!(problem(taker.commit(2).await), (409, "kvsp-reshard-conflict"));
    // Requests are answered meanwhile.
    let (stalled, served) = tokio::join!(taker.plan(plan), taker.tokens(1, range(3, 20)));
    assert_eq!(problem(stalled).0, 504);
    assert_eq!(served.unwrap(), sections(&taker.descriptor, range(3, 20)));
}

#[tokio::test]
async fn a_source_that_is_busy_is_asked_again() {
    let taker = taker().await;
    let (descriptor, asked) = (descriptor_of(&taker), AtomicU32::new(0));
    let source = source(Arc::new(move |tokens| {
        if asked.fetch_add(1, Ordering::Relaxed) == 0 {
            return Failure::new(ProblemType::Overloaded, "later").into_response();
        }
        let octets = sections(&descriptor, tokens).bytes().clone();
        answer(octets.clone(), &octets)
    }))
    .await;
    taker.plan(Plan::new().retain(0, 37).fetch(37, 100, &source.base).length(60)).await.unwrap();
    assert_eq!(taker.held().await, [range(0, 60)]);
}

#[tokio::test]
async fn a_source_that_policy_forbids_is_not_asked() {
    let taker = taker().await;
    let plan = Plan::new().retain(0, 37).fetch(37, 100, &"http://192.0.2.1/kvsp/".parse().unwrap());
    assert_eq!(problem(taker.plan(plan).await), (403, "kvsp-source-forbidden"));
    assert_eq!(taker.metric(RESERVED).await, 37);
    // Nobody is there.
    let gone = TestService::start(Router::new()).await;
    let base = gone.base.clone();
    gone.stop().await;
    let plan = Plan::new().retain(0, 37).fetch(37, 100, &base).length(60);
    assert_eq!(problem(taker.plan(plan).await).0, 502);
    assert_eq!((taker.held().await, taker.metric(RESERVED).await), (vec![range(0, 37)], 37));
}

#[test]
fn the_octets_of_these_tests_tell_their_place() {
    let descriptor = kvsp_testkit::generate::descriptor("m", kvsp_testkit::Geometry::default());
    let whole = sections(&descriptor, range(3, 9));
    let part = sections(&descriptor, range(4, 6));
    let (k, _) = descriptor.section_octets(1).unwrap();
    let cut = |c: &Container, from: u64, to: u64| {
        c.layer(1).unwrap().k.slice((from * k) as usize..(to * k) as usize)
    };
    assert_eq!(cut(&whole, 1, 3), cut(&part, 0, 2));
    assert_ne!(cut(&whole, 0, 2), cut(&part, 0, 2));
}
