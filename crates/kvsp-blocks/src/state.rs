//! What the lock of a block service guards: decisions, and what they are about, changed together.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvsp_core::lease::LeaseLimits;
use kvsp_core::tier::{
    AdmitError, Cut, FloorsExceed, Holdings, HoldingsConfig, Level, PerLevel, PinId, Removed, Room,
    TierSettings,
};
use kvsp_core::time::Time;
use kvsp_proto::id::NamedDigest;
use kvsp_proto::record::{LayerSpan, ReplicaRecord};
use kvsp_proto::uri::HolderUri;
use kvsp_store::{BlockMeta, BlockName, StoredBlock};

use crate::config::BlocksConfig;
use crate::publish::{Desired, Pace};
use crate::residency::residency;
use crate::tiers::{Counted, Tiers};

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

/// A block that can be read, and where.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) meta: Arc<BlockMeta>,
    pub(crate) held: PerLevel<u32>,
}

/// Everything that changes together. No method blocks, so the lock is held for a moment only.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) holdings: Holdings<BlockName, Counted>,
    pub(crate) entries: BTreeMap<BlockName, Entry>,
    pub(crate) desired: Desired<BlockName>,
    tiers: Arc<Tiers>,
    publishes: bool,
    sequence: u64,
}

impl State {
    pub(crate) fn new(config: &BlocksConfig, tiers: Arc<Tiers>, epoch: u64) -> Result<Self, FloorsExceed> {
        let caps = config.caps();
        let home = [Level::Disk, Level::Object, Level::Host].into_iter().find_map(|level| caps[level]);
        let leases = LeaseLimits {
            max_ttl_ms: config.limits.max_lease_ttl_ms,
            principal_octets: config.lease_quota_octets.unwrap_or(home.unwrap_or(0) / 4),
            total_octets: u64::MAX,
            principal_leases: config.max_leases,
        };
        let tier =
            |level| caps[level].map(|octets| TierSettings { octets, policy: config.eviction.policy() });
        let holdings = Holdings::new(HoldingsConfig {
            tiers: PerLevel::from_fn(tier),
            leases,
            floors: config.scope_floors(),
            watermarks: config.demotion.watermarks(),
        })?;
        Ok(Self {
            holdings,
            entries: BTreeMap::new(),
            desired: Desired::new(Pace::default()),
            tiers,
            publishes: config.index.is_some(),
            // Records of one replica rise over restarts, as epochs do; a thousand a millisecond are spare.
            sequence: epoch.saturating_mul(1000),
        })
    }

    fn counted(&self, meta: &Arc<BlockMeta>) -> Counted {
        Counted { meta: meta.clone(), tiers: self.tiers.clone() }
    }

    /// A block that an earlier process left, and may have lent until then; false where it is whole nowhere.
    pub(crate) fn adopt(
        &mut self,
        meta: &Arc<BlockMeta>,
        held: PerLevel<u32>,
        leased_until: Time,
        now: Time,
    ) -> bool {
        let counted = self.counted(meta);
        let adopted = self.holdings.adopt(meta.name, counted, held, leased_until);
        if adopted {
            self.show(meta.clone(), now);
        }
        adopted
    }

    /// Makes room for a block; what that evicts is invisible at once.
    pub(crate) fn admit(&mut self, meta: &Arc<BlockMeta>, now: Time) -> Result<Room<BlockName>, AdmitError> {
        let counted = self.counted(meta);
        let room = self.holdings.admit(meta.name, counted, now)?;
        self.apply(&room, now);
        Ok(room)
    }

    /// A block that was admitted is at its home: from now on it is visible.
    pub(crate) fn arrived(&mut self, block: &StoredBlock, now: Time) {
        let name = block.meta.name;
        let held = self.holdings.arrived(&name);
        if held[Level::Host] > 0 {
            // The name was reserved by the admission, so nothing is there.
            let _ = self.tiers.host.insert(block.clone());
        }
        self.show(block.meta.clone(), now);
    }

    /// Withdraws what is gone, and tells of what is elsewhere than before.
    pub(crate) fn apply(&mut self, room: &Room<BlockName>, now: Time) {
        for name in &room.evicted {
            self.hide(name, now);
        }
        for name in &room.changed {
            self.changed(*name, now);
        }
    }

    /// Removes a block at its owner's wish; it is invisible at once.
    pub(crate) fn remove(&mut self, name: &BlockName, now: Time) -> Removed<BlockName> {
        let removed = self.holdings.remove(name, now);
        if matches!(removed, Removed::Was(_)) {
            self.hide(name, now);
        }
        removed
    }

    /// What a tier had of a block is rotten, and moved aside already: where it is whole in no other, it is
    /// not served any more, then withdrawn, then freed.
    pub(crate) fn lost(&mut self, meta: &Arc<BlockMeta>, level: Level, now: Time) -> Option<Room<BlockName>> {
        let same = |entry: &Entry| Arc::ptr_eq(&entry.meta, meta);
        if !self.entries.get(&meta.name).is_some_and(same) {
            return None;
        }
        let room = self.holdings.lost(&meta.name, level);
        self.apply(&room, now);
        (!room.is_empty()).then_some(room)
    }

    /// Layers that were on their way to a tier are there.
    pub(crate) fn arrived_at(&mut self, name: &BlockName, level: Level, now: Time) -> bool {
        let arrived = self.holdings.arrived_at(name, level);
        if arrived {
            self.changed(*name, now);
        }
        arrived
    }

    pub(crate) fn cut_failed(&mut self, cut: &Cut<BlockName>, now: Time) {
        self.holdings.cut_failed(cut, now);
        if self.entries.contains_key(&cut.key) {
            self.changed(cut.key, now);
        }
    }

    /// Where a block can be read.
    pub(crate) fn see(&self, name: &BlockName) -> Option<Seen> {
        let meta = self.entries.get(name)?.meta.clone();
        Some(Seen { meta, held: self.holdings.residency(name)? })
    }

    /// Keeps blocks that are being read where they are.
    pub(crate) fn pin(&mut self, names: &[BlockName], ttl_ms: u64, now: Time) -> PinId {
        self.holdings.pin(names, ttl_ms, now)
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
        let held = self.holdings.residency(name)?;
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
            residency: residency(&held, &facts.rates, entry.device),
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

    fn hide(&mut self, name: &BlockName, now: Time) {
        if self.publishes {
            self.desired.withdraw(*name, now);
        }
        self.entries.remove(name);
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
    pub(crate) rates: PerLevel<Option<f64>>,
}
