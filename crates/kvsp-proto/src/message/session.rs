//! Sessions: acknowledgements, views, resumption and output tokens (draft section 6.8, profile sections 5 and 7).

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::MapId;
use crate::json;
use crate::record::{RecordError, SamplerState, SessionCheckpoint};
use crate::uri::BaseUri;

/// The answer to a checkpoint, given once it is on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionAck {
    /// The session's epoch.
    pub epoch: u64,
    /// Output tokens recorded.
    pub output_offset: u64,
}

/// `PATCH {pc}sessions/{session}/checkpoint` (extension `checkpoint-append`): the tokens since an offset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointAppend {
    /// The sender's epoch.
    pub epoch: u64,
    /// The output index of the first of `append`; at most the offset recorded.
    pub from_offset: u64,
    /// Output tokens.
    pub append: Vec<u32>,
    /// The sampler's state after them.
    pub sampler: SamplerState,
}

impl CheckpointAppend {
    /// Read one from I-JSON.
    ///
    /// # Errors
    /// [`RecordError`]; invalid where the sampler's method is not registered.
    pub fn from_json(body: &[u8]) -> Result<Self, RecordError> {
        Ok(json::from_slice(body)?)
    }
}

/// What a session is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionState {
    /// An instance serves it.
    Running,
    /// Its instance is lost, and another is being sought or told.
    Resuming,
    /// It has ended, and its tokens are erased.
    Done,
    /// No instance could go on with it.
    Failed,
}

impl SessionState {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Resuming => "resuming",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    /// Whether it stays in this state for good.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }
}

/// What a resumed instance lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Needs {
    /// The tokens of the prompt: its blocks are gone.
    Prompt,
}

impl Needs {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
        }
    }
}

/// `GET {pc}sessions/{session}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// The session.
    #[serde(deserialize_with = "crate::id::uuid")]
    pub session: Uuid,
    /// Its epoch.
    pub epoch: u64,
    /// The instance that serves it, or served it last.
    pub instance: BaseUri,
    /// Its state.
    pub state: SessionState,
    /// Output tokens recorded.
    pub output_offset: u64,
    /// What its instance waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<Needs>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `GET {pc}sessions` (an extension).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionList {
    /// Sessions ordered by identifier.
    pub sessions: Vec<SessionView>,
}

/// `POST {ii}sessions/{session}/resume`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResumeRequest {
    /// The epoch of this attempt.
    pub epoch: u64,
    /// What was recorded last.
    pub checkpoint: SessionCheckpoint,
    /// What the front end gave with the placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuation: Option<Value>,
    /// An extension: the map over which the session's context is split.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "json::present")]
    pub map: Option<MapId>,
}

impl ResumeRequest {
    /// Read a request from I-JSON.
    ///
    /// # Errors
    /// [`RecordError`]; invalid where `generated` is not `output_offset` tokens long.
    pub fn from_json(body: &[u8]) -> Result<Self, RecordError> {
        let request: Self = json::from_slice(body)?;
        request.checkpoint.check()?;
        Ok(request)
    }
}

/// The answer to a resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumeAnswer {
    /// The session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Uuid>,
    /// The epoch taken up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// What the instance waits for before it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<Needs>,
}

/// `POST {ii}sessions/{session}/prompt`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptRequest {
    /// The session's epoch.
    pub epoch: u64,
    /// All tokens of the prompt.
    pub tokens: Vec<u32>,
}

/// `POST {pc}sessions/{session}/failover` (extension `session-failover`): the front end's stream broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailoverRequest {
    /// The epoch whose stream broke.
    pub epoch: u64,
}

/// One event of `GET {ii}sessions/{session}/tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum TokenEvent {
    /// An output token.
    Token {
        /// Its output index.
        index: u64,
        /// The epoch of the instance that releases it.
        epoch: u64,
        /// The token.
        token: u32,
        /// Its text, where the instance tells it.
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// With the first token: prompt tokens whose KV was reused.
        #[serde(skip_serializing_if = "Option::is_none")]
        reused: Option<u64>,
    },
    /// The output has ended.
    Done {
        /// Why: `stop` or `length`.
        done: String,
        /// The epoch of the instance.
        #[serde(skip_serializing_if = "Option::is_none")]
        epoch: Option<u64>,
        /// Prompt tokens whose KV was reused.
        #[serde(skip_serializing_if = "Option::is_none")]
        reused: Option<u64>,
    },
}

impl<'de> Deserialize<'de> for TokenEvent {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;
        #[derive(Deserialize)]
        #[serde(expecting = "a token or the end of the output")]
        struct Wire {
            index: Option<u64>,
            epoch: Option<u64>,
            token: Option<u32>,
            text: Option<String>,
            done: Option<String>,
            reused: Option<u64>,
        }
        let Wire { index, epoch, token, text, done, reused } = Wire::deserialize(deserializer)?;
        if let Some(done) = done {
            return Ok(Self::Done { done, epoch, reused });
        }
        Ok(Self::Token {
            index: index.ok_or_else(|| D::Error::missing_field("index"))?,
            epoch: epoch.ok_or_else(|| D::Error::missing_field("epoch"))?,
            token: token.ok_or_else(|| D::Error::missing_field("token"))?,
            text,
            reused,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn token_events_are_told_apart() {
        let read = |value: Value| json::from_value::<TokenEvent>(value);
        let token = TokenEvent::Token { index: 3, epoch: 2, token: 9, text: None, reused: None };
        assert_eq!(read(json!({"index": 3, "epoch": 2, "token": 9})).unwrap(), token);
        assert_eq!(serde_json::to_value(&token).unwrap(), json!({"index": 3, "epoch": 2, "token": 9}));
        let done = TokenEvent::Done { done: "stop".into(), epoch: None, reused: None };
        assert_eq!(read(json!({"done": "stop"})).unwrap(), done);
        assert!(read(json!({"index": 3, "token": 9})).is_err());
        assert!(read(json!({})).is_err());
    }

    #[test]
    fn a_resume_holds_a_valid_checkpoint() {
        let mut sample = json!({"epoch": 2, "checkpoint": {
            "session": "6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11", "epoch": 1,
            "compat_id": "22".repeat(32), "scope_id": "33".repeat(16), "prompt_blocks": [],
            "prompt_tail": [374, 264], "generated": [1296], "output_offset": 1,
            "sampler": {"method": "greedy", "seed": 7, "step": 1, "deterministic": true}
        }});
        let read = |v: &Value| ResumeRequest::from_json(v.to_string().as_bytes());
        assert_eq!(read(&sample).unwrap().continuation, None);
        sample["checkpoint"]["output_offset"] = json!(2);
        assert!(matches!(read(&sample), Err(RecordError::Invalid(_))));
    }

    #[test]
    fn a_view_tells_only_what_there_is() {
        let view = json!({
            "session": "6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11", "epoch": 1,
            "instance": "http://h:1/kvsp/", "state": "running", "output_offset": 0
        });
        let read: SessionView = json::from_value(view.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), view);
    }
}
