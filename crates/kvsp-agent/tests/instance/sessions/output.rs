//! What is shown, and when.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::put;
use kvsp_proto::problem::ProblemType;
use kvsp_testkit::TestService;
use serde_json::json;

use super::controller::{Controller, Does};
use super::work::{Job, instance, next, read_all, setup, text, tokens};
use crate::support::{Holder, Index, Instance, Setup, client, eventually, prompt, send};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_gives_the_text_of_a_request_without_one() {
    let controller = Controller::start().await;
    let a = instance(&controller, None).await;
    let plain = Instance::start(Setup::alone()).await;
    for (n, sampling) in [
        json!({"temperature": 0.8, "seed": 11}),
        json!({"temperature": 0}),
        json!({"temperature": 1.1, "top_p": 0.8, "seed": -5}),
        json!({"top_k": 5, "seed": 9}),
        json!({"min_p": 0.1, "seed": (1_u64 << 53) - 1}),
    ]
    .into_iter()
    .enumerate()
    {
        let job = Job::new(n as u128 + 1, prompt(n as u64, 37), 50).sampling(sampling);
        let told = read_all(&mut job.start(&a).await, 0, 1, |_| {}).await;
        let (expected, count) = job.plain(&plain).await;
        assert_eq!((text(&told.tokens), told.tokens.len() as u64), (expected, count), "{job:?}");
        assert!(told.done.is_some(), "{told:?}");
        // All of it is recorded, and the seed is one that I-JSON can tell.
        let recorded = controller.recorded(job.id).unwrap();
        assert_eq!(recorded.generated, told.tokens);
        assert_eq!(recorded.prompt_blocks, a.keys(&job.prompt));
        assert_eq!(recorded.prompt_tail, job.prompt[32..]);
        assert!(recorded.sampler.seed < 1 << 53 && !recorded.sampler.deterministic);
    }
}

/// The gate lets one acknowledgement through at a time: no token of a sampled session is on the wire before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_sampled_token_is_shown_before_its_acknowledgement() {
    let controller = Controller::gated().await;
    let a = instance(&controller, None).await;
    let job = Job::new(1, prompt(1, 20), 90);
    let mut stream = job.start(&a).await;
    controller.arrived(1).await;
    assert_eq!(controller.highest(), 0);
    let permits = {
        let controller = controller.clone();
        tokio::spawn(async move {
            for answered in 1.. {
                controller.arrived(answered).await;
                // The tokens behind this checkpoint are computed; nobody may see them yet.
                tokio::time::sleep(std::time::Duration::from_millis(3)).await;
                controller.permit(1);
            }
        })
    };
    let seen = controller.clone();
    let told = read_all(&mut stream, 0, 1, |index| {
        assert!(index < seen.highest(), "token {index} at {} acknowledged", seen.highest());
    })
    .await;
    permits.abort();
    assert_eq!((told.tokens.len(), told.done.as_deref()), (90, Some("length")));
    let (arrived, whole) = controller.count();
    assert_eq!(whole, 1, "what follows the first checkpoint is appended to it");
    assert!(arrived < 60, "{arrived} checkpoints of 90 tokens");
}

