//! The third act: the prompt is split over three instances, which answer together, and the split changes while they
//! do: 3, 2, 1, 3.

mod tell;

use std::time::Duration;

use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::message::{MapId, MapView, Shard, TokenRange};
use kvsp_proto::record::InstanceState;
use tokio::sync::watch;

use super::DemoError;
use super::story::wait;
use crate::commands::failover::{FailoverError, Heard, Question, Stage, Stream, listen};
use crate::commands::fleet::{Cast, Change, Fleet, Member, Watch, change, settled};
use crate::progress;

/// Instances of the group.
const MEMBERS: usize = 3;
/// Time for a change.
const DEADLINE: Duration = Duration::from_secs(20);

/// What the third act showed.
pub(super) struct ThirdAct {
    question: String,
    /// The answer of a single instance.
    whole: Heard,
    /// That of the group.
    heard: Heard,
    /// How the prompt was split.
    first: MapView,
    /// Tokens of the prompt.
    prompt: u64,
    descriptor: Descriptor,
    changes: Vec<Step>,
}

/// One change and what the client saw of it.
struct Step {
    change: Change,
    /// Output tokens that the client had when it was asked for.
    at_token: u64,
}

/// Ask a single instance, then a group of three, and split its context anew while it answers.
pub(super) async fn play(
    stage: &Stage,
    fleet: &mut Fleet,
    cast: &mut Cast,
    survivor: Member,
    asked: &Question,
) -> Result<ThirdAct, DemoError> {
    let spinner = progress::spinner("the answer of a single instance".to_owned());
    let whole = listen(&stage.client, &stage.gateway, asked).await;
    spinner.finish_and_clear();
    let whole = whole?;

    let spinner = progress::spinner("two more instances, and a controller that splits prompts".to_owned());
    let mut members = vec![survivor];
    while members.len() < MEMBERS {
        members.push(cast.start_instance(fleet).await?);
    }
    let config = fleet.dir().join("groups.toml");
    // Every prompt is split, and stays so: when to change is said here.
    let text =
        format!("[controller.groups]\nmin_tokens = 1\nmax_members = {MEMBERS}\ndecode_members = {MEMBERS}\n");
    std::fs::write(&config, text).map_err(DemoError::io(config.display().to_string()))?;
    cast.reconfigure_controller(fleet, &config).await?;
    wait("three active instances", async || {
        let list = stage.client.instances(&stage.controller).await?.instances;
        let active = |member: &Member| {
            list.iter().any(|i| i.status.instance == member.base && i.status.state == InstanceState::Active)
        };
        Ok(members.iter().all(active))
    })
    .await?;
    spinner.finish_and_clear();

    let spinner = progress::spinner("the same, computed by three instances, then 2, 1 and 3".to_owned());
    let together = together(stage, &members, asked, whole.tokens()).await;
    spinner.finish_and_clear();
    let (heard, first, changes) = together?;
    let capacity = first.shards.last().map_or(0, |shard| shard.tokens.end());
    let prompt = capacity.saturating_sub(u64::from(asked.max_tokens));
    let descriptor = stage.client.get_descriptor(&stage.controller, first.compat_id).await?;
    let question = asked.text.rsplit("Question: ").next().unwrap_or_default().to_owned();
    Ok(ThirdAct { question, whole, heard, first, prompt, descriptor, changes })
}

/// The group's answer, with three changes in the middle of it.
async fn together(
    stage: &Stage,
    members: &[Member],
    asked: &Question,
    tokens: u64,
) -> Result<(Heard, MapView, Vec<Step>), DemoError> {
    let mut stream = Stream::open(&stage.client, &stage.gateway, asked).await?;
    let map: MapId = stream.session.ok_or(FailoverError::NoSession)?.into();
    let watching = Watch { client: &stage.client, controller: &stage.controller, members };
    let first = settled(&watching, &map).await?;
    let (tell, told) = watch::channel(0);
    let hearing = async {
        let mut heard = Heard::default();
        while stream.hear(&mut heard).await? {
            tell.send_replace(heard.tokens());
        }
        drop(tell);
        Ok::<_, DemoError>(heard)
    };
    let (heard, changes) = tokio::try_join!(hearing, changes(&watching, &first, told, tokens))?;
    Ok((heard, first, changes))
}

/// 3 → 2 → 1 → 3, the last shard being the leader's all the time.
async fn changes(
    watching: &Watch<'_>,
    first: &MapView,
    mut told: watch::Receiver<u64>,
    tokens: u64,
) -> Result<Vec<Step>, DemoError> {
    let mut done: Vec<Step> = Vec::new();
    for (n, shards) in (1..).zip(splits(first)?) {
        let due = |had: &u64| *had >= n * tokens / 5;
        let had = *told.wait_for(due).await.map_err(|_| DemoError::Late("a change within the answer"))?;
        let before = done.last().map_or(first, |step| &step.change.view).clone();
        let change = change(watching, &before, shards, DEADLINE).await?;
        done.push(Step { change, at_token: had });
    }
    Ok(done)
}

/// The splits that follow on the first one. What moves is below the end of the prompt.
fn splits(first: &MapView) -> Result<[Vec<Shard>; 3], DemoError> {
    let [a, b, leader] = &first.shards[..] else {
        return Err(DemoError::Answer(format!("the prompt is split into {} parts", first.shards.len())));
    };
    let shard = |start, end, of: &Shard| {
        let tokens = TokenRange::new(start, end).map_err(|error| DemoError::Answer(error.to_string()))?;
        Ok::<_, DemoError>(Shard { tokens, instance: of.instance.clone() })
    };
    let (cut, end) = (leader.tokens.start(), leader.tokens.end());
    Ok([
        vec![shard(0, cut, b)?, shard(cut, end, leader)?],
        vec![shard(0, end, leader)?],
        vec![shard(0, a.tokens.end(), a)?, shard(a.tokens.end(), cut, b)?, shard(cut, end, leader)?],
    ])
}
