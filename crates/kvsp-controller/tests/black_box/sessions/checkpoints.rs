//! What is recorded, what changes nothing, and what is refused.

use serde_json::{Value, json};

use super::{Fixture, append, checkpoint, checkpoint_path, config, path, place, sampler};
use crate::support::{compat, key};

const I1: &str = "https://i1.example/kvsp/";
const NOBODY: &str = "6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11";

/// A controller with one session at one instance.
async fn session() -> (Fixture, String) {
    let fixture = Fixture::start(config()).await;
    fixture.report(I1, 1).await;
    let session = place(&fixture.server).await;
    (fixture, session)
}

#[tokio::test]
async fn a_checkpoint_is_recorded_and_read() {
    let (Fixture { server, .. }, session) = session().await;
    let at = checkpoint_path(&session);
    assert_eq!(server.get(&at).await.problem(), (404, "kvsp-session-unknown".into()), "none is recorded");
    assert_eq!(
        server.put(&at, &checkpoint(&session, 1, 3)).await.ok(),
        json!({"epoch": 1, "output_offset": 3})
    );
    assert_eq!(server.get(&at).await.ok(), checkpoint(&session, 1, 3));
    let view = server.get(&path(&session)).await.ok();
    let want =
        json!({"session": session, "epoch": 1, "instance": I1, "state": "running", "output_offset": 3});
    assert_eq!(view, want);
    // Over the border of a segment of 64, and to it exactly.
    for tokens in [64, 65, 128, 200] {
        let answer = server.put(&at, &checkpoint(&session, 1, tokens)).await.ok();
        assert_eq!(answer["output_offset"], tokens);
        assert_eq!(server.get(&at).await.ok(), checkpoint(&session, 1, tokens));
    }
    assert!(server.metrics().await.contains("kvsp_controller_checkpoints_total{outcome=\"recorded\"} 5"));
}

#[tokio::test]
async fn what_agrees_changes_nothing_and_what_does_not_is_a_conflict() {
    let (Fixture { server, .. }, session) = session().await;
    let at = checkpoint_path(&session);
    server.put(&at, &checkpoint(&session, 1, 5)).await.ok();
    let recorded = json!({"epoch": 1, "output_offset": 5});
    for tokens in [5, 3, 0] {
        assert_eq!(server.put(&at, &checkpoint(&session, 1, tokens)).await.ok(), recorded, "{tokens}");
    }
    let conflicts: [(&str, Value); 4] = [
        ("generated", json!([100, 101, 102, 103, 9, 105])),
        ("generated", json!([100, 101, 9])),
        ("prompt_blocks", json!([key(0)])),
        ("prompt_tail", json!([374])),
    ];
    for (member, value) in conflicts {
        let mut other = checkpoint(&session, 1, 5);
        if member == "generated" {
            other["output_offset"] = json!(value.as_array().unwrap().len());
        }
        other[member] = value;
        let answer = server.put(&at, &other).await;
        assert_eq!(answer.problem(), (409, "kvsp-checkpoint-conflict".into()), "{member}");
    }
    assert_eq!(server.get(&at).await.ok(), checkpoint(&session, 1, 5), "nothing has changed");
}

#[tokio::test]
async fn an_append_extends_what_is_recorded() {
    let (Fixture { server, .. }, session) = session().await;
    let at = checkpoint_path(&session);
    let early = server.patch(&at, &append(1, 0, 1)).await;
    assert_eq!(early.problem(), (409, "kvsp-checkpoint-conflict".into()), "there is nothing to extend");
    server.put(&at, &checkpoint(&session, 1, 0)).await.ok();
    for (from, to) in [(0, 1), (1, 63), (60, 70), (70, 200)] {
        let answer = server.patch(&at, &append(1, from, to)).await.ok();
        assert_eq!(answer, json!({"epoch": 1, "output_offset": to}));
        assert_eq!(server.get(&at).await.ok(), checkpoint(&session, 1, to));
    }
    for (from, to) in [(70, 200), (0, 10), (199, 200), (200, 200)] {
        let answer = server.patch(&at, &append(1, from, to)).await.ok();
        assert_eq!(answer["output_offset"], 200, "repeated: {from}..{to}");
    }
    let beyond = server.patch(&at, &append(1, 201, 202)).await;
    assert_eq!(beyond.problem(), (409, "kvsp-checkpoint-conflict".into()));
    let mut other = append(1, 198, 202);
    other["append"][1] = json!(9);
    assert_eq!(server.patch(&at, &other).await.problem(), (409, "kvsp-checkpoint-conflict".into()));
    assert_eq!(server.get(&at).await.ok(), checkpoint(&session, 1, 200), "nothing has changed");
}

