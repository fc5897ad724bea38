//! Bad input: each has its problem, and the next good request works.

use bytes::Bytes;
use http::Request;
use serde_json::{Value, json};
use uuid::Uuid;

use super::controller::Controller;
use super::work::{Job, instance, next, read_all, setup};
use crate::support::{Ask, Instance, Setup, client, eventually, prompt, scope, send};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_cannot_be_gone_on_with_is_refused() {
    let controller = Controller::start().await;
    let a = instance(&controller, None).await;
    let id = Uuid::from_u128(1);
    let good = json!({"epoch": 2, "checkpoint": {
        "session": id, "epoch": 1, "compat_id": a.compat().to_string(), "scope_id": scope().to_string(),
        "prompt_blocks": [], "prompt_tail": [5, 6, 7], "generated": [1, 2], "output_offset": 2,
        "sampler": {"method": "top-p", "params": {"p": 0.9}, "seed": 7, "step": 2, "deterministic": false},
    }});
    let path = format!("sessions/{id}/resume");
    let ask = async |body: &Value| send(&a.base, "POST", &path, &body.to_string()).await;
    let with = |at: &str, value: Value| {
        let mut body = good.clone();
        *body.pointer_mut(at).unwrap() = value;
        body
    };
    let long: Vec<u32> = vec![1; 5000];
    for (at, value, problem) in [
        ("/checkpoint/session", json!(Uuid::from_u128(2)), "kvsp-invalid-checkpoint"),
        ("/checkpoint/epoch", json!(3), "kvsp-invalid-checkpoint"),
        ("/checkpoint/compat_id", json!("22".repeat(32)), "kvsp-compat-mismatch"),
        ("/checkpoint/scope_id", json!("33".repeat(16)), "kvsp-invalid-checkpoint"),
        ("/checkpoint/prompt_tail", json!([]), "kvsp-invalid-checkpoint"),
        ("/checkpoint/prompt_tail", json!(vec![1; 16]), "kvsp-invalid-checkpoint"),
        ("/checkpoint/prompt_tail", json!([1_000_000]), "kvsp-invalid-checkpoint"),
        ("/checkpoint/prompt_blocks", json!(vec!["44".repeat(32); 400]), "kvsp-invalid-checkpoint"),
        ("/checkpoint/generated", json!([1]), "kvsp-invalid-checkpoint"),
        ("/checkpoint/generated", json!([1, 2, 3]), "kvsp-invalid-checkpoint"),
        ("/checkpoint/generated", json!([1, 1_000_000]), "kvsp-invalid-checkpoint"),
        ("/checkpoint/output_offset", json!(5000), "kvsp-invalid-checkpoint"),
        ("/checkpoint/sampler/method", json!("dice"), "kvsp-invalid-checkpoint"),
        ("/checkpoint/sampler/params", json!({}), "kvsp-invalid-checkpoint"),
        ("/checkpoint/sampler/params", json!({"p": 2}), "kvsp-invalid-checkpoint"),
    ] {
        assert_eq!(ask(&with(at, value.clone())).await.problem(), (422, problem.into()), "{at}: {value}");
    }
    let mut too_long = with("/checkpoint/generated", json!(long));
    too_long["checkpoint"]["output_offset"] = json!(5000);
    assert_eq!(ask(&too_long).await.problem(), (422, "kvsp-invalid-checkpoint".into()));
    for (at, value, problem) in [
        ("/epoch", json!("2"), "kvsp-malformed-json"),
        ("/epoch", json!(-1), "kvsp-malformed-json"),
        ("/checkpoint", json!([]), "kvsp-malformed-json"),
        ("/checkpoint/generated", json!([1, 4_294_967_296_u64]), "kvsp-malformed-json"),
        ("/checkpoint/scope_id", json!("xy"), "kvsp-bad-identifier"),
        ("/checkpoint/session", json!("me"), "kvsp-bad-identifier"),
    ] {
        assert_eq!(ask(&with(at, value.clone())).await.problem(), (400, problem.into()), "{at}: {value}");
    }
    let answer = send(&a.base, "POST", "sessions/me/resume", &good.to_string()).await;
    assert_eq!(answer.problem(), (400, "kvsp-bad-identifier".into()));
    let answer = send(&a.base, "PUT", &path, &good.to_string()).await;
    assert_eq!((answer.status, &answer.headers["allow"]), (405, &"POST".parse().unwrap()));
    assert_eq!(ask(&good).await.status, 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_prompts_of_no_session() {
    let controller = Controller::start().await;
    let a = instance(&controller, None).await;
    let job = Job::new(1, prompt(1, 20), 5);
    read_all(&mut job.start(&a).await, 0, 1, |_| {}).await;
    for from in ["x", "-1", "", "1.0", "1&from=2", "99999999999999999999"] {
        let path = format!("sessions/{}/tokens?from={from}", job.id);
        assert_eq!(
            send(&a.base, "GET", &path, "").await.problem(),
            (400, "kvsp-invalid-range".into()),
            "{from}"
        );
    }
    let unknown = Uuid::from_u128(9);
    let path = format!("sessions/{unknown}/tokens");
    assert_eq!(send(&a.base, "GET", &path, "").await.problem(), (404, "kvsp-session-unknown".into()));
    let path = format!("sessions/{unknown}/prompt");
    let body = json!({"epoch": 1, "tokens": [1]}).to_string();
    assert_eq!(send(&a.base, "POST", &path, &body).await.problem(), (404, "kvsp-session-unknown".into()));
    for body in [r#"{"epoch": 1}"#, r#"{"epoch": 1, "tokens": ["a"]}"#, "[]"] {
        let answer = send(&a.base, "POST", &path, body).await;
        assert_eq!(answer.problem(), (400, "kvsp-malformed-json".into()), "{body}");
    }
    // Without an index the whole stream, also where no index is named.
    let path = format!("sessions/{}/tokens", job.id);
    assert_eq!(send(&a.base, "GET", &path, "").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_of_a_session_come_together_and_well_formed() {
    let controller = Controller::start().await;
    let a = instance(&controller, None).await;
    let (id, body) = (Uuid::from_u128(1).to_string(), json!({"model": "kvsp/tiny", "prompt": [1, 2]}));
    for headers in [
        &[("kvsp-session", id.as_str())][..],
        &[("kvsp-session-epoch", "1")],
        &[("kvsp-session", "me"), ("kvsp-session-epoch", "1")],
        &[("kvsp-session", &id), ("kvsp-session-epoch", "one")],
        &[("kvsp-session", &id), ("kvsp-session-epoch", "-1")],
        &[("kvsp-session", &id), ("kvsp-session-epoch", "1"), ("kvsp-session-epoch", "2")],
    ] {
        let mut request = Request::post("/").header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Bytes::from(body.to_string())).unwrap();
        let answer = client().forward(&a.base, "v1/completions", request).await.unwrap();
        assert_eq!(answer.status(), 400, "{headers:?}");
    }
    // A scope whose key is not here: its blocks could not be named, so it could not be resumed.
    let stranger = instance(&controller, None).await;
    let request = Request::post("/")
        .header("content-type", "application/json")
        .header("kvsp-session", &id)
        .header("kvsp-session-epoch", "1")
        .header("kvsp-scope-id", "55".repeat(16))
        .body(Bytes::from(body.to_string()))
        .unwrap();
    let answer = client().forward(&stranger.base, "v1/completions", request).await.unwrap();
    assert_eq!(answer.status(), 422);
    let plain = Instance::start(Setup::default()).await;
    assert_eq!(Job::new(1, prompt(1, 5), 4).refused(&plain).await.status, 501, "there is no controller");
    assert_eq!(plain.ask(&Ask::new(&prompt(1, 5), 4)).await.tokens, 4);
}

/// As many sessions as may be: those that run are kept, those that have ended make room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_sessions_is_bounded() {
    let controller = Controller::start().await;
    let mut setup = setup(&controller, None);
    setup.agent.max_sessions = 2;
    setup.agent.session_retention_ms = 300;
    let a = Instance::start(setup).await;
    let long = |id| Job::new(id, prompt(3, 20), 4000);
    let (mut one, mut two) = (long(1).start(&a).await, long(2).start(&a).await);
    next(&mut one).await;
    next(&mut two).await;
    let full = long(3).refused(&a).await;
    assert_eq!(full.problem(), (503, "kvsp-overloaded".into()));
    assert!(full.headers.contains_key("retry-after"));
    client().end_session(&a.base, Uuid::from_u128(1)).await.unwrap();
    while one.next().await.is_some() {}
    let job = Job::new(3, prompt(3, 20), 4);
    read_all(&mut job.start(&a).await, 0, 1, |_| {}).await;
    let job = Job::new(4, prompt(3, 20), 4);
    read_all(&mut job.start(&a).await, 0, 1, |_| {}).await;
    // The third made room for the fourth, and the fourth is forgotten after a while.
    let path = |id| format!("sessions/{}/tokens", Uuid::from_u128(id));
    assert_eq!(send(&a.base, "GET", &path(3), "").await.problem(), (404, "kvsp-session-unknown".into()));
    eventually("forgetting", async || (send(&a.base, "GET", &path(4), "").await.status == 404).then_some(()))
        .await;
    next(&mut two).await;
}
