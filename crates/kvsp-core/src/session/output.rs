//! The instance's side: when to checkpoint, and what may be released (draft section 6.8).
//!
//! One machine holds one session at one epoch. A token of a sampler that is not deterministic is released only
//! once an acknowledged checkpoint covers it. One checkpoint is in flight at a time and takes all tokens that
//! there are, so a slower controller makes larger checkpoints, not more of them.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::time::Time;

/// The first wait after a checkpoint that failed, doubled each time up to [`MAX_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(10);
/// The longest wait between two tries of a checkpoint.
const MAX_RETRY: Duration = Duration::from_secs(1);

/// Bounds of [`Output`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputConfig {
    /// Tokens of a non-deterministic sampler that may be computed ahead of the last acknowledgement; at
    /// least 1.
    pub max_unacked_tokens: u64,
    /// How long such a token waits for others to be checkpointed with it.
    pub max_checkpoint_delay: Duration,
    /// At the latest after so many tokens a checkpoint is due; at least 1.
    pub interval_tokens: u64,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// How long the first checkpoint waits for the prompt's blocks to be stored elsewhere.
    pub max_store_wait: Duration,
}

impl Default for OutputConfig {
    fn default() -> Self {
        Self {
            max_unacked_tokens: 64,
            max_checkpoint_delay: Duration::from_millis(5),
            interval_tokens: 64,
            block_tokens: 16,
            prompt_tokens: 0,
            max_store_wait: Duration::from_secs(2),
        }
    }
}

/// Why an output ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it.
    Stop,
    /// It is as long as it may be.
    Length,
}

impl Finish {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// Why a checkpoint was not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `kvsp-stale-epoch`: another instance has the session.
    Stale,
    /// `kvsp-session-unknown`: the session has ended.
    Gone,
    /// `kvsp-checkpoint-conflict`.
    Conflict,
    /// No answer, or one that another try may change.
    Failed,
}

/// A checkpoint to be sent now: output tokens `from..to`, with the sampler's state after `to` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Whether it is to be sent whole, by PUT; else it extends the recorded one from `from`, by PATCH.
    pub whole: bool,
    /// The first token; 0 where it is whole.
    pub from: u64,
    /// One past the last token.
    pub to: u64,
}

/// A checkpoint without an answer.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    due: Due,
    /// When the oldest of its tokens that were not acknowledged before came.
    since: Time,
}

/// The output of one session at one epoch.
#[derive(Debug, Clone)]
pub struct Output {
    config: OutputConfig,
    epoch: u64,
    deterministic: bool,
    tokens: Vec<u32>,
    finish: Option<Finish>,
    acknowledged: u64,
    /// The highest offset ever handed out: an acknowledgement beyond it is not of our tokens.
    sent: u64,
    /// Whether the controller has a checkpoint that an append can extend.
    recorded: bool,
    stored: bool,
    in_flight: Option<InFlight>,
    /// When the oldest token came that is neither acknowledged nor in flight.
    waiting_since: Option<Time>,
    retry: Option<(Time, Duration)>,
    /// Set once; with it what was released stays as it was.
    fenced: Option<(Refusal, u64)>,
}

impl Output {
    /// An output that begins with `generated`: empty, or what a checkpoint holds. `recorded` says whether the
    /// controller has that checkpoint; then all of it is acknowledged.
    #[must_use]
    pub fn new(
        config: OutputConfig,
        epoch: u64,
        generated: Vec<u32>,
        deterministic: bool,
        recorded: bool,
        now: Time,
    ) -> Self {
        let acknowledged = if recorded { generated.len() as u64 } else { 0 };
        let waiting = !recorded && !generated.is_empty();
        Self {
            config,
            epoch,
            deterministic,
            tokens: generated,
            finish: None,
            acknowledged,
            sent: acknowledged,
            recorded,
            stored: false,
            in_flight: None,
            waiting_since: waiting.then_some(now),
            retry: None,
            fenced: None,
        }
    }

    /// The engine made a token. Ignored once the output is finished or fenced.
    pub fn token(&mut self, token: u32, now: Time) {
        if self.fenced.is_none() && self.finish.is_none() {
            self.tokens.push(token);
            self.waiting_since.get_or_insert(now);
        }
    }

    /// There will be no more tokens.
    pub fn finish(&mut self, reason: Finish, _now: Time) {
        if self.fenced.is_none() {
            self.finish.get_or_insert(reason);
        }
    }

    /// The prompt's blocks are stored outside this process, so a checkpoint may rely on them.
    pub const fn blocks_stored(&mut self, _now: Time) {
        self.stored = true;
    }

