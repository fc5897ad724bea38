//! The controller changes a group by itself: fewer members once the prompt is computed, none that drains.

use serde_json::json;

use crate::cast::Settings;
use crate::group::{settled, shards, split, view};
use crate::kills::Hall;
use crate::stream::Sampling;
use crate::support::{JSON, eventually, send};

/// Many compute the prompt, one decodes.
#[tokio::test]
async fn a_group_shrinks_once_the_prompt_is_computed() {
    let hall = Hall::open_with(Sampling::Greedy, &Settings::split_to(1, 1)).await;
    let cast = &hall.cast;
    let mut stream = cast.ask(&hall.question).await;
    let map = stream.session();
    stream.until(1).await;
    let alone = eventually("a group of one", async || {
        let Some(view) = view(cast, &map).await else { panic!("the answer ended before its group shrank") };
        (view.get("pending").is_none() && shards(cast, &view).len() == 1).then_some(view)
    })
    .await;
    let (_, leader) = shards(cast, &alone)[0].clone();
    assert_eq!(leader, cast.serving(&map).await, "the one that leads is left");
    assert_eq!(alone["version"], 2, "in one step: {alone}");
    let checked = hall.check(&map, stream, "a group that shrinks").await;
    assert_eq!(checked.others, 0);
    hall.is_forgotten(&map).await;
}

/// A member that drains leaves the group, whether it leads or not, and falls asleep before the answer is over.
#[tokio::test]
async fn a_member_that_drains_leaves_its_group() {
    let hall = Hall::open(Sampling::Greedy).await;
    let cast = &hall.cast;
    for leads in [false, true] {
        let mut stream = cast.ask(&hall.question).await;
        let map = stream.session();
        let (_, before) = split(cast, &map).await;
        let leader = cast.serving(&map).await;
        let other = before.iter().map(|(_, at)| *at).find(|at| *at != leader).unwrap();
        let leaving = if leads { leader } else { other };
        stream.until(8).await;
        let base = cast.instances[leaving].base();
        let order = |state: &str| json!({"state": state, "migrate": true}).to_string();
        let path = kvsp_proto::path::instance_state(&base);
        let answer = send(&cast.controller.base(), "PUT", &path, &[JSON], order("draining")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        eventually("a group without the one that drains", async || {
            let view = view(cast, &map).await.expect("the answer goes on");
            let is_left = shards(cast, &view).iter().all(|(_, at)| *at != leaving);
            (view.get("pending").is_none() && is_left).then_some(())
        })
        .await;
        settled(cast, &map).await.expect("the answer goes on");
        assert_ne!(cast.serving(&map).await, leaving, "its session goes on elsewhere");
        let checked = hall.check(&map, stream, &format!("one that leads {leads} drains")).await;
        assert!(checked.covered, "the answer was over too soon");
        let answer = send(&cast.controller.base(), "PUT", &path, &[JSON], order("active")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        cast.all_active().await;
    }
}
