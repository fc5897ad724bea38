//! How long decoding stands still when the split of its context changes, beside two round trips and the copy of the
//! tail that is appended meanwhile.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use kvsp_client::{Client, ClientConfig};
use kvsp_proto::message::{MapId, MapView, Shard, TokenRange};
use kvsp_proto::record::InstanceState;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::commands::bench::error::BenchError;
use crate::commands::bench::goal::Goal;
use crate::commands::bench::measure::figure;
use crate::commands::bench::report::Bench;
use crate::commands::failover::{FailoverError, Heard, Question, Stage, Stream};
use crate::commands::fleet::{Cast, CastModel, Change, Fleet, Member, Scrape, Watch, change, settled};

const MEMBERS: usize = 3;
/// Output tokens of an answer.
const TOKENS: u32 = 400;
/// Changes within an answer.
const CHANGES: u64 = 6;
/// Positions of the tail that is copied for comparison: as many as a leader keeps at most before it stores them.
const TAIL: u64 = 16;
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

const PAUSES: &str = "kvsp_reshard_pause_seconds_count";
const PAUSED: &str = "kvsp_reshard_pause_seconds_sum";

/// What one answer showed, in ms.
#[derive(Debug, Default)]
struct Shown {
    /// The leader's own clock, a change.
    paused: Vec<f64>,
    /// The longest time without a token at the client around a change, less the usual one.
    gaps: Vec<f64>,
    /// The usual time between two tokens.
    token: Vec<f64>,
    /// Two round trips and the copy of a tail.
    bound: Vec<f64>,
}

/// Adds the figures.
pub(super) fn measure(
    quick: bool,
    runtime: &Runtime,
    bar: &ProgressBar,
    bench: &mut Bench,
) -> Result<(), BenchError> {
    let answers = if quick { 1 } else { 9 };
    let shown = runtime.block_on(async {
        let mut fleet = Fleet::new("kvsp-bench-", false)?;
        let shown = answer_all(&mut fleet, answers, bar).await;
        fleet.stop().await;
        shown
    })?;
    let bound = figure("two round trips and a tail's copy".to_owned(), "ms", shown.bound);
    let goal = Goal::AtMost((bound.row.value * 100.0).round() / 100.0);
    bench.figures.extend([
        figure("decoding stands still at a change, by the leader's clock".to_owned(), "ms", shown.paused)
            .should_be(goal),
        figure("longer without a token at the client around a change".to_owned(), "ms", shown.gaps),
        figure("a token of a split context".to_owned(), "ms", shown.token),
        bound,
    ]);
    bench.notes.push(format!(
        "pause: {answers} answers of {TOKENS} tokens of the tiny model through a gateway, each with {CHANGES} changes \
         between three members and two, with which the owner of the tail changes too; the leader's clock tells a mean \
         of each answer, and {TAIL} positions are the tail that is copied for comparison"
    ));
    Ok(())
}

async fn answer_all(fleet: &mut Fleet, answers: usize, bar: &ProgressBar) -> Result<Shown, BenchError> {
    let (stage, members) = begin(fleet).await?;
    let question = Question {
        model: "kvsp/tiny".to_owned(),
        text: "Tell me who holds which positions of a context, and what moves when that changes. ".repeat(12),
        max_tokens: TOKENS,
        temperature: 0.8,
        seed: 8,
    };
    let (mut shown, mut text) = (Shown::default(), None);
    for answer in 0..=answers {
        bar.set_message(format!("pauses, answer {answer} of {answers}"));
        let mut one = Shown::default();
        let heard = answer_one(&stage, &members, &question, &mut one).await?;
        if *text.get_or_insert_with(|| heard.text()) != heard.text() {
            return Err(BenchError::Differ("answers with changes at different tokens"));
        }
        if answer > 0 {
            shown.paused.extend(one.paused);
            shown.gaps.extend(one.gaps);
            shown.token.extend(one.token);
            shown.bound.extend(one.bound);
        }
    }
    Ok(shown)
}

