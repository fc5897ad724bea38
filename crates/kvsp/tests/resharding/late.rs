//! A member that answers after the deadline: the change is aborted, and nothing is lost by it.

use std::time::Duration;

use crate::group::{counters, reshard, settled, shards, split};
use crate::kills::Hall;
use crate::relay::{Blow, Kind, Moment, Victim};
use crate::stream::Sampling;
use crate::support::eventually;

#[tokio::test]
async fn answered_after_the_deadline() {
    const SHORT_MS: u64 = 400;
    let hall = Hall::open(Sampling::Sampled).await;
    let cast = &hall.cast;
    let mut stream = cast.ask(&hall.question).await;
    let map = stream.session();
    let (first, before) = split(cast, &map).await;
    let version = first["version"].as_u64().unwrap();
    stream.until(8).await;
    let [(a, first), _, (c, last)] = &before[..] else { panic!("{before:?}") };
    // The first member gets what the second one has.
    let next = [(a.start..c.start, *first), (c.clone(), *last)];
    let victim = Victim::Late(Duration::from_millis(3 * SHORT_MS));
    let leader = cast.instances[cast.serving(&map).await].process.id();
    let blow = Blow { kind: Kind::Plan, message: 1, moment: Moment::Unacknowledged, victim };
    cast.plan.arm(Some(blow), leader);
    let answer = reshard(cast, &map, (version, &next), SHORT_MS).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let view = settled(cast, &map).await.expect("the answer goes on");
    assert_eq!(view["version"], version, "a change that is late is no change: {view}");
    assert_eq!(shards(cast, &view), before);
    // The late answer comes while the next plan, which leads to the same version, may be under way.
    let answer = reshard(cast, &map, (version, &next), 10 * SHORT_MS).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    eventually("the late answer", async || cast.plan.struck()).await;
    let view = settled(cast, &map).await.expect("the answer goes on");
    assert_eq!(view["version"], version + 1, "{view}");
    assert_eq!(shards(cast, &view), next);
    hall.check(&map, stream, "a late member").await;
    assert!(counters(cast, "kvsp_reshard_retained_tokens_total").await.iter().sum::<u64>() > 0);
    hall.is_forgotten(&map).await;
}
