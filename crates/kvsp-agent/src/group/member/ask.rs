//! Asking the controller: what became of plans whose deadline has passed, and whether it still knows the maps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvsp_core::reshard::{Ask, Asked};
use kvsp_proto::message::{MapId, MapView, ReshardPlan};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::uri::BaseUri;

use super::load;
use crate::Agent;

/// How often the controller is asked for maps that nobody speaks of.
const SWEEP: Duration = Duration::from_secs(5);
/// How often it must not have known a map, one sweep after the other, before the map is forgotten: it may just have
/// come back without all it knew.
const STRIKES: u32 = 2;

/// Ask until the task is ended.
pub(crate) async fn keep(agent: Arc<Agent>) {
    let Some(controller) = agent.config.controller.clone() else { return };
    let members = &agent.group.members;
    let mut sweeps = tokio::time::interval(SWEEP);
    sweeps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut strikes = BTreeMap::new();
    loop {
        let due = members.machine(|machine| machine.poll_timeout());
        let wait = due.map_or(SWEEP, |due| due.since(agent.clock.now()));
        tokio::select! {
            _ = sweeps.tick() => sweep(&agent, &controller, &mut strikes).await,
            () = members.changed.notified() => {}
            () = tokio::time::sleep(wait) => {
                let now = agent.clock.now();
                for ask in members.machine(|machine| machine.due_to_ask(now)) {
                    if let Answer::View(view) = answer(&agent, &controller, &ask.map).await {
                        take_up(&agent, &ask, Some(&view)).await;
                    }
                }
            }
        }
    }
}

/// A plan of a version later than the one here is true only where the controller says, when asked, that this version
/// holds: what is here would be freed for it.
///
/// # Errors
/// `kvsp-reshard-conflict` where it does not; `kvsp-overloaded` where it does not answer.
pub(super) async fn confirm(agent: &Agent, plan: &ReshardPlan) -> Result<(), Problem> {
    let conflict = || {
        let detail =
            format!("an earlier version holds here, and the controller has not ended it: not {}", plan.from);
        Problem::new(ProblemType::ReshardConflict, detail)
    };
    let controller = agent.config.controller.as_ref().ok_or_else(conflict)?;
    match answer(agent, controller, &plan.map).await {
        Answer::View(view) if view.version == plan.from => Ok(()),
        Answer::View(_) | Answer::Unknown => Err(conflict()),
        Answer::None => {
            let detail = "an earlier version holds here, and the controller cannot be asked";
            Err(Problem::new(ProblemType::Overloaded, detail).retry_after(1))
        }
    }
}

async fn sweep(agent: &Arc<Agent>, controller: &BaseUri, strikes: &mut BTreeMap<MapId, u32>) {
    let asks = agent.group.members.machine(|machine| machine.sweep());
    strikes.retain(|map, _| asks.iter().any(|ask| ask.map == *map));
    for ask in asks {
        match answer(agent, controller, &ask.map).await {
            Answer::View(view) => {
                strikes.remove(&ask.map);
                take_up(agent, &ask, Some(&view)).await;
            }
            Answer::Unknown => {
                let count = strikes.entry(ask.map.clone()).or_default();
                *count += 1;
                // A leader finds out by itself, and lets its members know.
                if *count >= STRIKES && !agent.group.leads.leads(&ask.map) {
                    strikes.remove(&ask.map);
                    take_up(agent, &ask, None).await;
                }
            }
            // A controller that is away says nothing.
            Answer::None => return,
        }
    }
}

enum Answer {
    View(Box<MapView>),
    Unknown,
    None,
}

async fn answer(agent: &Agent, controller: &BaseUri, map: &MapId) -> Answer {
    match agent.client.map(controller, map).await {
        Ok(view) => Answer::View(Box::new(view)),
        Err(error) if error.problem_type() == Some(ProblemType::MapUnknown) => Answer::Unknown,
        Err(error) => {
            tracing::debug!(%map, %error, "the controller did not tell how a map stands");
            Answer::None
        }
    }
}

async fn take_up(agent: &Arc<Agent>, ask: &Ask, view: Option<&MapView>) {
    let members = &agent.group.members;
    let map = &ask.map;
    if let Some(view) = view {
        // A plan need not have told either.
        members.note(map, Some(view.scope_id), view.version, &view.shards);
    }
    let _turn = members.turn(map).await;
    match members.machine(|machine| machine.asked(ask, view)) {
        Asked::Wait => {}
        Asked::Commit(free) => {
            tracing::info!(%map, version = ask.to, "the controller has committed, as it said when asked");
            super::give_back(agent, map, free).await;
            agent.group.leads.committed(map, ask.to);
        }
        Asked::Abort(free) => {
            tracing::info!(%map, version = ask.to, "the controller has aborted, as it said when asked");
            load::stop_ended(agent, map, ask.to, ask.attempt).await;
            super::give_back(agent, map, free).await;
            agent.group.leads.aborted(map, ask.to);
        }
        Asked::Forget => {
            tracing::info!(%map, "the map is over, or goes on without this instance");
            members.with(|state| state.known.remove(map));
            load::stop(agent, map).await;
            super::give_back(agent, map, (0..u64::MAX).into()).await;
        }
    }
}
