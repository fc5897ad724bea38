//! Loading what a plan asks for: one task a plan, however often it is told, and its outcome for all who wait.

use std::sync::Arc;
use std::time::Duration;

use kvsp_core::reshard::Load;
use kvsp_proto::message::{MapId, ReshardAnswer, ReshardPlan};
use kvsp_proto::problem::{Problem, ProblemType};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::super::transfer;
use crate::Agent;

type Outcome = Option<Result<ReshardAnswer, Problem>>;

/// A plan that is being loaded.
pub(super) struct Loading {
    to: u64,
    attempt: Option<u64>,
    cancel: CancellationToken,
    /// Nothing is written for it any more.
    stopped: CancellationToken,
    outcome: watch::Sender<Outcome>,
}

impl Loading {
    /// What becomes of it.
    pub(super) async fn outcome(&self) -> Result<ReshardAnswer, Problem> {
        let mut outcome = self.outcome.subscribe();
        let known = outcome.wait_for(Option::is_some).await.ok().and_then(|known| known.clone());
        known.unwrap_or_else(|| Err(Problem::blank(503, "the instance is stopping")))
    }

    async fn stop(&self) {
        self.cancel.cancel();
        self.stopped.cancelled().await;
    }
}

/// Reserve memory for both versions and begin to load. To be called in the map's turn.
///
/// # Errors
/// `kvsp-storage-full`; then nothing is reserved for it.
pub(super) async fn begin(
    agent: &Arc<Agent>,
    plan: &ReshardPlan,
    load: Load,
) -> Result<Arc<Loading>, Problem> {
    let members = &agent.group.members;
    let map = &load.map;
    stop(agent, map).await;
    super::give_back(agent, map, load.discard.clone()).await;
    if let Err(error) = agent.engine.context_reserve(map, load.reserve.clone()).await {
        let free = members.machine(|machine| machine.load_failed(map, load.to, load.attempt));
        super::give_back(agent, map, free).await;
        return Err(super::problem(error));
    }
    let loading = Arc::new(Loading {
        to: load.to,
        attempt: load.attempt,
        cancel: CancellationToken::new(),
        stopped: CancellationToken::new(),
        outcome: watch::Sender::new(None),
    });
    members.with(|state| state.loading.insert(map.clone(), loading.clone()));
    let deadline = Duration::from_millis(plan.deadline_ms);
    let (map, from) = (map.clone(), plan.from);
    let order = transfer::Order { map, from, to: load.to, attempt: load.attempt };
    agent.tasks.spawn(run(agent.clone(), loading.clone(), load, order, deadline));
    Ok(loading)
}

async fn run(
    agent: Arc<Agent>,
    loading: Arc<Loading>,
    load: Load,
    order: transfer::Order,
    deadline: Duration,
) {
    let loaded = {
        // Also where the loading panics, whoever waits for its end must not wait forever.
        let _stopped = loading.stopped.clone().drop_guard();
        tokio::select! {
            loaded = transfer::load(&agent, &order, &load.fetch) => loaded,
            () = tokio::time::sleep(deadline) => Err(Problem::blank(504, "the deadline passed while loading")),
            () = loading.cancel.cancelled() => {
                Err(Problem::new(ProblemType::ReshardConflict, "the plan was ended while it was loaded"))
            }
        }
    };
    let outcome = finish(&agent, &loading, &load, loaded).await;
    if let Err(problem) = &outcome {
        tracing::warn!(map = %load.map, to = load.to, %problem, "a plan was not prepared");
    }
    loading.outcome.send_replace(Some(outcome));
}

async fn finish(
    agent: &Arc<Agent>,
    loading: &Arc<Loading>,
    load: &Load,
    loaded: Result<(), Problem>,
) -> Result<ReshardAnswer, Problem> {
    let members = &agent.group.members;
    let _turn = members.turn(&load.map).await;
    members.with(|state| {
        if state.loading.get(&load.map).is_some_and(|known| Arc::ptr_eq(known, loading)) {
            state.loading.remove(&load.map);
        }
    });
    match loaded {
        Ok(()) => {
            let answer = members.machine(|machine| machine.loaded(&load.map, load.to, load.attempt))?;
            members.counters.retained_tokens.inc_by(load.retained);
            Ok(answer)
        }
        // Who cancelled it has seen to its memory.
        Err(problem) if loading.cancel.is_cancelled() => Err(problem),
        Err(problem) => {
            let free = members.machine(|machine| machine.load_failed(&load.map, load.to, load.attempt));
            super::give_back(agent, &load.map, free).await;
            Err(problem)
        }
    }
}

/// Stop whatever is being loaded of a map; then nothing is written for it any more.
pub(super) async fn stop(agent: &Agent, map: &MapId) {
    if let Some(loading) = agent.group.members.with(|state| state.loading.remove(map)) {
        loading.stop().await;
    }
}

/// As [`stop`], where the abort of this version ends the plan that is being loaded.
pub(super) async fn stop_ended(agent: &Agent, map: &MapId, version: u64, attempt: Option<u64>) {
    let ended = agent.group.members.with(|state| {
        let ends = |loading: &Arc<Loading>| {
            let number = loading.attempt;
            loading.to == version && (attempt.is_none() || number.is_none() || number <= attempt)
        };
        if state.loading.get(map).is_some_and(ends) { state.loading.remove(map) } else { None }
    });
    if let Some(loading) = ended {
        loading.stop().await;
    }
}
