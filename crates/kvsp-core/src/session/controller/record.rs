//! Checkpoints: what is recorded, what changes nothing, and what is refused.

use kvsp_proto::message::{CheckpointAppend, SessionAck, SessionState};
use kvsp_proto::record::{SamplerState, SessionCheckpoint};
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use super::Sessions;
use super::api::Outcome;
use super::change::{Change, CheckpointHead, Head, Progress};
use super::entry::{Entry, Next, Phase, segments, weigh_head};
use super::error::{Conflict, Invalid, SessionError};
use super::write::token_rows;
use crate::time::Time;

impl Sessions {
    /// The instance that a checkpoint of this epoch has to come from. A former instance of the session is told
    /// that its epoch is stale, not that it is not the instance.
    ///
    /// # Errors
    /// Unknown; a lower epoch.
    pub fn reporter(&self, session: Uuid, epoch: u64) -> Result<&BaseUri, SessionError> {
        let entry = self.live(session)?;
        match check_epoch(entry, epoch) {
            Err(stale @ SessionError::StaleEpoch { .. }) => Err(stale),
            _ => Ok(&entry.head.instance),
        }
    }

    /// A whole checkpoint. `block_tokens` is the size of a block where the descriptor is known.
    ///
    /// A lower or equal offset that agrees with what is recorded changes nothing and is acknowledged with the
    /// offset recorded.
    ///
    /// # Errors
    /// [`SessionError`], in the order of its variants.
    pub fn checkpoint(
        &mut self,
        session: Uuid,
        body: &SessionCheckpoint,
        block_tokens: Option<u32>,
        now: Time,
    ) -> Result<Outcome<SessionAck>, SessionError> {
        let now = self.look(now);
        let entry = self.touch(session, now)?;
        check_epoch(entry, body.epoch)?;
        check_body(&entry.head, body, block_tokens)?;
        if let Some((prompt, _)) = entry.recorded() {
            if prompt.prompt_blocks != body.prompt_blocks || prompt.prompt_tail != body.prompt_tail {
                return Err(Conflict::Prompt.into());
            }
            agree(&entry.tokens, &body.generated, 0)?;
            if body.generated.len() <= entry.tokens.len() {
                return Ok(Outcome::Done(ack(entry)));
            }
        }
        let prompt = entry.head.checkpoint.is_none().then(|| CheckpointHead {
            prompt_blocks: body.prompt_blocks.clone(),
            prompt_tail: body.prompt_tail.clone(),
        });
        let fresh = body.generated.get(entry.tokens.len()..).unwrap_or_default().to_vec();
        self.record(session, prompt, fresh, body.sampler.clone())
    }

    /// Tokens that extend the checkpoint recorded.
    ///
    /// # Errors
    /// [`SessionError`], in the order of its variants.
    pub fn append(
        &mut self,
        session: Uuid,
        body: &CheckpointAppend,
        now: Time,
    ) -> Result<Outcome<SessionAck>, SessionError> {
        let now = self.look(now);
        let entry = self.touch(session, now)?;
        check_epoch(entry, body.epoch)?;
        if entry.recorded().is_none() {
            return match entry.pending {
                // The whole one may just be on its way to the disk.
                Some(_) => Ok(Outcome::Busy),
                None => Err(Conflict::NotRecorded.into()),
            };
        }
        let recorded = entry.tokens.len();
        let from = usize::try_from(body.from_offset).unwrap_or(usize::MAX);
        let Some(overlap) = recorded.checked_sub(from) else {
            return match entry.pending {
                Some(_) => Ok(Outcome::Busy),
                None => Err(Conflict::Gap { recorded: recorded as u64 }.into()),
            };
        };
        agree(entry.tokens.get(from..).unwrap_or_default(), &body.append, from)?;
        match body.append.get(overlap..) {
            Some(fresh) if !fresh.is_empty() => {
                let fresh = fresh.to_vec();
                self.record(session, None, fresh, body.sampler.clone())
            }
            _ => Ok(Outcome::Done(ack(entry))),
        }
    }