#[tokio::test]
async fn an_epoch_is_the_session_s_or_refused() {
    let (Fixture { server, .. }, session) = session().await;
    let at = checkpoint_path(&session);
    server.put(&at, &checkpoint(&session, 1, 1)).await.ok();
    for (epoch, problem) in [(0, "kvsp-stale-epoch"), (2, "kvsp-unknown-epoch")] {
        assert_eq!(server.put(&at, &checkpoint(&session, epoch, 2)).await.problem(), (409, problem.into()));
        assert_eq!(server.patch(&at, &append(epoch, 1, 2)).await.problem(), (409, problem.into()));
    }
    assert_eq!(server.get(&at).await.ok()["output_offset"], 1);
}

#[tokio::test]
async fn false_checkpoints_are_invalid() {
    let (Fixture { server, .. }, session) = session().await;
    let at = checkpoint_path(&session);
    let mut beam = sampler(3);
    beam["method"] = json!("beam");
    let cases: [(&str, Value); 6] = [
        ("sampler", beam.clone()),
        ("generated", json!([100])),
        ("output_offset", json!(4)),
        ("session", json!(NOBODY)),
        ("compat_id", json!("00".repeat(32))),
        ("scope_id", json!("00".repeat(16))),
    ];
    for (member, value) in cases {
        let mut bad = checkpoint(&session, 1, 3);
        bad[member] = value;
        assert_eq!(
            server.put(&at, &bad).await.problem(),
            (422, "kvsp-invalid-checkpoint".into()),
            "{member}"
        );
    }
    assert_eq!(server.put(&at, &checkpoint(&session, 1, 3)).await.status, 200, "the next good one");
    let mut more = append(1, 3, 4);
    more["sampler"] = beam;
    assert_eq!(server.patch(&at, &more).await.problem(), (422, "kvsp-invalid-checkpoint".into()));
    assert_eq!(server.patch(&at, &append(1, 3, 4)).await.status, 200, "the next good one");
}

#[tokio::test]
async fn a_tail_is_shorter_than_a_block_where_the_descriptor_is_known() {
    let fixture = Fixture::start(config()).await;
    let server = &fixture.server;
    fixture.report(I1, 1).await;
    let digest = format!("sha-256:{}", "ab".repeat(32));
    let descriptor = json!({
        "model": "m", "model_digest": digest, "tokenizer_digest": digest, "layers": 2, "kv_heads": 2,
        "head_dim": 4, "kv_dtype": "bfloat16", "positional": "none", "block_tokens": 16,
        "layout": "kvsp-layout-1"
    });
    let known =
        kvsp_proto::descriptor::Descriptor::from_value(descriptor.clone()).unwrap().compat_id().to_string();
    let wanted = |compat: &str| {
        let mut wanted = super::wanted();
        wanted["compat_id"] = json!(compat);
        wanted
    };
    let tail = |session: &str, compat: &str, length: u32| {
        let mut long = checkpoint(session, 1, 1);
        long["compat_id"] = json!(compat);
        long["prompt_tail"] = json!((0..length).collect::<Vec<_>>());
        long
    };
    assert_eq!(server.put(&format!("descriptors/{known}"), &descriptor).await.status, 201);
    for (compat, length, status) in
        [(known.clone(), 16, 422), (known.clone(), 17, 422), (known, 15, 200), (compat(), 16, 200)]
    {
        let placed = server.post("placements", &wanted(&compat)).await.ok();
        let session = placed["session"]["session"].as_str().unwrap();
        let answer = server.put(&checkpoint_path(session), &tail(session, &compat, length)).await;
        assert_eq!(answer.status, status, "{length} {answer:?}");
        if status == 422 {
            assert_eq!(answer.problem().1, "kvsp-invalid-checkpoint");
        }
    }
}

