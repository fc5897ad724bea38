//! The OpenAI-compatible request, answer and error bodies that gateway and instance share.
//!
//! Inference requests are outside the protocol (draft section 1.3); this is the form in which the gateway
//! takes them from clients and hands them to instances, and which other engines speak too.

mod answer;
mod error;
mod request;
pub mod sse;

pub use answer::{
    ChatAnswer, ChatChoice, ChatChunk, ChatChunkChoice, ChatDelta, ChatReply, Completion, CompletionChoice,
    FinishReason, ModelEntry, ModelList, PromptTokensDetails, Usage,
};
pub use error::{ApiError, ErrorBody, ErrorMembers};
pub use request::{
    ChatRequest, ChatRequestMessage, CompletionRequest, ContentPart, MAX_STOP_OCTETS, MAX_STOPS,
    MessageContent, Prompt, Sampling, Stop, StreamOptions,
};
