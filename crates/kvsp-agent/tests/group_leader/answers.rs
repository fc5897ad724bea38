//! A split context gives the text of a whole one.

use serde_json::json;

use crate::oracle::greedy;
use crate::support::{eventually, prompt};
use crate::team::{Job, Split, Team};

/// Answers a prompt of a session over a split, and holds it to what one engine says.
async fn answer(team: &Team, id: u128, leader: usize, length: usize, output: u32, split: Split<'_>) {
    let what = format!("{length} tokens over {split:?} led by {leader}");
    let prompt = prompt(length as u64, length);
    let job = team.session(id, split);
    let before = team.computed().await;
    let mut told = job.start(&team.instances[leader], &prompt, output).await;
    let (done, reused) = told.end().await.unwrap();
    let expected = greedy(&prompt, output as usize);
    expected.assert_same(&told.tokens, &what);
    assert_eq!((done.as_str(), reused), ("length", 0), "{what}");
    // Each position before the last was computed once, by somebody.
    assert_eq!(team.computed().await - before, length as u64 - 1, "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_two_and_three_members_give_the_text_of_one_engine() {
    let team = Team::of(3).await;
    answer(&team, 1, 0, 150, 60, &[(256, 0)]).await;
    answer(&team, 2, 0, 150, 60, &[(256, 1)]).await;
    answer(&team, 3, 0, 150, 60, &[(64, 1), (256, 0)]).await;
    answer(&team, 4, 1, 150, 60, &[(77, 1), (256, 2)]).await;
    answer(&team, 5, 0, 150, 60, &[(50, 1), (101, 2), (256, 0)]).await;
    answer(&team, 6, 2, 150, 60, &[(50, 1), (101, 2), (256, 0)]).await;
    answer(&team, 7, 1, 150, 60, &[(10, 0), (11, 1), (30, 0), (31, 2), (90, 1), (180, 0), (256, 2)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_end_before_at_and_after_the_borders_of_shards() {
    let team = Team::of(3).await;
    let split: Split<'_> = &[(40, 0), (80, 1), (160, 2)];
    for (n, length) in [1, 2, 39, 40, 41, 42, 79, 80, 81, 82].into_iter().enumerate() {
        answer(&team, 10 + n as u128, n % 3, length, 20, split).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_needs_not_own_anything() {
    let team = Team::of(3).await;
    let split: Split<'_> = &[(70, 1), (200, 2)];
    answer(&team, 1, 0, 100, 50, split).await;
    let job = Job { id: uuid::Uuid::from_u128(1), epoch: 1 };
    // What it staged has gone to its owners, but for the last few tokens.
    let held = team.held(2, &job.map()).await.unwrap();
    let stored = held.last().unwrap().end();
    assert!(stored > 100 && stored < 150, "{held:?}");
    team.end(&job).await;
    team.nothing_kept(0).await;
    team.nothing_kept(1).await;
    team.nothing_kept(2).await;
}

/// Three instances hold together what no one of them could.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_context_may_be_larger_than_any_instance() {
    let mut team = Team::of(0).await;
    for _ in 0..3 {
        let mut setup = team.setup();
        // 16 tokens of the tiny model take 16 KiB.
        setup.pool_octets = 16 * 16_384;
        team.instances.push(crate::support::Instance::start(setup).await);
    }
    answer(&team, 1, 2, 600, 40, &[(240, 0), (460, 1), (660, 2)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_ends_where_the_map_does() {
    let team = Team::of(2).await;
    let prompt = prompt(3, 50);
    let job = team.session(1, &[(30, 0), (64, 1)]);
    let mut told = job.start(&team.instances[0], &prompt, 100).await;
    let (done, _) = told.end().await.unwrap();
    assert_eq!((done.as_str(), told.tokens.len()), ("length", 14));
    greedy(&prompt, 14).assert_same(&told.tokens, "to the map's end");
}

/// Sampled tokens are shown once they are acknowledged, and not computed far ahead of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sampled_session_is_recorded_as_it_is_shown() {
    let mut team = Team::of(0).await;
    for _ in 0..2 {
        let mut setup = team.setup();
        setup.agent.max_unacked_tokens = 7;
        team.instances.push(crate::support::Instance::start(setup).await);
    }
    let job = team.session(1, &[(30, 0), (200, 1)]);
    let sampling = json!({"temperature": 0.8, "seed": 11});
    let mut told = job.start_with(&team.instances[0], &prompt(3, 50), 60, sampling).await;
    told.end().await.unwrap();
    assert_eq!(told.tokens.len(), 60);
    assert_eq!(team.desk.recorded_to(job.id, 60).await.generated, told.tokens);
}

/// Without a session a map serves one request after the other, and keeps nothing of any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_a_session_leave_nothing_behind() {
    let team = Team::of(3).await;
    let map = "one-after-the-other".parse().unwrap();
    team.map(&map, None, &[(40, 0), (80, 1), (160, 2)]);
    for (leader, seed) in [(0, 5), (2, 6), (0, 7)] {
        let prompt = prompt(seed, 100);
        let (text, tokens, reused) = team.ask(leader, &map, &prompt, 30).await;
        let expected = greedy(&prompt, 30);
        assert_eq!((tokens, reused), (30, 0));
        expected.assert_same_text(&text, "without a session");
        for member in 0..3 {
            team.nothing_kept(member).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_hangs_up_ends_the_context() {
    let team = Team::of(3).await;
    let map = "hung-up".parse().unwrap();
    team.map(&map, None, &[(40, 0), (80, 1), (2000, 2)]);
    let stream = team.stream(1, &map, &prompt(5, 100), 1500).await;
    eventually("the answer", async || {
        (team.instances[1].metric("kvsp_instance_tokens_generated_total").await > 3).then_some(())
    })
    .await;
    drop(stream);
    for member in 0..3 {
        team.nothing_kept(member).await;
    }
    // The map goes on to serve.
    let prompt = prompt(6, 60);
    let (text, ..) = team.ask(0, &map, &prompt, 10).await;
    greedy(&prompt, 10).assert_same_text(&text, "after one that was cancelled");
}
