//! Carrying out a prefetch directive: lease, fetch layer by layer, verify, place, publish.
//!
//! What may enter the engine is decided here, and only in [`layer::ArrivedLayer::admit`]: a layer that agrees
//! with the instance's own descriptor and whose digest is the one that the Replica Record of its source
//! lists (profile section 5).

mod coming;
mod counters;
mod fetch;
mod layer;
mod lease;
mod records;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use kvsp_core::prefetch::{Directive, Fetch};
use kvsp_proto::container::{self, LayerSections};
use kvsp_proto::id::{CompatId, ScopeId};
use kvsp_proto::message::{DirectiveStatus, FailureReason};
use kvsp_proto::record::ReplicaRecord;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use coming::Bringing;
pub(crate) use coming::Coming;
pub(crate) use counters::LoadCounters;

use crate::Agent;
use crate::engine::{Expectation, ScopedKey, Slot};

/// Sources that a directive is loaded from at once.
const MAX_FETCHES: usize = 8;

/// One directive being carried out.
pub(crate) struct Load {
    agent: Arc<Agent>,
    compat: CompatId,
    scope: ScopeId,
    lease_ms: u64,
    machine: Mutex<Directive>,
    /// Where the layers of a block go in the engine; blocks without a slot go to the host tier alone.
    slots: HashMap<usize, Slot>,
    /// Blocks that go to the host tier alone, until they are there.
    bringing: Mutex<HashMap<usize, Bringing>>,
    /// Layers of blocks that are not complete, in the source's codec, from layer 0 up.
    arrived: Mutex<HashMap<usize, Vec<LayerSections>>>,
    cancel: CancellationToken,
    /// How long a source may be silent before the next one is tried; `None`: as long as the directive lasts.
    patience: Option<Duration>,
}

impl Load {
    /// Prepare a load; `expected` is the engine's answer for each block of the directive.
    pub(crate) fn new(agent: Arc<Agent>, directive: Directive, expected: &[Expectation]) -> Self {
        let slots = expected
            .iter()
            .enumerate()
            .filter_map(|(index, answer)| match answer {
                Expectation::Slot(slot) => Some((index, *slot)),
                _ => None,
            })
            .collect();
        let body = directive.body();
        let bringing = body.blocks.iter().zip(expected).enumerate().filter_map(|(index, (block, answer))| {
            let block = ScopedKey { scope: body.scope_id, key: block.block_key };
            (*answer == Expectation::NoRoom).then(|| (index, agent.coming.begin(block)))
        });
        Self {
            bringing: Mutex::new(bringing.collect()),
            compat: body.compat_id,
            scope: body.scope_id,
            lease_ms: body.lease_ms,
            agent,
            slots,
            machine: Mutex::new(directive),
            arrived: Mutex::new(HashMap::new()),
            cancel: CancellationToken::new(),
            patience: None,
        }
    }

