//! What sessions cost: output tokens a second of the reference engine with checkpoints and without.

use std::time::Duration;

use kvsp_client::{Client, ClientConfig};
use kvsp_proto::uri::BaseUri;
use tokio::runtime::{Builder, Runtime};

use super::child::Service;
use super::error::BenchError;
use super::goal::Goal;
use super::measure::{Sample, Series, sample_with};
use super::model::BenchModel;
use super::report::{Bench, Figure};
use crate::commands::failover::{FailoverError, Heard, Question, listen};
use crate::progress;

/// Answers at once.
const AT_ONCE: [usize; 2] = [1, 4];
/// The share of the throughput that must remain.
const SHARE: f64 = 0.95;
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// Measures the time between the first and the last token of the same answers by two gateways, of which one
/// asks for sessions.
pub(super) fn measure(quick: bool, model: &BenchModel) -> Result<Bench, BenchError> {
    let rounds = if quick { 2 } else { 11 };
    let bar = progress::spinner("sessions".to_owned());
    let hall = Hall::open(model)?;
    let mut figures = Vec::new();
    for at_once in AT_ONCE {
        figures.extend(hall.contest(at_once, rounds, |round| {
            bar.set_message(format!("sessions, {at_once} at once, round {round} of {rounds}"));
        })?);
    }
    bar.finish_and_clear();
    let notes = vec![
        format!(
            "sampled answers of {} tokens from {} through a gateway, one instance, {rounds} rounds in turns after one \
             to warm up; the time is that from the first to the last event",
            model.tokens(),
            model.path(),
        ),
        "the controller keeps its sessions on the device of temporary files; all processes share the cores"
            .to_owned(),
    ];
    Ok(Bench { name: "sessions", figures, notes })
}

/// The services; the instance is one and the same.
struct Hall {
    runtime: Runtime,
    client: Client,
    question: Question,
    instance: Service,
    with: Service,
    without: Service,
    _others: [Service; 3],
    _dir: tempfile::TempDir,
}

impl Hall {
    fn open(model: &BenchModel) -> Result<Self, BenchError> {
        const WHAT: &str = "a temporary directory";
        let dir = tempfile::Builder::new().prefix("kvsp-bench-").tempdir().map_err(BenchError::io(WHAT))?;
        let file = |name: &str, content: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).map_err(BenchError::io(WHAT))?;
            path.into_os_string().into_string().map_err(|_| BenchError::Answer(WHAT))
        };
        let key = file("scope.key", &[7; 32])?;
        let plain = file("plain.toml", b"[gateway]\nsessions = false\n")?;
        let state = dir.path().join("state").into_os_string().into_string();
        let state = state.map_err(|_| BenchError::Answer(WHAT))?;
        let index = Service::start("the index", &["index"])?;
        let to_index = ["--index", index.base().as_str()];
        let holder = Service::start("the holder", &[&["holder"], &to_index[..]].concat())?;
        let controller = [&["controller", "--state", &state], &to_index[..]].concat();
        let controller = Service::start("the controller", &controller)?;
        let to_controller = ["--controller", controller.base().as_str()];
        let model_args = ["--model", model.path(), "--name", model.name(), "--scope-key", &key];
        let to_holder = ["--holder", holder.base().as_str()];
        let instance = ["instance", "--equal-hardware"];
        let args = [&instance[..], &to_index, &to_controller, &to_holder, &model_args].concat();
        let instance = Service::start("the instance", &args)?;
        let gateway = [&["gateway"], &to_controller[..], &model_args].concat();
        let with = Service::start("the gateway", &gateway)?;
        let without = Service::start("the gateway", &[&gateway[..], &["--config", &plain]].concat())?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let this = Self {
            runtime: runtime.map_err(BenchError::io("the runtime"))?,
            client: Client::new(ClientConfig { idle_timeout: PATIENCE, ..ClientConfig::default() }),
            question: Question {
                model: model.name().to_owned(),
                text: "What becomes of a replica?".to_owned(),
                max_tokens: model.tokens(),
                temperature: 0.8,
                seed: 4,
            },
            instance,
            with,
            without,
            _others: [index, holder, controller],
            _dir: dir,
        };
        this.runtime.block_on(this.active(this._others[2].base()))?;
        Ok(this)
    }

    async fn active(&self, controller: &BaseUri) -> Result<(), BenchError> {
        let waiting = async {
            while self.client.instances(controller).await?.instances.is_empty() {
                tokio::time::sleep(LOOK).await;
            }
            Ok(())
        };
        tokio::time::timeout(PATIENCE, waiting).await.map_err(|_| BenchError::Late("the instance"))?
    }

    fn contest(&self, at_once: usize, rounds: usize, say: impl Fn(usize)) -> Result<[Figure; 5], BenchError> {
        let name = |which: &str| format!("{at_once} at once, {which} sessions");
        let (mut with, mut without) = (Series::new(name("with")), Series::new(name("without")));
        let (mut tokens, mut texts) = (0, None);
        for round in 0..=rounds {
            say(round);
            let mut order = [(&self.with, &mut with), (&self.without, &mut without)];
            if round % 2 == 1 {
                order.reverse();
            }
            for (gateway, series) in order {
                let (heard, took) = sample_with(Some(self.instance.clock()), || {
                    Ok(self.runtime.block_on(self.answers(gateway.base(), at_once))?)
                })?;
                if std::ptr::eq(gateway, &raw const self.with) {
                    tokens = heard.iter().map(Heard::tokens).sum();
                }
                let mut said: Vec<String> = heard.iter().map(Heard::text).collect();
                said.sort();
                if *texts.get_or_insert_with(|| said.clone()) != said {
                    return Err(BenchError::Differ("an answer with checkpoints"));
                }
                if round > 0 {
                    series.push(Sample { wall_s: decoding(&heard), ..took });
                }
            }
        }
        let count = tokens as f64;
        let ratio = format!("{at_once} at once, with sessions / without");
        let served = |sample: &Sample| sample.server_cpu_s;
        let by_cpu = format!("{ratio}, CPU of the instance");
        Ok([
            with.rate(count, "tokens/s"),
            without.rate(count, "tokens/s"),
            with.speed_ratio(ratio, &[&without]).should_be(Goal::AtLeast(SHARE)),
            with.cpu_us(count, "the instance", served),
            with.cpu_ratio(by_cpu, &[&without], served, served),
        ])
    }

    /// Asks so many questions at once, each with a seed of its own.
    async fn answers(&self, gateway: &BaseUri, at_once: usize) -> Result<Vec<Heard>, FailoverError> {
        let mut asked = tokio::task::JoinSet::new();
        for seed in 0..at_once as u64 {
            let (client, gateway) = (self.client.clone(), gateway.clone());
            let question = Question { seed, ..self.question.clone() };
            asked.spawn(async move { listen(&client, &gateway, &question).await });
        }
        let mut heard = Vec::new();
        while let Some(ended) = asked.join_next().await {
            heard.push(ended.map_err(|error| FailoverError::Answer(error.to_string()))??);
        }
        Ok(heard)
    }
}

/// Seconds from the first event of all answers to the last.
fn decoding(heard: &[Heard]) -> f64 {
    let at = |event: &crate::commands::failover::Event| event.at;
    let first = heard.iter().filter_map(|heard| heard.events.first().map(at)).min();
    let last = heard.iter().filter_map(|heard| heard.events.last().map(at)).max();
    first.zip(last).map_or(f64::NAN, |(first, last)| last.duration_since(first).as_secs_f64())
}