#[tokio::test]
async fn malformed_checkpoints_are_told_why() {
    let (Fixture { server, .. }, session) = session().await;
    let at = checkpoint_path(&session);
    let cases: [(&str, Value, &str); 9] = [
        ("session", json!("6f1d0a9e"), "kvsp-bad-identifier"),
        ("compat_id", json!("AB".repeat(32)), "kvsp-bad-identifier"),
        ("prompt_blocks", json!(["x"]), "kvsp-bad-identifier"),
        ("epoch", json!("1"), "kvsp-malformed-json"),
        ("epoch", json!(-1), "kvsp-malformed-json"),
        ("generated", json!([4_294_967_296_u64]), "kvsp-malformed-json"),
        ("prompt_tail", Value::Null, "kvsp-malformed-json"),
        (
            "sampler",
            json!({"method": 7, "seed": 1, "step": 1, "deterministic": false}),
            "kvsp-malformed-json",
        ),
        ("output_offset", json!(0.5), "kvsp-malformed-json"),
    ];
    for (member, value, problem) in cases {
        let mut bad = checkpoint(&session, 1, 3);
        bad[member] = value;
        assert_eq!(server.put(&at, &bad).await.problem(), (400, problem.into()), "{member}");
    }
    for (member, value) in [("append", json!([-1])), ("from_offset", json!("0")), ("epoch", Value::Null)] {
        let mut bad = append(1, 0, 3);
        bad[member] = value;
        assert_eq!(server.patch(&at, &bad).await.problem(), (400, "kvsp-malformed-json".into()), "{member}");
    }
    assert_eq!(server.put(&at, &json!([1])).await.problem(), (400, "kvsp-malformed-json".into()));
    assert_eq!(server.put(&at, &checkpoint(&session, 1, 3)).await.status, 200, "the next good one");
}

#[tokio::test]
async fn what_is_too_large_is_refused() {
    let mut small = config();
    small.max_json_octets = 4_000;
    small.sessions.max_tokens = 100;
    let fixture = Fixture::start(small).await;
    let server = &fixture.server;
    fixture.report(I1, 1).await;
    let session = place(server).await;
    let at = checkpoint_path(&session);
    assert_eq!(
        server.put(&at, &checkpoint(&session, 1, 1_000)).await.problem(),
        (413, "kvsp-limit-exceeded".into())
    );
    assert_eq!(
        server.put(&at, &checkpoint(&session, 1, 101)).await.problem(),
        (413, "kvsp-limit-exceeded".into())
    );
    assert_eq!(server.put(&at, &checkpoint(&session, 1, 100)).await.status, 200);
    assert_eq!(server.patch(&at, &append(1, 100, 101)).await.problem(), (413, "kvsp-limit-exceeded".into()));
    assert_eq!(server.patch(&at, &append(1, 0, 100)).await.status, 200);
}

#[tokio::test]
async fn unknown_sessions_and_bad_identifiers_are_told_apart() {
    let (Fixture { server, .. }, _session) = session().await;
    let at = checkpoint_path(NOBODY);
    let unknown = (404, "kvsp-session-unknown".to_owned());
    assert_eq!(server.put(&at, &checkpoint(NOBODY, 1, 3)).await.problem(), unknown);
    assert_eq!(server.patch(&at, &append(1, 0, 3)).await.problem(), unknown);
    assert_eq!(server.get(&at).await.problem(), unknown);
    assert_eq!(
        server.put(&at, &json!({})).await.problem(),
        (400, "kvsp-malformed-json".into()),
        "syntax first"
    );
    for bad in ["x", "6f1d0a9e2c554d7e9a0e5b7f2f9f6a11", "6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a1g"] {
        let at = checkpoint_path(bad);
        assert_eq!(server.put(&at, &json!({})).await.problem(), (400, "kvsp-bad-identifier".into()), "{bad}");
        assert_eq!(server.get(&at).await.problem(), (400, "kvsp-bad-identifier".into()), "{bad}");
    }
}

#[tokio::test]
async fn identifiers_are_read_in_either_case() {
    let (Fixture { server, .. }, session) = session().await;
    let loud = session.to_uppercase();
    assert_eq!(server.put(&checkpoint_path(&loud), &checkpoint(&loud, 1, 3)).await.status, 200);
    assert_eq!(server.get(&path(&loud)).await.ok()["session"], json!(session));
}
