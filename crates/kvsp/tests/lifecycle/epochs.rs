//! What the controller remembers of instances over its own restart.

use kvsp_proto::uri::BaseUri;
use serde_json::{Value, json};

use crate::cast::Cast;
use crate::command::settings;
use crate::support::{Answer, JSON, eventually, get, send};

const INSTANCE: &str = "http://127.0.0.1:9/kvsp/";

async fn report(controller: &BaseUri, status: &Value) -> Answer {
    let base: BaseUri = INSTANCE.parse().unwrap();
    let path = kvsp_proto::path::instance_status(&base);
    send(controller, "PUT", &path, &[JSON], status.to_string()).await
}

fn status(epoch: u64) -> Value {
    json!({
        "instance": INSTANCE, "epoch": epoch, "state": "active", "running": 0, "queued": 0, "batch_size": 4,
        "kv_utilization": 0.0, "prefill_tokens_per_s": 0, "decode_tokens_per_s": 0, "links": [],
        "requested_state": null, "ttl_ms": 60_000,
    })
}

#[tokio::test]
async fn a_restarted_controller_refuses_an_old_epoch() {
    let mut cast = Cast::start(&settings(0)).await;
    let controller = cast.controller.base();
    let answer = report(&controller, &status(5)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    for _ in 0..2 {
        cast.controller.kill();
        cast.revive_controller();
        let late = report(&controller, &status(4)).await;
        assert_eq!(late.status, 409, "{late:?}");
        assert!(late.json()["type"].as_str().unwrap().ends_with("#kvsp-stale-epoch"), "{late:?}");
        let answer = report(&controller, &status(5)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert_eq!(report(&controller, &status(6)).await.status, 200);
}

/// An order that was given holds over a restart.
#[tokio::test]
async fn an_order_survives_the_controller() {
    let mut cast = Cast::start(&settings(1)).await;
    let base = cast.instances[0].base();
    assert_eq!(crate::command::order(&cast, &["sleep", "--wait"], &base).await, "sleeping");
    cast.controller.kill();
    cast.revive_controller();
    let view = eventually("the next status", async || {
        let list = get(&cast.controller.base(), "instances").await.ok();
        list["instances"].as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!((&view["state"], &view["wanted"]), (&"sleeping".into(), &"sleeping".into()), "{view}");
    let (status, told) = crate::command::run(&cast, &["wake", "--wait", base.as_str()]).await;
    assert_eq!((status, &told["state"]), (0, &"active".into()), "{told}");
}
