//! What an instance is told at start.

use std::time::Duration;

use kvsp_proto::message::Limits;
use kvsp_proto::uri::BaseUri;
use serde::Deserialize;

use crate::lifecycle::SleepWish;

/// The configuration of an instance; every member has a default.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// The Index Service in which replicas are published and looked up.
    pub index: Option<BaseUri>,
    /// The Placement Controller that gets the status.
    pub controller: Option<BaseUri>,
    /// A holder outside the process that gets a copy of every computed block.
    pub holder: Option<BaseUri>,
    /// The model's name in the OpenAI API; default: the descriptor's `model`.
    pub served_name: Option<String>,
    /// TTL of a status in ms; one is sent every third of it.
    pub status_ttl_ms: u64,
    /// Load below which the instance counts as quiet: requests that run, requests that wait, and open sessions.
    pub sleep_below: u64,
    /// How long it is quiet before it asks the controller to let it sleep, and between one refusal and asking
    /// again, in ms; 0: it never asks.
    pub sleep_after_ms: u64,
    /// Most requests that run at once.
    pub max_running: usize,
    /// Most requests that wait; more are refused with 503.
    pub max_queued: usize,
    /// Prompt tokens of one prefill pass.
    pub chunk_tokens: usize,
    /// Most directives that load at once; more are refused with 503.
    pub max_directives: usize,
    /// Directives that are remembered after they ended.
    pub directive_history: usize,
    /// The rate assumed of a link until a transfer measured it, in Mbit/s.
    pub link_mbit_per_s: f64,
    /// Octets of computed blocks that may wait for the holder; more are not copied there.
    pub max_copy_octets: u64,
    /// Most sessions at once, those among them that have ended and are still readable; more are refused with
    /// 503.
    pub max_sessions: usize,
    /// Tokens of a session that may be computed ahead of the last acknowledged checkpoint.
    pub max_unacked_tokens: u64,
    /// How long a computed token waits for others to be checkpointed with it, in ms.
    pub max_checkpoint_delay_ms: u64,
    /// How long a session's first checkpoint waits until the blocks of its prompt are stored outside this
    /// process, in ms.
    pub max_store_wait_ms: u64,
    /// How long the blocks of a session that is resumed may take to arrive, in ms; then they are computed.
    pub max_load_ms: u64,
    /// How long a session stays readable after its end, and how long it waits for its prompt, in ms.
    pub session_retention_ms: u64,
    /// Every instance that may resume a session here runs this software on equal hardware, so that greedy
    /// tokens are the same everywhere and need no acknowledged checkpoint before they are shown.
    pub equal_hardware: bool,
    /// How long a generation over a split context bears with members or a map that fail, in ms; then it fails.
    pub max_group_wait_ms: u64,
    /// Limits of the protocol resources.
    pub limits: Limits,
}

impl AgentConfig {
    pub(crate) fn sleep_wish(&self) -> SleepWish {
        let after = (self.sleep_after_ms > 0).then(|| Duration::from_millis(self.sleep_after_ms));
        SleepWish { below: self.sleep_below, after }
    }
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            index: None,
            controller: None,
            holder: None,
            served_name: None,
            status_ttl_ms: 3000,
            sleep_below: 1,
            sleep_after_ms: 0,
            max_running: 16,
            max_queued: 256,
            chunk_tokens: 128,
            max_directives: 64,
            directive_history: 1024,
            link_mbit_per_s: 8000.0,
            max_copy_octets: 256 << 20,
            max_sessions: 1024,
            max_unacked_tokens: 64,
            max_checkpoint_delay_ms: 5,
            max_store_wait_ms: 2000,
            max_load_ms: 5000,
            session_retention_ms: 60_000,
            equal_hardware: false,
            max_group_wait_ms: 30_000,
            limits: Limits::default(),
        }
    }
}
