//! What is counted of sessions.

use std::time::Duration;

use kvsp_core::session::{ResumeOutcome, SessionError, Verdict};
use kvsp_net::metrics::Metrics;
use kvsp_proto::message::SessionState;
use kvsp_store::state::GroupCounts;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::Label;
use crate::sessions::Unrecorded;

/// The metrics of the sessions of one Placement Controller.
#[derive(Debug)]
pub(crate) struct SessionMetrics {
    sessions: Family<Label, Gauge>,
    recorded: Counter,
    checkpoints: Family<Label, Counter>,
    failovers: Counter,
    hand_overs: Counter,
    failover_time: Histogram,
    resumes: Family<Label, Counter>,
    probes: Family<Label, Counter>,
    long_polls: Gauge,
    commits: Gauge,
    committed: Gauge,
}

impl SessionMetrics {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let checkpoints = Family::<Label, Counter>::default();
        let recorded = checkpoints.get_or_create(&Label("outcome", "recorded")).clone();
        let own = Self {
            sessions: Family::default(),
            recorded,
            checkpoints,
            failovers: metrics.counter("controller_failovers", "Sessions that lost their instance"),
            hand_overs: metrics.counter(
                "controller_hand_overs",
                "Times that another instance was looked for, for a session whose own is to be left",
            ),
            failover_time: metrics.seconds(
                "controller_failover_seconds",
                "Time from the search for another instance to a session that runs there",
            ),
            resumes: Family::default(),
            probes: Family::default(),
            long_polls: metrics.gauge("controller_long_polls", "Requests that wait for a session"),
            commits: metrics.gauge("controller_state_commits", "Commits of the state store since its start"),
            committed: metrics
                .gauge("controller_state_changes", "Changes of sessions in these commits, many in one"),
        };
        metrics.register("controller_sessions", "Sessions by state", own.sessions.clone());
        metrics.register("controller_checkpoints", "Checkpoints by outcome", own.checkpoints.clone());
        metrics.register("controller_resumes", "Resumes sent by outcome", own.resumes.clone());
        metrics.register("controller_probes", "Instances asked after a broken stream", own.probes.clone());
        own
    }

    pub(crate) fn checkpoint(&self, refused: Option<&Unrecorded>) {
        let outcome = match refused {
            None => {
                self.recorded.inc();
                return;
            }
            Some(Unrecorded::Busy | Unrecorded::Store) => "unwritten",
            Some(Unrecorded::Refused(error)) => match error {
                SessionError::Unknown => "unknown",
                SessionError::StaleEpoch { .. } => "stale-epoch",
                SessionError::UnknownEpoch { .. } => "unknown-epoch",
                SessionError::Conflict(_) => "conflict",
                SessionError::Invalid(_) => "invalid",
                SessionError::TooLong { .. } | SessionError::Full => "no-room",
            },
        };
        self.checkpoints.get_or_create(&Label("outcome", outcome)).inc();
    }

    pub(crate) fn lost(&self) {
        self.failovers.inc();
    }

    pub(crate) fn leaves(&self) {
        self.hand_overs.inc();
    }

    pub(crate) fn found_again(&self, after: Duration) {
        self.failover_time.observe(after.as_secs_f64());
    }

    pub(crate) fn resumed(&self, outcome: ResumeOutcome) {
        let outcome = match outcome {
            ResumeOutcome::Taken { needs: None } => "taken",
            ResumeOutcome::Taken { needs: Some(_) } => "needs-prompt",
            ResumeOutcome::Refused => "refused",
            ResumeOutcome::Unreachable => "unreachable",
        };
        self.resumes.get_or_create(&Label("outcome", outcome)).inc();
    }

    pub(crate) fn probed(&self, verdict: Verdict) {
        let verdict = match verdict {
            Verdict::Lost => "lost",
            Verdict::Alive => "alive",
            Verdict::Silent => "silent",
        };
        self.probes.get_or_create(&Label("verdict", verdict)).inc();
    }

    pub(crate) fn count(
        &self,
        sessions: impl Iterator<Item = (SessionState, usize)>,
        long_polls: usize,
        commits: GroupCounts,
    ) {
        let whole = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        for (state, count) in sessions {
            self.sessions.get_or_create(&Label("state", state.as_str())).set(whole(count as u64));
        }
        self.long_polls.set(whole(long_polls as u64));
        self.commits.set(whole(commits.transactions));
        self.committed.set(whole(commits.lists));
    }
}
