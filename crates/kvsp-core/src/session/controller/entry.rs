//! One session in memory: what is durable of it, and what is under way.

use std::collections::BTreeMap;

use kvsp_proto::message::{Needs, SessionState, SessionView};
use kvsp_proto::record::SessionCheckpoint;
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use super::api::Choice;
use super::change::{CheckpointHead, Head, Progress, SEGMENT_TOKENS, Ticket};
use crate::time::Time;

/// A session. Head, progress and tokens are what is on stable storage, nothing else.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) head: Head,
    pub(super) progress: Option<Progress>,
    pub(super) tokens: Vec<u32>,
    /// False until the session itself is durable; nobody sees it before.
    pub(super) created: bool,
    /// How many segments there can be on stable storage, those of failed writes among them.
    pub(super) segments: u32,
    /// A write that erases it was reported failed, and may have been durable all the same.
    pub(super) torn: bool,
    /// Octets charged, without what the write under way reserved.
    pub(super) octets: u64,
    pub(super) pending: Option<Pending>,
    pub(super) failover: Option<Failover>,
    /// Nobody else could take it when it was to be handed over; not asked for again before.
    pub(super) stays_until: Option<Time>,
    pub(super) needs: Option<Needs>,
    /// When the last probe was handed out, and whether it is unanswered.
    pub(super) probe: Option<(Time, bool)>,
    /// Its time is over: nobody asked for it, or it has been remembered long enough.
    pub(super) expired: bool,
    pub(super) idle_at: Time,
    /// Since when it is done.
    pub(super) done_at: Option<Time>,
    /// A write of our own failed; the next try is not before.
    pub(super) retry_at: Option<Time>,
    /// What the table of timers holds.
    pub(super) timer: Option<Time>,
}

/// A write under way.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) ticket: Ticket,
    pub(super) next: Next,
    pub(super) reserved: u64,
}

/// What becomes true once a write is durable.
#[derive(Debug, Clone)]
pub(super) enum Next {
    Create,
    Record {
        /// The head, where it changes.
        head: Option<Box<Head>>,
        progress: Progress,
        tokens: Vec<u32>,
    },
    /// The next attempt's epoch and instance.
    Move(Box<Head>),
    /// A resume was taken.
    Settle(Box<Head>),
    Fail(Box<Head>),
    End(Box<Head>),
    Forget,
}

/// A session on its way to another instance.
#[derive(Debug, Clone)]
pub(super) struct Failover {
    pub(super) since: Time,
    /// The instance of the session still has it and goes on with it until the next epoch is durable: it is handed
    /// over, not lost.
    pub(super) voluntary: bool,
    /// Resumes sent.
    pub(super) attempts: u32,
    /// Instances not to be tried, with the epoch of the start that failed.
    pub(super) exclude: BTreeMap<BaseUri, u64>,
    /// Waits so far in a row.
    pub(super) backoffs: u32,
    pub(super) phase: Phase,
}

impl Failover {
    /// It waits for its turn.
    pub(super) fn new(voluntary: bool, exclude: Option<(BaseUri, u64)>, now: Time) -> Self {
        let exclude = exclude.into_iter().collect();
        Self { since: now, voluntary, attempts: 0, exclude, backoffs: 0, phase: Phase::Queued }
    }

    /// Its place in the queue: who has lost its instance comes first, then who waits the longest.
    pub(super) const fn turn(&self, session: Uuid) -> (bool, Time, Uuid) {
        (self.voluntary, self.since, session)
    }
}

/// Where a failover is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Phase {
    /// It waits for its turn, or for a write to end.
    Queued,
    /// An instance is being chosen.
    Placing { attempt: u64, deadline: Time },
    /// One is chosen, and a write is to end first.
    Chosen(Choice),
    /// Epoch and instance are being written.
    Moving,
    /// The resume is on its way.
    Sent { deadline: Time },
    /// The resume was taken; that is to be written.
    Settling,
    /// No instance is left to try.
    BackingOff { until: Time },
    /// It is over; that is to be written.
    GivingUp(Reason),
}

/// Why a session failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    NoInstance,
    Attempts(u32),
    TokensLost,
}

impl Reason {
    pub(super) fn text(self) -> String {
        match self {
            Self::NoInstance => "no active instance could take the session in time".to_owned(),
            Self::Attempts(n) => format!("none of {n} attempts to resume was taken"),
            Self::TokensLost => "its recorded tokens were not whole when the controller started".to_owned(),
        }
    }
}