    /// The checkpoint recorded.
    ///
    /// # Errors
    /// Unknown, also where none is recorded.
    pub fn read_checkpoint(&mut self, session: Uuid, now: Time) -> Result<SessionCheckpoint, SessionError> {
        let now = self.look(now);
        self.touch(session, now)?.checkpoint().ok_or(SessionError::Unknown)
    }

    /// Writes `fresh` tokens behind those recorded.
    fn record(
        &mut self,
        session: Uuid,
        prompt: Option<CheckpointHead>,
        fresh: Vec<u32>,
        sampler: SamplerState,
    ) -> Result<Outcome<SessionAck>, SessionError> {
        let entry = self.sessions.get(&session).ok_or(SessionError::Unknown)?;
        if entry.pending.is_some() {
            return Ok(Outcome::Busy);
        }
        let length = entry.tokens.len() + fresh.len();
        if length as u64 > self.config.max_tokens {
            return Err(SessionError::TooLong { max: self.config.max_tokens });
        }
        // A checkpoint of the epoch says as well as the answer to the resume that the resume was taken.
        let settles = matches!(entry.phase(), Some(Phase::Sent { .. } | Phase::Settling));
        let head = (prompt.is_some() || settles).then(|| {
            let mut head = Box::new(entry.head.clone());
            head.checkpoint = prompt.or(head.checkpoint);
            if settles {
                head.state = SessionState::Running;
            }
            head
        });
        let (epoch, output_offset) = (entry.head.epoch, length as u64);
        let progress = Progress { epoch, output_offset, sampler };
        let mut changes: Vec<Change> = head.clone().map(Change::Head).into_iter().collect();
        changes.push(Change::Progress { session, progress: progress.clone() });
        changes.extend(token_rows(session, &entry.tokens, &fresh));
        let changes = self.mended(session, changes);
        let heavier = head.as_ref().map_or(0, |h| weigh_head(h).saturating_sub(weigh_head(&entry.head)));
        let reserved = heavier + 4 * fresh.len() as u64;
        let next = Next::Record { head, progress, tokens: fresh };
        let ticket = self.begin(session, next, reserved)?;
        if let Some(entry) = self.sessions.get_mut(&session) {
            entry.segments = entry.segments.max(segments(length));
        }
        Ok(Outcome::Persist { ticket, changes, then: SessionAck { epoch, output_offset } })
    }
}

fn ack(entry: &Entry) -> SessionAck {
    SessionAck { epoch: entry.head.epoch, output_offset: entry.output_offset() }
}

/// Against the session's epoch; that of a failed session was never given to an instance.
fn check_epoch(entry: &Entry, epoch: u64) -> Result<(), SessionError> {
    let known = entry.head.epoch;
    match epoch.cmp(&known) {
        std::cmp::Ordering::Less => Err(SessionError::StaleEpoch { known }),
        std::cmp::Ordering::Greater => Err(SessionError::UnknownEpoch { known }),
        std::cmp::Ordering::Equal if entry.is_final() => Err(SessionError::StaleEpoch { known }),
        std::cmp::Ordering::Equal => Ok(()),
    }
}

fn check_body(head: &Head, body: &SessionCheckpoint, block_tokens: Option<u32>) -> Result<(), Invalid> {
    if body.session != head.session {
        return Err(Invalid::Session);
    }
    if body.compat_id != head.compat_id {
        return Err(Invalid::Compat);
    }
    if body.scope_id != head.scope_id {
        return Err(Invalid::Scope);
    }
    if body.generated.len() as u64 != body.output_offset {
        return Err(Invalid::Offset);
    }
    match block_tokens {
        Some(block_tokens) if body.prompt_tail.len() as u64 >= u64::from(block_tokens) => {
            Err(Invalid::PromptTail { block_tokens })
        }
        _ => Ok(()),
    }
}

/// Whether two runs of tokens that begin at output index `from` agree as far as both go.
fn agree(recorded: &[u32], sent: &[u32], from: usize) -> Result<(), Conflict> {
    match recorded.iter().zip(sent).position(|(recorded, sent)| recorded != sent) {
        Some(at) => Err(Conflict::Tokens { index: (from + at) as u64 }),
        None => Ok(()),
    }
}
