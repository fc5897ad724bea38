//! Contexts that this instance leads: it has the session, computes each new token, and merges what the members
//! answer (profile section 8, extension `group-attention`).
//!
//! K and V of new positions stay here until their owner has them: the *staging*. While a change of the map is open
//! they stay here from the length on that was told to the controller, so that neither a commit nor an abort loses
//! any.

mod admit;
mod flush;
mod sync;
mod view;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use kvsp_core::reshard::Ranges;
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::metrics::Metrics;
use kvsp_net::principal::Role;
use kvsp_net::{Caller, Failure, reply};
use kvsp_proto::json;
use kvsp_proto::message::{LengthAnswer, LengthRequest, MapId, Shard};
use kvsp_proto::problem::{Problem, ProblemType};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::Agent;

pub(crate) use admit::{admit, map_header};
pub(super) use flush::Flush;
pub(super) use view::View;

/// Most contexts led at once.
const MAX_LED: usize = 1024;

/// A change of the map whose decision is still to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// The version it leads to.
    pub(super) to: u64,
    /// Its shards.
    pub(super) shards: Vec<Shard>,
    /// Positions from here on stay in the staging until the decision.
    pub(super) length: u64,
}

/// What the reshard routes and the generation tell each other.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// The version that the generation computes at.
    pub(super) version: u64,
    /// Whether the context was put together at that version: all positions before the last were held, by owners or
    /// by the staging.
    pub(super) is_ready: bool,
    /// Positions before this one are held by their owners at that version.
    pub(super) stored: u64,
    /// Positions kept here for the leader's own sake.
    pub(super) staged: Ranges,
    /// The change under way.
    pub(super) plan: Option<Plan>,
    /// The highest version that is known to be committed.
    pub(super) told: u64,
    /// Shards of a version told, where they are known.
    pub(super) told_shards: Option<(u64, Vec<Shard>)>,
}

/// One context led here.
#[derive(Debug)]
pub(super) struct Lead {
    pub(super) map: MapId,
    pub(super) epoch: u64,
    /// Tells this one from one that takes its place.
    serial: u64,
    standing: Mutex<Standing>,
    changed: watch::Sender<()>,
    /// Another leader takes over, or the instance stops.
    pub(super) cancel: CancellationToken,
    /// It has given everything back.
    pub(super) ended: CancellationToken,
}

