//! What the lock of a block service guards: decisions, and what they are about, changed together.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvsp_core::lease::LeaseLimits;
use kvsp_core::tier::{Admission, AdmitError, Holdings, Place, Removed, Sizes};
use kvsp_core::time::Time;
use kvsp_proto::id::NamedDigest;
use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::Tier;
use kvsp_proto::uri::HolderUri;
use kvsp_store::{BlockMeta, BlockName, BlockStore as _, MemoryStore, StoredBlock};

use crate::config::BlocksConfig;
use crate::publish::{Desired, Pace};

/// ms for which changes of residency gather before the index is told.
const RESIDENCY_DELAY_MS: u64 = 100;

/// A block that is visible.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) meta: Arc<BlockMeta>,
    digest: NamedDigest,
    /// Layers that an engine has in its own memory as well.
    device: Option<LayerSpan>,
}

/// Everything that changes together. No method blocks, so the lock is held for a moment only.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) holdings: Holdings<BlockName>,
    pub(crate) entries: BTreeMap<BlockName, Entry>,
    pub(crate) desired: Desired<BlockName>,
    publishes: bool,
    sequence: u64,
}

/// What an admission moved, for the counters.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) place: Place,
    /// Files to delete before the new one is written.
    pub(crate) evicted: Vec<Arc<BlockMeta>>,
    pub(crate) demoted: usize,
}

impl State {
    pub(crate) fn new(config: &BlocksConfig, epoch: u64) -> Self {
        let host = (config.host_octets > 0).then_some(config.host_octets);
        let disk = config.disk.as_ref().map(|disk| disk.octets - disk.octets / 16);
        let home = disk.or(host).unwrap_or(0);
        let limits = LeaseLimits {
            max_ttl_ms: config.limits.max_lease_ttl_ms,
            principal_octets: config.lease_quota_octets.unwrap_or(home / 4),
            total_octets: home / 2,
            principal_leases: config.max_leases,
        };
        let tier = |octets: Option<u64>| octets.map(|octets| (octets, config.eviction.policy()));
        Self {
            holdings: Holdings::with_policies(tier(host), tier(disk), limits),
            entries: BTreeMap::new(),
            desired: Desired::new(Pace::default()),
            publishes: config.index.is_some(),
            // Records of one replica rise over restarts, as epochs do; a thousand a millisecond are spare.
            sequence: epoch.saturating_mul(1000),
        }
    }

    /// A block that an earlier process left on disk.
    pub(crate) fn adopt(&mut self, meta: Arc<BlockMeta>, disk_octets: u64, now: Time) {
        self.holdings.adopt(meta.name, disk_octets, now);
        self.show(meta, now);
    }

    /// Makes room for a block; what left host memory is dropped from it here.
    pub(crate) fn admit(
        &mut self,
        name: BlockName,
        sizes: Sizes,
        host: &MemoryStore,
        now: Time,
    ) -> Result<Admitted, AdmitError> {
        let Admission { place, evicted, demoted } = self.holdings.admit(name, sizes, now)?;
        let evicted = evicted.iter().filter_map(|name| self.hide(name, host, now)).collect();
        self.demoted(&demoted, host, now);
        Ok(Admitted { place, evicted, demoted: demoted.len() })
    }

    /// A block that was admitted is stored: from now on it is visible.
    pub(crate) fn arrived(&mut self, block: &StoredBlock, place: Place, host: &MemoryStore, now: Time) {
        let name = block.meta.name;
        if place.host {
            // The name was reserved by the admission, so nothing is there.
            let _ = host.insert(block.clone());
        }
        self.holdings.arrived(name);
        self.show(block.meta.clone(), now);
    }

    /// Takes a block that was read from disk up into host memory, where there is room for it.
    pub(crate) fn promote(&mut self, block: &StoredBlock, host: &MemoryStore, now: Time) -> usize {
        let name = block.meta.name;
        // The block may have gone, and come again as another, while it was read.
        if !self.entries.get(&name).is_some_and(|entry| Arc::ptr_eq(&entry.meta, &block.meta)) {
            return 0;
        }
        let Some(demoted) = self.holdings.promote(name, host.charge(&block.meta, block.layers())) else {
            return 0;
        };
        let _ = host.insert(block.clone());
        self.demoted(&demoted, host, now);
        self.changed(name, now);
        demoted.len()
    }

    /// Removes a block at its owner's wish; it is invisible at once.
    pub(crate) fn remove(&mut self, name: &BlockName, host: &MemoryStore, now: Time) -> Removed {
        let removed = self.holdings.remove(name, now);
        if matches!(removed, Removed::Was(_)) {
            self.hide(name, host, now);
        }
        removed
    }

