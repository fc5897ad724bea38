//! Members and leaders that die; the text does not change.

use kvsp_proto::message::{Needs, PromptRequest, TokenEvent};

use crate::oracle::greedy;
use crate::support::{client, eventually, prompt};
use crate::team::{Job, Split, Team};

const THREE: Split<'_> = &[(50, 0), (101, 1), (600, 2)];

/// The positions of a member die with it. Another takes them over, and they are computed again from the tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_dies_with_a_member_is_computed_again() {
    let mut team = Team::of(1).await;
    let killed = team.join_apart().await;
    team.join().await;
    let prompt = prompt(9, 150);
    let job = team.session(1, THREE);
    let mut told = job.start(&team.instances[0], &prompt, 150).await;
    told.until(40).await;
    killed.kill();
    let pending = team.prepare(&job.map(), 0, &[(80, 0), (600, 2)], &[1]).await;
    team.commit(pending).await;
    told.end().await.unwrap();
    greedy(&prompt, 150).assert_same(&told.tokens, "a member died");
    let rebuilt = team.instances[0].metric("kvsp_group_tokens_rebuilt_total").await;
    assert_eq!(rebuilt, 51, "its positions, and no other");
}

/// The owner of the end dies: output tokens are computed again, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_context_may_die_too() {
    let mut team = Team::of(2).await;
    let killed = team.join_apart().await;
    let prompt = prompt(8, 150);
    let job = team.session(1, THREE);
    let mut told = job.start(&team.instances[0], &prompt, 150).await;
    told.until(70).await;
    killed.kill();
    let pending = team.prepare(&job.map(), 0, &[(50, 0), (600, 1)], &[2]).await;
    team.commit(pending).await;
    told.end().await.unwrap();
    greedy(&prompt, 150).assert_same(&told.tokens, "the owner of the end died");
}

/// A leader of a higher epoch goes on from the checkpoint with what the members hold; the first one ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_leader_fences_the_first() {
    let team = Team::of(3).await;
    let prompt = prompt(9, 150);
    let first = team.session(1, THREE);
    let mut told = first.start(&team.instances[0], &prompt, 2000).await;
    told.until(60).await;
    let checkpoint = team.desk.recorded_to(first.id, 60).await;
    let before = team.computed().await;
    let second = Job { epoch: 2, ..first };
    let (answer, mut gone_on) = second.resume(&team.instances[1], &checkpoint, 250).await;
    assert_eq!(answer.needs, None);
    let (done, _) = gone_on.end().await.unwrap();
    assert_eq!((done.as_str(), gone_on.tokens.len()), ("length", 250));
    greedy(&prompt, 250).assert_same(&gone_on.tokens, "a second leader");
    // Of the prompt nothing was computed again, of the output at most what was on its way to its owners.
    let again = team.computed().await - before;
    assert!(again <= 33, "{again} tokens computed again");
    assert_eq!(told.end().await, None, "the first one shows nothing more");
    team.leads_nothing(0).await;
}

/// A leader dies with its shard of the prompt: the next one asks for the prompt, and then computes it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_dies_with_its_shard_is_followed_once_the_prompt_is_known() {
    let mut team = Team::of(2).await;
    let killed = team.join_apart().await;
    let prompt = prompt(9, 150);
    let first = team.session(1, &[(50, 0), (101, 2), (600, 1)]);
    let mut told = first.start(&team.instances[2], &prompt, 2000).await;
    told.until(60).await;
    killed.kill();
    let checkpoint = team.desk.recorded_to(first.id, 60).await;
    let pending = team.prepare(&first.map(), 0, &[(101, 0), (600, 1)], &[2]).await;
    team.commit(pending).await;
    let second = Job { epoch: 2, ..first };
    let (_, mut broken) = second.resume(&team.instances[0], &checkpoint, 150).await;
    assert_eq!(broken.end().await, None, "it ends where the prompt is needed");
    let tokens = once_prompted(&team, 0, &second, &prompt).await;
    assert_eq!(tokens.len(), 150);
    greedy(&prompt, 150).assert_same(&tokens, "a leader died with a shard of the prompt");
}

/// All tokens of a session that asks for its prompt, which it gets.
async fn once_prompted(team: &Team, leader: usize, job: &Job, prompt: &[u32]) -> Vec<u32> {
    let mut stream = eventually("that the prompt is asked for", async || {
        let stream = client().tokens(&team.base(leader), job.id, 0).await.unwrap();
        (stream.needs == Some(Needs::Prompt)).then_some(stream)
    })
    .await;
    let request = PromptRequest { epoch: job.epoch, tokens: prompt.to_vec() };
    client().give_prompt(&team.base(leader), job.id, &request).await.unwrap();
    let mut tokens = Vec::new();
    while let Some(event) = stream.next().await {
        if let TokenEvent::Token { token, .. } = event.unwrap() {
            tokens.push(token);
        }
    }
    tokens
}

/// An owner-to-be dies after its acknowledgement, with the commit: the leader cannot go over to that version, and goes
/// on at the one after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_owner_may_die_with_the_commit() {
    let mut team = Team::of(2).await;
    let killed = team.join_apart().await;
    let prompt = prompt(9, 150);
    let job = team.session(1, &[(50, 0), (600, 1)]);
    let mut told = job.start(&team.instances[0], &prompt, 150).await;
    told.until(20).await;
    let pending = team.prepare(&job.map(), 0, &[(90, 2), (600, 1)], &[]).await;
    told.until(40).await;
    killed.kill();
    team.commit_but(pending, 2).await;
    tokio::time::sleep(crate::team::MOMENT).await;
    let pending = team.prepare(&job.map(), 0, &[(600, 1)], &[2]).await;
    team.commit(pending).await;
    told.end().await.unwrap();
    greedy(&prompt, 150).assert_same(&told.tokens, "a new owner died with the commit");
}

/// A leader takes over while a change is open of which it was told nothing. What the owners-to-be have loaded beyond the
/// checkpoint may be of tokens that it does not know of, and counts for nothing; the rest stays, so that the prompt is
/// not needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_may_take_over_while_the_map_changes() {
    let team = Team::of(3).await;
    let prompt = prompt(9, 150);
    let first = team.session(1, THREE);
    let mut told = first.start(&team.instances[0], &prompt, 2000).await;
    told.until(40).await;
    let pending = team.prepare(&first.map(), 0, &[(90, 2), (600, 1)], &[]).await;
    told.until(60).await;
    let checkpoint = team.desk.recorded_to(first.id, 60).await;
    let second = Job { epoch: 2, ..first };
    let (_, mut gone_on) = second.resume(&team.instances[1], &checkpoint, 200).await;
    gone_on.until(90).await;
    team.commit(pending).await;
    let (done, _) = gone_on.end().await.unwrap();
    assert_eq!((done.as_str(), gone_on.tokens.len()), ("length", 200));
    greedy(&prompt, 200).assert_same(&gone_on.tokens, "a leader that took over in a change");
}
