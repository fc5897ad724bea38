//! A context that is split, as the controller and the members tell of it.

use std::ops::Range;

use kvsp_proto::uri::BaseUri;
use serde_json::{Value, json};

use crate::cast::{Cast, DEADLINE_MS, Instance};
use crate::support::{Answer, eventually, get, metric, post};

/// One shard: positions, and which of the instances has them.
pub(crate) type Shard = (Range<u64>, usize);

/// The controller's view of a map; `None` once it has ended.
pub(crate) async fn view(cast: &Cast, map: &str) -> Option<Value> {
    let answer = get(&cast.controller.base(), &format!("maps/{map}")).await;
    if answer.status == 404 { None } else { Some(answer.ok()) }
}

/// The shards of a view.
pub(crate) fn shards(cast: &Cast, view: &Value) -> Vec<Shard> {
    let whose = |shard: &Value| {
        let is = |instance: &Instance| shard["instance"] == instance.base().as_str();
        cast.instances.iter().position(is).unwrap_or_else(|| panic!("nobody's: {shard}"))
    };
    let shard = |shard: &Value| {
        let at = |n: usize| shard["tokens"][n].as_u64().unwrap();
        (at(0)..at(1), whose(shard))
    };
    view["shards"].as_array().unwrap().iter().map(shard).collect()
}

/// The map of a session once it is there, with its shards over all instances.
pub(crate) async fn split(cast: &Cast, session: &str) -> (Value, Vec<Shard>) {
    let view = view(cast, session).await.expect("the prompt is split");
    let shards = shards(cast, &view);
    assert_eq!(shards.len(), cast.instances.len(), "{view}");
    (view, shards)
}

/// Has a map split anew.
pub(crate) async fn reshard(
    cast: &Cast,
    map: &str,
    (from, shards): (u64, &[Shard]),
    deadline_ms: u64,
) -> Answer {
    let shard = |(tokens, at): &Shard| {
        let base = cast.instances[*at].base();
        json!({"tokens": [tokens.start, tokens.end], "instance": base.as_str()})
    };
    let shards: Vec<Value> = shards.iter().map(shard).collect();
    let body = json!({"from": from, "shards": shards, "deadline_ms": deadline_ms});
    post(&cast.controller.base(), &format!("maps/{map}/reshard"), &body).await
}

/// The same, taken by the controller; answered with the view once it is settled, or `None` where it has ended.
pub(crate) async fn reshard_whole(cast: &Cast, map: &str, (from, to): (u64, &[Shard])) -> Option<Value> {
    let answer = reshard(cast, map, (from, to), DEADLINE_MS).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    settled(cast, map).await
}

/// Waits until no change of a map is under way; `None` where the map has ended.
pub(crate) async fn settled(cast: &Cast, map: &str) -> Option<Value> {
    eventually("a map without a pending change", async || match view(cast, map).await {
        None => Some(None),
        Some(view) if view.get("pending").is_none() => Some(Some(view)),
        Some(_) => None,
    })
    .await
}

/// Positions that a member holds.
pub(crate) async fn held(base: &BaseUri, map: &str) -> Vec<Range<u64>> {
    let answer = get(base, &format!("maps/{map}")).await;
    if answer.status != 200 {
        return Vec::new();
    }
    let ranges = answer.ok()["held"].as_array().unwrap().clone();
    ranges.iter().map(|range| range[0].as_u64().unwrap()..range[1].as_u64().unwrap()).collect()
}

/// Waits until every position of the prompt is with its owner; `false` where the map ended first.
pub(crate) async fn is_covered(cast: &Cast, map: &str, prompt: u64) -> bool {
    eventually("the whole prompt with its owners", async || {
        let Some(view) = view(cast, map).await else { return Some(false) };
        for (tokens, owner) in shards(cast, &view) {
            let wanted = tokens.start.min(prompt)..tokens.end.min(prompt);
            let held = held(&cast.instances[owner].base(), map).await;
            if !wanted.is_empty() && !held.iter().any(|r| r.start <= wanted.start && wanted.end <= r.end) {
                return None;
            }
        }
        Some(true)
    })
    .await
}

/// A counter of every instance.
pub(crate) async fn counters(cast: &Cast, name: &str) -> Vec<u64> {
    let mut counts = Vec::new();
    for instance in &cast.instances {
        counts.push(metric(&instance.process.uri("admin"), name).await);
    }
    counts
}
