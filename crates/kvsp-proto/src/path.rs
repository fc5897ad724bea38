//! Resource paths below a base URI: the one place that spells them, for servers and clients alike.
//!
//! `*_ROUTE` constants are templates with `{name}` segments; functions build the paths of one resource.

use uuid::Uuid;

use crate::id::{BlockKey, CompatId, ScopeId};
use crate::message::{MapId, TokenRange};
use crate::uri::{BaseUri, HolderUri};

/// Media type of every JSON body sent.
pub const MEDIA_JSON: &str = "application/kvsp+json";
/// Media type of a container.
pub const MEDIA_BLOCK: &str = "application/kvsp-block";
/// Media type of a sequence of containers (extension `layer-stream`).
pub const MEDIA_BLOCK_SEQUENCE: &str = "application/kvsp-block-sequence";
/// Media type of a feed of events.
pub const MEDIA_EVENTS: &str = "text/event-stream";
/// Media type of a problem.
pub const MEDIA_PROBLEM: &str = "application/problem+json";
/// The header by which an inference request carries its `request_ref`.
pub const REQUEST_REF_HEADER: &str = "kvsp-request-ref";
/// The header by which an inference request names the scope of its blocks; never the scope's key.
pub const SCOPE_HEADER: &str = "kvsp-scope-id";
/// The header of a block sequence that tells how many leading blocks are sent.
pub const BLOCKS_HEADER: &str = "kvsp-blocks";

/// The header by which an inference request joins a session.
pub const SESSION_HEADER: &str = "kvsp-session";
/// The header by which it names the session's epoch.
pub const SESSION_EPOCH_HEADER: &str = "kvsp-session-epoch";
/// The header of a token stream that tells what the instance waits for.
pub const SESSION_NEEDS_HEADER: &str = "kvsp-session-needs";

/// The header by which an inference request names the map over which its context is split (an extension).
pub const MAP_HEADER: &str = "kvsp-map";
/// Media type of queries and partial attention (extension `group-attention`).
pub const MEDIA_ATTENTION: &str = "application/kvsp-attention";

/// One replica record.
pub const REPLICA_ROUTE: &str = "replicas/{compat}/{scope}/{block_key}/{holder}";
/// The replica records of one block.
pub const BLOCK_REPLICAS_ROUTE: &str = "replicas/{compat}/{scope}/{block_key}";
/// Batches of records.
pub const REPLICAS: &str = "replicas";
/// All records of one holder.
pub const HOLDER_ROUTE: &str = "holders/{holder}";
/// Lookup.
pub const LOOKUP: &str = "lookup";
/// The feed of the index's changes.
pub const EVENTS: &str = "events";
/// One descriptor.
pub const DESCRIPTOR_ROUTE: &str = "descriptors/{compat}";
/// All instances.
pub const INSTANCES: &str = "instances";
/// One instance.
pub const INSTANCE_ROUTE: &str = "instances/{instance}";
/// The status of one instance.
pub const INSTANCE_STATUS_ROUTE: &str = "instances/{instance}/status";
/// The state of one instance.
pub const INSTANCE_STATE_ROUTE: &str = "instances/{instance}/state";
/// Placement.
pub const PLACEMENTS: &str = "placements";
/// One block.
pub const BLOCK_ROUTE: &str = "blocks/{compat}/{scope}/{block_key}";
/// A layer stream of the blocks of one scope.
pub const BLOCKS_ROUTE: &str = "blocks/{compat}/{scope}";
/// Leases.
pub const LEASES: &str = "leases";
/// One lease.
pub const LEASE_ROUTE: &str = "leases/{lease}";
/// Directives.
pub const PREFETCH: &str = "prefetch";
/// One directive.
pub const DIRECTIVE_ROUTE: &str = "prefetch/{directive}";
/// An instance's own state.
pub const STATE: &str = "state";
/// An instance's own status.
pub const STATUS: &str = "status";
/// All sessions of the controller (an extension).
pub const SESSIONS: &str = "sessions";
/// One session, of the controller and of an instance.
pub const SESSION_ROUTE: &str = "sessions/{session}";
/// What is recorded of a session.
pub const SESSION_CHECKPOINT_ROUTE: &str = "sessions/{session}/checkpoint";
/// What the front end gave with the placement (extension `session-continuation`).
pub const SESSION_CONTINUATION_ROUTE: &str = "sessions/{session}/continuation";
/// The report of a broken stream (extension `session-failover`).
pub const SESSION_FAILOVER_ROUTE: &str = "sessions/{session}/failover";
/// The order to an instance to go on with a session.
pub const SESSION_RESUME_ROUTE: &str = "sessions/{session}/resume";
/// The prompt, for an instance that lacks its blocks.
pub const SESSION_PROMPT_ROUTE: &str = "sessions/{session}/prompt";
/// The output tokens of a session at its instance.
pub const SESSION_TOKENS_ROUTE: &str = "sessions/{session}/tokens";
/// The answer of a session, for a client of the gateway that comes back.
pub const STREAM_ROUTE: &str = "v1/streams/{session}";
/// All maps of the controller (an extension).
pub const MAPS: &str = "maps";
/// One map, of the controller; at an instance (an extension) what it holds of the context.
pub const MAP_ROUTE: &str = "maps/{map}";
/// The order to split a map anew.
pub const MAP_RESHARD_ROUTE: &str = "maps/{map}/reshard";
/// What a member of a map is told.
pub const RESHARD: &str = "reshard";
/// K and V of a range of tokens at a member.
pub const MAP_TOKENS_ROUTE: &str = "maps/{map}/{version}/tokens";
/// Partial attention at a member (extension `group-attention`).
pub const MAP_ATTENTION_ROUTE: &str = "maps/{map}/{version}/attention";
/// The order to a member to compute K and V (extension `group-attention`).
pub const MAP_PREFILL_ROUTE: &str = "maps/{map}/{version}/prefill";
/// The controller's question to the leader of a context (extension `group-attention`).
pub const MAP_LENGTH_ROUTE: &str = "maps/{map}/{version}/length";
/// Text completions, of an instance and of the gateway (OpenAI API).
pub const COMPLETIONS: &str = "v1/completions";
/// Chat completions of the gateway (OpenAI API).
pub const CHAT_COMPLETIONS: &str = "v1/chat/completions";
/// Models of the gateway (OpenAI API).
pub const MODELS: &str = "v1/models";