/// Three instances, a controller that splits every prompt over them and leaves it so, and a gateway.
async fn begin(fleet: &mut Fleet) -> Result<(Stage, Vec<Member>), BenchError> {
    let model = CastModel { path: "tiny", name: "kvsp/tiny", block_tokens: 16 };
    let mut cast = Cast::start(fleet, model).await?;
    let config = fleet.dir().join("groups.toml");
    let text =
        format!("[controller.groups]\nmin_tokens = 1\nmax_members = {MEMBERS}\ndecode_members = {MEMBERS}\n");
    std::fs::write(&config, text).map_err(BenchError::io("a configuration file"))?;
    let third = cast.start_instance(fleet).await?;
    cast.reconfigure_controller(fleet, &config).await?;
    let members = vec![cast.a.clone(), cast.b.clone(), third];
    let stage = Stage {
        client: Client::new(ClientConfig { idle_timeout: PATIENCE, ..ClientConfig::default() }),
        controller: cast.controller.base.clone(),
        gateway: cast.gateway.base.clone(),
    };
    let waiting = async {
        loop {
            let list = stage.client.instances(&stage.controller).await?.instances;
            if list.iter().filter(|i| i.status.state == InstanceState::Active).count() == MEMBERS {
                return Ok::<_, BenchError>(());
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.map_err(|_| BenchError::Late("the instances"))??;
    Ok((stage, members))
}

async fn answer_one(
    stage: &Stage,
    members: &[Member],
    question: &Question,
    shown: &mut Shown,
) -> Result<Heard, BenchError> {
    let before = paused(stage, members).await?;
    let mut stream = Stream::open(&stage.client, &stage.gateway, question).await?;
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
        Ok::<_, BenchError>(heard)
    };
    let (heard, changes) = tokio::try_join!(hearing, changes(&watching, &first, told, shown))?;
    let usual = heard.usual_gap();
    let longer = |change: &Change| {
        let gap = heard.longest_gap_in(change.asked..=change.settled);
        gap.saturating_sub(usual).as_secs_f64() * 1e3
    };
    shown.gaps.extend(changes.iter().map(longer));
    shown.token.push(usual.as_secs_f64() * 1e3);
    let after = paused(stage, members).await?;
    shown.paused.push((after.1 - before.1) / (after.0 - before.0).max(1.0) * 1e3);
    Ok(heard)
}

/// How often decoding has stood still at all members, and for how many seconds.
async fn paused(stage: &Stage, members: &[Member]) -> Result<(f64, f64), BenchError> {
    let mut all = (0.0, 0.0);
    for member in members {
        let scrape = Scrape::of(&stage.client, &member.admin).await?;
        all = (all.0 + scrape.value(PAUSES), all.1 + scrape.value(PAUSED));
    }
    Ok(all)
}

/// Changes at even distances, there and back.
async fn changes(
    watching: &Watch<'_>,
    first: &MapView,
    mut told: watch::Receiver<u64>,
    shown: &mut Shown,
) -> Result<Vec<Change>, BenchError> {
    let mut done: Vec<Change> = Vec::new();
    let two = two(first)?;
    for n in 1..=CHANGES {
        let due = |had: &u64| *had >= n * u64::from(TOKENS) / (CHANGES + 2);
        told.wait_for(due).await.map_err(|_| BenchError::Late("a change within the answer"))?;
        let shards = if n % 2 == 1 { two.clone() } else { first.shards.clone() };
        let before = done.last().map_or(first, |change| &change.view).clone();
        let change = change(watching, &before, shards, PATIENCE).await?;
        shown.bound.push(bound(watching, &change.view).await?.as_secs_f64() * 1e3);
        done.push(change);
    }
    Ok(done)
}

/// Two members: the leader, whose the last shard is, gets what is before it, and the first member the tail.
fn two(first: &MapView) -> Result<Vec<Shard>, BenchError> {
    const WHAT: &str = "a placement over three instances";
    let [a, _, leader] = &first.shards[..] else { return Err(BenchError::Answer(WHAT)) };
    let shard = |start, end, of: &Shard| {
        let tokens = TokenRange::new(start, end).map_err(|_| BenchError::Answer(WHAT))?;
        Ok::<_, BenchError>(Shard { tokens, instance: of.instance.clone() })
    };
    let (cut, end) = (leader.tokens.start(), leader.tokens.end());
    Ok(vec![shard(0, cut, leader)?, shard(cut, end, a)?])
}

/// Two round trips to a member and the copy of a tail, as they are now.
async fn bound(watching: &Watch<'_>, view: &MapView) -> Result<Duration, BenchError> {
    let shard = view.shards.last().ok_or(BenchError::Answer("a map"))?;
    let tail = TokenRange::new(shard.tokens.start(), shard.tokens.start() + TAIL);
    let tail = tail.map_err(|_| BenchError::Answer("a range"))?;
    let begin = Instant::now();
    for _ in 0..2 {
        watching.client.held(&shard.instance, &view.map).await?;
    }
    watching.client.get_tokens(&shard.instance, &view.map, view.version, tail, u64::MAX).await?;
    Ok(begin.elapsed())
}
