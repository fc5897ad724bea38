//! Bounds and times.

use std::time::Duration;

/// Bounds and times of [`super::Maps`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapsConfig {
    /// Most maps.
    pub max_maps: usize,
    /// Most instances remembered that are in no map.
    pub max_instances: usize,
    /// The deadline of a change that the controller begins itself, in ms.
    pub deadline_ms: u64,
    /// The first wait before a message is sent again, doubled each time.
    pub backoff: Duration,
    /// The longest such wait.
    pub max_backoff: Duration,
    /// A decision that was sent and not answered is sent again after this.
    pub answer_timeout: Duration,
    /// How often a member is told that a map ended, and a leader without a shard what was decided.
    pub max_tries: u32,
    /// The first wait before another group is asked for where memory is lost, doubled each time.
    pub regroup: Duration,
    /// The longest such wait.
    pub max_regroup: Duration,
    /// A longer silence between two calls is a stall of our own: nobody could report meanwhile.
    pub stall: Duration,
}

impl Default for MapsConfig {
    fn default() -> Self {
        Self {
            max_maps: 10_000,
            max_instances: 10_000,
            deadline_ms: 10_000,
            backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(1),
            answer_timeout: Duration::from_secs(5),
            max_tries: 10,
            regroup: Duration::from_millis(200),
            max_regroup: Duration::from_secs(5),
            stall: Duration::from_secs(1),
        }
    }
}
