//! `kvsp drain`, `kvsp sleep` and `kvsp wake`.

use indicatif::ProgressBar;
use kvsp_client::{Client, ClientError};
use kvsp_proto::message::{InstanceView, StateOrder};
use kvsp_proto::problem::ProblemType;
use kvsp_proto::record::InstanceState;
use kvsp_proto::uri::BaseUri;
use serde_json::json;

use super::Answer;
use super::error::CommandError;
use super::peers::PeerArgs;
use super::wait::{Patience, WaitArgs};
use crate::progress;

/// Of which instance, at which controller.
#[derive(Debug, clap::Args)]
struct Target {
    /// The instance's base URI.
    #[arg(value_name = "INSTANCE")]
    instance: BaseUri,
    /// The Placement Controller.
    #[arg(long, value_name = "URI", env = "KVSP_CONTROLLER")]
    controller: BaseUri,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    peers: PeerArgs,
}

/// Arguments of `kvsp drain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kvsp drain http://127.0.0.1:7704/kvsp/ --controller http://127.0.0.1:7703/kvsp/
  kvsp drain --migrate --wait http://127.0.0.1:7704/kvsp/

A draining instance takes nothing new, finishes what it has and falls asleep; what it holds stays served. With
--migrate its sessions and its shards of split contexts go on at other instances instead, without a token lost;
what nobody else can take is finished where it is. Exit status 5 where the instance is unknown.")]
pub(crate) struct DrainArgs {
    /// Hand its sessions over to other instances instead of waiting for their ends.
    #[arg(long)]
    migrate: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `kvsp sleep`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kvsp sleep http://127.0.0.1:7704/kvsp/ --controller http://127.0.0.1:7703/kvsp/
  kvsp sleep --wait --json http://127.0.0.1:7704/kvsp/

An instance without work falls asleep at once, another one drains first. Exit status 5 where it is unknown.")]
pub(crate) struct SleepArgs {
    #[command(flatten)]
    target: Target,
}

/// Arguments of `kvsp wake`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kvsp wake http://127.0.0.1:7704/kvsp/ --controller http://127.0.0.1:7703/kvsp/
  kvsp wake --wait --json http://127.0.0.1:7704/kvsp/

The instance takes requests and prefetches again. Exit status 5 where it is unknown.")]
pub(crate) struct WakeArgs {
    #[command(flatten)]
    target: Target,
}

impl DrainArgs {
    pub(super) async fn answer(self) -> Result<Answer, CommandError> {
        let order = StateOrder { state: InstanceState::Draining, migrate: self.migrate };
        self.target.order(order, InstanceState::Sleeping).await
    }
}

impl SleepArgs {
    pub(super) async fn answer(self) -> Result<Answer, CommandError> {
        let order = StateOrder { state: InstanceState::Sleeping, migrate: false };
        self.target.order(order, InstanceState::Sleeping).await
    }
}

impl WakeArgs {
    pub(super) async fn answer(self) -> Result<Answer, CommandError> {
        let order = StateOrder { state: InstanceState::Active, migrate: false };
        self.target.order(order, InstanceState::Active).await
    }
}

impl Target {
    /// Gives the order and, where that is wanted, waits until the instance is in the state that it leads to.
    async fn order(self, order: StateOrder, goal: InstanceState) -> Result<Answer, CommandError> {
        let client = self.peers.client([&self.controller])?;
        let ordered = client.order_instance_state(&self.controller, &self.instance, order).await;
        let mut state = ordered.map_err(|error| self.failed(error))?.state;
        if let Some(patience) = self.wait.patience() {
            state = self.reached(&client, goal, patience).await?;
        }
        let text = format!("{}  {}", self.instance, state.as_str());
        Ok(Answer::found(json!({"instance": self.instance, "state": state}), text))
    }

    async fn reached(
        &self,
        client: &Client,
        goal: InstanceState,
        patience: Patience,
    ) -> Result<InstanceState, CommandError> {
        let bar = Left::new(goal);
        loop {
            let view = client.instance(&self.controller, &self.instance).await;
            let view = view.map_err(|error| self.failed(error))?;
            let state = view.status.state;
            if state == goal {
                bar.finish();
                return Ok(state);
            }
            let instance = &self.instance;
            if state == InstanceState::Failed {
                return Err(CommandError::Outcome(format!("{instance} has failed")));
            }
            let is_wanted = |wanted| (wanted == InstanceState::Active) == (goal == InstanceState::Active);
            if !view.wanted.is_none_or(is_wanted) {
                let told = format!("{instance} has been ordered otherwise meanwhile");
                return Err(CommandError::Outcome(told));
            }
            bar.show(&view);
            if !patience.pause().await {
                let told = format!("{instance} is still {} after the time to wait", state.as_str());
                return Err(CommandError::Outcome(told));
            }
        }
    }

    fn failed(&self, error: ClientError) -> CommandError {
        let Self { instance, controller, .. } = self;
        match error.problem_type() {
            Some(ProblemType::InstanceUnknown) => {
                CommandError::Miss(format!("{controller} knows no instance {instance}"))
            }
            _ => CommandError::peer(controller)(error),
        }
    }
}

/// What is left of an instance's work, on a terminal.
struct Left {
    bar: ProgressBar,
}

impl Left {
    fn new(goal: InstanceState) -> Self {
        let label = if goal == InstanceState::Active { "waking" } else { "draining" };
        Self { bar: progress::steps(label) }
    }

    /// The most that was ever left is the length of the bar.
    fn show(&self, view: &InstanceView) {
        let left = work(view);
        let most = self.bar.length().unwrap_or(0).max(left);
        self.bar.set_length(most);
        self.bar.set_position(most - left);
        self.bar.set_message(told(view));
        self.bar.tick();
    }

    fn finish(self) {
        self.bar.finish_and_clear();
    }
}

/// Sessions, shards, and requests without a session.
fn work(view: &InstanceView) -> u64 {
    let sessions = view.sessions.unwrap_or(0);
    let requests = view.status.running.saturating_add(view.status.queued);
    sessions.max(requests).saturating_add(view.shards.unwrap_or(0))
}

fn told(view: &InstanceView) -> String {
    let requests = view.status.running.saturating_add(view.status.queued);
    format!(
        "{requests} requests, {} sessions, {} shards left",
        view.sessions.unwrap_or(0),
        view.shards.unwrap_or(0)
    )
}
