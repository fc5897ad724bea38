//! `prefetch` and its status resources as the Placement Controller sees them.

use kvsp_proto::message::{DirectiveState, FailureReason, PrefetchDirective};
use kvsp_testkit::{Behaviour, Hostile, Prefix};
use serde_json::{Value, json};

use crate::support::{Ask, Index, Instance, Setup, client, ended, eventually, prompt, send};

/// `a` has computed a prompt, a hostile holder has its blocks, `b` has nothing.
struct Stage {
    a: Instance,
    b: Instance,
    source: Hostile,
    prefix: Prefix,
    _index: Index,
}

impl Stage {
    async fn new() -> Self {
        Self::with(Setup::at).await
    }

    async fn with(setup: impl Fn(&Index) -> Setup) -> Self {
        let index = Index::start().await;
        let a = Instance::start(Setup::at(&index)).await;
        let b = Instance::start(setup(&index)).await;
        let tokens = prompt(1, 70);
        a.ask(&Ask::new(&tokens, 1)).await;
        let prefix = a.prefix(&tokens).await;
        let source = Hostile::start(&prefix).await;
        index.record(&prefix, source.base()).await;
        Self { a, b, source, prefix, _index: index }
    }

    fn directive(&self, deadline_ms: u64) -> PrefetchDirective {
        self.b.directive(&self.prefix.keys, &[self.source.base()], deadline_ms)
    }

    async fn post(&self, body: &Value) -> crate::support::Answer {
        send(&self.b.base, "POST", "prefetch", &body.to_string()).await
    }

