//! Settings of instances that the controller starts itself.

use std::time::Duration;

use kvsp_core::instances::StartsConfig;
use serde::Deserialize;

/// How instances are started where no active one can take a placement and none sleeps. Times are in ms.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StartSettings {
    /// The program and its arguments, run without a shell; empty: nothing is started. Its environment has the
    /// controller's base URI in `KVSP_CONTROLLER` and the compatibility wanted in `KVSP_COMPAT_ID`. Exit status 0
    /// says that an instance is coming, any other that none is; it may also go on running as the instance itself,
    /// and outlives the controller then.
    pub command: Vec<String>,
    /// Starts of which no instance has reported yet.
    pub max_starts: usize,
    /// The shortest time from one start, or its failure, to the next.
    pub min_interval_ms: u64,
    /// Instances that have not failed, and starts that have not reported, together.
    pub max_instances: usize,
    /// How long a placement waits for an instance to be woken or started.
    pub wait_ms: u64,
    /// A start of which no instance has reported for so long is not waited for any more.
    pub report_ms: u64,
}

impl Default for StartSettings {
    fn default() -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let core = StartsConfig::default();
        Self {
            command: Vec::new(),
            max_starts: core.max_starts,
            min_interval_ms: ms(core.min_interval),
            max_instances: core.max_instances,
            wait_ms: 10_000,
            report_ms: ms(core.report_within),
        }
    }
}

impl StartSettings {
    /// The bounds of starts; `None` where nothing is started.
    pub(crate) fn bounds(&self) -> Option<StartsConfig> {
        (!self.command.is_empty()).then_some(StartsConfig {
            max_starts: self.max_starts,
            min_interval: Duration::from_millis(self.min_interval_ms),
            max_instances: self.max_instances,
            report_within: Duration::from_millis(self.report_ms),
        })
    }

    pub(crate) const fn wait(&self) -> Duration {
        Duration::from_millis(self.wait_ms)
    }
}
