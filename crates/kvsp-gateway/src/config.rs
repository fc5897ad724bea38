//! What a gateway is told at start.

use kvsp_proto::message::Limits;
use kvsp_proto::uri::BaseUri;
use serde::Deserialize;

/// The configuration of a gateway.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayConfig {
    /// The Placement Controller; required to serve.
    pub controller: Option<BaseUri>,
    /// The model's name in the OpenAI API; default: the descriptor's `model`.
    pub served_name: Option<String>,
    /// Instances tried for one request, the placed one first.
    pub max_attempts: usize,
    /// Milliseconds to wait for a placement.
    pub placement_timeout_ms: u64,
    /// Milliseconds to wait for the head of an instance's answer.
    pub upstream_timeout_ms: u64,
    /// Limits of request bodies.
    pub limits: Limits,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            controller: None,
            served_name: None,
            max_attempts: 3,
            placement_timeout_ms: 10_000,
            upstream_timeout_ms: 30_000,
            limits: Limits::default(),
        }
    }
}