    /// A block was found to be rotten, and is moved aside already: not served, then withdrawn, then freed.
    pub(crate) fn lost(&mut self, meta: &Arc<BlockMeta>, host: &MemoryStore, now: Time) -> bool {
        let same = |entry: &Entry| Arc::ptr_eq(&entry.meta, meta);
        if !self.entries.get(&meta.name).is_some_and(same) {
            return false;
        }
        self.hide(&meta.name, host, now);
        self.holdings.lose(&meta.name);
        self.holdings.left(&meta.name, true);
        true
    }

    /// Tells which layers an engine holds too; whether the block is held.
    pub(crate) fn set_device(&mut self, name: BlockName, layers: Option<LayerSpan>, now: Time) -> bool {
        let Some(entry) = self.entries.get_mut(&name) else {
            return false;
        };
        let last = entry.meta.layers().last();
        let layers = layers.filter(|span| span.0 <= span.1 && span.1 <= last);
        if std::mem::replace(&mut entry.device, layers) != layers {
            self.changed(name, now);
        }
        true
    }

    /// The record that tells the truth about a block at this moment.
    pub(crate) fn record(&mut self, name: &BlockName, facts: &RecordFacts) -> Option<ReplicaRecord> {
        let entry = self.entries.get(name)?;
        let place = self.holdings.place(name)?;
        let (tier, rate) =
            if place.host { (Tier::Host, facts.host_rate) } else { (Tier::Disk, facts.disk_rate) };
        self.sequence = self.sequence.saturating_add(1);
        Some(ReplicaRecord {
            block_key: name.key,
            compat_id: name.compat,
            scope_id: name.scope,
            holder: facts.holder.clone(),
            codec: entry.meta.codec,
            size: entry.meta.size(),
            digest: entry.digest,
            layer_digests: Some(entry.meta.layer_digests.clone()),
            residency: residency(entry.meta.layers().last(), tier, rate, entry.device),
            ttl_ms: facts.ttl_ms,
            seq: Some(self.sequence),
            holder_epoch: Some(facts.epoch),
            producer: Some(entry.meta.producer.clone()),
            moqt_namespace: None,
        })
    }

    /// The sequence number of the next withdrawal.
    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.sequence = self.sequence.saturating_add(1);
        self.sequence
    }

    fn show(&mut self, meta: Arc<BlockMeta>, now: Time) {
        let name = meta.name;
        let digest = meta.digest();
        self.entries.insert(name, Entry { meta, digest, device: None });
        if self.publishes {
            self.desired.publish(name, now);
        }
    }

    fn hide(&mut self, name: &BlockName, host: &MemoryStore, now: Time) -> Option<Arc<BlockMeta>> {
        host.remove(name);
        if self.publishes {
            self.desired.withdraw(*name, now);
        }
        self.entries.remove(name).map(|entry| entry.meta)
    }

    fn demoted(&mut self, names: &[BlockName], host: &MemoryStore, now: Time) {
        for name in names {
            host.remove(name);
            self.changed(*name, now);
        }
    }

    fn changed(&mut self, name: BlockName, now: Time) {
        if self.publishes {
            self.desired.publish(name, now.after_millis(RESIDENCY_DELAY_MS));
        }
    }
}

/// What all records of a holder have in common.
#[derive(Debug)]
pub(crate) struct RecordFacts {
    pub(crate) holder: HolderUri,
    pub(crate) ttl_ms: u64,
    pub(crate) epoch: u64,
    /// Megabits per second at which each tier is read, where that is known.
    pub(crate) host_rate: Option<f64>,
    pub(crate) disk_rate: Option<f64>,
}

/// All layers in `tier`, but those that an engine has too.
fn residency(last: u32, tier: Tier, rate: Option<f64>, device: Option<LayerSpan>) -> Vec<Residency> {
    let entry = |tier, first, last| {
        let read_mbit_per_s = if tier == Tier::Device { None } else { rate };
        Residency { tier, layers: LayerSpan(first, last), read_mbit_per_s }
    };
    let Some(LayerSpan(from, to)) = device else {
        return vec![entry(tier, 0, last)];
    };
    let mut list = Vec::with_capacity(3);
    if from > 0 {
        list.push(entry(tier, 0, from - 1));
    }
    list.push(entry(Tier::Device, from, to));
    if to < last {
        list.push(entry(tier, to + 1, last));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_on_the_device_are_told_apart() {
        let spans = |device| -> Vec<_> {
            residency(9, Tier::Host, None, device)
                .into_iter()
                .map(|r| (r.tier, r.layers.0, r.layers.1))
                .collect()
        };
        assert_eq!(spans(None), [(Tier::Host, 0, 9)]);
        assert_eq!(spans(Some(LayerSpan(0, 9))), [(Tier::Device, 0, 9)]);
        assert_eq!(spans(Some(LayerSpan(0, 3))), [(Tier::Device, 0, 3), (Tier::Host, 4, 9)]);
        assert_eq!(
            spans(Some(LayerSpan(3, 3))),
            [(Tier::Host, 0, 2), (Tier::Device, 3, 3), (Tier::Host, 4, 9)]
        );
    }
}
