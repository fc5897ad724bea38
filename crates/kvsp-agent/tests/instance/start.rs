//! Instances whose engine is still being built: there, active, loading blocks, and answering later.

use std::sync::Arc;
use std::time::Duration;

use kvsp_agent::EngineSource;
use kvsp_net::auth::Development;
use kvsp_proto::message::DirectiveState;
use kvsp_testkit::{Behaviour, Hostile};
use serde_json::json;
use tokio::sync::oneshot;

use crate::states::state;
use crate::support::{Ask, Index, Instance, PATIENCE, Setup, client, ended, eventually, prompt, send};

/// An instance whose engine is built once [`Starting::build`] says so.
struct Starting {
    instance: Arc<Instance>,
    ready: oneshot::Receiver<()>,
    go: std::sync::mpsc::Sender<Result<(), &'static str>>,
}

impl Starting {
    async fn new(setup: Setup) -> Self {
        let prepared = setup.prepared();
        let (go, wait) = std::sync::mpsc::channel::<Result<(), &str>>();
        let source = EngineSource::build(prepared.info().clone(), move || {
            wait.recv()??;
            Ok(prepared.load(&|_, _| {})?)
        });
        let (instance, ready) = Instance::starting(setup, source, Arc::new(Development::new())).await;
        Self { instance: Arc::new(instance), ready, go }
    }

    async fn build(self) -> Arc<Instance> {
        self.go.send(Ok(())).unwrap();
        self.ready.await.unwrap();
        self.instance
    }
}

async fn readyz(instance: &Instance) -> u16 {
    send(&instance.admin, "GET", "readyz", "").await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefetch_overlaps_the_start_and_the_request_that_waited_reuses_it() {
    let index = Index::start().await;
    let source = Instance::start(Setup::at(&index)).await;
    let tokens = prompt(1, 70);
    let ask = Ask::new(&tokens, 8);
    let told = source.ask(&ask).await;
    let keys = source.keys(&tokens);
    index.published(source.compat(), &keys, &source.base).await;

    let mut starting = Starting::new(Setup::at(&index)).await;
    let instance = starting.instance.clone();
    assert_eq!(state(&instance).await, "active");
    assert_eq!(send(&instance.base, "GET", "", "").await.status, 200);
    let status = instance.load(&keys, &[&source.base]).await;
    assert_eq!((status.state, &status.loaded), (DirectiveState::Complete, &keys));
    index.published(source.compat(), &keys, &instance.base).await;
    assert_eq!(instance.block(keys[0]).await, source.block(keys[0]).await, "it serves what it has already");

    // The head of a streamed answer comes at once, and nothing after it; the request counts as waiting.
    let mut stream = instance.stream(&ask).await;
    let status = send(&instance.base, "GET", "status", "").await.json();
    assert_eq!((&status["state"], &status["queued"]), (&json!("active"), &json!(1)));
    assert_eq!(status["compat_ids"], json!([source.compat()]));
    assert_eq!(readyz(&instance).await, 503);
    assert!(starting.ready.try_recv().is_err(), "it is not ready");

    let instance = starting.build().await;
    assert_eq!(readyz(&instance).await, 200);
    let (mut text, mut cached) = (String::new(), None);
    while let Some(chunk) = stream.next().await {
        text.extend(chunk.choices.iter().map(|c| c.text.as_str()));
        cached = chunk.usage.map(|u| u.prompt_tokens_details.unwrap_or_default().cached_tokens).or(cached);
    }
    assert_eq!(
        (text, cached),
        (told.text, Some(64)),
        "what was loaded before the engine was there is reused"
    );
    let status = send(&instance.base, "GET", "status", "").await.json();
    assert_eq!(status["queued"], 0);
}

/// The engine is there before the blocks are: the request waits for them and computes none of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_still_on_its_way_when_the_engine_comes_is_waited_for() {
    let index = Index::start().await;
    let source = Instance::start(Setup::at(&index)).await;
    let tokens = prompt(1, 70);
    let ask = Ask::new(&tokens, 8);
    let told = source.ask(&ask).await;
    let hostile = Hostile::start(&source.prefix(&tokens).await).await;
    index.record(&source.prefix(&tokens).await, hostile.base()).await;
    hostile.behave(Behaviour::Slow { piece: 2048, pause: Duration::from_millis(40) });

    let starting = Starting::new(Setup::at(&index)).await;
    let directive = starting.instance.directive(&source.keys(&tokens), &[hostile.base()], 30_000);
    let directive = starting.instance.order(&directive).await;
    let instance = starting.build().await;
    let pending = client().directive_status(&directive).await.unwrap();
    assert_eq!(pending.state, DirectiveState::Pending, "the source is too fast for this test");
    let reply = instance.ask(&ask).await;
    assert_eq!((reply.text, reply.cached), (told.text, 64));
    assert_eq!(ended(&directive).await.state, DirectiveState::Complete);
}

