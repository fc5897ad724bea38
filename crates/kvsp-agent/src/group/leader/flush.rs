//! Staged positions on their way to their owners, beside decoding.

use std::sync::Arc;

use kvsp_core::reshard::Ranges;
use kvsp_proto::message::{MapId, TokenRange};
use kvsp_proto::uri::BaseUri;
use tokio::task::JoinHandle;

use super::super::cover::by_owner;
use super::super::generation::Generation;
use super::super::trouble::Trouble;
use super::Plan;
use crate::Agent;

/// Positions after which the staging goes to its owners.
const FLUSH_TOKENS: u64 = 16;

/// A flush under way; dropping it gives it up.
pub(in super::super) struct Flush {
    task: JoinHandle<Result<Done, Trouble>>,
}

/// What a flush came to.
struct Done {
    /// The owners have what lies before.
    end: u64,
    /// A change that was open when the flush began, and is so no more.
    undone: Option<Plan>,
}

impl Drop for Flush {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Where positions are to be stored.
pub(super) struct Target {
    pub(super) map: MapId,
    pub(super) version: u64,
    pub(super) epoch: u64,
    pub(super) member: BaseUri,
    pub(super) range: TokenRange,
}

/// Store K and V of positions that are held here at a member.
pub(super) async fn store(agent: &Agent, target: &Target) -> Result<(), Trouble> {
    let Target { map, version, epoch, member, range } = target;
    let container = agent.engine.context_read(map, (*range).into()).await?;
    let stored = agent.client.put_tokens(member, map, *version, *epoch, (*range, container)).await;
    stored.map_err(|error| Trouble::of_member(member, error))
}

impl Generation {
    /// Take the result of a flush that has ended, and begin the next one where it is due. Flushes that fail are
    /// tried again with the next; where that is for good, a step meets the same trouble.
    pub(in super::super) async fn look_after_flush(&mut self) {
        if let Some(flush) = &mut self.flush {
            if !flush.task.is_finished() {
                return;
            }
            let result = (&mut flush.task).await;
            self.flush = None;
            match result {
                Ok(Ok(done)) => self.flushed(&done).await,
                Ok(Err(trouble)) => tracing::debug!(map = %self.lead.map, %trouble, "a flush failed"),
                Err(error) => tracing::debug!(map = %self.lead.map, %error, "a flush ended"),
            }
        }
        self.begin_flush();
    }

    async fn flushed(&mut self, done: &Done) {
        let gone = self.lead.with(|standing| {
            let is_same = |plan: &mut Plan| done.undone.as_ref().is_some_and(|undone| *undone == *plan);
            standing.plan.take_if(is_same);
            standing.stored_to(done.end)
        });
        if !gone.is_empty() {
            self.agent.engine.context_unstage(&self.lead.map, Some(gone)).await;
        }
    }

    fn begin_flush(&mut self) {
        let Some(view) = &self.view else { return };
        let (stored, plan) = self.lead.with(|standing| (standing.stored, standing.plan.clone()));
        let end = self.length().saturating_sub(1);
        if end.saturating_sub(stored) < FLUSH_TOKENS {
            return;
        }
        let target = |version: u64, (member, range): (BaseUri, TokenRange)| Target {
            map: self.lead.map.clone(),
            version,
            epoch: self.lead.epoch,
            member,
            range,
        };
        let due = Ranges::one(stored..end);
        let is_elsewhere = |(member, _): &(BaseUri, TokenRange)| *member != self.agent.base;
        let now = by_owner(&view.shards, &due).into_iter().filter(is_elsewhere);
        let now = now.map(|part| target(view.version, part)).collect();
        // Those that own it now have it at the next version, too.
        let is_new = |(member, range): &(BaseUri, TokenRange)| {
            !by_owner(&view.shards, &Ranges::one((*range).into())).iter().all(|(owner, _)| owner == member)
        };
        let next = plan.iter().flat_map(|plan| {
            let parts = by_owner(&plan.shards, &due).into_iter().filter(is_elsewhere).filter(is_new);
            parts.map(|part| target(plan.to, part)).collect::<Vec<_>>()
        });
        let next = next.collect();
        let task = flush(self.agent.clone(), self.lead.map.clone(), now, next, (end, plan));
        self.flush = Some(Flush { task: self.agent.tasks.spawn(task) });
    }
}

/// Store at the owners that hold now, then, as far as it goes, at those to come.
async fn flush(
    agent: Arc<Agent>,
    map: MapId,
    now: Vec<Target>,
    next: Vec<Target>,
    (end, plan): (u64, Option<Plan>),
) -> Result<Done, Trouble> {
    for target in &now {
        store(&agent, target).await?;
    }
    for target in &next {
        if let Err(trouble) = store(&agent, target).await {
            tracing::debug!(%map, %trouble, "an owner to be does not take positions yet");
        }
    }
    let undone = match plan {
        Some(plan) if is_undone(&agent, &map, &plan).await => Some(plan),
        _ => None,
    };
    Ok(Done { end, undone })
}

/// Whether the controller knows nothing of a change: a leader that is no member is told of no decision.
async fn is_undone(agent: &Agent, map: &MapId, plan: &Plan) -> bool {
    let Some(controller) = &agent.config.controller else { return false };
    let view = agent.client.with_timeout(super::sync::LOOK_TIMEOUT).map(controller, map).await;
    view.is_ok_and(|view| view.version < plan.to && view.pending.is_none_or(|p| p.shards != plan.shards))
}
