//! Capacity for a placement that found none: what is on its way is waited for, and what is missing is begun.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvsp_core::instances::{ActiveInstance, Sleeper, Step};
use kvsp_proto::id::CompatId;
use kvsp_proto::message::PlacementRequest;
use kvsp_proto::problem::Problem;
use kvsp_proto::record::InstanceState;
use tokio::time::Instant;

use super::Ordered;
use crate::metrics::{Start, Wake};
use crate::place::{Known, Weighed};
use crate::service::ControllerService;

/// Placements that wait for an instance at a time, each with its request; more are told that there is none.
const MAX_WAITING: u64 = 4096;

/// The shortest wait between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// The placements that wait, by what they need.
#[derive(Debug, Default)]
pub(super) struct Crowd(Mutex<BTreeMap<CompatId, u64>>);

/// One placement that waits; gone when dropped.
#[derive(Debug)]
struct Waiter<'a> {
    crowd: &'a Crowd,
    compat: CompatId,
}

impl Crowd {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<CompatId, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, compat: CompatId) -> Option<Waiter<'_>> {
        let mut waiting = self.lock();
        if waiting.values().sum::<u64>() >= MAX_WAITING {
            return None;
        }
        *waiting.entry(compat).or_default() += 1;
        Some(Waiter { crowd: self, compat })
    }

    fn waiting(&self, compat: CompatId) -> u64 {
        self.lock().get(&compat).copied().unwrap_or(0)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiting = self.crowd.lock();
        if let Some(count) = waiting.get_mut(&self.compat) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                waiting.remove(&self.compat);
            }
        }
    }
}

impl ControllerService {
    /// Whether somebody could be woken or started for a request, or is about to report again.
    pub(crate) fn may_grow(&self, request: &PlacementRequest) -> bool {
        if !self.config.start.command.is_empty() {
            return true;
        }
        let (mut instances, now) = (self.instances(), self.now());
        let is_excluded = |asleep: &ActiveInstance| request.exclude.contains(&asleep.status.instance);
        instances.expected_until(now).is_some()
            || !instances.wakeable(request.compat_id, now).iter().all(is_excluded)
    }

    /// The instances that can take a request, weighed, where `weighed` are none or all too expensive: once an
    /// instance that costs an acceptable time is active, or nothing more is to be expected. The expensive ones are
    /// what is left then; they are given the request no later than they themselves would have served it.
    ///
    /// # Errors
    /// As weighing has them.
    pub(crate) async fn await_capacity(
        self: &Arc<Self>,
        request: &PlacementRequest,
        known: &Arc<Known>,
        weighed: Weighed,
    ) -> Result<Weighed, Problem> {
        let Some(_waiter) = self.lifecycle.crowd.join(request.compat_id) else { return Ok(weighed) };
        let cost = weighed.best().and_then(|best| best.candidate.cost_us).map(Duration::from_micros);
        let patience = self.config.start.wait().min(cost.unwrap_or(Duration::MAX));
        let deadline = Instant::now() + patience;
        loop {
            let mut changed = pin!(self.lifecycle.changed.notified());
            // Before the instances are looked at, so that no change falls between the two.
            changed.as_mut().enable();
            let weighed = Arc::clone(self).choose(request, known).await?;
            if self.is_acceptable(&weighed) {
                return Ok(weighed);
            }
            let until = match self.grow(request, known).await? {
                Step::Nothing => return Ok(weighed),
                Step::Wait(Some(time)) => Instant::now() + time.since(self.now()).max(LOOK),
                Step::Wait(None) | Step::Wake(_) | Step::Start(_) => deadline,
            };
            if Instant::now() >= deadline {
                return Ok(weighed);
            }
            let waited = tokio::time::timeout_at(until.min(deadline), changed);
            // The service stops: nobody will come.
            if self.until_closing(waited).await.is_none() {
                return Ok(weighed);
            }
        }
    }

    /// Takes the next step for those who wait for an instance of the request's compatibility.
    pub(crate) async fn grow(
        self: &Arc<Self>,
        request: &PlacementRequest,
        known: &Arc<Known>,
    ) -> Result<Step, Problem> {
        let compat = request.compat_id;
        // After a start of ours nobody is woken or started for those who have yet to report.
        if let Some(until) = self.instances().expected_until(self.now()) {
            return Ok(Step::Wait(Some(until)));
        }
        let mut asleep = self.instances().wakeable(compat, self.now());
        asleep.retain(|asleep| !request.exclude.contains(&asleep.status.instance));
        let batches: BTreeMap<_, _> =
            asleep.iter().map(|asleep| (asleep.status.instance.clone(), asleep.status.batch_size)).collect();
        let ranked = Arc::clone(self).rank(request, known, asleep).await?.ranked;
        let sleeper = |instance: &kvsp_proto::uri::BaseUri| Sleeper {
            batch_size: batches.get(instance).copied().unwrap_or(0),
            instance: instance.clone(),
        };
        let sleepers: Vec<Sleeper> = ranked.iter().map(|ranked| sleeper(ranked.instance())).collect();
        let (live, batch_size) = {
            let instances = self.instances();
            (instances.live(), instances.batch_size(compat))
        };
        let waiting = self.lifecycle.crowd.waiting(compat).max(1);
        let now = self.now();
        let step = self.lifecycle.growth().step(compat, waiting, &sleepers, (live, batch_size), now);
        match &step {
            Step::Wake(instance) => self.go_on(Arc::clone(self).wake(instance.clone())),
            Step::Start(start) => self.start(*start, compat),
            Step::Wait(_) | Step::Nothing => {}
        }
        Ok(step)
    }

    /// Wakes a sleeping instance. It goes on where the placement that it is for goes away.
    async fn wake(self: Arc<Self>, instance: kvsp_proto::uri::BaseUri) {
        let ordered = self.order(&instance, InstanceState::Active, false).await;
        let outcome = match &ordered {
            Ok(Ordered { taken: Some(InstanceState::Active), .. }) => Wake::Awake,
            Ok(Ordered { taken: Some(_), .. }) => Wake::Refused,
            Ok(Ordered { taken: None, .. }) => Wake::Unreachable,
            Err(problem) => {
                tracing::warn!(%instance, %problem, "could not be woken");
                Wake::Refused
            }
        };
        tracing::info!(%instance, ?outcome, "woken for a placement");
        self.metrics.woken(outcome);
        let now = self.now();
        self.lifecycle.growth().woken(&instance, outcome == Wake::Awake, now);
        self.lifecycle.changed.notify_waiters();
    }

    /// An instance reported for the first time since its start.
    pub(super) fn has_started(&self, computes: impl Fn(CompatId) -> bool) {
        let reported = self.lifecycle.growth().starts().and_then(|starts| starts.reported(computes));
        if reported.is_some() {
            self.metrics.started(Start::Reported);
        }
    }
}