/// Blocks that do not come are computed, once the directive is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_never_comes_is_computed() {
    let index = Index::start().await;
    let source = Instance::start(Setup::at(&index)).await;
    let tokens = prompt(1, 70);
    let ask = Ask::new(&tokens, 8);
    let told = source.ask(&ask).await;
    let hostile = Hostile::start(&source.prefix(&tokens).await).await;
    index.record(&source.prefix(&tokens).await, hostile.base()).await;
    hostile.behave(Behaviour::HangInBody);

    let starting = Starting::new(Setup::at(&index)).await;
    let directive = starting.instance.directive(&source.keys(&tokens), &[hostile.base()], 2_000);
    let directive = starting.instance.order(&directive).await;
    let instance = starting.build().await;
    let reply = instance.ask(&ask).await;
    assert_eq!((reply.text, reply.cached), (told.text, 0));
    assert_ne!(ended(&directive).await.state, DirectiveState::Complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_wait_within_bounds_and_an_order_to_drain_is_obeyed_meanwhile() {
    let mut setup = Setup::alone();
    setup.agent.max_queued = 2;
    let starting = Starting::new(setup).await;
    let instance = starting.instance.clone();
    let ask = Ask::new(&prompt(3, 20), 4);
    let (first, second) = (instance.stream(&ask).await, instance.stream(&ask).await);
    let body = json!({"model": "kvsp/tiny", "prompt": [1, 2], "max_tokens": 1}).to_string();
    let shed = send(&instance.base, "POST", "v1/completions", &body).await;
    assert_eq!(shed.status, 503, "{shed:?}");
    drop(first);
    eventually("room", async || {
        let status = send(&instance.base, "GET", "status", "").await.json();
        (status["queued"] == 1).then_some(())
    })
    .await;
    let taken = send(&instance.base, "PUT", "state", r#"{"state":"draining"}"#).await;
    assert_eq!(taken.json(), json!({"state": "draining"}), "one still waits");
    let instance = starting.build().await;
    let mut second = second;
    while second.next().await.is_some() {}
    eventually("sleep", async || (state(&instance).await == "sleeping").then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_cannot_be_built_ends_the_instance_and_says_why() {
    let starting = Starting::new(Setup::alone()).await;
    let Starting { instance, ready, go } = starting;
    let waiting = instance.stream(&Ask::new(&prompt(3, 20), 4)).await;
    go.send(Err("the weights lack the tensor \"norm\"")).unwrap();
    assert!(ready.await.is_err(), "it is never ready");
    assert!(tokio::time::timeout(PATIENCE, waiting.breaks_off()).await.unwrap());
    let error = Arc::into_inner(instance).unwrap().running.stop().await.unwrap_err().to_string();
    assert!(error.contains("the weights lack the tensor"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_is_not_the_announced_one_is_not_used() {
    let (setup, mut other) = (Setup::alone(), Setup::alone());
    other.block_tokens = 32;
    let prepared = other.prepared();
    let source = EngineSource::build(setup.prepared().info().clone(), move || Ok(prepared.load(&|_, _| {})?));
    let (instance, ready) = Instance::starting(setup, source, Arc::new(Development::new())).await;
    assert!(ready.await.is_err());
    let error = instance.running.stop().await.unwrap_err().to_string();
    assert!(error.contains("differs") && error.contains("descriptor"), "{error}");
}