impl Lead {
    pub(super) fn with<R>(&self, run: impl FnOnce(&mut Standing) -> R) -> R {
        run(&mut self.standing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tell those who wait for a change.
    pub(super) fn notify(&self) {
        self.changed.send_replace(());
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

/// Why a context is not led here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LeadError {
    /// A generation of a higher epoch leads it, or one without a session, which nothing may displace.
    #[error("the context is led already")]
    Taken,
    /// As many are led as may.
    #[error("the instance leads as many contexts as it may")]
    Full,
}

/// The contexts led here, bounded in number.
#[derive(Debug)]
pub(crate) struct Leads {
    table: Mutex<BTreeMap<MapId, Arc<Lead>>>,
    serial: AtomicU64,
    /// What decoding lost by switches of versions.
    pub(super) pauses: Histogram,
    /// Steps that were repeated.
    pub(super) repeated: Counter,
    /// Positions computed anew because no copy was left.
    pub(super) rebuilt: Counter,
    led: Gauge,
}

impl Leads {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            table: Mutex::default(),
            serial: AtomicU64::new(0),
            pauses: metrics.seconds("reshard_pause_seconds", "Decoding stood still while a map changed"),
            repeated: metrics.counter("group_steps_repeated", "Steps of split contexts that were repeated"),
            led: metrics.gauge("group_contexts_led", "Split contexts that are led here"),
            rebuilt: metrics
                .counter("group_tokens_rebuilt", "Tokens computed again because no copy was left"),
        }
    }

    fn with<R>(&self, run: impl FnOnce(&mut BTreeMap<MapId, Arc<Lead>>) -> R) -> R {
        run(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn get(&self, map: &MapId) -> Option<Arc<Lead>> {
        self.with(|table| table.get(map).cloned())
    }

    /// Begin to lead. A session's generation takes the place of an earlier one of no higher epoch, which is
    /// given too: it is about to end.
    pub(super) fn begin(
        &self,
        map: MapId,
        epoch: u64,
        of_session: bool,
    ) -> Result<(Arc<Lead>, Option<Arc<Lead>>), LeadError> {
        self.with(|table| {
            let old = table.get(&map).cloned();
            if let Some(old) = &old {
                if !of_session || old.epoch > epoch {
                    return Err(LeadError::Taken);
                }
                old.cancel.cancel();
            } else if table.len() >= MAX_LED {
                return Err(LeadError::Full);
            }
            let lead = Arc::new(Lead {
                map: map.clone(),
                epoch,
                serial: self.serial.fetch_add(1, Ordering::Relaxed),
                standing: Mutex::default(),
                changed: watch::Sender::new(()),
                cancel: CancellationToken::new(),
                ended: CancellationToken::new(),
            });
            table.insert(map, lead.clone());
            self.led.set(table.len() as i64);
            Ok((lead, old))
        })
    }

    /// Lead no more; false where another generation has taken the place.
    pub(super) fn end(&self, lead: &Lead) -> bool {
        self.with(|table| {
            let is_this = table.get(&lead.map).is_some_and(|known| known.serial == lead.serial);
            if is_this {
                table.remove(&lead.map);
                self.led.set(table.len() as i64);
            }
            is_this
        })
    }

    /// Whether the context is led here.
    pub(crate) fn leads(&self, map: &MapId) -> bool {
        self.with(|table| table.contains_key(map))
    }

    /// Contexts led here.
    pub(crate) fn count(&self) -> usize {
        self.with(|table| table.len())
    }

    /// A version was committed. The generation goes over to it before its next token.
    pub(crate) fn committed(&self, map: &MapId, to: u64) {
        let Some(lead) = self.get(map) else { return };
        lead.with(|standing| {
            if to > standing.told {
                standing.told = to;
                let plan = standing.plan.take_if(|plan| plan.to == to);
                standing.told_shards = plan.map(|plan| (to, plan.shards));
            }
        });
        lead.notify();
    }

    /// A version will never hold; what was kept for it goes with the next flush.
    pub(crate) fn aborted(&self, map: &MapId, to: u64) {
        let Some(lead) = self.get(map) else { return };
        lead.with(|standing| standing.plan.take_if(|plan| plan.to == to));
        lead.notify();
    }

    /// Fix the length of a context whose map is at `version` and begins to change to `to`: K and V of the positions
    /// before are with their owners, those of later ones stay here too until the decision. `None` where the context
    /// is not led here, or was never put together yet.
    ///
    /// It is answered at once, whatever else the generation waits for: that may be this very change.
    ///
    /// # Errors
    /// `kvsp-reshard-conflict` where a later version holds.
    pub(super) fn length(
        &self,
        map: &MapId,
        version: u64,
        to: u64,
        shards: Vec<Shard>,
    ) -> Option<Result<u64, Problem>> {
        let lead = self.get(map)?;
        let answer = lead.with(|standing| {
            if !standing.is_ready {
                return None;
            }
            if version < standing.told {
                let detail = format!("version {} holds", standing.told);
                return Some(Err(Problem::new(ProblemType::ReshardConflict, detail)));
            }
            standing.told = version;
            Some(Ok(standing.open_plan(to, shards)))
        });
        lead.notify();
        answer
    }
}

impl Standing {
    /// Note that a change is open; the length from which on the staging is kept. One that was aborted may be
    /// followed by another to the same version.
    fn open_plan(&mut self, to: u64, shards: Vec<Shard>) -> u64 {
        if let Some(plan) = self.plan.as_ref().filter(|plan| plan.to == to && plan.shards == shards) {
            return plan.length;
        }
        // Owners of a version that the generation has not gone over to yet have what was stored before that change.
        let is_here = self.told == self.version;
        let staged = self.staged.start().filter(|_| !is_here);
        let length = staged.map_or(self.stored, |staged| staged.min(self.stored));
        self.plan = Some(Plan { to, shards, length });
        length
    }

    /// Note that the owners have what lies before `end`; what the staging need not keep any longer.
    pub(super) fn stored_to(&mut self, end: u64) -> Ranges {
        self.stored = self.stored.max(end);
        let keep_from = self.plan.as_ref().map_or(self.stored, |plan| plan.length.min(self.stored));
        let gone = self.staged.clip(0..keep_from);
        self.staged = self.staged.difference(&gone);
        gone
    }
}

/// `POST maps/{map}/{version}/length` (extension `group-attention`).
pub(super) async fn length(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    PathOf((map, version)): PathOf<(MapId, u64)>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Controller])?;
    let body = body.json(&agent.config.limits).await?;
    let LengthRequest { to, shards } = json::from_slice(&body)?;
    if version.checked_add(1) != Some(to) {
        let detail = "member to is not the path's version + 1";
        return Err(Failure::new(ProblemType::InvalidShardMap, detail));
    }
    kvsp_proto::message::check_shards(&shards)
        .map_err(|error| error.into_problem(ProblemType::InvalidShardMap))?;
    match agent.group.leads.length(&map, version, to, shards) {
        Some(answer) => Ok(reply::json(StatusCode::OK, &LengthAnswer { length: answer? })),
        None => Err(Failure::new(ProblemType::MapUnknown, "the context is not led here")),
    }
}

#[cfg(test)]
mod tests;
