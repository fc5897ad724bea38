//! Finding the stream of a session's tokens at an instance.

use std::time::Duration;

use kvsp_client::{ClientError, TokenStream};
use kvsp_openai::{CompletionRequest, Prompt};
use kvsp_proto::message::{MapId, Needs, PromptRequest, SessionState, SessionView};
use kvsp_proto::problem::ProblemType;
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use crate::Gateway;
use crate::upstream::{Refused, SessionPart};

/// Time for the head of an instance's answer to one that comes back: it has nothing to compute before it.
const HEAD: Duration = Duration::from_secs(5);
/// Attempts to tell the controller a session's end, over about a minute: it may be starting again.
const END_ATTEMPTS: u32 = 16;

/// The request that a session began with.
pub(crate) struct Original {
    pub(crate) request: CompletionRequest,
    pub(crate) request_ref: String,
    /// The shard map that its context is split by.
    pub(crate) map: Option<MapId>,
}

impl Original {
    fn prompt(&self) -> &[u32] {
        match &self.request.prompt {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Text(_) | Prompt::Texts(_) | Prompt::TokenLists(_) => &[],
        }
    }

    /// Octets it takes.
    pub(super) fn octets(&self) -> u64 {
        let map = self.map.as_ref().map_or(0, |map| map.as_str().len());
        (size_of_val(self.prompt()) + self.request_ref.len() + map) as u64
    }
}

/// Why there is no stream now.
#[derive(Debug)]
pub(crate) enum NoStream {
    /// The instance does not have the session yet, or has it no more at this epoch: the controller will tell.
    NotYet(String),
    /// The instance is not there, or has lost the session.
    Lost(String),
    /// The session has moved meanwhile.
    Moved(SessionView),
    /// It is known nowhere.
    Unknown,
    /// There will never be one.
    Never(String),
}

impl Gateway {
    /// The stream of a session's tokens from an index on (contract of section 6.8: the front end reconnects
    /// with the next index it needs). An instance that needs the prompt is given it; one that has never heard
    /// of the session, because nothing was recorded of it when it moved there, is sent the request anew.
    pub(super) async fn reconnect(
        &self,
        session: Uuid,
        epoch: u64,
        instance: &BaseUri,
        from: u64,
        original: Option<&Original>,
    ) -> Result<TokenStream, NoStream> {
        let client = self.client.with_timeout(HEAD);
        match client.tokens(instance, session, from).await {
            Ok(stream) => {
                if stream.needs == Some(Needs::Prompt) {
                    self.give_prompt(session, epoch, instance, original).await?;
                }
                Ok(stream)
            }
            Err(error) if error.is_not_found() => self.begin_anew(session, epoch, instance, original).await,
            Err(error) if is_conflict(&error) => Err(NoStream::NotYet(error.to_string())),
            Err(error) => Err(NoStream::Lost(error.to_string())),
        }
    }

    async fn give_prompt(
        &self,
        session: Uuid,
        epoch: u64,
        instance: &BaseUri,
        original: Option<&Original>,
    ) -> Result<(), NoStream> {
        let Some(original) = original else {
            return Err(NoStream::Never("the prompt is lost with the gateway that took it".into()));
        };
        let prompt = PromptRequest { epoch, tokens: original.prompt().to_vec() };
        match self.client.give_prompt(instance, session, &prompt).await {
            Ok(()) => Ok(()),
            Err(error) if error.problem_type() == Some(ProblemType::InvalidCheckpoint) => {
                Err(NoStream::Never(format!("the recorded session is of another prompt: {error}")))
            }
            Err(error) if is_conflict(&error) => Err(NoStream::NotYet(error.to_string())),
            Err(error) => Err(NoStream::Lost(error.to_string())),
        }
    }

    /// The instance does not know the session. That is so while the controller has not resumed it yet, and
    /// for good where there was nothing to resume.
    async fn begin_anew(
        &self,
        session: Uuid,
        epoch: u64,
        instance: &BaseUri,
        original: Option<&Original>,
    ) -> Result<TokenStream, NoStream> {
        let view = match self.client.with_timeout(HEAD).session(&self.controller, session).await {
            Ok(view) => view,
            Err(error) if error.problem_type() == Some(ProblemType::SessionUnknown) => {
                return Err(NoStream::Unknown);
            }
            // Without the controller's word the request could run beside a session that is being resumed.
            Err(error) => return Err(NoStream::NotYet(error.to_string())),
        };
        if view.epoch != epoch || view.state.is_final() {
            return Err(NoStream::Moved(view));
        }
        if view.state == SessionState::Resuming {
            return Err(NoStream::NotYet("the session is being resumed".into()));
        }
        if view.output_offset > 0 {
            return Err(NoStream::Lost("the instance has lost the session".into()));
        }
        let Some(original) = original else {
            return Err(NoStream::Never("the request is lost with the gateway that took it".into()));
        };
        self.begin_session(session, epoch, instance, original).await.map_err(|refused| match refused {
            Refused::Request(error) => NoStream::Never(error.to_string()),
            Refused::Elsewhere { status: Some(409), why } => NoStream::NotYet(why),
            Refused::Elsewhere { why, .. } => NoStream::Lost(why),
        })
    }

    /// Sends an instance the request of a session; its tokens come from the first on.
    pub(crate) async fn begin_session(
        &self,
        session: Uuid,
        epoch: u64,
        instance: &BaseUri,
        original: &Original,
    ) -> Result<TokenStream, Refused> {
        let (request, request_ref) = (&original.request, &original.request_ref);
        let part = SessionPart { session, epoch, map: original.map.as_ref() };
        let answer = self.post(instance, request, request_ref, Some(part)).await?;
        let (head, body) = answer.into_parts();
        TokenStream::new(&head.headers, body).map_err(|error| Refused::elsewhere(error.to_string()))
    }

    /// Ends a session where it is known. The controller's word is what counts; the instance hears of it at its
    /// next checkpoint at the latest.
    pub(crate) async fn end_session(&self, session: Uuid, instance: &BaseUri) {
        let client = self.client.with_timeout(HEAD);
        let at_instance = async {
            if let Err(error) = client.end_session(instance, session).await {
                tracing::debug!(%session, %instance, %error, "the instance was not told the session's end");
            }
        };
        tokio::join!(at_instance, self.end_at_controller(session));
    }

    async fn end_at_controller(&self, session: Uuid) {
        let client = self.client.with_timeout(HEAD);
        let mut pause = Duration::from_millis(100);
        for _ in 0..END_ATTEMPTS {
            match client.end_session(&self.controller, session).await {
                Ok(()) | Err(ClientError::Problem(_)) => return,
                Err(error) => {
                    tracing::debug!(%session, %error, "the controller does not end the session yet");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => return,
            }
            pause = (pause * 2).min(HEAD);
        }
        tracing::warn!(%session, "the controller was not told the session's end");
    }
}

fn is_conflict(error: &ClientError) -> bool {
    matches!(error, ClientError::Problem(problem) if problem.status() == 409)
}
