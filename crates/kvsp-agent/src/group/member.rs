//! This instance as a member of maps: the driver around [`kvsp_core::reshard::Member`], which decides. Here memory
//! is reserved and given back, and octets are fetched.
//!
//! What changes the memory of a map happens in turns ([`Members::turn`]), so that a decision and what follows from
//! it are one step for everybody else. Loading is not part of a turn: an abort must not wait for it.

mod ask;
mod counters;
mod load;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use kvsp_core::reshard::{Member, MemberConfig, Planned, Ranges};
use kvsp_engine::EngineError;
use kvsp_net::metrics::Metrics;
use kvsp_proto::id::{CompatId, ScopeId};
use kvsp_proto::message::{HeldView, MapId, OpenContext, ReshardAnswer, ReshardPlan, Shard, TokenRange};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::uri::BaseUri;
use tokio::sync::{Notify, OwnedMutexGuard, Semaphore};

use super::transfer;
use crate::Agent;
use crate::engine::{ContextError, VerifiedSections};

pub(crate) use ask::keep;
pub(super) use counters::Counters;
use load::Loading;

/// Containers that are read, and those that are stored, at once.
const MAX_TRANSFERS: usize = 8;
/// Pieces that are fetched at once, for all plans.
const MAX_FETCHES: usize = 64;

/// What is known of a map beside what the machine decides by.
#[derive(Debug, Default)]
struct Known {
    scope: Option<ScopeId>,
    /// All shards, by version; of the last two.
    shards: BTreeMap<u64, Vec<Shard>>,
}

/// The machine, and what goes with its maps.
struct State {
    machine: Member,
    known: BTreeMap<MapId, Known>,
    loading: BTreeMap<MapId, Arc<Loading>>,
}

/// The maps of which this instance is a member.
pub(crate) struct Members {
    state: Mutex<State>,
    turns: Mutex<BTreeMap<MapId, Weak<tokio::sync::Mutex<()>>>>,
    /// A plan's deadline may have become the next one.
    changed: Notify,
    pub(super) counters: Counters,
    pub(super) reads: Arc<Semaphore>,
    pub(super) stores: Semaphore,
    pub(super) fetches: Semaphore,
}

impl Members {
    pub(super) fn new(base: BaseUri, metrics: &Metrics) -> Self {
        let machine = Member::new(MemberConfig::default(), base);
        Self {
            state: Mutex::new(State { machine, known: BTreeMap::new(), loading: BTreeMap::new() }),
            turns: Mutex::default(),
            changed: Notify::new(),
            counters: Counters::new(metrics),
            reads: Arc::new(Semaphore::new(MAX_TRANSFERS)),
            stores: Semaphore::new(MAX_TRANSFERS),
            fetches: Semaphore::new(MAX_FETCHES),
        }
    }

