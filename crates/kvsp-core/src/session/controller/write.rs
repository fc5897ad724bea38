//! Writes: begun one at a time for a session, and what becomes true when they end.

use kvsp_proto::message::SessionState;
use uuid::Uuid;

use super::Sessions;
use super::api::Effect;
use super::change::{Change, Head, SEGMENT_TOKENS, Ticket};
use super::entry::{Entry, Next, Pending, Phase, segments};
use super::error::SessionError;
use crate::time::Time;

impl Sessions {
    /// Begins the one write of a session.
    pub(super) fn begin(&mut self, session: Uuid, next: Next, reserved: u64) -> Result<Ticket, SessionError> {
        if reserved > 0 && self.octets.saturating_add(reserved) > self.config.max_octets {
            return Err(SessionError::Full);
        }
        let ticket = Ticket(self.next_ticket);
        let entry = self.sessions.get_mut(&session).ok_or(SessionError::Unknown)?;
        self.next_ticket += 1;
        self.octets += reserved;
        entry.pending = Some(Pending { ticket, next, reserved });
        self.tickets.insert(ticket, session);
        Ok(ticket)
    }

    /// Begins a write of our own accord. The room is there: it makes nothing heavier.
    pub(super) fn begin_own(&mut self, session: Uuid, next: Next, changes: Vec<Change>) {
        let changes = self.mended(session, changes);
        if let Ok(ticket) = self.begin(session, next, 0) {
            self.effects.push_back(Effect::Persist { ticket, changes });
        }
    }

    /// Changes of a session that goes on: where its rows may have been erased, all of them are written again.
    pub(super) fn mended(&self, session: Uuid, changes: Vec<Change>) -> Vec<Change> {
        let Some(entry) = self.sessions.get(&session).filter(|entry| entry.torn) else { return changes };
        let mut whole = head_rows(entry, &entry.head);
        whole.extend(token_rows(session, &[], &entry.tokens));
        whole.retain(|row| !changes.iter().any(|change| is_same_row(row, change)));
        whole.extend(changes);
        whole
    }

    /// The write is durable.
    pub fn persisted(&mut self, ticket: Ticket, now: Time) {
        let now = self.look(now);
        let Some((session, next)) = self.take(ticket) else { return };
        if let Some(entry) = self.sessions.get_mut(&session) {
            entry.torn = false;
        }
        self.apply(session, next, now);
        self.changed.insert(session);
        self.lose_if_gone(session, now);
        self.catch_up(session, now);
        self.settle(now);
    }

    /// The write failed: none of it may be relied on, and none of it was told to anybody.
    pub fn persist_failed(&mut self, ticket: Ticket, now: Time) {
        let now = self.look(now);
        let Some((session, next)) = self.take(ticket) else { return };
        match next {
            Next::Create => self.remove(session),
            Next::Move(head) => {
                self.detach(&head.instance, session);
                self.set_phase(session, Phase::Queued);
                self.retry_later(session, now);
            }
            Next::Settle(_) | Next::Fail(_) | Next::Forget => self.retry_later(session, now),
            Next::End(_) => {
                if let Some(entry) = self.sessions.get_mut(&session) {
                    entry.torn = true;
                    // Who asked for the end asks again; nobody does where its time was over.
                    entry.retry_at = entry.expired.then(|| now + self.config.backoff);
                }
            }
            Next::Record { .. } => {}
        }
        self.changed.insert(session);
        self.catch_up(session, now);
        self.settle(now);
    }

    fn take(&mut self, ticket: Ticket) -> Option<(Uuid, Next)> {
        let session = self.tickets.remove(&ticket)?;
        let pending = self.sessions.get_mut(&session)?.pending.take_if(|p| p.ticket == ticket)?;
        self.octets = self.octets.saturating_sub(pending.reserved);
        Some((session, pending.next))
    }

    fn retry_later(&mut self, session: Uuid, now: Time) {
        if let Some(entry) = self.sessions.get_mut(&session) {
            entry.retry_at = Some(now + self.config.backoff);
        }
    }

