//! The form in which an answer goes to the client: a completion or a chat, whole or in chunks.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use kvsp_openai::{
    ChatAnswer, ChatChoice, ChatChunk, ChatChunkChoice, ChatDelta, ChatReply, Completion, CompletionChoice,
    FinishReason, Usage,
};
use serde::{Deserialize, Serialize};

const ASSISTANT: &str = "assistant";

/// Which API was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Api {
    /// `v1/completions`.
    Completion,
    /// `v1/chat/completions`.
    Chat,
}

/// What every chunk of an answer repeats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Form {
    #[serde(rename = "form")]
    pub(crate) api: Api,
    pub(crate) id: String,
    /// Seconds since the Unix epoch.
    pub(crate) created: u64,
    pub(crate) model: String,
}

/// One chunk of a streamed answer.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Chunk {
    Completion(Completion),
    Chat(ChatChunk),
}

impl Form {
    /// The chunk that comes before any text, where the API has one.
    pub(crate) fn opening(&self) -> Option<Chunk> {
        let delta = || ChatDelta { role: Some(ASSISTANT.into()), content: Some(String::new()) };
        (self.api == Api::Chat).then(|| self.chat(Some((delta(), None)), None))
    }

    /// A piece of text.
    pub(crate) fn text(&self, text: String) -> Chunk {
        match self.api {
            Api::Completion => self.completion(Some((text, None)), None),
            Api::Chat => self.chat(Some((ChatDelta { role: None, content: Some(text) }, None)), None),
        }
    }

    /// Why the output ended.
    pub(crate) fn finish(&self, reason: FinishReason) -> Chunk {
        match self.api {
            Api::Completion => self.completion(Some((String::new(), Some(reason))), None),
            Api::Chat => self.chat(Some((ChatDelta::default(), Some(reason))), None),
        }
    }

    /// The usage.
    pub(crate) fn usage(&self, usage: Option<Usage>) -> Chunk {
        match self.api {
            Api::Completion => self.completion(None, usage),
            Api::Chat => self.chat(None, usage),
        }
    }

    /// The whole answer.
    pub(crate) fn whole(&self, text: String, reason: Option<FinishReason>, usage: Option<Usage>) -> Response {
        match self.api {
            Api::Completion => Json(self.completion(Some((text, reason)), usage)).into_response(),
            Api::Chat => {
                let message = ChatReply { role: ASSISTANT.into(), content: text, refusal: None };
                Json(ChatAnswer {
                    id: self.id.clone(),
                    object: "chat.completion".into(),
                    created: self.created,
                    model: self.model.clone(),
                    choices: vec![ChatChoice { index: 0, message, logprobs: None, finish_reason: reason }],
                    usage,
                })
                .into_response()
            }
        }
    }

    fn completion(&self, choice: Option<(String, Option<FinishReason>)>, usage: Option<Usage>) -> Chunk {
        let choice = choice.map(|(text, finish_reason)| CompletionChoice {
            index: 0,
            text,
            logprobs: None,
            finish_reason,
        });
        Chunk::Completion(Completion {
            id: self.id.clone(),
            object: "text_completion".into(),
            created: self.created,
            model: self.model.clone(),
            choices: choice.into_iter().collect(),
            usage,
        })
    }

    fn chat(&self, choice: Option<(ChatDelta, Option<FinishReason>)>, usage: Option<Usage>) -> Chunk {
        let choice = choice.map(|(delta, finish_reason)| ChatChunkChoice {
            index: 0,
            delta,
            logprobs: None,
            finish_reason,
        });
        Chunk::Chat(ChatChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk".into(),
            created: self.created,
            model: self.model.clone(),
            choices: choice.into_iter().collect(),
            usage,
        })
    }
}
