//! Answers.

use serde::{Deserialize, Serialize};

/// Why an output ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// The limit on tokens.
    Length,
}

/// Where prompt tokens came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PromptTokensDetails {
    /// Prompt tokens whose KV cache was reused, not computed.
    #[serde(default)]
    pub cached_tokens: u64,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the output.
    pub completion_tokens: u64,
    /// Both.
    pub total_tokens: u64,
    /// Where prompt tokens came from.
    #[serde(default)]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
}

impl Usage {
    /// The usage of a request.
    #[must_use]
    pub const fn new(prompt: u64, completion: u64, cached: u64) -> Self {
        Self {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt.saturating_add(completion),
            prompt_tokens_details: Some(PromptTokensDetails { cached_tokens: cached }),
        }
    }
}

/// One choice of a completion, whole or a chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletionChoice {
    /// Always 0.
    pub index: u32,
    /// The text.
    pub text: String,
    /// Always null.
    #[serde(default)]
    pub logprobs: Option<()>,
    /// Why the output ended; null before.
    #[serde(default)]
    pub finish_reason: Option<FinishReason>,
}

/// A completion, whole or a chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// The request's name.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// Seconds since the Unix epoch.
    #[serde(default)]
    pub created: u64,
    /// The model.
    pub model: String,
    /// One choice, or none in a chunk that only tells the usage.
    pub choices: Vec<CompletionChoice>,
    /// The usage, at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// The reply of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatReply {
    /// `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
    /// Always null.
    #[serde(default)]
    pub refusal: Option<()>,
}

/// The choice of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatChoice {
    /// Always 0.
    pub index: u32,
    /// The reply.
    pub message: ChatReply,
    /// Always null.
    #[serde(default)]
    pub logprobs: Option<()>,
    /// Why the output ended.
    pub finish_reason: Option<FinishReason>,
}

/// A chat's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatAnswer {
    /// The request's name.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// Seconds since the Unix epoch.
    pub created: u64,
    /// The model.
    pub model: String,
    /// One choice.
    pub choices: Vec<ChatChoice>,
    /// The usage.
    pub usage: Option<Usage>,
}

/// What a chunk of a chat adds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ChatDelta {
    /// `assistant`, in the first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// The choice of a chunk of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatChunkChoice {
    /// Always 0.
    pub index: u32,
    /// What it adds.
    pub delta: ChatDelta,
    /// Always null.
    #[serde(default)]
    pub logprobs: Option<()>,
    /// Why the output ended; null before.
    #[serde(default)]
    pub finish_reason: Option<FinishReason>,
}

/// A chunk of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatChunk {
    /// The request's name.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: String,
    /// Seconds since the Unix epoch.
    pub created: u64,
    /// The model.
    pub model: String,
    /// One choice, or none in a chunk that only tells the usage.
    pub choices: Vec<ChatChunkChoice>,
    /// The usage, at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// One model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelEntry {
    /// The name to ask for.
    pub id: String,
    /// `model`.
    pub object: String,
    /// Seconds since the Unix epoch.
    pub created: u64,
    /// `kvsp`.
    pub owned_by: String,
}

/// `GET v1/models`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// The models.
    pub data: Vec<ModelEntry>,
}