    /// The checkpoint to be sent now. The next one is handed out after [`Output::acknowledged`] or
    /// [`Output::refused`].
    pub fn poll_checkpoint(&mut self, now: Time) -> Option<Due> {
        if self.due_at()? > now {
            return None;
        }
        let whole = !self.recorded;
        let from = if whole { 0 } else { self.acknowledged };
        let due = Due { whole, from, to: self.tokens.len() as u64 };
        let since = self.waiting_since.take().unwrap_or(now);
        self.in_flight = Some(InFlight { due, since });
        self.sent = due.to;
        Some(due)
    }

    /// When a checkpoint is due; in the past where it is overdue.
    fn due_at(&self) -> Option<Time> {
        let length = self.tokens.len() as u64;
        if self.fenced.is_some() || self.in_flight.is_some() || length <= self.acknowledged {
            return None;
        }
        let since = self.waiting_since.unwrap_or_default();
        let mut at = match self.is_pressing(length) {
            true => since,
            false if self.deterministic => return None,
            false => since + self.config.max_checkpoint_delay,
        };
        if !self.recorded && !self.stored {
            at = at.max(since + self.config.max_store_wait);
        }
        Some(self.retry.map_or(at, |(retry, _)| at.max(retry)))
    }

    /// Whether the tokens there are do not wait for more.
    fn is_pressing(&self, length: u64) -> bool {
        let block = u64::from(self.config.block_tokens);
        let blocks = |output: u64| self.config.prompt_tokens.saturating_add(output).checked_div(block);
        let unacknowledged = length - self.acknowledged;
        let held_back = !self.deterministic
            && (self.finish.is_some()
                // The client's first token, and the engine, wait for nothing but this.
                || !self.recorded
                || unacknowledged >= self.config.max_unacked_tokens);
        held_back
            || blocks(length) > blocks(self.acknowledged)
            || unacknowledged >= self.config.interval_tokens
    }

    /// A checkpoint was acknowledged: the controller has `offset` tokens on stable storage.
    pub fn acknowledged(&mut self, offset: u64, _now: Time) {
        if self.fenced.is_some() {
            return;
        }
        let flight = self.in_flight.take();
        self.acknowledged = self.acknowledged.max(offset.min(self.sent));
        self.recorded = true;
        self.retry = None;
        if let Some(flight) = flight.filter(|flight| flight.due.to > self.acknowledged) {
            self.waiting_since = Some(flight.since);
        }
    }

    /// A checkpoint was not acknowledged, or (`Stale`, `Gone`) the session was heard to be elsewhere or ended.
    pub fn refused(&mut self, refusal: Refusal, now: Time) {
        let flight = self.in_flight.take();
        if self.fenced.is_some() {
            return;
        }
        if let Some(flight) = &flight {
            self.waiting_since = Some(flight.since);
        }
        match refusal {
            Refusal::Failed => {
                let wait = self.retry.map_or(FIRST_RETRY, |(_, wait)| (wait * 2).min(MAX_RETRY));
                self.retry = Some((now + wait, wait));
            }
            // What is recorded is not what we took it for: all of ours decides.
            Refusal::Conflict if flight.is_some_and(|flight| !flight.due.whole) => {
                self.recorded = false;
                self.stored = true;
            }
            Refusal::Stale | Refusal::Gone | Refusal::Conflict => {
                self.fenced = Some((refusal, self.released()));
            }
        }
    }

    /// The epoch.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// All output tokens, released or not.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many tokens may be shown to the front end.
    #[must_use]
    pub fn released(&self) -> u64 {
        match self.fenced {
            Some((_, released)) => released,
            None if self.deterministic => self.tokens.len() as u64,
            None => self.acknowledged,
        }
    }

    /// Why the output ended, once every token of it is released.
    #[must_use]
    pub fn finished(&self) -> Option<Finish> {
        self.finish.filter(|_| self.released() == self.tokens.len() as u64)
    }

    /// How many output tokens the engine may have computed. It waits while it has as many.
    #[must_use]
    pub fn may_compute_to(&self) -> u64 {
        match self.fenced {
            Some(_) => self.tokens.len() as u64,
            None if self.deterministic => u64::MAX,
            None => self.acknowledged.saturating_add(self.config.max_unacked_tokens.max(1)),
        }
    }

    /// Why this instance has to let go of the session; never [`Refusal::Failed`].
    #[must_use]
    pub fn is_fenced(&self) -> Option<Refusal> {
        self.fenced.map(|(refusal, _)| refusal)
    }

    /// When to call [`Output::poll_checkpoint`] again.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.due_at()
    }
}
