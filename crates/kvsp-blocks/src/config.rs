//! What an operator decides about blocks.

use std::path::PathBuf;

use kvsp_core::tier::{EvictionPolicy, LeastRecentlyUsed, PerLevel, ScopeFloors, TinyLfu, Watermarks};
use kvsp_proto::id::ScopeId;
use kvsp_proto::message::Limits;
use kvsp_proto::uri::BaseUri;
use kvsp_store::BlockName;
use serde::Deserialize;

/// Settings of a [`BlockService`](crate::BlockService).
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BlocksConfig {
    /// Octets of host memory for blocks; 0 for none.
    pub host_octets: u64,
    /// Megabits per second at which host memory is read, for the records; absent where it does not matter.
    pub host_read_mbit_per_s: Option<f64>,
    /// The disk tier; absent for none. Where there is one it is the home of every block, and host memory a
    /// cache of it.
    pub disk: Option<DiskTier>,
    /// The object tier; absent for none. Below a disk it takes what is cold there; without one it is the home
    /// of every block.
    pub object: Option<ObjectTier>,
    /// When cold blocks of the disk are copied to the object tier.
    pub demotion: Demotion,
    /// Octets of the home tier that scopes keep whatever others need; in the other tiers the same share.
    pub floors: Vec<ScopeFloor>,
    /// The floor of every scope that is not among `floors`; lowered while so many have blocks that all
    /// floors together would exceed the tier.
    pub floor_octets: u64,
    /// Octets a second that are read to verify the blocks below host memory; 0 for none.
    pub scrub_octets_per_s: u64,
    /// Octets of representations in other codecs that are kept; 0 for none.
    pub transcode_octets: u64,
    /// Which block goes first where room is needed, in every tier.
    pub eviction: Eviction,
    /// The Index Service to publish to; absent to publish nowhere.
    pub index: Option<BaseUri>,
    /// TTL asked for replica records, in ms.
    pub replica_ttl_ms: u64,
    /// About how often the index is asked after a record where nothing else is to be told, in ms, to find out
    /// that it came back without its records; 0 for never.
    pub canary_ms: u64,
    /// Octets of distinct blocks that one principal may have under lease; absent for a quarter of the home
    /// tier.
    pub lease_quota_octets: Option<u64>,
    /// Leases that one principal may have at once.
    pub max_leases: usize,
    /// Octets of the bodies of PUTs in flight, all together.
    pub ingest_octets: u64,
    /// Octets of blocks that were brought in from below host memory, or that it has let go of, while they are
    /// sent: all together, beside `host_octets`, for what is taken up there counts there. At least one block,
    /// better several; one that is larger is read alone. Memory for blocks is never more than `host_octets`,
    /// `ingest_octets`, `transcode_octets` and this together.
    pub read_octets: u64,
    /// How long a PUT waits for room among the bodies in flight, and a GET for room to read into, in ms.
    pub ingest_wait_ms: u64,
    /// Descriptors that may be registered.
    pub max_descriptors: usize,
    /// Most layers of a container.
    pub max_layers: u32,
    /// What the root document states.
    pub limits: Limits,
}

/// Settings of the disk tier.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskTier {
    /// The directory; one process at a time uses it.
    pub dir: PathBuf,
    /// Octets of files; a sixteenth of them is set aside for rotten files.
    pub octets: u64,
    /// Megabits per second at which it is read, for the records.
    #[serde(default)]
    pub read_mbit_per_s: Option<f64>,
}

impl DiskTier {
    /// Octets set aside for rotten files.
    pub(crate) const fn quarantine_octets(&self) -> u64 {
        self.octets / 16
    }
}

/// Settings of the object tier. Credentials come from the environment (`AWS_ACCESS_KEY_ID` and its like) or a
/// file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectTier {
    /// `s3://bucket/prefix`, or `file:///directory`.
    pub url: String,
    /// Octets of objects; a sixteenth of them is set aside for rotten ones.
    pub octets: u64,
    /// Megabits per second at which it is read, for the records.
    #[serde(default)]
    pub read_mbit_per_s: Option<f64>,
    /// The base URI of a server that speaks S3; absent for AWS.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The region; absent for that of the environment.
    #[serde(default)]
    pub region: Option<String>,
    /// Whether the bucket is named in the path; absent for `true` where there is an `endpoint`.
    #[serde(default)]
    pub path_style: Option<bool>,
    /// A file of shared credentials.
    #[serde(default)]
    pub credentials_file: Option<PathBuf>,
    /// Whom the prefix belongs to, for no other can open it; absent for the base URI of the holder.
    #[serde(default)]
    pub owner: Option<String>,
}

impl ObjectTier {
    /// Octets set aside for rotten objects.
    pub(crate) const fn quarantine_octets(&self) -> u64 {
        self.octets / 16
    }
}

