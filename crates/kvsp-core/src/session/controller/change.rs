//! What goes to stable storage, and what comes back from it.

use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::message::SessionState;
use kvsp_proto::record::SamplerState;
use kvsp_proto::uri::BaseUri;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

/// Output tokens of one [`Change::Tokens`] row.
pub const SEGMENT_TOKENS: usize = 64;

/// Names one write: all its changes become durable together, or none counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A row to be written. What is written at every checkpoint is small: the head, with the prompt and the
/// continuation in it, is a row apart.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The head of a session.
    Head(Box<Head>),
    /// How far a session is recorded.
    Progress {
        /// The session.
        session: Uuid,
        /// The row.
        progress: Progress,
    },
    /// Output tokens `segment * SEGMENT_TOKENS ..`: all that the segment holds now, in place of what it held.
    Tokens {
        /// The session.
        session: Uuid,
        /// The segment.
        segment: u32,
        /// Its tokens, at most [`SEGMENT_TOKENS`].
        tokens: Vec<u32>,
    },
    /// Remove the progress and the segments `0..segments`, and put `tombstone` in place of the head; without
    /// one remove the head.
    Erase {
        /// The session.
        session: Uuid,
        /// How many segments there can be.
        segments: u32,
        /// What is left of the session.
        tombstone: Option<Box<Head>>,
    },
}

/// A session but for its progress and its tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The session.
    pub session: Uuid,
    /// Its epoch; it never falls.
    pub epoch: u64,
    /// The instance of that epoch.
    pub instance: BaseUri,
    /// The epoch of the instance's own start that the session was given to.
    pub instance_epoch: u64,
    /// The TTL of that instance's status in ms: after a restart of the controller it has so long to report.
    pub instance_ttl_ms: u64,
    /// The principal that placed the session.
    pub owner: String,
    /// The scope of its keys.
    pub scope_id: ScopeId,
    /// The compatibility of its cache.
    pub compat_id: CompatId,
    /// Its state.
    pub state: SessionState,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Prompt tokens.
    pub tokens: u64,
    /// The keys that it was placed by.
    pub block_keys: Vec<BlockKey>,
    /// What the front end gave with the placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation: Option<Value>,
    /// The prompt, once there is a checkpoint. Without it a [`Progress`] row does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointHead>,
    /// Output tokens that were recorded, once they are erased; 0 until then.
    #[serde(default)]
    pub final_offset: u64,
}

/// The part of a checkpoint that is the same in every checkpoint of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointHead {
    /// Keys of the complete prompt blocks.
    pub prompt_blocks: Vec<BlockKey>,
    /// Prompt tokens after the last complete block.
    pub prompt_tail: Vec<u32>,
}

/// The part of a checkpoint that moves, but for the tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The epoch that the checkpoint was taken in.
    pub epoch: u64,
    /// Output tokens recorded.
    pub output_offset: u64,
    /// The sampler's state after them.
    pub sampler: SamplerState,
}

/// A session as it was found on stable storage.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Its head.
    pub head: Head,
    /// Its progress row, where there is one.
    pub progress: Option<Progress>,
    /// The tokens of its segments, one after another. There may be more than the progress tells of: left by
    /// a write that was reported failed. They do not count.
    pub tokens: Vec<u32>,
    /// How many segments there are. Their tokens do not tell: a short one may lie before one that such a write left.
    pub segments: u32,
}
