//! How long a client waits for its next token when the instance that serves its sampled answer is killed, and
//! when it merely stops, so that nothing but its status tells.

use std::time::Duration;

use kvsp_client::{Client, ClientConfig};
use kvsp_net::random::{Random as _, SeededRandom};
use kvsp_proto::record::InstanceState;
use kvsp_proto::uri::BaseUri;
use nix::sys::signal::Signal;

use super::error::BenchError;
use super::goal::Goal;
use super::measure::figure;
use super::model::BenchModel;
use super::report::{Bench, Figure};
use crate::commands::failover::{FailoverError, Heard, Question, Stage, Strike, Struck, listen};
use crate::commands::fleet::{Cast, CastModel, Fleet};
use crate::progress;

/// TTL of an instance's status unless it is told another.
const STATUS_TTL_MS: f64 = 3000.0;
/// What the goal allows beside the TTL and the recomputation.
const SLACK_MS: f64 = 500.0;
/// How long the fleet may take until it is as before.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// Where the blows fall: the same for every run.
const SEED: u64 = 4;

/// Measures both ways to lose an instance in turns.
pub(super) fn measure(quick: bool, model: &BenchModel) -> Result<Bench, BenchError> {
    let rounds = if quick { 1 } else { 9 };
    let bar = progress::spinner("failover".to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(BenchError::io("the runtime"))?;
    let (killed, stopped) = runtime.block_on(async {
        let mut fleet = Fleet::new("kvsp-bench-", false)?;
        let begun = Trials::begin(&mut fleet, model).await;
        let measured = match begun {
            Ok(mut trials) => {
                trials.run(rounds, |round| bar.set_message(format!("failover, round {round}"))).await
            }
            Err(error) => Err(error),
        };
        fleet.stop().await;
        measured
    })?;
    bar.finish_and_clear();
    let mut figures = told("SIGKILL", &killed);
    figures.extend(told("SIGSTOP", &stopped));
    let notes = vec![
        format!(
            "{} answers each whose instance is struck at a token between the 17th and the middle, in turns; every \
             one of them equal to one that nothing interrupted",
            killed.len()
        ),
        format!("the status of an instance has a TTL of {STATUS_TTL_MS} ms; a broken connection tells sooner"),
        "lost: until the controller had chosen another instance, the raised epoch on stable storage; taken: from \
         there until that one had taken the session; delivered: from there to the next token at the client"
            .to_owned(),
    ];
    Ok(Bench { name: "failover", figures, notes })
}

fn told(how: &str, struck: &[Struck]) -> Vec<Figure> {
    let ms = |name: &str, took: fn(&Struck) -> Duration| {
        figure(format!("{how}: {name}"), "ms", struck.iter().map(|struck| took(struck).as_secs_f64() * 1e3))
    };
    let delivered = ms("of it delivered", Struck::recompute);
    let goal = Goal::AtMost((STATUS_TTL_MS + SLACK_MS + delivered.row.value).round());
    vec![
        ms("to the next token at the client", Struck::to_next_token).should_be(goal),
        ms("of it lost", Struck::detection),
        ms("of it taken", Struck::resume),
        delivered,
        ms("the longest gap at the client", Struck::gap),
    ]
}

/// A fleet that is struck again and again.
struct Trials<'a> {
    fleet: &'a mut Fleet,
    cast: Cast,
    stage: Stage,
    question: Question,
    whole: Heard,
    random: SeededRandom,
}

impl<'a> Trials<'a> {
    async fn begin(fleet: &'a mut Fleet, model: &BenchModel) -> Result<Self, BenchError> {
        let cast_model = CastModel { path: model.path(), name: model.name(), block_tokens: 16 };
        let cast = Cast::start(fleet, cast_model).await?;
        let idle_timeout = PATIENCE;
        let stage = Stage {
            client: Client::new(ClientConfig { idle_timeout, ..ClientConfig::default() }),
            controller: cast.controller.base.clone(),
            gateway: cast.gateway.base.clone(),
        };
        let question = Question {
            model: model.name().to_owned(),
            text: "Tell me of a block, of its replicas and of what becomes of them.".to_owned(),
            max_tokens: model.tokens(),
            temperature: 0.8,
            seed: SEED,
        };
        two_active(&stage).await?;
        let whole = listen(&stage.client, &stage.gateway, &question).await?;
        Ok(Self { fleet, cast, stage, question, whole, random: SeededRandom::new(SEED) })
    }

    async fn run(
        &mut self,
        rounds: usize,
        say: impl Fn(usize),
    ) -> Result<(Vec<Struck>, Vec<Struck>), BenchError> {
        let (mut killed, mut stopped) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            say(round);
            let struck = self.strike(Signal::SIGKILL).await?;
            self.fleet.bury(&struck.instance).await?;
            self.cast.start_instance(self.fleet).await?;
            gone(&self.stage, &struck.instance).await?;
            two_active(&self.stage).await?;
            killed.push(struck);

            let struck = self.strike(Signal::SIGSTOP).await?;
            self.fleet.signal(&struck.instance, Signal::SIGCONT)?;
            two_active(&self.stage).await?;
            stopped.push(struck);
        }
        Ok((killed, stopped))
    }

    async fn strike(&mut self, signal: Signal) -> Result<Struck, BenchError> {
        let first = 17.min(self.whole.tokens() / 2);
        let after_tokens = first + self.random.u64() % (self.whole.tokens() / 2 - first).max(1);
        let strike = Strike { after_tokens, signal };
        let struck = strike.run(&self.stage, self.fleet, &self.question).await?;
        if struck.heard.is_equal(&self.whole) { Ok(struck) } else { Err(BenchError::Differ("a failover")) }
    }
}

/// Waits until two instances take requests.
async fn two_active(stage: &Stage) -> Result<(), BenchError> {
    until(async || {
        let list = stage.client.instances(&stage.controller).await.map_err(FailoverError::from)?.instances;
        Ok(list.iter().filter(|i| i.status.state == InstanceState::Active).count() == 2)
    })
    .await
}

/// Waits until nothing is placed at an instance any more.
async fn gone(stage: &Stage, instance: &BaseUri) -> Result<(), BenchError> {
    until(async || {
        let list = stage.client.instances(&stage.controller).await.map_err(FailoverError::from)?.instances;
        let is_active = |i: &kvsp_proto::record::InstanceStatus| {
            i.instance == *instance && i.state == InstanceState::Active
        };
        Ok(!list.iter().any(|view| is_active(&view.status)))
    })
    .await
}

async fn until(mut happened: impl AsyncFnMut() -> Result<bool, BenchError>) -> Result<(), BenchError> {
    let waiting = async {
        while !happened().await? {
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, waiting).await.map_err(|_| BenchError::Late("the fleet"))?
}
