//! Settings of contexts that are split over several instances.

use serde::Deserialize;

/// Which contexts are split, and over how many instances.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupSettings {
    /// Sessions whose prompts have so many tokens are split over several instances; 0: none is.
    pub min_tokens: u64,
    /// Most instances of a group, which is how many there are for a long prompt.
    pub max_members: usize,
    /// Instances of a group once the prompt is computed.
    pub decode_members: usize,
    /// The part of a member's memory that is used, above which the group grows by one.
    pub high_utilization: f64,
    /// The part of an instance's memory that is used, below which it may join a group for that.
    pub low_utilization: f64,
    /// ms that a change of a group may take.
    pub deadline_ms: u64,
    /// Output tokens that a context has room for where the request does not tell how many it wants.
    pub default_output_tokens: u64,
}

impl Default for GroupSettings {
    fn default() -> Self {
        Self {
            min_tokens: 0,
            max_members: 4,
            decode_members: 1,
            high_utilization: 0.85,
            low_utilization: 0.6,
            deadline_ms: 10_000,
            default_output_tokens: 1024,
        }
    }
}
