//! The controller's side: epochs, checkpoints, failover.
//!
//! What is in memory is what is on stable storage: a request or an event begins a write, and only
//! [`Sessions::persisted`] makes it true. So whatever was acknowledged, shown or sent survives a crash. A session
//! has one write under way at most; what meets it waits for its end.

mod api;
mod change;
mod config;
mod entry;
mod error;
mod failover;
mod hand_over;
mod hosts;
mod probe;
mod record;
mod restore;
mod time;
mod write;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kvsp_proto::id::ScopeId;
use kvsp_proto::message::{PlacedSession, SessionList, SessionState, SessionView};
use kvsp_proto::uri::BaseUri;
use serde_json::Value;
use uuid::Uuid;

pub use api::{Choice, Effect, NewSession, Outcome, Place, Probe, ResumeOutcome, Verdict};
pub use change::{Change, CheckpointHead, Head, Progress, SEGMENT_TOKENS, Stored, Ticket};
pub use config::SessionsConfig;
pub use error::{Conflict, Invalid, SessionError};

use self::time::OwnTime;
use crate::time::Time;
use entry::{Entry, Next};
use hosts::Host;

/// The sessions of a controller.
#[derive(Debug, Clone)]
pub struct Sessions {
    config: SessionsConfig,
    sessions: BTreeMap<Uuid, Entry>,
    hosts: BTreeMap<BaseUri, Host>,
    /// Instances that have not reported since the controller's start, by when they are to have done so.
    expected: BTreeSet<(Time, BaseUri)>,
    tickets: BTreeMap<Ticket, Uuid>,
    next_ticket: u64,
    next_attempt: u64,
    /// By when it ended: the oldest makes room first.
    done: BTreeSet<(Time, Uuid)>,
    /// Sessions in a failover, or being handed over.
    failing: BTreeSet<Uuid>,
    /// Those of them that wait for their turn, as [`entry::Failover::turn`] orders them.
    queue: BTreeSet<(bool, Time, Uuid)>,
    /// Failovers under way.
    active: usize,
    timers: BTreeSet<(Time, Uuid)>,
    octets: u64,
    own_time: OwnTime,
    /// At most a few of each session: each is followed by an answer before the next.
    effects: VecDeque<Effect>,
    changed: BTreeSet<Uuid>,
}

impl Sessions {
    /// No session yet.
    #[must_use]
    pub const fn new(config: SessionsConfig) -> Self {
        Self {
            config,
            sessions: BTreeMap::new(),
            hosts: BTreeMap::new(),
            expected: BTreeSet::new(),
            tickets: BTreeMap::new(),
            next_ticket: 1,
            next_attempt: 1,
            done: BTreeSet::new(),
            failing: BTreeSet::new(),
            queue: BTreeSet::new(),
            active: 0,
            timers: BTreeSet::new(),
            octets: 0,
            own_time: OwnTime::new(config.stall),
            effects: VecDeque::new(),
            changed: BTreeSet::new(),
        }
    }

    /// Makes a session, at epoch 1 and its instance. It exists once the write is durable.
    ///
    /// # Errors
    /// [`SessionError::Full`].
    pub fn create(&mut self, new: NewSession, now: Time) -> Result<Outcome<PlacedSession>, SessionError> {
        let now = self.look(now);
        let session = new.session;
        if self.sessions.contains_key(&session) {
            return Err(SessionError::Full);
        }
        let mut changes = Vec::new();
        if self.sessions.len() >= self.config.max_sessions {
            changes.push(self.displace()?);
        }
        let Choice { instance, instance_epoch, ttl_ms } = new.choice.clone();
        let head = Head {
            session,
            epoch: 1,
            instance,
            instance_epoch,
            instance_ttl_ms: ttl_ms,
            owner: new.owner,
            scope_id: new.scope_id,
            compat_id: new.compat_id,
            state: SessionState::Running,
            reason: None,
            tokens: new.tokens,
            block_keys: new.block_keys,
            continuation: new.continuation,
            checkpoint: None,
            final_offset: 0,
        };
        let reserved = entry::weigh_head(&head);
        changes.push(Change::Head(Box::new(head.clone())));
        self.sessions.insert(session, Entry::new(head, false, now));
        self.attach(&new.choice, session);
        match self.begin(session, Next::Create, reserved) {
            Ok(ticket) => Ok(Outcome::Persist { ticket, changes, then: PlacedSession { session, epoch: 1 } }),
            Err(error) => {
                self.remove(session);
                Err(error)
            }
        }
    }

    /// Forgets the session that has been done the longest.
    fn displace(&mut self) -> Result<Change, SessionError> {
        let oldest = self.done.iter().map(|(_, session)| *session).find(|session| self.is_still(*session));
        let session = oldest.ok_or(SessionError::Full)?;
        self.remove(session);
        Ok(Change::Erase { session, segments: 0, tombstone: None })
    }