    fn apply(&mut self, session: Uuid, next: Next, now: Time) {
        match next {
            Next::Create => {
                if let Some(entry) = self.sessions.get_mut(&session) {
                    entry.created = true;
                    entry.idle_at = now + self.config.idle;
                }
                self.account(session);
            }
            Next::Record { head, progress, tokens } => self.apply_record(session, head, progress, tokens),
            Next::Move(head) => self.moved(session, *head, now),
            Next::Settle(head) => {
                let settling = self.sessions.get(&session).and_then(Entry::phase) == Some(&Phase::Settling);
                self.replace_head(session, *head);
                // The instance may have gone while this was being written.
                if settling {
                    self.end_failover(session);
                }
            }
            Next::Fail(head) | Next::End(head) => {
                self.end_failover(session);
                self.detach_session(session);
                self.ended(session, *head, now);
                self.account(session);
            }
            Next::Forget => self.remove(session),
        }
    }

    fn apply_record(
        &mut self,
        session: Uuid,
        head: Option<Box<Head>>,
        progress: super::Progress,
        tokens: Vec<u32>,
    ) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let heavier = 4 * tokens.len() as u64;
        self.octets += heavier;
        entry.octets += heavier;
        entry.progress = Some(progress);
        entry.tokens.extend(tokens);
        entry.needs = None;
        let settles = matches!(entry.phase(), Some(Phase::Sent { .. } | Phase::Settling));
        let Some(head) = head else { return };
        let running = head.state == SessionState::Running;
        entry.head = *head;
        if settles && running {
            self.end_failover(session);
        }
        self.account(session);
    }

    fn ended(&mut self, session: Uuid, head: Head, now: Time) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let done = head.state == SessionState::Done;
        if done {
            let (timer, octets) = (entry.timer, entry.octets);
            *entry = Entry { timer, octets, done_at: Some(now), ..Entry::new(head, true, now) };
            self.done.insert((now, session));
        } else {
            entry.head = head;
            entry.needs = None;
        }
        entry.expired = false;
        entry.idle_at = now + if done { self.config.done_retention } else { self.config.idle };
    }

    fn replace_head(&mut self, session: Uuid, head: Head) {
        if let Some(entry) = self.sessions.get_mut(&session) {
            entry.head = head;
        }
    }

    /// Charges a session what it weighs now. That takes a walk through its continuation, so a checkpoint that
    /// only adds tokens does without.
    pub(super) fn account(&mut self, session: Uuid) {
        if let Some(entry) = self.sessions.get_mut(&session) {
            let octets = entry.weigh();
            self.octets = self.octets.saturating_sub(entry.octets) + octets;
            entry.octets = octets;
        }
    }
}

/// The rows of a head that changes, with the progress that is true with it: a progress row of a write that was
/// reported failed may be on stable storage, and must not count in a later epoch.
pub(super) fn head_rows(entry: &Entry, head: &Head) -> Vec<Change> {
    let session = head.session;
    let progress = entry.progress.clone().map(|progress| Change::Progress { session, progress });
    std::iter::once(Change::Head(Box::new(head.clone()))).chain(progress).collect()
}

/// The segments that `fresh` tokens behind `recorded` ones touch, as they then are.
pub(super) fn token_rows(session: Uuid, recorded: &[u32], fresh: &[u32]) -> Vec<Change> {
    let whole = recorded.len() / SEGMENT_TOKENS;
    let open = recorded.get(whole * SEGMENT_TOKENS..).unwrap_or_default();
    let tokens: Vec<u32> = open.iter().chain(fresh).copied().collect();
    let numbered = (segments(whole * SEGMENT_TOKENS)..).zip(tokens.chunks(SEGMENT_TOKENS));
    numbered.map(|(segment, tokens)| Change::Tokens { session, segment, tokens: tokens.to_vec() }).collect()
}

/// Whether two changes of one session write the same row.
fn is_same_row(a: &Change, b: &Change) -> bool {
    match (a, b) {
        (Change::Tokens { segment: a, .. }, Change::Tokens { segment: b, .. }) => a == b,
        (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
    }
}
