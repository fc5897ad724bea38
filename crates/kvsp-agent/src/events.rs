//! What the engine thread tells, turned into replicas: computed blocks go to the host tier and to a holder
//! outside the process, residency is kept true, and blocks of the host tier are brought into the engine.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use kvsp_proto::container::Container;
use kvsp_proto::record::LayerSpan;
use tokio::sync::mpsc;

use crate::Agent;
use crate::engine::{DeviceChange, EngineEvent, ScopedKey, Slot};

/// Take events until the engine thread ends.
pub(crate) async fn run(agent: Arc<Agent>, mut events: mpsc::Receiver<EngineEvent>) {
    while let Some(event) = events.recv().await {
        match event {
            EngineEvent::Computed { block, container, wanted } => {
                let compat = agent.descriptor.compat_id();
                if let Some(copies) = &agent.copies {
                    copies.offer(block, container.clone(), wanted);
                }
                if let Err(problem) = agent.blocks.put_local(compat, block.scope, block.key, container).await
                {
                    tracing::debug!(%problem, "a computed block was not kept");
                }
                agent.report_residency(block);
            }
            EngineEvent::Device(change) => {
                agent.resident.set(change);
                agent.report_residency(change.block);
            }
            EngineEvent::Fill { block, slot } => {
                let agent = agent.clone();
                agent.tasks.clone().spawn(async move { fill(&agent, block, slot).await });
            }
        }
    }
}

/// Bring a block of the host tier into the engine, once it is there; where it does not come, or is gone meanwhile,
/// the slot breaks.
async fn fill(agent: &Agent, block: ScopedKey, slot: Slot) {
    agent.coming.over(&block).await;
    let compat = agent.descriptor.compat_id();
    if let Some(container) = agent.blocks.get_local(compat, block.scope, block.key).await {
        agent.fill(slot, &container).await;
    }
    let _ = agent.engine.end_load(slot).await;
}

/// Blocks that are whole in the engine's pool; never more than it has pages.
#[derive(Debug, Default)]
pub(crate) struct Resident(Mutex<BTreeSet<ScopedKey>>);

impl Resident {
    fn set(&self, change: DeviceChange) {
        let mut blocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if change.resident {
            blocks.insert(change.block);
        } else {
            blocks.remove(&change.block);
        }
    }

    /// Whether a block is among them.
    pub(crate) fn has(&self, block: &ScopedKey) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(block)
    }
}

impl Agent {
    /// Let the block's record say whether the engine has it too. Whichever comes last, the block's arrival
    /// in the host tier or the change in the pool, calls this with both done.
    pub(crate) fn report_residency(&self, block: ScopedKey) {
        let whole = LayerSpan(0, self.descriptor.layers.saturating_sub(1));
        let layers = self.resident.has(&block).then_some(whole);
        self.blocks.set_device_layers(self.descriptor.compat_id(), block.scope, block.key, layers);
    }

    /// Write the layers of a stored container into a slot. Stored containers were verified when they were
    /// taken in.
    pub(crate) async fn fill(&self, slot: Slot, container: &Container) {
        use kvsp_proto::codec;
        use kvsp_proto::registry::Codec;
        let raw = match container.header().codec() {
            Some(Codec::RAW) => Ok(container.clone()),
            _ => codec::transcode(container, Codec::RAW, self.descriptor.kv_dtype.octets()),
        };
        let Ok(raw) = raw else { return };
        if raw.check_geometry(&self.descriptor).is_err() {
            return;
        }
        for layer in 0..self.descriptor.layers {
            let Some(sections) = raw.layer(layer) else { return };
            if self.engine.write(slot, layer, sections).await.is_err() {
                return;
            }
        }
    }
}