    /// Requests to the source for octets of blocks.
    fn loads(&self) -> usize {
        self.source.requests().iter().filter(|r| r.contains("/blocks/")).count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directive_is_accepted_loaded_once_and_remembered() {
    let stage = Stage::new().await;
    let directive = stage.directive(30_000);
    let body = serde_json::to_value(&directive).unwrap();
    let accepted = stage.post(&body).await;
    assert_eq!(accepted.status, 202, "{accepted:?}");
    let location = accepted.headers["location"].to_str().unwrap().to_owned();
    assert_eq!(location, stage.b.base.join(&format!("prefetch/{}", directive.directive)));
    let status = ended(&location).await;
    assert_eq!((status.state, &status.loaded), (DirectiveState::Complete, &stage.prefix.keys));
    assert_eq!(stage.loads(), 1, "one layer stream of all blocks");

    // The same again, members in another order: the same resource, and no second load.
    let again = stage.post(&body).await;
    assert_eq!((again.status, again.headers["location"].to_str().unwrap()), (202, location.as_str()));
    assert_eq!(client().directive_status(&location).await.unwrap(), status);
    assert_eq!(stage.loads(), 1);
    let mut other = body.clone();
    other["deadline_ms"] = json!(29_999);
    assert_eq!(stage.post(&other).await.problem(), (409, "kvsp-directive-conflict".into()));

    // What the instance has already needs no source.
    let status = stage.b.load(&stage.prefix.keys, &[]).await;
    assert_eq!(status.state, DirectiveState::Complete);
    assert_eq!(stage.loads(), 1);

    let unknown = "prefetch/00000000-0000-4000-8000-00000000ffff";
    for method in ["GET", "DELETE"] {
        let answer = send(&stage.b.base, method, unknown, "").await;
        assert_eq!(answer.problem(), (404, "kvsp-directive-unknown".into()));
        let answer = send(&stage.b.base, method, "prefetch/not-a-uuid", "").await;
        assert_eq!(answer.problem(), (400, "kvsp-bad-identifier".into()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_copies_of_a_directive_load_once() {
    let stage = Stage::new().await;
    let directive = stage.directive(30_000);
    let copies = (0..8).map(|_| stage.b.order(&directive));
    let uris = futures_util::future::join_all(copies).await;
    assert!(uris.iter().all(|uri| *uri == uris[0]));
    ended(&uris[0]).await;
    assert_eq!(stage.loads(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directive_ends_at_its_deadline_or_when_it_is_cancelled() {
    let stage = Stage::new().await;
    stage.source.behave(Behaviour::HangInBody);
    let status = ended(&stage.b.order(&stage.directive(300)).await).await;
    assert_eq!((status.state, status.failed.len()), (DirectiveState::Partial, 4));
    assert!(status.failed.iter().all(|f| f.reason == FailureReason::Deadline));

    let uri = stage.b.order(&stage.directive(60_000)).await;
    client().cancel_directive(&uri).await.unwrap();
    let status = ended(&uri).await;
    assert_eq!(status.state, DirectiveState::Failed);
    assert!(status.failed.iter().all(|f| f.reason == FailureReason::Cancelled), "{status:?}");
    client().cancel_directive(&uri).await.unwrap();
    assert_eq!(client().directive_status(&uri).await.unwrap(), status, "it stays as it ended");

    // Neither has left anything behind: the same blocks are loaded by the next one.
    stage.source.behave(Behaviour::Honest);
    let status = ended(&stage.b.order(&stage.directive(30_000)).await).await;
    assert_eq!(status.state, DirectiveState::Complete, "{status:?}");
    let warm = stage.b.ask(&Ask::new(&stage.prefix.tokens, 8)).await;
    assert_eq!((warm.text, warm.cached), (stage.a.ask(&Ask::new(&stage.prefix.tokens, 8)).await.text, 64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directive_that_cannot_be_carried_out_is_refused() {
    let stage = Stage::with(|index| {
        let mut setup = Setup::at(index);
        setup.agent.limits.max_lookup_keys = 4;
        setup.agent.limits.max_json_octets = 10_000;
        setup
    })
    .await;
    let good = serde_json::to_value(stage.directive(30_000)).unwrap();
    let changed = |name: &str, value: Value| {
        let mut body = good.clone();
        body[name] = value;
        body
    };
    let block = |source: &str| json!([{"block_key": stage.prefix.keys[0], "sources": [source]}]);
    let five = vec![good["blocks"][0].clone(); 5];
    for (body, status, name) in [
        (changed("blocks", block("http://192.0.2.1/kvsp/")), 403, "kvsp-source-forbidden"),
        (changed("blocks", block("http://169.254.169.254/kvsp/")), 403, "kvsp-source-forbidden"),
        (changed("compat_id", json!("00".repeat(32))), 422, "kvsp-compat-mismatch"),
        (changed("compat_id", json!("AA".repeat(32))), 400, "kvsp-bad-identifier"),
        (changed("scope_id", json!("00")), 400, "kvsp-bad-identifier"),
        (changed("directive", json!("no")), 400, "kvsp-bad-identifier"),
        (changed("blocks", json!([{"block_key": "xy", "sources": []}])), 400, "kvsp-bad-identifier"),
        (changed("blocks", json!(five)), 413, "kvsp-limit-exceeded"),
        (changed("request_ref", json!("x".repeat(20_000))), 413, "kvsp-limit-exceeded"),
        (changed("deadline_ms", json!(-1)), 400, "kvsp-malformed-json"),
        (changed("deadline_ms", json!("50")), 400, "kvsp-malformed-json"),
        (changed("layer_order", json!("sideways")), 400, "kvsp-malformed-json"),
        (json!([]), 400, "kvsp-malformed-json"),
        (json!({}), 400, "kvsp-malformed-json"),
    ] {
        let answer = stage.post(&body).await;
        assert_eq!(answer.problem(), (status, name.to_owned()), "{body}: {answer:?}");
    }
    let text = good.to_string();
    let twice = format!("{{\"lease_ms\": 1, {}", &text[1..]);
    for body in [text[..text.len() - 1].to_owned(), twice, String::new()] {
        let answer = send(&stage.b.base, "POST", "prefetch", &body).await;
        assert_eq!(answer.problem(), (400, "kvsp-malformed-json".into()), "{body}");
    }
    for method in ["GET", "PUT", "DELETE"] {
        let answer = send(&stage.b.base, method, "prefetch", "").await;
        assert_eq!((answer.status, &answer.headers["allow"]), (405, &"POST".parse().unwrap()));
    }
    // An unknown member is ignored; the directive was never taken up before.
    let accepted = stage.post(&changed("future", json!(true))).await;
    assert_eq!(accepted.status, 202, "{accepted:?}");
    assert_eq!(ended(accepted.headers["location"].to_str().unwrap()).await.state, DirectiveState::Complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_directives_than_can_load_at_once_are_shed() {
    let stage = Stage::with(|index| {
        let mut setup = Setup::at(index);
        setup.agent.max_directives = 2;
        setup
    })
    .await;
    stage.source.behave(Behaviour::HangBeforeAnswer);
    let one = stage.b.order(&stage.directive(60_000)).await;
    stage.b.order(&stage.directive(60_000)).await;
    let shed = stage.post(&serde_json::to_value(stage.directive(60_000)).unwrap()).await;
    assert_eq!(shed.problem(), (503, "kvsp-overloaded".into()));
    assert!(shed.headers.contains_key("retry-after"));
    client().cancel_directive(&one).await.unwrap();
    ended(&one).await;
    eventually("room for another directive", async || {
        let body = serde_json::to_value(stage.directive(60_000)).unwrap();
        (stage.post(&body).await.status == 202).then_some(())
    })
    .await;
}

/// A directive may ask for pages to be kept for its request, but not so that others starve: not even for
/// ever, and over the whole pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_kept_for_a_request_that_never_comes_do_not_starve_others() {
    const PAGE_OCTETS: u64 = 4 * 2 * 2 * 16 * 16 * 4;
    let stage = Stage::with(|index| Setup { pool_octets: 5 * PAGE_OCTETS, ..Setup::at(index) }).await;
    let forever = (1 << 53) - 1;
    let directive = PrefetchDirective {
        request_ref: Some("it never comes".into()),
        lease_ms: forever,
        ..stage.directive(forever)
    };
    let status = ended(&stage.b.order(&directive).await).await;
    assert_eq!(status.state, DirectiveState::Complete);
    let tokens = prompt(2, 50);
    let reply = stage.b.ask(&Ask::new(&tokens, 16)).await;
    assert_eq!(reply.text, stage.a.ask(&Ask::new(&tokens, 16)).await.text);
}
