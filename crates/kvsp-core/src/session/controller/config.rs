//! Bounds and times.

use std::time::Duration;

/// Bounds and policies of [`super::Sessions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionsConfig {
    /// Most sessions known; a new one displaces the one that ended longest ago.
    pub max_sessions: usize,
    /// Octets that all sessions together may take in memory, by an estimate.
    pub max_octets: u64,
    /// Output tokens of one session.
    pub max_tokens: u64,
    /// Resumes sent for one failover.
    pub max_attempts: u32,
    /// How long an instance has to answer a resume.
    pub attempt_timeout: Duration,
    /// The first wait after no instance was left to try, doubled each time.
    pub backoff: Duration,
    /// The longest such wait.
    pub max_backoff: Duration,
    /// How long a failover may last before the session has failed.
    pub give_up: Duration,
    /// A session that nobody has asked for or checkpointed for so long is ended.
    pub idle: Duration,
    /// How long it is remembered that a session ended.
    pub done_retention: Duration,
    /// Failovers that are being placed, written or sent at the same time; at least 1.
    pub max_resumes: usize,
    /// Two reports of a broken stream lead to two probes only so far apart.
    pub probe_interval: Duration,
    /// How long a probe may take.
    pub probe_timeout: Duration,
    /// A longer silence between two calls is a stall of our own: nothing could be heard meanwhile, so no
    /// time has passed for what we wait for.
    pub stall: Duration,
}

impl Default for SessionsConfig {
    fn default() -> Self {
        Self {
            max_sessions: 100_000,
            max_octets: 1 << 30,
            max_tokens: 1 << 20,
            max_attempts: 32,
            attempt_timeout: Duration::from_secs(2),
            backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(1),
            give_up: Duration::from_secs(60),
            idle: Duration::from_secs(3600),
            done_retention: Duration::from_secs(600),
            max_resumes: 64,
            probe_interval: Duration::from_millis(100),
            probe_timeout: Duration::from_secs(1),
            stall: Duration::from_secs(1),
        }
    }
}
