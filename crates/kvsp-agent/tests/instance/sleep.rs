//! Instances that ask to sleep, and what one that sleeps does and does not do (draft section 6.3).

use std::time::{Duration, Instant};

use kvsp_client::BlockQuery;
use kvsp_proto::record::InstanceState;
use serde_json::{Value, json};

use crate::states::{Controller, state};
use crate::support::{Ask, Instance, Setup, client, eventually, prompt, scope, send};

const AFTER: Duration = Duration::from_millis(400);

/// An instance that asks to sleep after [`AFTER`].
async fn sleepy(controller: &Controller) -> Instance {
    let mut setup = controller.setup(300);
    setup.agent.sleep_after_ms = AFTER.as_millis() as u64;
    Instance::start(setup).await
}

/// When the instance asked to sleep.
fn wishes(controller: &Controller) -> Vec<Instant> {
    let asks = |status: &Value| status["requested_state"] == "sleeping";
    controller.statuses().into_iter().filter(|(_, status)| asks(status)).map(|(at, _)| at).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_instance_asks_to_sleep_again_and_again_until_it_may() {
    let controller = Controller::start().await;
    let instance = sleepy(&controller).await;
    // The controller answers with the state that is reported: it refuses.
    eventually("two wishes", async || (wishes(&controller).len() >= 2).then_some(())).await;
    let wishes = wishes(&controller);
    let pause = wishes[1] - wishes[0];
    assert!(pause >= AFTER - Duration::from_millis(100), "it asks again at once: {pause:?}");
    assert_eq!(state(&instance).await, "active");

    controller.answer("draining");
    eventually("sleep", async || (state(&instance).await == "sleeping").then_some(())).await;
    eventually("the report of it", async || {
        controller.statuses().last().filter(|(_, s)| s["state"] == "sleeping").map(drop)
    })
    .await;
    let last = controller.statuses().pop().unwrap().1;
    assert_eq!(last["requested_state"], Value::Null, "who sleeps asks for nothing");
    // Quiet as it is, it stays asleep until the controller says otherwise.
    controller.answer("sleeping");
    tokio::time::sleep(AFTER).await;
    assert_eq!(state(&instance).await, "sleeping");
    client().put_state(&instance.base, InstanceState::Active).await.unwrap();
    assert_eq!(state(&instance).await, "active");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_at_work_does_not_ask() {
    let controller = Controller::start().await;
    let instance = sleepy(&controller).await;
    let mut answer = instance.stream(&Ask::new(&prompt(1, 20), 4000)).await;
    answer.next().await.unwrap();
    let begin = Instant::now();
    while begin.elapsed() < 3 * AFTER {
        answer.next().await.expect("a long answer");
    }
    let during = wishes(&controller).into_iter().filter(|at| *at > begin + AFTER / 2).count();
    assert_eq!(during, 0, "it asked while it worked");
    drop(answer);
    eventually("a wish, once it is quiet", async || {
        wishes(&controller).iter().any(|at| *at > begin + 3 * AFTER).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sleeps_serves_what_it_holds_and_takes_nothing_new() {
    let setup = Setup::default();
    let instance = Instance::start(setup).await;
    let tokens = prompt(1, 40);
    let ask = Ask::new(&tokens, 8);
    let awake = instance.ask(&ask).await;
    let keys = instance.keys(&tokens);
    let container = instance.block(keys[0]).await;
    client().put_state(&instance.base, InstanceState::Sleeping).await.unwrap();
    assert_eq!(state(&instance).await, "sleeping");

    let compat = instance.compat();
    let got = client().get_block(&instance.base, compat, scope(), keys[0], &BlockQuery::default()).await;
    assert_eq!(got.unwrap().container, container);
    let body = json!({"compat_id": compat, "scope_id": scope(), "block_keys": keys, "ttl_ms": 5000});
    let lease = send(&instance.base, "POST", "leases", &body.to_string()).await;
    assert_eq!((lease.status, &lease.json()["block_keys"]), (201, &json!(keys)));
    let path = format!("leases/{}", lease.json()["lease"].as_str().unwrap());
    assert_eq!(send(&instance.base, "PUT", &path, r#"{"ttl_ms":6000}"#).await.status, 200);
    assert_eq!(send(&instance.base, "DELETE", &path, "").await.status, 204);

    let refused = (409, "kvsp-instance-not-active".to_owned());
    let directive = instance.directive(&instance.keys(&prompt(2, 40)), &[&instance.base], 1000);
    let directive = serde_json::to_string(&directive).unwrap();
    assert_eq!(send(&instance.base, "POST", "prefetch", &directive).await.problem(), refused);
    let request = json!({"model": "kvsp/tiny", "prompt": [1, 2]}).to_string();
    assert_eq!(send(&instance.base, "POST", "v1/completions", &request).await.problem(), refused);
    // It asks for nothing and changes nothing by itself; an order changes it.
    let answer = send(&instance.base, "PUT", "state", r#"{"state":"active"}"#).await;
    assert_eq!((answer.status, answer.json()), (200, json!({"state": "active"})));
    let again = instance.ask(&ask).await;
    assert_eq!(again.text, awake.text);
    assert!(again.cached >= 32, "it has kept what it had: {again:?}");
}
