//! Sessions as the front end has them (draft section 6.8): one driver a session takes tokens from whichever
//! instance serves it and writes the answer's transcript; clients read from there, each at its own pace, and
//! may come back to where they were.

mod connect;
mod driver;
mod place;
mod reader;
mod registry;
mod render;
mod transcript;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch as cell;
use uuid::Uuid;

use crate::form::Form;

pub(crate) use connect::Original;
pub(crate) use driver::{Driver, Start};
pub(crate) use place::Place;
pub(crate) use reader::Reader;
pub(crate) use registry::Registry;
use transcript::{End, Transcript};
pub(crate) use watch::{Polls, Told, Watch};

/// What a front end must know of a session to go on with it, also after a restart of its own: it goes to the
/// controller with the placement and comes back from there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FrontEnd {
    #[serde(flatten)]
    pub(crate) form: Form,
    /// Strings that end the output.
    pub(crate) stops: Vec<String>,
    /// Whether a stream ends with the usage.
    pub(crate) include_usage: bool,
    pub(crate) prompt_tokens: u64,
    /// The principal that asked; others do not see the session.
    pub(crate) client: String,
}

/// The `continuation` of a placement. An instance reads `max_tokens`, and ignores the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Continuation {
    /// Output tokens of the whole answer at most.
    pub(crate) max_tokens: u64,
    pub(crate) front_end: FrontEnd,
}

impl Continuation {
    /// As the placement carries it.
    pub(crate) fn to_value(&self) -> Option<Value> {
        serde_json::to_value(self).ok()
    }

    /// Reads what [`Continuation::to_value`] wrote; `None` where another front end placed the session.
    pub(crate) fn from_value(value: Value) -> Option<Self> {
        serde_json::from_value(value).ok()
    }
}

/// One session, shared by its driver and its readers.
pub(crate) struct Session {
    id: Uuid,
    front_end: FrontEnd,
    /// How long the session goes on without a reader.
    patience: Duration,
    transcript: cell::Sender<Transcript>,
    presence: cell::Sender<Presence>,
    /// Octets that transcripts take, of all sessions.
    octets: Arc<AtomicU64>,
    own_octets: AtomicU64,
}

/// Who reads a session.
#[derive(Debug, Clone, Copy, Default)]
struct Presence {
    readers: usize,
    /// Some reader has handed the whole answer to its client.
    delivered: bool,
}

impl Session {
    fn new(id: Uuid, front_end: FrontEnd, patience: Duration, octets: Arc<AtomicU64>) -> Self {
        Self {
            id,
            front_end,
            patience,
            transcript: cell::Sender::new(Transcript::default()),
            presence: cell::Sender::new(Presence::default()),
            octets,
            own_octets: AtomicU64::new(0),
        }
    }

    /// Its identifier.
    pub(crate) const fn id(&self) -> Uuid {
        self.id
    }

    /// What the front end knows of it.
    pub(crate) const fn front_end(&self) -> &FrontEnd {
        &self.front_end
    }

    /// Takes in the next token's text.
    fn push(&self, text: &str) {
        self.transcript.send_modify(|transcript| {
            self.charge(transcript.push(text));
        });
    }

    /// The session takes up so many octets beside its transcript.
    fn charge(&self, octets: u64) {
        self.own_octets.fetch_add(octets, Ordering::Relaxed);
        self.octets.fetch_add(octets, Ordering::Relaxed);
    }

    /// Whether a client may come back once the answer is over.
    fn is_kept(&self) -> bool {
        !self.patience.is_zero()
    }

    /// The answer is over.
    fn finish(&self, end: End) {
        self.transcript.send_modify(|transcript| transcript.finish(end));
    }

    /// Whether a reader has handed the whole answer on.
    fn is_delivered(&self) -> bool {
        self.presence.borrow().delivered
    }

    /// Waits until a reader has handed the whole answer on.
    async fn delivered(&self) {
        // The sender lives as long as `self`.
        let _ = self.presence.subscribe().wait_for(|presence| presence.delivered).await;
    }

    /// Waits until nobody has read for as long as the session's patience.
    async fn abandoned(&self) {
        let mut presence = self.presence.subscribe();
        loop {
            let _ = presence.wait_for(|presence| presence.readers == 0).await.map(|_| ());
            let back = presence.wait_for(|presence| presence.readers > 0);
            if tokio::time::timeout(self.patience, back).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.octets.fetch_sub(self.own_octets.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