    /// Try the next source, or do without the block, once one has been silent so long. For loads that somebody
    /// waits for, while the controller's directives are given a deadline that suits them.
    pub(crate) fn with_patience(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// The status resource of the directive.
    pub(crate) fn status(&self) -> DirectiveStatus {
        self.with(|directive| directive.status())
    }

    /// Stop loading at the peer's wish.
    pub(crate) fn cancel(&self) {
        self.cancel.cancel();
    }

    fn with<R>(&self, run: impl FnOnce(&mut Directive) -> R) -> R {
        run(&mut self.machine.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Load until all is done, the deadline passes, or the directive is cancelled.
    pub(crate) async fn run(self: Arc<Self>) {
        let left = self.with(|d| d.deadline()).since(self.agent.clock.now());
        let reason = tokio::select! {
            () = self.load_all() => None,
            () = tokio::time::sleep(left) => Some(FailureReason::Deadline),
            () = self.cancel.cancelled() => Some(FailureReason::Cancelled),
        };
        if let Some(reason) = reason {
            self.with(|d| d.stop(reason));
        }
        // A slot that is not whole by now breaks, and whoever waits for it recomputes.
        for slot in self.slots.values() {
            if self.agent.engine.end_load(*slot).await.is_err() {
                break;
            }
        }
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.bringing.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let status = self.status();
        self.agent.load_counters.ended(&status);
        tracing::info!(
            directive = %status.directive, state = ?status.state,
            loaded = status.loaded.len(), failed = status.failed.len(), "prefetch ended"
        );
    }

    async fn load_all(self: &Arc<Self>) {
        self.fill_from_host().await;
        records::look_up(self).await;
        let mut fetches = JoinSet::new();
        loop {
            while fetches.len() < MAX_FETCHES
                && let Some(fetch) = self.with(Directive::poll_fetch)
            {
                let load = self.clone();
                fetches.spawn(async move { fetch::run(&load, fetch).await });
            }
            if fetches.join_next().await.is_none() {
                return;
            }
        }
    }

    /// Blocks that the host tier holds already only need to go into the engine.
    async fn fill_from_host(self: &Arc<Self>) {
        let keys: Vec<_> = self.with(|d| d.body().blocks.iter().map(|b| b.block_key).collect());
        for (index, key) in keys.into_iter().enumerate() {
            if let Some(slot) = self.slots.get(&index)
                && let Some(container) = self.agent.blocks.get_local(self.compat, self.scope, key).await
            {
                self.agent.fill(*slot, &container).await;
            }
        }
    }

    /// A verified layer of a block arrived: into the engine, and kept for the host tier. Returns the whole
    /// container once the last layer is there.
    async fn keep(
        &self,
        index: usize,
        layer: u32,
        held: LayerSections,
        raw: LayerSections,
        record: &ReplicaRecord,
    ) -> Option<Bytes> {
        if let Some(slot) = self.slots.get(&index) {
            // An engine that has stopped takes nothing any more; the host tier still does.
            let _ = self.agent.engine.write(*slot, layer, raw).await;
        }
        self.with(|d| d.layer_loaded(index, layer));
        let descriptor = &self.agent.descriptor;
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let layers = arrived.entry(index).or_default();
        layers.truncate(layer as usize);
        layers.push(held);
        if layers.len() < descriptor.layers as usize {
            return None;
        }
        let sections: Vec<(Bytes, Bytes)> =
            arrived.remove(&index)?.into_iter().map(|layer| (layer.k, layer.v)).collect();
        container::encode(record.codec, 0, descriptor.block_tokens, &sections).ok()
    }

    /// A whole block is there: into the host tier, which publishes it.
    async fn place(&self, index: usize, record: &ReplicaRecord, octets: Bytes) {
        let key = record.block_key;
        let placed = self.agent.blocks.put_local(self.compat, self.scope, key, octets).await;
        if let Some(slot) = self.slots.get(&index) {
            let _ = self.agent.engine.end_load(*slot).await;
        }
        self.agent.report_residency(ScopedKey { scope: self.scope, key });
        self.bringing.lock().unwrap_or_else(PoisonError::into_inner).remove(&index);
        match placed {
            Ok(_) => self.with(|d| d.block_loaded(index)),
            // Without room in the host tier the block is still of use where the engine has it.
            Err(_) if self.slots.contains_key(&index) => self.with(|d| d.block_loaded(index)),
            Err(problem) => {
                tracing::debug!(%problem, "a prefetched block found no room");
                self.with(|d| d.give_up(index, FailureReason::StorageFull));
            }
        }
    }

    /// A source failed for a block.
    fn failed(&self, index: usize, reason: FailureReason) {
        self.agent.load_counters.source_failed(reason);
        self.with(|d| d.source_failed(index, reason));
    }

    /// What a source answers, or `None` once it has been silent for too long.
    async fn unless_silent<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        match self.patience {
            Some(patience) => tokio::time::timeout(patience, answer).await.ok(),
            None => Some(answer.await),
        }
    }

    fn lease_time(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

/// The sources of a fetch, for log lines.
fn describe(fetch: &Fetch) -> String {
    format!("{} blocks from {}", fetch.blocks.len(), fetch.source)
}