    fn is_still(&self, session: Uuid) -> bool {
        self.sessions.get(&session).is_some_and(|entry| entry.pending.is_none())
    }

    /// Ends a session and erases its tokens, its prompt and its continuation. Ending it again changes nothing.
    ///
    /// # Errors
    /// Unknown.
    pub fn end(&mut self, session: Uuid, now: Time) -> Result<Outcome<()>, SessionError> {
        self.look(now);
        let entry = self.visible(session)?;
        if entry.head.state == SessionState::Done {
            return Ok(Outcome::Done(()));
        }
        if entry.pending.is_some() {
            return Ok(Outcome::Busy);
        }
        let (next, changes) = ending(entry);
        let ticket = self.begin(session, next, 0)?;
        Ok(Outcome::Persist { ticket, changes, then: () })
    }

    /// A session as it is.
    ///
    /// # Errors
    /// Unknown.
    pub fn view(&mut self, session: Uuid, now: Time) -> Result<SessionView, SessionError> {
        let now = self.look(now);
        // One that is done is shown, but not kept by being looked at.
        let _ = self.touch(session, now);
        self.visible(session).map(Entry::view)
    }

    /// Up to `limit` of the sessions whose head `shown` accepts, ordered by identifier.
    #[must_use]
    pub fn list(&self, limit: usize, shown: impl Fn(&Head) -> bool) -> SessionList {
        let seen = self.sessions.values().filter(|entry| entry.created && shown(&entry.head));
        SessionList { sessions: seen.take(limit).map(Entry::view).collect() }
    }

    /// The principal that placed a session.
    ///
    /// # Errors
    /// Unknown.
    pub fn owner(&self, session: Uuid) -> Result<&str, SessionError> {
        self.visible(session).map(|entry| entry.head.owner.as_str())
    }

    /// The instance of a session.
    ///
    /// # Errors
    /// Unknown.
    pub fn instance(&self, session: Uuid) -> Result<&BaseUri, SessionError> {
        self.visible(session).map(|entry| &entry.head.instance)
    }

    /// The scope of a session.
    ///
    /// # Errors
    /// Unknown.
    pub fn scope(&self, session: Uuid) -> Result<ScopeId, SessionError> {
        self.visible(session).map(|entry| entry.head.scope_id)
    }

    /// What the front end gave with the placement.
    ///
    /// # Errors
    /// Unknown, also where nothing was given or the session is done.
    pub fn continuation(&mut self, session: Uuid, now: Time) -> Result<&Value, SessionError> {
        let now = self.look(now);
        self.touch(session, now)?.head.continuation.as_ref().ok_or(SessionError::Unknown)
    }

    /// How many sessions are in a state, as [`Sessions::view`] shows it. For metrics.
    #[must_use]
    pub fn count(&self, state: SessionState) -> usize {
        self.sessions.values().filter(|entry| entry.created && entry.state() == state).count()
    }

    /// The next thing to do. To be asked after every other call until there is none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front().or_else(|| self.changed.pop_first().map(Effect::Changed))
    }

    /// A session that is durable.
    fn visible(&self, session: Uuid) -> Result<&Entry, SessionError> {
        self.sessions.get(&session).filter(|entry| entry.created).ok_or(SessionError::Unknown)
    }

    /// A session that has not ended.
    fn live(&self, session: Uuid) -> Result<&Entry, SessionError> {
        self.visible(session)?;
        let live = |entry: &&Entry| entry.head.state != SessionState::Done;
        self.sessions.get(&session).filter(live).ok_or(SessionError::Unknown)
    }

    /// A session that has not ended, and now has been asked for.
    fn touch(&mut self, session: Uuid, now: Time) -> Result<&Entry, SessionError> {
        self.live(session)?;
        let entry = self.sessions.get_mut(&session).ok_or(SessionError::Unknown)?;
        entry.idle_at = now + self.config.idle;
        entry.expired &= entry.pending.is_some();
        Ok(entry)
    }

    fn remove(&mut self, session: Uuid) {
        self.end_failover(session);
        self.detach_session(session);
        let Some(entry) = self.sessions.remove(&session) else { return };
        self.octets = self.octets.saturating_sub(entry.octets);
        if let Some(timer) = entry.timer {
            self.timers.remove(&(timer, session));
        }
        if let Some(done_at) = entry.done_at {
            self.done.remove(&(done_at, session));
        }
    }
}

/// The write that ends a session.
fn ending(entry: &Entry) -> (Next, Vec<Change>) {
    let tombstone = Box::new(Head {
        state: SessionState::Done,
        block_keys: Vec::new(),
        continuation: None,
        checkpoint: None,
        final_offset: entry.output_offset(),
        ..entry.head.clone()
    });
    let erase = Change::Erase {
        session: entry.head.session,
        segments: entry.segments,
        tombstone: Some(tombstone.clone()),
    };
    (Next::End(tombstone), vec![erase])
}
