//! What members and leaders are told and asked, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use kvsp_client::ClientError;
use kvsp_core::reshard::{Answer, LengthOutcome, Sent};
use kvsp_proto::message::{LengthRequest, ReshardMessage};

use crate::service::ControllerService;

/// How long a member has to take a decision or the end of a map, and a leader to tell the length of a context. All are
/// told and asked again, so this bounds only how long a connection is waited for on which nothing comes.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Calls to members under way at a time, those of plans not among them: who loads may take as long as the plan says,
/// and no decision waits for that.
pub(super) const MAX_CALLS: usize = 256;

/// Plans that members are loading at a time.
pub(super) const MAX_PLANS: usize = 4096;

impl ControllerService {
    /// Tells a member something and hands its answer to the machine.
    pub(super) async fn tell_member(self: Arc<Self>, sent: Sent, message: Box<ReshardMessage>) {
        let (kind, timeout, room) = match &*message {
            ReshardMessage::Plan(plan) => ("plan", Duration::from_millis(plan.deadline_ms), &self.maps.plans),
            ReshardMessage::Commit { .. } => ("commit", TIMEOUT, &self.maps.calls),
            ReshardMessage::Abort { .. } => ("abort", TIMEOUT, &self.maps.calls),
        };
        let _room = room.acquire().await;
        let told = self.client.with_timeout(timeout).tell_reshard(&sent.instance, &message).await;
        let (map, version, instance) = (&sent.map, message.version(), &sent.instance);
        match &told {
            Ok(()) => tracing::debug!(%map, version, %instance, kind, "taken"),
            Err(error) => tracing::warn!(%map, version, %instance, kind, %error, "not taken"),
        }
        let answer = answer_of(told);
        self.metrics.maps.told(kind, answer);
        self.with_maps(|maps, now| maps.answered(&sent, answer, now));
    }

    /// Asks the leader of a context for its length and hands it to the machine.
    pub(super) async fn ask_length(self: Arc<Self>, sent: Sent, version: u64, request: Box<LengthRequest>) {
        let _room = self.maps.calls.acquire().await;
        let client = self.client.with_timeout(TIMEOUT);
        let told = client.context_length(&sent.instance, &sent.map, version, &request).await;
        let outcome = match told {
            Ok(answer) => LengthOutcome::Length(answer.length),
            Err(error) => {
                let (map, leader) = (&sent.map, &sent.instance);
                tracing::debug!(%map, %leader, %error, "the leader did not tell the length of the context");
                match answer_of(Err(error)) {
                    Answer::Unreachable => LengthOutcome::Unreachable,
                    Answer::Refused(429 | 500 | 502..) => LengthOutcome::Unreachable,
                    // 501 among them: it knows nothing of groups that compute.
                    Answer::Refused(_) | Answer::Ok => LengthOutcome::NotLed,
                }
            }
        };
        self.with_maps(|maps, now| maps.length(&sent, outcome, now));
    }

    /// Has a member forget a map.
    pub(super) async fn have_forgotten(self: Arc<Self>, sent: Sent) {
        let _room = self.maps.calls.acquire().await;
        let told = self.client.with_timeout(TIMEOUT).end_map(&sent.instance, &sent.map).await;
        let answer = match told {
            // Who does not know it has forgotten it.
            Err(error) if error.is_not_found() => Answer::Ok,
            told => answer_of(told),
        };
        self.metrics.maps.told("end", answer);
        self.with_maps(|maps, now| maps.answered(&sent, answer, now));
    }
}

fn answer_of(told: Result<(), ClientError>) -> Answer {
    match told {
        Ok(()) => Answer::Ok,
        Err(ClientError::Problem(problem)) => Answer::Refused(problem.status()),
        // No request will ever be sent there.
        Err(ClientError::Denied(_) | ClientError::NotHttp | ClientError::Https { .. }) => {
            Answer::Refused(403)
        }
        Err(error) if error.is_unreachable() => Answer::Unreachable,
        // It answered something else than the protocol has: 405 of a kind, where it was asked what is an extension.
        Err(_) => Answer::Refused(501),
    }
}