/// At most so many tokens are computed ahead of the acknowledgement, and others are not held up by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_without_acknowledgements_waits_and_nobody_else_does() {
    let controller = Controller::gated().await;
    let mut setup = setup(&controller, None);
    setup.agent.max_unacked_tokens = 7;
    setup.agent.max_running = 1;
    let a = Instance::start(setup).await;
    let held = Job::new(1, prompt(1, 20), 60);
    let mut stream = held.start(&a).await;
    controller.arrived(1).await;
    eventually("as many tokens as may be", async || {
        (a.metric("kvsp_instance_tokens_generated_total").await == 7).then_some(())
    })
    .await;
    let other = Job::new(2, prompt(2, 20), 30);
    let (_, count) = other.plain(&a).await;
    assert_eq!(count, 30);
    assert_eq!(a.metric("kvsp_instance_tokens_generated_total").await, 37);
    controller.open();
    let told = read_all(&mut stream, 0, 1, |_| {}).await;
    assert_eq!(told.tokens.len(), 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn greedy_on_equal_hardware_is_shown_at_once() {
    let controller = Controller::gated().await;
    let mut setup = setup(&controller, None);
    setup.agent.equal_hardware = true;
    let a = Instance::start(setup).await;
    let job = Job::new(1, prompt(1, 20), 100).sampling(json!({"temperature": 0}));
    let told = read_all(&mut job.start(&a).await, 0, 1, |_| {}).await;
    assert_eq!((told.tokens.len(), controller.highest()), (100, 0));
    // Sampled ones are not, there either.
    let sampled = Job::new(2, prompt(2, 20), 10);
    let mut stream = sampled.start(&a).await;
    let before = controller.count().0;
    controller.arrived(before.max(1)).await;
    controller.open();
    let seen = controller.clone();
    read_all(&mut stream, 0, 1, |index| assert!(index < seen.highest())).await;
    let recorded = controller.recorded_to(sampled.id, 10).await;
    assert!(!recorded.sampler.deterministic);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trouble_at_the_controller_holds_the_output_back_and_loses_nothing() {
    let controller = Controller::start().await;
    let a = instance(&controller, None).await;
    let job = Job::new(1, prompt(1, 20), 80);
    let mut stream = job.start(&a).await;
    let first = next(&mut stream).await;
    assert_eq!(first.0, 0);
    controller.does(Does::Break);
    let before = controller.count().0;
    controller.arrived(before + 3).await;
    controller.does(Does::Acknowledge);
    let seen = controller.clone();
    let told = read_all(&mut stream, 1, 1, |index| assert!(index < seen.highest())).await;
    assert_eq!(told.tokens.len(), 79);
    let (expected, _) = job.plain(&a).await;
    assert_eq!(text(&[vec![first.1], told.tokens].concat()), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_epoch_stops_the_session_and_shows_no_more() {
    let controller = Controller::start().await;
    let a = instance(&controller, None).await;
    let job = Job::new(1, prompt(1, 20), 4000);
    let mut stream = job.start(&a).await;
    next(&mut stream).await;
    controller.does(Does::Refuse(ProblemType::StaleEpoch));
    let seen = controller.clone();
    let told = read_all(&mut stream, 1, 1, |index| assert!(index < seen.highest())).await;
    assert_eq!(told.done, None, "the stream ends without an end");
    assert_eq!(told.tokens.len() as u64 + 1, controller.highest());
    eventually("rest", async || {
        let status = send(&a.base, "GET", "status", "").await.json();
        (status["running"] == 0).then_some(())
    })
    .await;
    let path = format!("sessions/{}/tokens?from=0", job.id);
    assert_eq!(send(&a.base, "GET", &path, "").await.problem(), (409, "kvsp-stale-epoch".into()));
    assert_eq!(job.refused(&a).await.problem(), (409, "kvsp-stale-epoch".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_the_controller_does_not_know_is_dropped() {
    let controller = Controller::start().await;
    controller.does(Does::Refuse(ProblemType::SessionUnknown));
    let a = instance(&controller, None).await;
    let job = Job::new(1, prompt(1, 20), 4000);
    let told = read_all(&mut job.start(&a).await, 0, 1, |_| {}).await;
    assert_eq!((told.tokens, told.done), (vec![], None));
    let path = format!("sessions/{}/tokens?from=0", job.id);
    assert_eq!(send(&a.base, "GET", &path, "").await.problem(), (404, "kvsp-session-unknown".into()));
}

/// A repeat of the request, a stream from the middle, and one after the end, tell the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_begin_anywhere_and_as_often_as_one_likes() {
    let controller = Controller::start().await;
    let a = instance(&controller, None).await;
    let job = Job::new(1, prompt(1, 20), 40);
    let mut first = job.start(&a).await;
    let mut again = job.start(&a).await;
    let told = read_all(&mut first, 0, 1, |_| {}).await;
    assert_eq!(read_all(&mut again, 0, 1, |_| {}).await, told);
    assert_eq!(read_all(&mut job.start(&a).await, 0, 1, |_| {}).await, told);
    for from in [0, 1, 39, 40] {
        let rest = read_all(&mut tokens(&a, job.id, from).await, from, 1, |_| {}).await;
        assert_eq!(rest.tokens, told.tokens[usize::try_from(from).unwrap()..]);
        assert_eq!(rest.done, told.done);
    }
    assert_eq!(a.metric("kvsp_instance_tokens_generated_total").await, 40);
    client().end_session(&a.base, job.id).await.unwrap();
    client().end_session(&a.base, job.id).await.unwrap();
    let path = format!("sessions/{}/tokens?from=0", job.id);
    assert_eq!(send(&a.base, "GET", &path, "").await.problem(), (404, "kvsp-session-unknown".into()));
}

/// A late acknowledgement of an old epoch is nothing to the session at the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_higher_epoch_takes_the_place_of_a_lower_one() {
    let controller = Controller::gated().await;
    let a = instance(&controller, None).await;
    let job = Job::new(1, prompt(1, 20), 30);
    let mut old = job.start(&a).await;
    controller.arrived(1).await;
    let job = job.at(2);
    let mut new = job.start(&a).await;
    assert_eq!(read_all(&mut old, 0, 1, |_| {}).await.done, None);
    controller.arrived(2).await;
    // The old one's answer comes first, and covers as many tokens.
    controller.open();
    let told = read_all(&mut new, 0, 2, |_| {}).await;
    assert_eq!((told.tokens.len(), told.done.as_deref()), (30, Some("length")));
    assert_eq!(job.clone().at(1).refused(&a).await.problem(), (409, "kvsp-stale-epoch".into()));
}

/// The first checkpoint names blocks: it is sent once they are at the holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_relies_on_blocks_that_are_stored_elsewhere() {
    let (controller, index) = (Controller::gated().await, Index::start().await);
    let holder = Holder::start(&index, 64 << 20, async |_| None).await;
    let mut setup = setup(&controller, Some(&index));
    setup.agent.holder = Some(holder.base.clone());
    setup.agent.max_store_wait_ms = 600_000;
    let a = Instance::start(setup).await;
    let job = Job::new(1, prompt(1, 100), 40);
    let mut stream = job.start(&a).await;
    controller.arrived(1).await;
    for key in a.keys(&job.prompt) {
        let query = kvsp_client::BlockQuery::default();
        let at = client().get_block(&holder.base, a.compat(), crate::support::scope(), key, &query).await;
        assert!(at.is_ok(), "the checkpoint came before its blocks: {at:?}");
    }
    controller.open();
    let told = read_all(&mut stream, 0, 1, |_| {}).await;
    // The blocks of the output go there too.
    let keys = a.keys(&[job.prompt.clone(), told.tokens[..told.tokens.len() - 1].to_vec()].concat());
    index.published(a.compat(), &keys, &holder.base).await;
    // Another session reuses them: the index knows of the copies.
    let other = Job::new(2, job.prompt.clone(), 5);
    assert_eq!(read_all(&mut other.start(&a).await, 0, 1, |_| {}).await.reused, 96);
    assert_eq!(a.metric("kvsp_session_blocks_not_stored_total").await, 0);
}

/// A holder that takes no block at first: copies that a session relies on are offered until they are taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_session_are_offered_again() {
    let refused = Arc::new(Mutex::new(BTreeSet::new()));
    let taken = Arc::new(AtomicU64::new(0));
    let counted = taken.clone();
    let put_block = put(async move |uri: http::Uri| {
        if refused.lock().unwrap().insert(uri.path().to_owned()) {
            return http::StatusCode::SERVICE_UNAVAILABLE;
        }
        counted.fetch_add(1, Ordering::SeqCst);
        http::StatusCode::CREATED
    });
    let routes = Router::new()
        .route("/blocks/{compat}/{scope}/{block_key}", put_block)
        .route("/descriptors/{compat}", put(async || http::StatusCode::CREATED));
    let holder = TestService::start(routes).await;
    let controller = Controller::gated().await;
    let mut setup = setup(&controller, None);
    setup.agent.holder = Some(holder.base.clone());
    setup.agent.max_store_wait_ms = 600_000;
    let a = Instance::start(setup).await;
    let job = Job::new(1, prompt(1, 70), 10);
    let mut stream = job.start(&a).await;
    controller.arrived(1).await;
    assert!(taken.load(Ordering::SeqCst) >= 4, "the checkpoint came before its blocks were taken");
    controller.open();
    assert_eq!(read_all(&mut stream, 0, 1, |_| {}).await.tokens.len(), 10);
}

/// Nobody listens where the controller should be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_controller_nothing_sampled_is_shown_and_the_engine_rests() {
    let controller = Controller::start().await;
    let mut setup = setup(&controller, None);
    setup.agent.controller = Some("http://127.0.0.1:9/kvsp/".parse().unwrap());
    let a = Instance::start(setup).await;
    let job = Job::new(1, prompt(1, 20), 4000);
    let mut stream = job.start(&a).await;
    eventually("as many tokens as may be", async || {
        (a.metric("kvsp_instance_tokens_generated_total").await == 64).then_some(())
    })
    .await;
    eventually("tries", async || {
        (a.metric("kvsp_session_checkpoints_failed_total").await >= 3).then_some(())
    })
    .await;
    assert_eq!(a.metric("kvsp_instance_tokens_generated_total").await, 64);
    client().end_session(&a.base, job.id).await.unwrap();
    let told = read_all(&mut stream, 0, 1, |_| {}).await;
    assert!(told.tokens.is_empty() && told.done.is_none(), "{told:?}");
    eventually("rest", async || {
        let status = send(&a.base, "GET", "status", "").await.json();
        (status["running"] == 0 && status["kv_utilization"] == 0.0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_goes_without_copies_after_a_while_and_that_is_counted() {
    let (controller, index) = (Controller::start().await, Index::start().await);
    let mut setup = setup(&controller, Some(&index));
    // Nobody listens there.
    setup.agent.holder = Some("http://127.0.0.1:9/kvsp/".parse().unwrap());
    setup.agent.max_store_wait_ms = 200;
    let a = Instance::start(setup).await;
    let job = Job::new(1, prompt(1, 40), 20);
    let told = read_all(&mut job.start(&a).await, 0, 1, |_| {}).await;
    assert_eq!(told.tokens.len(), 20);
    assert_eq!(a.metric("kvsp_session_blocks_not_stored_total").await, 1);
}