/// The record of a replica at a holder.
#[must_use]
pub fn replica(compat: CompatId, scope: ScopeId, key: BlockKey, holder: &HolderUri) -> String {
    format!("replicas/{compat}/{scope}/{key}/{}", holder.to_uri64())
}

/// The records of a block.
#[must_use]
pub fn block_replicas(compat: CompatId, scope: ScopeId, key: BlockKey) -> String {
    format!("replicas/{compat}/{scope}/{key}")
}

/// All records of a holder.
#[must_use]
pub fn holder(holder: &HolderUri) -> String {
    format!("holders/{}", holder.to_uri64())
}

/// A descriptor.
#[must_use]
pub fn descriptor(compat: CompatId) -> String {
    format!("descriptors/{compat}")
}

/// An instance at the controller.
#[must_use]
pub fn instance(instance: &BaseUri) -> String {
    format!("instances/{}", instance.to_uri64())
}

/// The status of an instance, at the controller or the index.
#[must_use]
pub fn instance_status(instance: &BaseUri) -> String {
    format!("instances/{}/status", instance.to_uri64())
}

/// The state of an instance at the controller.
#[must_use]
pub fn instance_state(instance: &BaseUri) -> String {
    format!("instances/{}/state", instance.to_uri64())
}

/// A block.
#[must_use]
pub fn block(compat: CompatId, scope: ScopeId, key: BlockKey) -> String {
    format!("blocks/{compat}/{scope}/{key}")
}

/// The layer stream of a scope.
#[must_use]
pub fn blocks(compat: CompatId, scope: ScopeId) -> String {
    format!("blocks/{compat}/{scope}")
}

/// A lease.
#[must_use]
pub fn lease(lease: Uuid) -> String {
    format!("leases/{lease}")
}

/// A directive.
#[must_use]
pub fn directive(directive: Uuid) -> String {
    format!("prefetch/{directive}")
}

/// A session.
#[must_use]
pub fn session(session: Uuid) -> String {
    format!("sessions/{session}")
}

/// The checkpoint of a session.
#[must_use]
pub fn session_checkpoint(session: Uuid) -> String {
    format!("sessions/{session}/checkpoint")
}

/// The continuation of a session.
#[must_use]
pub fn session_continuation(session: Uuid) -> String {
    format!("sessions/{session}/continuation")
}

/// The report of a session's broken stream.
#[must_use]
pub fn session_failover(session: Uuid) -> String {
    format!("sessions/{session}/failover")
}

/// The order to go on with a session.
#[must_use]
pub fn session_resume(session: Uuid) -> String {
    format!("sessions/{session}/resume")
}

/// The prompt of a session.
#[must_use]
pub fn session_prompt(session: Uuid) -> String {
    format!("sessions/{session}/prompt")
}

/// The output tokens of a session.
#[must_use]
pub fn session_tokens(session: Uuid, from: u64) -> String {
    format!("sessions/{session}/tokens?from={from}")
}

/// A map.
#[must_use]
pub fn map(map: &MapId) -> String {
    format!("maps/{map}")
}

/// The order to split a map anew.
#[must_use]
pub fn map_reshard(map: &MapId) -> String {
    format!("maps/{map}/reshard")
}

/// K and V of a range of tokens at a member.
#[must_use]
pub fn map_tokens(map: &MapId, version: u64, range: TokenRange) -> String {
    format!("maps/{map}/{version}/tokens?range={range}")
}

/// Partial attention at a member.
#[must_use]
pub fn map_attention(map: &MapId, version: u64) -> String {
    format!("maps/{map}/{version}/attention")
}

/// The order to a member to compute K and V.
#[must_use]
pub fn map_prefill(map: &MapId, version: u64) -> String {
    format!("maps/{map}/{version}/prefill")
}

/// The controller's question to the leader of a context.
#[must_use]
pub fn map_length(map: &MapId, version: u64) -> String {
    format!("maps/{map}/{version}/length")
}
