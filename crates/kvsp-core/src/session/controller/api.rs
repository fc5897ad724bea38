//! What goes into the machine and what comes out of it.

use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::message::{Needs, ResumeRequest};
use kvsp_proto::uri::BaseUri;
use serde_json::Value;
use uuid::Uuid;

use super::change::{Change, Ticket};

/// What a request comes to.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome<T> {
    /// Answer so.
    Done(T),
    /// Write `changes`, say [`super::Sessions::persisted`] or [`super::Sessions::persist_failed`], and only
    /// after the former answer `then`.
    Persist {
        /// The write.
        ticket: Ticket,
        /// Its rows, all or none.
        changes: Vec<Change>,
        /// The answer.
        then: T,
    },
    /// A write of this session is under way. Ask again after the next [`Effect::Changed`] of it.
    Busy,
}

/// A session that a placement makes.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSession {
    /// A fresh identifier.
    pub session: Uuid,
    /// The principal that placed it.
    pub owner: String,
    /// The scope of its keys.
    pub scope_id: ScopeId,
    /// The compatibility of its cache.
    pub compat_id: CompatId,
    /// Prompt tokens.
    pub tokens: u64,
    /// Keys of the prompt's complete blocks.
    pub block_keys: Vec<BlockKey>,
    /// What a resumed instance needs beside the checkpoint.
    pub continuation: Option<Value>,
    /// The instance chosen.
    pub choice: Choice,
}

/// An instance that was chosen for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The instance.
    pub instance: BaseUri,
    /// The epoch of its status.
    pub instance_epoch: u64,
    /// The TTL of its status in ms.
    pub ttl_ms: u64,
}

/// An instance is to be asked whether it still has a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The instance.
    pub instance: BaseUri,
    /// The session's epoch, to be handed back to [`super::Sessions::probed`].
    pub epoch: u64,
}

/// What a probe found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The connection was refused, or the instance does not have the session: nothing of this epoch will
    /// come from there.
    Lost,
    /// It has it.
    Alive,
    /// No answer: only the expiry of its status will tell.
    Silent,
}

/// What became of a resume that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResumeOutcome {
    /// The instance goes on with the session.
    Taken {
        /// What it waits for first.
        needs: Option<Needs>,
    },
    /// It will not.
    Refused,
    /// No answer.
    Unreachable,
}

/// Something for the driver to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Write rows, as [`Outcome::Persist`].
    Persist {
        /// The write.
        ticket: Ticket,
        /// Its rows, all or none.
        changes: Vec<Change>,
    },
    /// Choose an instance, and tell [`super::Sessions::placed`].
    Place(Box<Place>),
    /// Send a resume, and tell [`super::Sessions::resumed`]. Its epoch is on stable storage.
    Resume {
        /// The session.
        session: Uuid,
        /// Where to.
        instance: BaseUri,
        /// The body.
        request: Box<ResumeRequest>,
    },
    /// Something that a view shows has changed, or a write has ended: wake whoever waits for it.
    Changed(Uuid),
}

/// A session that needs an instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    /// The session.
    pub session: Uuid,
    /// To be handed back to [`super::Sessions::placed`].
    pub attempt: u64,
    /// The scope of its keys.
    pub scope_id: ScopeId,
    /// The compatibility of its cache.
    pub compat_id: CompatId,
    /// Keys of the prompt's complete blocks.
    pub block_keys: Vec<BlockKey>,
    /// Tokens of the prompt and of the output recorded.
    pub tokens: u64,
    /// Instances not to be chosen.
    pub exclude: Vec<BaseUri>,
    /// Whether its instance still has it: where nobody else can take it, it stays there.
    pub hand_over: bool,
}