impl Phase {
    /// Whether it counts against the failovers at the same time.
    pub(super) const fn holds_slot(&self) -> bool {
        matches!(self, Self::Placing { .. } | Self::Chosen(_) | Self::Moving | Self::Sent { .. })
    }
}

impl Entry {
    pub(super) fn new(head: Head, created: bool, idle_at: Time) -> Self {
        Self {
            head,
            progress: None,
            tokens: Vec::new(),
            created,
            segments: 0,
            torn: false,
            octets: 0,
            pending: None,
            failover: None,
            stays_until: None,
            needs: None,
            probe: None,
            expired: false,
            idle_at,
            done_at: None,
            retry_at: None,
            timer: None,
        }
    }

    pub(super) const fn is_final(&self) -> bool {
        self.head.state.is_final()
    }

    pub(super) fn phase(&self) -> Option<&Phase> {
        self.failover.as_ref().map(|failover| &failover.phase)
    }

    pub(super) fn output_offset(&self) -> u64 {
        self.progress.as_ref().map_or(self.head.final_offset, |progress| progress.output_offset)
    }

    /// The recorded prompt and progress.
    pub(super) fn recorded(&self) -> Option<(&CheckpointHead, &Progress)> {
        self.head.checkpoint.as_ref().zip(self.progress.as_ref())
    }

    pub(super) fn checkpoint(&self) -> Option<SessionCheckpoint> {
        let (prompt, progress) = self.recorded()?;
        Some(SessionCheckpoint {
            session: self.head.session,
            epoch: progress.epoch,
            compat_id: self.head.compat_id,
            scope_id: self.head.scope_id,
            prompt_blocks: prompt.prompt_blocks.clone(),
            prompt_tail: prompt.prompt_tail.clone(),
            generated: self.tokens.clone(),
            output_offset: progress.output_offset,
            sampler: progress.sampler.clone(),
        })
    }

    /// The state as it is shown: it is resuming from the moment that its instance is lost. One that is handed over
    /// runs until its next epoch is durable.
    pub(super) fn state(&self) -> SessionState {
        let moving = self.failover.as_ref().is_some_and(|failover| !failover.voluntary) && !self.is_final();
        if moving { SessionState::Resuming } else { self.head.state }
    }

    pub(super) fn view(&self) -> SessionView {
        SessionView {
            session: self.head.session,
            epoch: self.head.epoch,
            instance: self.head.instance.clone(),
            state: self.state(),
            output_offset: self.output_offset(),
            needs: self.needs.filter(|_| !self.is_final()),
            reason: self.head.reason.clone(),
        }
    }

    /// Octets that it takes in memory, by an estimate.
    pub(super) fn weigh(&self) -> u64 {
        weigh_head(&self.head) + 4 * self.tokens.len() as u64
    }

    /// The next point at which time alone changes something.
    pub(super) fn deadline(&self) -> Option<Time> {
        if self.pending.is_some() {
            return None;
        }
        if let Some(retry) = self.retry_at {
            return Some(retry);
        }
        match self.phase() {
            Some(Phase::Placing { deadline, .. } | Phase::Sent { deadline }) => Some(*deadline),
            Some(Phase::BackingOff { until }) => Some(*until),
            Some(_) => None,
            None => Some(self.idle_at),
        }
    }
}

/// Octets of a head in memory, by an estimate.
pub(super) fn weigh_head(head: &Head) -> u64 {
    const FIXED: usize = 1024;
    let continuation = head.continuation.as_ref().map_or(0, weigh_json);
    let prompt = head.checkpoint.as_ref().map_or(0, |c| 32 * c.prompt_blocks.len() + 4 * c.prompt_tail.len());
    (FIXED + 32 * head.block_keys.len() + head.owner.len() + continuation + prompt) as u64
}

fn weigh_json(value: &serde_json::Value) -> usize {
    use serde_json::Value::{Array, Object, String};
    const NODE: usize = 32;
    match value {
        String(text) => NODE + text.len(),
        Array(items) => NODE + items.iter().map(weigh_json).sum::<usize>(),
        Object(members) => NODE + members.iter().map(|(k, v)| NODE + k.len() + weigh_json(v)).sum::<usize>(),
        _ => NODE,
    }
}

/// Segments that so many tokens fill.
pub(super) fn segments(tokens: usize) -> u32 {
    u32::try_from(tokens.div_ceil(SEGMENT_TOKENS)).unwrap_or(u32::MAX)
}
