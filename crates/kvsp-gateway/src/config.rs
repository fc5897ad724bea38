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
    /// Whether answers outlive their instance (draft section 6.8), where the gateway has a scope key and the
    /// controller offers it.
    pub sessions: bool,
    /// Sessions at a time, and as many that have ended and are kept.
    pub max_sessions: usize,
    /// Long polls for the epochs of sessions at a time; each takes a connection of the controller. More sessions
    /// take turns, and learn of a failover a little later, unless their stream breaks.
    pub max_polls: usize,
    /// Octets of answers and prompts kept at which no new session is taken.
    pub max_transcript_octets: u64,
    /// Milliseconds that a session goes on whose client went away from a streamed answer.
    pub reconnect_ms: u64,
    /// Milliseconds that a streamed answer is kept after its end, for a client that comes back.
    pub stream_retention_ms: u64,
    /// Milliseconds of silence after which a stream of a session carries a comment.
    pub keep_alive_ms: u64,
    /// Milliseconds without any progress after which a session whose stream is lost is given up.
    pub stalled_ms: u64,
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
            sessions: true,
            max_sessions: 4096,
            max_polls: 256,
            max_transcript_octets: 256 << 20,
            reconnect_ms: 15_000,
            stream_retention_ms: 60_000,
            keep_alive_ms: 2_000,
            stalled_ms: 120_000,
            limits: Limits::default(),
        }
    }
}
