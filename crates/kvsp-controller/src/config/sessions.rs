//! Settings of sessions.

use std::time::Duration;

use kvsp_core::session::SessionsConfig;
use serde::Deserialize;

/// Settings of sessions. Times are in ms.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSettings {
    /// Most sessions known, those that have ended among them; a new one displaces the one that ended longest ago.
    pub max_sessions: usize,
    /// Octets that all sessions together may take in memory, by an estimate.
    pub max_octets: u64,
    /// Output tokens of one session.
    pub max_tokens: u64,
    /// Parts that sessions are cut into, so that requests about different ones do not wait for each other.
    pub shards: usize,
    /// Requests that wait for a session's epoch to be raised.
    pub max_long_polls: usize,
    /// How long a request waits for an earlier change of the same session to be recorded.
    pub busy_wait_ms: u64,
    /// How long an instance has to tell whether it still has a session whose stream broke.
    pub probe_timeout_ms: u64,
    /// The shortest time between two such questions about one session.
    pub probe_interval_ms: u64,
    /// How long an instance has to take a session that it is to resume.
    pub attempt_timeout_ms: u64,
    /// Instances that are asked to resume a session before it has failed.
    pub max_attempts: u32,
    /// The first wait after no instance was left to ask, doubled each time.
    pub backoff_ms: u64,
    /// The longest such wait.
    pub max_backoff_ms: u64,
    /// How long a failover may last before the session has failed.
    pub give_up_ms: u64,
    /// Failovers under way at a time.
    pub max_resumes: usize,
    /// A session that nobody has asked for or checkpointed for so long is ended.
    pub idle_ms: u64,
    /// How long it is remembered that a session has ended.
    pub done_retention_ms: u64,
}

impl Default for SessionSettings {
    fn default() -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let core = SessionsConfig::default();
        Self {
            max_sessions: core.max_sessions,
            max_octets: core.max_octets,
            max_tokens: core.max_tokens,
            shards: 16,
            max_long_polls: 16_384,
            busy_wait_ms: 5_000,
            probe_timeout_ms: 300,
            probe_interval_ms: ms(core.probe_interval),
            attempt_timeout_ms: ms(core.attempt_timeout),
            max_attempts: core.max_attempts,
            backoff_ms: ms(core.backoff),
            max_backoff_ms: ms(core.max_backoff),
            give_up_ms: ms(core.give_up),
            max_resumes: core.max_resumes,
            idle_ms: ms(core.idle),
            done_retention_ms: ms(core.done_retention),
        }
    }
}

impl SessionSettings {
    /// The settings of one shard.
    pub(crate) fn shard(&self) -> SessionsConfig {
        let shards = self.shards.max(1);
        let ms = Duration::from_millis;
        SessionsConfig {
            max_sessions: self.max_sessions.div_ceil(shards),
            max_octets: self.max_octets.div_ceil(shards as u64),
            max_tokens: self.max_tokens,
            max_attempts: self.max_attempts,
            attempt_timeout: self.attempt_timeout(),
            backoff: ms(self.backoff_ms),
            max_backoff: ms(self.max_backoff_ms),
            give_up: ms(self.give_up_ms),
            idle: ms(self.idle_ms),
            done_retention: ms(self.done_retention_ms),
            max_resumes: self.max_resumes.div_ceil(shards),
            probe_interval: ms(self.probe_interval_ms),
            // The driver answers within the timeout; that it does not answer at all is for twice as long believed.
            probe_timeout: self.probe_timeout() * 2,
            ..SessionsConfig::default()
        }
    }

    pub(crate) const fn probe_timeout(&self) -> Duration {
        Duration::from_millis(self.probe_timeout_ms)
    }

    pub(crate) const fn attempt_timeout(&self) -> Duration {
        Duration::from_millis(self.attempt_timeout_ms)
    }

    pub(crate) const fn busy_wait(&self) -> Duration {
        Duration::from_millis(self.busy_wait_ms)
    }
}
