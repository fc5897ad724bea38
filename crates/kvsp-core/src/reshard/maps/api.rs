//! What goes into the machine and what comes out of it.

use kvsp_proto::id::{CompatId, ScopeId};
use kvsp_proto::message::{LengthRequest, MapId, ReshardMessage, Shard};
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use super::row::Row;

/// Names one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What a write changes.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The row of a map, in place of what it was.
    Row(Box<Row>),
    /// No row of this map.
    Erase(MapId),
}

/// What a request comes to.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome<T> {
    /// Answer so.
    Done(T),
    /// Write `change`, say [`super::Maps::persisted`] or [`super::Maps::persist_failed`], and only after the former
    /// answer `then`.
    Persist {
        /// The write.
        ticket: Ticket,
        /// What it changes.
        change: Change,
        /// The answer.
        then: T,
    },
    /// A write of this map is under way. Ask again after the next [`Effect::Changed`] of it.
    Busy,
}

/// A map that is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMap {
    /// Its identifier.
    pub map: MapId,
    /// The compatibility of the context's K and V.
    pub compat_id: CompatId,
    /// Its scope.
    pub scope_id: ScopeId,
    /// The session whose end is the map's.
    pub session: Option<Uuid>,
    /// Who holds what.
    pub shards: Vec<Shard>,
    /// The instance that leads the context, where it is known.
    pub leader: Option<BaseUri>,
}

/// Names one message that was sent, to be handed back with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The map.
    pub map: MapId,
    /// To whom.
    pub instance: BaseUri,
    pub(super) id: u64,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// A status of success.
    Ok,
    /// Another status.
    Refused(u16),
    /// None.
    Unreachable,
}

/// What a leader said to [`Effect::AskLength`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthOutcome {
    /// It leads the context, which is so many tokens long.
    Length(u64),
    /// It does not lead it: any status but of success, 429 and 5xx.
    NotLed,
    /// No answer, 429 or 5xx.
    Unreachable,
}

/// Something for the driver to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Write, as [`Outcome::Persist`].
    Persist {
        /// The write.
        ticket: Ticket,
        /// What it changes.
        change: Change,
    },
    /// Send `POST {ii}reshard`, and tell [`super::Maps::answered`]. A decision is on stable storage. A plan is answered
    /// once it is loaded.
    Send {
        /// To whom.
        sent: Sent,
        /// The body.
        message: Box<ReshardMessage>,
    },
    /// Send `POST {ii}maps/{map}/{version}/length`, and tell [`super::Maps::length`].
    AskLength {
        /// To whom.
        sent: Sent,
        /// The version that holds.
        version: u64,
        /// The body.
        request: Box<LengthRequest>,
    },
    /// Send `DELETE {ii}maps/{map}`, and tell [`super::Maps::answered`].
    Forget(Sent),
    /// Members' memory is gone. Choose a group, and say [`super::Maps::desired`]; where there is none to be chosen say
    /// nothing: it comes again.
    Regroup {
        /// The map.
        map: MapId,
        /// The members.
        lost: Vec<BaseUri>,
    },
    /// Something that a view shows has changed, or a write has ended: wake whoever waits for it.
    Changed(MapId),
}
