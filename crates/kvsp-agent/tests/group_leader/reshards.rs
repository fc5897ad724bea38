//! The map changes while an answer is written; the text does not.

use kvsp_net::random::{Random as _, SeededRandom};

use crate::oracle::greedy;
use crate::support::prompt;
use crate::team::{Split, Team};

/// Counts of the leader: switches that decoding saw, and tokens computed again.
async fn switches(team: &Team, leader: usize) -> (u64, u64) {
    let instance = &team.instances[leader];
    (
        instance.metric("kvsp_reshard_pause_seconds_count").await,
        instance.metric("kvsp_group_tokens_rebuilt_total").await,
    )
}

/// Three members, two, one, three, with a change every 40 tokens: each prepared, then, some tokens later, committed.
async fn through(leader: usize, splits: &[Split<'_>]) {
    let team = Team::of(3).await;
    let prompt = prompt(9, 150);
    let expected = greedy(&prompt, 40 * splits.len());
    let job = team.session(1, splits[0]);
    let mut told = job.start(&team.instances[leader], &prompt, 40 * splits.len() as u32).await;
    for (n, split) in splits.iter().enumerate().skip(1) {
        told.until(40 * n - 25).await;
        let pending = team.prepare(&job.map(), leader, split, &[]).await;
        // Tokens appended while the plan is open.
        told.until(40 * n).await;
        team.commit(pending).await;
    }
    told.end().await.unwrap();
    expected.assert_same(&told.tokens, &format!("through {splits:?} led by {leader}"));
    assert_eq!(switches(&team, leader).await, (splits.len() as u64 - 1, 0));
    // Nothing was computed twice.
    assert_eq!(team.computed().await, 149);
}

const THREE: Split<'_> = &[(50, 0), (101, 1), (600, 2)];
const TWO: Split<'_> = &[(90, 0), (600, 2)];
const ONE: Split<'_> = &[(600, 2)];
const AGAIN: Split<'_> = &[(33, 1), (170, 2), (600, 0)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_two_one_three_led_by_who_has_the_end() {
    through(2, &[THREE, TWO, ONE, AGAIN]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_two_one_three_led_by_who_has_nothing_in_between() {
    through(1, &[THREE, TWO, ONE, AGAIN]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_two_one_three_led_by_who_has_the_beginning() {
    through(0, &[THREE, TWO, ONE, AGAIN]).await;
}

/// An abort between two tokens: the next plan, to the same version, is another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aborted_change_changes_nothing() {
    for leader in [0, 2] {
        let team = Team::of(3).await;
        let prompt = prompt(9, 150);
        let job = team.session(1, THREE);
        let mut told = job.start(&team.instances[leader], &prompt, 200).await;
        told.until(20).await;
        let pending = team.prepare(&job.map(), leader, ONE, &[]).await;
        told.until(60).await;
        team.abort(pending).await;
        told.until(100).await;
        let pending = team.prepare(&job.map(), leader, TWO, &[]).await;
        told.until(140).await;
        team.commit(pending).await;
        told.end().await.unwrap();
        greedy(&prompt, 200).assert_same(&told.tokens, "an abort, then a commit");
        assert_eq!(switches(&team, leader).await, (1, 0));
        assert_eq!(team.computed().await, 149);
    }
}

/// The members are told, and the leader is not: it finds out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_told_late_finds_out() {
    let team = Team::of(3).await;
    let prompt = prompt(9, 150);
    let job = team.session(1, THREE);
    let mut told = job.start(&team.instances[0], &prompt, 200).await;
    told.until(20).await;
    let pending = team.prepare(&job.map(), 0, AGAIN, &[]).await;
    told.until(60).await;
    let late = team.commit_but(pending, 0).await;
    told.until(120).await;
    team.commit(late).await;
    told.end().await.unwrap();
    greedy(&prompt, 200).assert_same(&told.tokens, "a leader told late");
    assert_eq!(switches(&team, 0).await, (1, 0));
}

/// A member hears of the commit long after the others: steps wait for it, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_told_late_is_waited_for() {
    let team = Team::of(3).await;
    let prompt = prompt(9, 150);
    let job = team.session(1, THREE);
    let mut told = job.start(&team.instances[0], &prompt, 120).await;
    told.until(20).await;
    let pending = team.prepare(&job.map(), 0, AGAIN, &[]).await;
    let late = team.commit_but(pending, 1).await;
    tokio::time::sleep(crate::team::MOMENT).await;
    team.commit(late).await;
    told.end().await.unwrap();
    greedy(&prompt, 120).assert_same(&told.tokens, "a member told late");
    assert_eq!(team.computed().await, 149);
}

/// Changes at random moments to random splits, committed or aborted, told in time or late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_changes_leave_the_text_as_it_is() {
    let changes = std::env::var("KVSP_SOAK_OPS").ok().and_then(|ops| ops.parse().ok()).unwrap_or(12);
    let random = SeededRandom::new(17);
    let team = Team::of(3).await;
    let mut done = 0;
    for run in 0.. {
        let below = |n: usize| usize::try_from(random.u64() % n as u64).unwrap();
        let split = |parts: usize| {
            let mut ends: Vec<u64> = (1..parts).map(|_| 1 + below(250) as u64).collect();
            ends.push(400);
            ends.sort_unstable();
            ends.dedup();
            ends.into_iter().map(|end| (end, below(3))).collect::<Vec<_>>()
        };
        let (leader, length) = (below(3), 1 + below(160));
        let prompt = prompt(run, length);
        let mut now = split(1 + below(4));
        let job = team.session(u128::from(run) + 1, &now);
        let mut told = job.start(&team.instances[leader], &prompt, 120).await;
        let mut what = format!("{length} tokens over {now:?} led by {leader}");
        for _ in 0..3 {
            told.until((told.tokens.len() + below(25)).clamp(1, 119)).await;
            let next = split(1 + below(4));
            let pending = team.prepare(&job.map(), leader, &next, &[]).await;
            told.until((told.tokens.len() + below(25)).min(119)).await;
            what += &match below(4) {
                0 => {
                    team.abort(pending).await;
                    format!(", not {next:?}")
                }
                1 => {
                    let late = below(3);
                    let late = team.commit_but(pending, late).await;
                    team.commit(late).await;
                    now = next;
                    format!(", told late of {now:?}")
                }
                _ => {
                    team.commit(pending).await;
                    now = next;
                    format!(", then {now:?}")
                }
            };
            done += 1;
        }
        told.end().await.unwrap();
        greedy(&prompt, 120).assert_same(&told.tokens, &what);
        team.end(&job).await;
        if done >= changes {
            break;
        }
    }
    // However it went, nothing was lost.
    for leader in 0..3 {
        assert_eq!(switches(&team, leader).await.1, 0, "tokens computed again");
    }
}
