//! Calls about sessions, to the Placement Controller and to instances (draft section 6.8, profile section 5).

use std::time::Duration;

use http::Method;
use kvsp_proto::message::{
    CheckpointAppend, FailoverRequest, PromptRequest, ResumeAnswer, ResumeRequest, SessionAck, SessionList,
    SessionView,
};
use kvsp_proto::path;
use kvsp_proto::record::SessionCheckpoint;
use kvsp_proto::uri::BaseUri;
use serde_json::Value;
use uuid::Uuid;

use crate::error::ClientError;
use crate::transport::{Call, Client};

impl Client {
    /// Records a checkpoint. The answer means that it is on stable storage.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_checkpoint(
        &self,
        controller: &BaseUri,
        checkpoint: &SessionCheckpoint,
    ) -> Result<SessionAck, ClientError> {
        let path = path::session_checkpoint(checkpoint.session);
        self.call_json(controller, Call::json(Method::PUT, path, checkpoint)?).await
    }

    /// Adds tokens to a recorded checkpoint (extension `checkpoint-append`).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn patch_checkpoint(
        &self,
        controller: &BaseUri,
        session: Uuid,
        append: &CheckpointAppend,
    ) -> Result<SessionAck, ClientError> {
        let path = path::session_checkpoint(session);
        self.call_json(controller, Call::json(Method::PATCH, path, append)?).await
    }

    /// The recorded checkpoint.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get_checkpoint(
        &self,
        controller: &BaseUri,
        session: Uuid,
    ) -> Result<SessionCheckpoint, ClientError> {
        self.call_json(controller, Call::get(path::session_checkpoint(session))).await
    }

    /// How a session stands.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn session(&self, controller: &BaseUri, session: Uuid) -> Result<SessionView, ClientError> {
        self.call_json(controller, Call::get(path::session(session))).await
    }

    /// How a session stands once its epoch is above `after_epoch`, or after `wait`, of which the controller
    /// allows 30 s at most.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Timeout`] only after `wait` and the client's own timeout.
    pub async fn await_epoch(
        &self,
        controller: &BaseUri,
        session: Uuid,
        after_epoch: u64,
        wait: Duration,
    ) -> Result<SessionView, ClientError> {
        let millis = wait.as_millis();
        let path = format!("{}?after_epoch={after_epoch}&wait_ms={millis}", path::session(session));
        let patient = self.with_timeout(wait.saturating_add(self.timeout()));
        patient.call_json(controller, Call::get(path)).await
    }

    /// All sessions that the caller may see (an extension).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn sessions(&self, controller: &BaseUri) -> Result<SessionList, ClientError> {
        self.call_json(controller, Call::get(path::SESSIONS)).await
    }

    /// What the front end gave with the placement (extension `session-continuation`).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn continuation(&self, controller: &BaseUri, session: Uuid) -> Result<Value, ClientError> {
        self.call_json(controller, Call::get(path::session_continuation(session))).await
    }

    /// Tells the controller that the stream of an epoch broke (extension `session-failover`).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn report_broken(
        &self,
        controller: &BaseUri,
        session: Uuid,
        epoch: u64,
    ) -> Result<SessionView, ClientError> {
        let path = path::session_failover(session);
        self.call_json(controller, Call::json(Method::POST, path, &FailoverRequest { epoch })?).await
    }

    /// Ends a session: at the controller its tokens are erased; at an instance (an extension) its
    /// computation ends.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn end_session(&self, service: &BaseUri, session: Uuid) -> Result<(), ClientError> {
        self.call_empty(service, Call::delete(path::session(session))).await
    }

    /// Has an instance go on with a session.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn resume(
        &self,
        instance: &BaseUri,
        session: Uuid,
        request: &ResumeRequest,
    ) -> Result<ResumeAnswer, ClientError> {
        let path = path::session_resume(session);
        let answer = self.call(instance, Call::json(Method::POST, path, request)?).await?;
        // The profile demands a body only where the instance lacks something.
        if answer.body.is_empty() {
            return Ok(ResumeAnswer { session: None, epoch: None, needs: None });
        }
        answer.json()
    }

    /// Gives an instance the prompt of a session whose blocks are lost.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn give_prompt(
        &self,
        instance: &BaseUri,
        session: Uuid,
        prompt: &PromptRequest,
    ) -> Result<(), ClientError> {
        let path = path::session_prompt(session);
        self.call_empty(instance, Call::json(Method::POST, path, prompt)?).await
    }
}