/// When cold blocks of a disk are copied to the object tier below it, in thousandths of the disk tier.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Demotion {
    /// Copying begins once more than this is used.
    pub high: u64,
    /// Copying ends once all but this much could be freed without losing a block.
    pub low: u64,
    /// Copies under way at once.
    pub copies: usize,
}

impl Default for Demotion {
    fn default() -> Self {
        let Watermarks { high, low, copies } = Watermarks::default();
        Self { high, low, copies }
    }
}

impl Demotion {
    pub(crate) const fn watermarks(self) -> Watermarks {
        Watermarks { high: self.high, low: self.low, copies: self.copies }
    }
}

/// What a scope keeps of the home tier.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScopeFloor {
    /// The scope.
    pub scope_id: ScopeId,
    /// Octets below which no other scope takes it.
    pub octets: u64,
}

impl BlocksConfig {
    /// Octets of memory that all blocks may take together.
    pub(crate) const fn memory_octets(&self) -> u64 {
        let in_flight = self.ingest_octets.saturating_add(self.read_octets);
        self.host_octets.saturating_add(in_flight).saturating_add(self.transcode_octets)
    }

    /// The octets of blocks that each tier takes.
    pub(crate) fn caps(&self) -> PerLevel<Option<u64>> {
        PerLevel::new(
            (self.host_octets > 0).then_some(self.host_octets),
            self.disk.as_ref().map(|disk| disk.octets.saturating_sub(disk.quarantine_octets())),
            self.object.as_ref().map(|object| object.octets.saturating_sub(object.quarantine_octets())),
        )
    }

    pub(crate) fn scope_floors(&self) -> ScopeFloors {
        let scopes = self.floors.iter().map(|floor| (floor.scope_id, floor.octets)).collect();
        ScopeFloors { scopes, others: self.floor_octets }
    }
}

/// Which block goes first where room is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// The one that was not used for longest.
    Lru,
    /// By recency and frequency, so that blocks that are used once do not drive out the others. The default,
    /// because on every recorded trace that `kvsp replay` was tried on it has at least the hits of the other.
    #[default]
    TinyLfu,
}

impl Eviction {
    /// A policy for one tier.
    pub(crate) fn policy(self) -> Box<dyn EvictionPolicy<BlockName>> {
        match self {
            Self::Lru => Box::<LeastRecentlyUsed<BlockName>>::default(),
            Self::TinyLfu => Box::<TinyLfu<BlockName>>::default(),
        }
    }
}

impl Default for BlocksConfig {
    fn default() -> Self {
        Self {
            host_octets: 4 << 30,
            host_read_mbit_per_s: None,
            disk: None,
            object: None,
            demotion: Demotion::default(),
            floors: Vec::new(),
            floor_octets: 0,
            scrub_octets_per_s: 16 << 20,
            transcode_octets: 64 << 20,
            eviction: Eviction::default(),
            index: None,
            replica_ttl_ms: 600_000,
            canary_ms: 5_000,
            lease_quota_octets: None,
            max_leases: 10_000,
            ingest_octets: 1 << 30,
            read_octets: 1 << 30,
            ingest_wait_ms: 5_000,
            max_descriptors: 1024,
            max_layers: 4096,
            limits: Limits::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eviction(text: &str) -> Option<Eviction> {
        serde_json::from_str::<BlocksConfig>(text).ok().map(|config| config.eviction)
    }

    #[test]
    fn an_object_tier_is_a_url_and_a_cap() {
        let read = |text: &str| serde_json::from_str::<BlocksConfig>(text);
        let text = r#"{"object": {"url": "s3://b/p", "octets": 1600, "endpoint": "http://m:9000"},
            "demotion": {"high": 900}, "floors": [{"scope_id": "22222222222222222222222222222222", "octets": 7}]}"#;
        let config = read(text).unwrap();
        assert_eq!(config.caps(), PerLevel::new(Some(4 << 30), None, Some(1500)));
        let Watermarks { high, low, .. } = config.demotion.watermarks();
        assert_eq!((high, low), (900, Watermarks::default().low));
        assert_eq!(config.scope_floors().scopes, [(ScopeId([0x22; 16]), 7)].into());
        for bad in [r#"{"object": {"octets": 1}}"#, r#"{"object": {"url": "s3://b"}}"#, r#"{"objects": {}}"#]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_policy_is_chosen_by_name() {
        assert_eq!(eviction("{}"), Some(Eviction::TinyLfu));
        assert_eq!(eviction(r#"{"eviction": "lru"}"#), Some(Eviction::Lru));
        assert_eq!(eviction(r#"{"eviction": "tiny-lfu"}"#), Some(Eviction::TinyLfu));
        assert_eq!(eviction(r#"{"eviction": "random"}"#), None);
    }
}