    fn with<R>(&self, run: impl FnOnce(&mut State) -> R) -> R {
        run(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn machine<R>(&self, run: impl FnOnce(&mut Member) -> R) -> R {
        self.with(|state| run(&mut state.machine))
    }

    /// Change the memory of a map as long as the guard lives.
    async fn turn(&self, map: &MapId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            match turns.get(map).and_then(Weak::upgrade) {
                Some(lock) => lock,
                None => {
                    turns.retain(|_, lock| lock.strong_count() > 0);
                    let lock = Arc::new(tokio::sync::Mutex::new(()));
                    turns.insert(map.clone(), Arc::downgrade(&lock));
                    lock
                }
            }
        };
        lock.lock_owned().await
    }

    /// Whether nothing is being loaded and no plan awaits its decision.
    pub(super) fn is_idle(&self) -> bool {
        self.with(|state| state.loading.is_empty() && state.machine.poll_timeout().is_none())
    }

    /// The scope of a map that is known.
    ///
    /// # Errors
    /// `kvsp-map-unknown`.
    pub(super) fn scope(&self, map: &MapId) -> Result<Option<ScopeId>, Problem> {
        self.with(|state| {
            state.machine.answer(map)?;
            Ok(state.known.get(map).and_then(|known| known.scope))
        })
    }

    /// Whether K and V may be read at a version.
    ///
    /// # Errors
    /// As [`Member::may_serve`].
    pub(super) fn may_serve(&self, map: &MapId, version: u64) -> Result<(), Problem> {
        Ok(self.machine(|machine| machine.may_serve(map, version))?)
    }

    /// Whether a leader of this epoch may ask for attention at a version.
    ///
    /// # Errors
    /// As [`Member::may_compute`].
    pub(super) fn may_attend(&self, map: &MapId, version: u64, epoch: u64) -> Result<(), Problem> {
        Ok(self.machine(|machine| machine.may_compute(map, version, epoch))?)
    }

    fn note(&self, map: &MapId, scope: Option<ScopeId>, version: u64, shards: &[Shard]) {
        self.with(|state| {
            // What the machine has forgotten need not be known here either.
            let machine = &state.machine;
            state.known.retain(|map, _| machine.owned(map).is_ok());
            if machine.owned(map).is_err() {
                return;
            }
            let known = state.known.entry(map.clone()).or_default();
            known.scope = scope.or(known.scope);
            if !shards.is_empty() {
                known.shards.insert(version, shards.to_vec());
            }
            while known.shards.len() > 2 {
                known.shards.pop_first();
            }
        });
    }
}

/// All shards of a version that holds here.
///
/// # Errors
/// `kvsp-map-unknown`; `kvsp-reshard-conflict` where it does not hold, or its shards were never told.
pub(super) fn shards(agent: &Agent, map: &MapId, version: u64) -> Result<Vec<Shard>, Problem> {
    agent.group.members.with(|state| {
        state.machine.answer(map)?;
        let shards = state.known.get(map).and_then(|known| known.shards.get(&version)).cloned();
        shards.ok_or_else(|| {
            Problem::new(ProblemType::ReshardConflict, "the shards of that version are not known here")
        })
    })
}

/// Whether a leader of this epoch may have K and V of these positions computed here.
///
/// # Errors
/// As [`Member::may_store`].
pub(super) fn may_compute(
    agent: &Agent,
    map: &MapId,
    version: u64,
    epoch: u64,
    range: TokenRange,
) -> Result<(), Problem> {
    let members = &agent.group.members;
    Ok(members.machine(|machine| machine.may_store(map, version, &range.into(), epoch))?)
}

/// What is held of a map.
///
/// # Errors
/// `kvsp-map-unknown`.
pub(super) async fn view(agent: &Agent, map: &MapId) -> Result<HeldView, Problem> {
    let held = agent.engine.context_held(map).await;
    Ok(agent.group.members.machine(|machine| machine.view(map, &held))?)
}

fn require_compat(agent: &Agent, compat: CompatId) -> Result<(), Problem> {
    if compat == agent.descriptor.compat_id() {
        return Ok(());
    }
    let detail = "the instance runs another model, or the same one otherwise";
    Err(Problem::new(ProblemType::CompatMismatch, detail))
}

/// A context does not change its scope.
fn require_scope(agent: &Agent, plan: &ReshardPlan) -> Result<(), Problem> {
    let known = agent.group.members.with(|state| state.known.get(&plan.map).and_then(|known| known.scope));
    match (known, plan.scope_id) {
        (Some(known), Some(said)) if known != said => {
            let detail = "member scope_id is not the scope of the map";
            Err(Problem::new(ProblemType::InvalidShardMap, detail))
        }
        _ => Ok(()),
    }
}

/// Memory is the engine's, so without it none can be promised.
fn require_engine(agent: &Agent) -> Result<(), Problem> {
    if agent.engine.is_up() {
        return Ok(());
    }
    Err(Problem::new(ProblemType::Overloaded, "the engine is being built").retry_after(1))
}

/// A leader begins to use a context here: what `PUT maps/{map}` does for a caller that may.
///
/// # Errors
/// As [`Member::open`]; `kvsp-compat-mismatch`, `kvsp-storage-full`; `kvsp-overloaded` while the engine is being built.
pub(super) async fn open(agent: &Arc<Agent>, map: &MapId, open: &OpenContext) -> Result<HeldView, Problem> {
    require_compat(agent, open.compat_id)?;
    require_engine(agent)?;
    let members = &agent.group.members;
    let _turn = members.turn(map).await;
    let version = |machine: &mut Member| machine.answer(map).ok().map(|answer| answer.version);
    let (before, opened, now) = members.machine(|machine| {
        let before = version(machine);
        machine.open(map, open).map(|opened| (before, opened, version(machine)))
    })?;
    let is_new = before.is_none();
    // Where versions were missed, so was the end of the plan.
    if before != now {
        load::stop(agent, map).await;
    }
    give_back(agent, map, opened.discard).await;
    if let Err(error) = agent.engine.context_reserve(map, opened.reserve).await {
        if is_new {
            members.machine(|machine| machine.forget(map));
        }
        return Err(problem(error));
    }
    agent.engine.context_forget(map, opened.forget_from).await;
    members.note(map, Some(open.scope_id), open.version, &open.shards);
    view(agent, map).await
}

/// Prepare for the next version; the answer is there once all is loaded.
///
/// # Errors
/// As [`Member::plan`]; `kvsp-source-forbidden`, `kvsp-compat-mismatch`, `kvsp-instance-not-active`,
/// `kvsp-storage-full`; what became of a source that did not give what it was asked for.
pub(super) async fn plan(agent: &Arc<Agent>, plan: ReshardPlan) -> Result<ReshardAnswer, Problem> {
    let allowed = |source| agent.client.config().policy.allow(source).is_ok();
    if let Some(fetch) = plan.fetch.iter().find(|fetch| !allowed(&fetch.from)) {
        let detail = format!("policy forbids {}", fetch.from);
        return Err(Problem::new(ProblemType::SourceForbidden, detail));
    }
    plan.compat_id.map_or(Ok(()), |compat| require_compat(agent, compat))?;
    require_engine(agent)?;
    let members = &agent.group.members;
    require_scope(agent, &plan)?;
    if members.machine(|machine| machine.is_ahead(&plan)) {
        ask::confirm(agent, &plan).await?;
    }
    let loading = {
        let _turn = members.turn(&plan.map).await;
        let now = agent.clock.now();
        // An instance that is about to go takes nothing more, but goes on with what it has.
        let takes_more = !(plan.fetch.is_empty() && plan.rebuild.is_empty());
        let planned = members.machine(|machine| {
            if takes_more && machine.owned(&plan.map).is_err() {
                agent.require_active()?;
            }
            Ok::<_, Problem>(machine.plan(&plan, now)?)
        })?;
        match planned {
            Planned::Ready(answer) => return Ok(answer),
            Planned::Loading => members.with(|state| state.loading.get(&plan.map).cloned()),
            Planned::Load(load) => {
                members.note(&plan.map, plan.scope_id, plan.to, &plan.shards);
                members.changed.notify_one();
                Some(load::begin(agent, &plan, *load).await?)
            }
        }
    };
    match loading {
        Some(loading) => loading.outcome().await,
        // It ended between the two looks at it: the next one finds how.
        None => Err(Problem::new(ProblemType::Overloaded, "the plan has just ended").retry_after(1)),
    }
}

/// A version holds from now on; what is not ours in it is given back.
///
/// # Errors
/// As [`Member::commit`].
pub(super) async fn commit(
    agent: &Arc<Agent>,
    map: &MapId,
    version: u64,
    attempt: Option<u64>,
    keep: &Ranges,
) -> Result<ReshardAnswer, Problem> {
    let members = &agent.group.members;
    let _turn = members.turn(map).await;
    let free = members.machine(|machine| machine.commit(map, version, attempt, keep))?;
    give_back(agent, map, free).await;
    Ok(members.machine(|machine| machine.answer(map))?)
}

/// A version will never hold; what was fetched for it is discarded, but for `keep`.
///
/// # Errors
/// As [`Member::abort`].
pub(super) async fn abort(
    agent: &Arc<Agent>,
    map: &MapId,
    version: u64,
    attempt: Option<u64>,
    keep: &Ranges,
) -> Result<ReshardAnswer, Problem> {
    let members = &agent.group.members;
    let _turn = members.turn(map).await;
    let free = members.machine(|machine| machine.abort(map, version, attempt, keep))?;
    load::stop_ended(agent, map, version, attempt).await;
    give_back(agent, map, free).await;
    Ok(members.machine(|machine| machine.answer(map))?)
}

/// Forget a map and give back all its memory, the leader's too. Idempotent.
pub(super) async fn forget(agent: &Arc<Agent>, map: &MapId) {
    let members = &agent.group.members;
    let _turn = members.turn(map).await;
    members.with(|state| {
        state.machine.forget(map);
        state.known.remove(map);
    });
    load::stop(agent, map).await;
    agent.engine.context_free(map, None).await;
}

/// Store K and V of positions that are ours at that version, for a leader of that epoch.
///
/// # Errors
/// As [`Member::may_store`]; `kvsp-reshard-conflict` where the memory went meanwhile.
pub(super) async fn store(
    agent: &Agent,
    map: &MapId,
    (version, epoch): (u64, u64),
    range: TokenRange,
    sections: VerifiedSections,
) -> Result<(), Problem> {
    let members = &agent.group.members;
    // A leader of a higher epoch opens the context before or after, not between.
    let _turn = members.turn(map).await;
    members.machine(|machine| machine.may_store(map, version, &range.into(), epoch))?;
    agent.engine.context_write(map, range.into(), sections).await.map_err(problem)
}

/// Keep what was loaded for a plan from a source that had seen leaders up to this epoch.
///
/// # Errors
/// `kvsp-reshard-conflict` where the memory went meanwhile.
pub(super) async fn fetched(
    agent: &Agent,
    order: &transfer::Order,
    range: TokenRange,
    sections: VerifiedSections,
    epoch: u64,
) -> Result<(), Problem> {
    let members = &agent.group.members;
    let map = &order.map;
    // A leader of a higher epoch opens the context before or after, not between.
    let _turn = members.turn(map).await;
    let tokens = Ranges::one(range.into());
    members.machine(|machine| machine.fetched(map, order.to, order.attempt, &tokens, epoch));
    agent.engine.context_write(map, range.into(), sections).await.map_err(problem)
}

async fn give_back(agent: &Agent, map: &MapId, ranges: Ranges) {
    if !ranges.is_empty() {
        agent.engine.context_free(map, Some(ranges)).await;
    }
}

/// What an error of the engine thread is to a peer.
pub(super) fn problem(error: ContextError) -> Problem {
    let detail = error.to_string();
    match error {
        ContextError::NoRoom => Problem::new(ProblemType::StorageFull, detail),
        ContextError::Missing => Problem::new(ProblemType::LayersUnavailable, detail),
        ContextError::NotReserved | ContextError::PassEnded => {
            Problem::new(ProblemType::ReshardConflict, detail)
        }
        ContextError::Engine(EngineError::Backend(reason)) => {
            tracing::error!(%reason, "the engine failed");
            Problem::blank(500, "the engine failed")
        }
        ContextError::Engine(_) => Problem::new(ProblemType::ContainerMismatch, detail),
        ContextError::Busy | ContextError::Stopped => {
            Problem::new(ProblemType::Overloaded, detail).retry_after(1)
        }
    }
}
