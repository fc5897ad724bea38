//! Settings of the Placement Controller.

mod groups;
mod sessions;
mod start;

use std::path::PathBuf;
use std::time::Duration;

use kvsp_core::instances::InstancesConfig;
use kvsp_core::placement::DirectiveBounds;
use kvsp_core::reshard::MapsConfig;
use kvsp_proto::message::{Limits, MAX_RESHARD_MS};
use kvsp_proto::uri::BaseUri;
use serde::Deserialize;

pub use groups::GroupSettings;
pub use sessions::SessionSettings;
pub use start::StartSettings;

/// Settings of the Placement Controller.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ControllerConfig {
    /// The Index Service; without one, and while it is away, requests are placed without cache knowledge.
    pub index: Option<BaseUri>,
    /// The folder of the sessions; without one a temporary folder that goes with the process.
    pub state: Option<PathBuf>,
    /// The file of the key that encrypts what is in that folder; without one it lies beside it, made at the
    /// first start.
    pub state_key: Option<PathBuf>,
    /// Sessions.
    pub sessions: SessionSettings,
    /// Contexts that are split over several instances.
    pub groups: GroupSettings,
    /// ms that a placement waits for the index.
    pub index_timeout_ms: u64,
    /// ms that a placement waits for an instance to take a directive.
    pub prefetch_timeout_ms: u64,
    /// ms that an order of a state waits for the instance.
    pub state_timeout_ms: u64,
    /// The shortest deadline of a directive, in ms.
    pub min_deadline_ms: u64,
    /// The longest deadline of a directive, in ms.
    pub max_deadline_ms: u64,
    /// The longest lease of a directive, in ms.
    pub max_lease_ms: u64,
    /// Most instances known.
    pub max_instances: usize,
    /// The longest TTL of a status, in ms.
    pub max_ttl_ms: u64,
    /// An instance may fall asleep at its own request while so many others are active.
    pub min_active: usize,
    /// Nor may it while these have more requests than this share, on average, of those that they compute at once.
    pub sleep_max_load: f64,
    /// A placement that would cost more than so many ms everywhere has an instance woken or started for it.
    pub acceptable_cost_ms: Option<u64>,
    /// Instances that the controller starts itself.
    pub start: StartSettings,
    /// Most descriptors.
    pub max_descriptors: usize,
    /// Octets of a JSON body.
    pub max_json_octets: u64,
    /// Keys of a placement.
    pub max_lookup_keys: usize,
    /// Octets of a placement's `continuation`, as JSON.
    pub max_continuation_octets: usize,
}

impl Default for ControllerConfig {
    fn default() -> Self {
        let (instances, bounds, limits) =
            (InstancesConfig::default(), DirectiveBounds::default(), Limits::default());
        Self {
            index: None,
            state: None,
            state_key: None,
            sessions: SessionSettings::default(),
            groups: GroupSettings::default(),
            index_timeout_ms: 1_000,
            prefetch_timeout_ms: 500,
            state_timeout_ms: 2_000,
            min_deadline_ms: bounds.min_deadline_ms,
            max_deadline_ms: bounds.max_deadline_ms,
            max_lease_ms: bounds.max_lease_ms,
            max_instances: instances.max_instances,
            max_ttl_ms: instances.max_ttl_ms,
            min_active: instances.min_active,
            sleep_max_load: instances.sleep_max_load,
            acceptable_cost_ms: None,
            start: StartSettings::default(),
            max_descriptors: 1024,
            max_json_octets: limits.max_json_octets,
            max_lookup_keys: 65_536,
            max_continuation_octets: 64 << 10,
        }
    }
}

impl ControllerConfig {
    pub(crate) fn instances(&self) -> InstancesConfig {
        InstancesConfig {
            max_instances: self.max_instances,
            max_ttl_ms: self.max_ttl_ms,
            min_active: self.min_active,
            sleep_max_load: self.sleep_max_load,
            ..InstancesConfig::default()
        }
    }

    pub(crate) fn maps(&self) -> MapsConfig {
        MapsConfig {
            max_instances: self.max_instances,
            deadline_ms: self.groups.deadline_ms.clamp(1, MAX_RESHARD_MS),
            ..MapsConfig::default()
        }
    }

    pub(crate) const fn bounds(&self) -> DirectiveBounds {
        DirectiveBounds {
            min_deadline_ms: self.min_deadline_ms,
            max_deadline_ms: self.max_deadline_ms,
            max_lease_ms: self.max_lease_ms,
        }
    }

    pub(crate) const fn index_timeout(&self) -> Duration {
        Duration::from_millis(self.index_timeout_ms)
    }

    pub(crate) const fn prefetch_timeout(&self) -> Duration {
        Duration::from_millis(self.prefetch_timeout_ms)
    }

    pub(crate) const fn state_timeout(&self) -> Duration {
        Duration::from_millis(self.state_timeout_ms)
    }

    /// The limits that the service tells of itself.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            max_json_octets: self.max_json_octets,
            max_lookup_keys: self.max_lookup_keys as u64,
            max_ttl_ms: self.max_ttl_ms,
            ..Limits::default()
        }
    }
}
