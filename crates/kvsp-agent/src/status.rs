//! Status reports (draft section 6.3): every third of the TTL, also under full load, because everything
//! reported is read from gauges and nothing waits for the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvsp_proto::problem::Problem;
use kvsp_proto::record::InstanceStatus;
use kvsp_proto::uri::BaseUri;
use tokio_util::sync::CancellationToken;

use crate::Agent;
use crate::engine::Gauges;

/// Reports between two looks at who else is there.
const REPORTS_PER_PROBE: u64 = 5;

/// Orders the statuses of this epoch.
#[derive(Debug, Default)]
pub(crate) struct StatusSeq(AtomicU64);

impl Agent {
    /// The instance's status at this moment; one that has drained by now falls asleep.
    pub(crate) fn status(&self) -> InstanceStatus {
        let now = self.clock.now();
        self.lifecycle.settle(self.is_idle());
        // Whoever holds a part of a context is at work, also between two steps of its generation.
        self.lifecycle.observe(if self.has_contexts() { u64::MAX } else { self.load() }, now);
        let gauges = self.engine.gauges();
        let service = gauges.mean_service_us.get();
        InstanceStatus {
            instance: self.base.clone(),
            epoch: self.epoch,
            state: self.lifecycle.get(),
            running: Gauges::read(&gauges.running) + self.group.leads.count() as u64,
            queued: self.engine.queued(),
            batch_size: self.config.max_running as u64,
            kv_utilization: gauges.kv_utilization(),
            prefill_tokens_per_s: gauges.prefill_tokens_per_s.get(),
            decode_tokens_per_s: gauges.decode_tokens_per_s.get(),
            links: self.links.report(),
            requested_state: self.lifecycle.requested(now),
            ttl_ms: self.config.status_ttl_ms,
            seq: Some(self.status_seq.0.fetch_add(1, Ordering::Relaxed)),
            mean_service_us: (service > 0.0).then_some(service),
            compat_ids: Some(vec![self.descriptor.compat_id()]),
        }
    }

    /// Requests that run, requests that wait, and open sessions.
    pub(crate) fn load(&self) -> u64 {
        Gauges::read(&self.engine.gauges().running) + self.engine.queued() + self.sessions.open_count() as u64
    }

    /// Take on new work, or refuse it because the instance is not active.
    pub(crate) fn require_active(&self) -> Result<(), Problem> {
        self.lifecycle.require_active()?;
        self.lifecycle.observe(self.load().saturating_add(1), self.clock.now());
        Ok(())
    }

    /// Whether nothing runs and nothing waits, no session either, and no split context relies on this instance.
    pub(crate) fn is_idle(&self) -> bool {
        self.load() == 0 && !self.has_contexts()
    }

    /// Whether a split context relies on this instance.
    fn has_contexts(&self) -> bool {
        Gauges::read(&self.engine.gauges().context_pages) > 0 || !self.group.is_idle()
    }
}

/// Report until `stop`.
pub(crate) async fn run(agent: Arc<Agent>, stop: CancellationToken) {
    // A little under a third, so that a late timer does not make the interval longer than one.
    let period = Duration::from_millis((agent.config.status_ttl_ms * 3 / 10).max(1));
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut reports = 0_u64;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => return,
        }
        if reports.is_multiple_of(REPORTS_PER_PROBE) {
            let agent = agent.clone();
            // Probing a dead peer takes its time-out; the reports do not wait for it.
            agent.tasks.clone().spawn(async move { probe(&agent).await });
        }
        reports += 1;
        let status = agent.status();
        let send = |to: Option<BaseUri>| {
            let (client, status) = (agent.client.clone(), status.clone());
            async move {
                let to = to?;
                match tokio::time::timeout(period, client.put_status(&to, &status)).await {
                    Ok(Ok(answer)) => Some(answer.state),
                    Ok(Err(error)) => {
                        tracing::warn!(%to, %error, "a status report was not taken");
                        None
                    }
                    Err(_) => {
                        tracing::warn!(%to, "a status report took too long");
                        None
                    }
                }
            }
        };
        let (ordered, _) =
            tokio::join!(send(agent.config.controller.clone()), send(agent.config.index.clone()));
        if let Some(state) = ordered {
            let reported = (status.state, status.requested_state.is_some());
            agent.lifecycle.answer(reported, state, agent.is_idle(), agent.clock.now());
        }
    }
}

/// Reach the holder and the other instances once, so that the first placement knows a path to them.
async fn probe(agent: &Arc<Agent>) {
    let mut peers: Vec<BaseUri> = agent.config.holder.iter().cloned().collect();
    if let Some(controller) = &agent.config.controller
        && let Ok(list) = agent.client.instances(controller).await
    {
        peers.extend(list.instances.into_iter().map(|i| i.status.instance).filter(|uri| *uri != agent.base));
    }
    for peer in peers {
        if agent.links.knows(&peer) {
            continue;
        }
        // The first request also opens the connection; the second one shows the round trip.
        for _ in 0..2 {
            let begin = Instant::now();
            match agent.client.root(&peer).await {
                Ok(_) => agent.links.reached(&peer, begin.elapsed()),
                Err(_) => break,
            }
        }
    }
}
