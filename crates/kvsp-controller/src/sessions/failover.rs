//! From a session without an instance to one that has another (draft section 6.8, profile section 7).

use std::sync::Arc;

use kvsp_client::ClientError;
use kvsp_core::session::{Choice, Place, Probe, ResumeOutcome, Verdict};
use kvsp_proto::message::{PlacementRequest, ResumeRequest, SessionView};
use kvsp_proto::problem::Problem;
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use crate::service::ControllerService;

impl ControllerService {
    /// Chooses an instance by cost, as for a placement, and tells the session.
    pub(super) async fn find_instance(self: Arc<Self>, place: Place) {
        let (session, attempt) = (place.session, place.attempt);
        let request = PlacementRequest {
            scope_id: place.scope_id,
            compat_id: place.compat_id,
            block_keys: place.block_keys,
            tokens: place.tokens,
            request_ref: None,
            session: false,
            continuation: None,
            exclude: place.exclude,
        };
        let choice = self.choose_one(&request, !place.hand_over).await;
        if choice.is_none() {
            // The session says so itself, once, where none is found in time.
            tracing::debug!(%session, "no instance can go on with a session now");
        }
        self.with_session(session, |sessions, now| sessions.placed(session, attempt, choice.clone(), now));
        if let Some(choice) = choice {
            self.check_again(session, &choice);
        }
    }

    /// What became of a chosen instance while nobody told its sessions: an expiry or a restart that came between
    /// the choice and its record would else be missed.
    pub(crate) fn check_again(self: &Arc<Self>, session: Uuid, choice: &Choice) {
        let status = self.instances().live_status(&choice.instance, self.now());
        match status {
            Some(status) if status.epoch == choice.instance_epoch => {
                // Chosen while the order to leave it came in: nobody else may say so for a while.
                if self.instances().migrates(&choice.instance) {
                    self.with_session(session, |sessions, now| sessions.hand_over(&choice.instance, now));
                }
            }
            Some(status) => self.with_session(session, |sessions, now| {
                sessions.instance_reported(&choice.instance, status.epoch, status.ttl_ms, now);
            }),
            None => {
                self.with_session(session, |sessions, now| sessions.instance_failed(&choice.instance, now));
            }
        }
    }

    /// Has an instance go on with a session, and tells the session what became of it.
    pub(super) async fn resume(
        self: Arc<Self>,
        session: Uuid,
        instance: BaseUri,
        mut request: Box<ResumeRequest>,
    ) {
        let epoch = request.epoch;
        request.map = self.map_of(session);
        let client = self.client.with_timeout(self.config.sessions.attempt_timeout());
        let outcome = match client.resume(&instance, session, &request).await {
            Ok(answer) => {
                tracing::info!(%session, %instance, epoch, "resumed");
                ResumeOutcome::Taken { needs: answer.needs }
            }
            Err(error) => {
                tracing::warn!(%session, %instance, epoch, %error, "a session was not resumed");
                if error.is_unreachable() { ResumeOutcome::Unreachable } else { ResumeOutcome::Refused }
            }
        };
        self.metrics.sessions.resumed(outcome);
        self.with_session(session, |sessions, now| sessions.resumed(session, epoch, outcome, now));
    }

    /// A front end says that the stream of an epoch broke: its instance is asked whether it still has the session.
    ///
    /// # Errors
    /// What the machine refuses.
    pub(crate) fn stream_broken(self: &Arc<Self>, session: Uuid, epoch: u64) -> Result<SessionView, Problem> {
        let (probe, view) = self.with_session(session, |sessions, now| {
            let probe = sessions.stream_broken(session, epoch, now)?;
            Ok::<_, Problem>((probe, sessions.view(session, now)?))
        })?;
        if let Some(probe) = probe {
            self.go_on(Arc::clone(self).probe(session, probe));
        }
        Ok(view)
    }

    async fn probe(self: Arc<Self>, session: Uuid, probe: Probe) {
        let Probe { instance, epoch } = probe;
        let client = self.client.with_timeout(self.config.sessions.probe_timeout());
        let verdict = verdict(client.tokens(&instance, session, 0).await.map(drop));
        tracing::info!(%session, %instance, epoch, ?verdict, "a broken stream was reported");
        self.metrics.sessions.probed(verdict);
        self.with_session(session, |sessions, now| sessions.probed(session, epoch, verdict, now));
    }
}

/// What the answer to a probe means. A wrong guess costs a failover that was not needed and nothing else: the epoch
/// is raised first, and whatever the old instance still sends is refused.
fn verdict(answer: Result<(), ClientError>) -> Verdict {
    match answer {
        Ok(()) => Verdict::Alive,
        // No connection, or one that broke: no process is there.
        Err(ClientError::Unreachable { .. }) => Verdict::Lost,
        // A process is there, but it is another one, or it has given the session up.
        Err(ClientError::Problem(problem)) if matches!(problem.status(), 404 | 409 | 410) => Verdict::Lost,
        Err(_) => Verdict::Silent,
    }
}

#[cfg(test)]
mod tests {
    use kvsp_proto::problem::ProblemType;

    use super::*;

    #[test]
    fn only_what_is_certain_is_lost() {
        let problem = |problem| Err(ClientError::Problem(Problem::new(problem, "")));
        assert_eq!(verdict(Ok(())), Verdict::Alive);
        assert_eq!(verdict(problem(ProblemType::SessionUnknown)), Verdict::Lost);
        assert_eq!(verdict(problem(ProblemType::StaleEpoch)), Verdict::Lost);
        assert_eq!(verdict(problem(ProblemType::Overloaded)), Verdict::Silent);
        assert_eq!(verdict(Err(ClientError::Timeout { host: "h".into() })), Verdict::Silent);
        let broken = ClientError::Unreachable { host: "h".into(), source: "refused".into() };
        assert_eq!(verdict(Err(broken)), Verdict::Lost);
    }
}
