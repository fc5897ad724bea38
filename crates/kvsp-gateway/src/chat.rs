//! `POST v1/chat/completions`: the same stream in the form of a chat.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use kvsp_net::extract::RequestBody;
use kvsp_openai::{
    ApiError, ChatAnswer, ChatChoice, ChatChunk, ChatChunkChoice, ChatDelta, ChatReply, ChatRequest,
    Completion, FinishReason, Usage, sse,
};
use kvsp_proto::json;

use crate::Gateway;
use crate::error::Refusal;
use crate::service::{RequestId, created, event_stream};
use crate::upstream::Upstream;

const ASSISTANT: &str = "assistant";

/// What every chunk of an answer repeats.
struct Head {
    id: String,
    created: u64,
    model: String,
}

/// The handler.
pub(crate) async fn create(
    State(gateway): State<Arc<Gateway>>,
    Extension(id): Extension<RequestId>,
    body: RequestBody,
) -> Result<Response, Refusal> {
    let body = body.json(&gateway.config.limits).await?;
    let request: ChatRequest = json::from_slice(&body)
        .map_err(|e| ApiError::InvalidRequest { message: e.to_string(), param: None })?;
    let tokens = gateway.chat_tokens(&request)?;
    gateway.counters.requests.inc();
    let upstream = gateway.open(tokens, request.sampling.clone(), id.as_str()).await?;
    let head = Head {
        id: format!("chatcmpl-{}", gateway.random.uuid()),
        created: created(),
        model: gateway.served_name.clone(),
    };
    if request.sampling.streams() {
        Ok(stream(upstream, head, request.sampling.wants_usage()))
    } else {
        Ok(whole(upstream, head).await?)
    }
}

impl Head {
    fn chunk(&self, delta: ChatDelta, finish_reason: Option<FinishReason>) -> ChatChunk {
        let choice = ChatChunkChoice { index: 0, delta, logprobs: None, finish_reason };
        self.body(vec![choice], None)
    }

    fn body(&self, choices: Vec<ChatChunkChoice>, usage: Option<Usage>) -> ChatChunk {
        ChatChunk {
            id: self.id.clone(),
            object: "chat.completion.chunk".into(),
            created: self.created,
            model: self.model.clone(),
            choices,
            usage,
        }
    }

    /// A chunk of the instance's completion as a chunk of the chat; `None` for one that says nothing here.
    fn convert(&self, chunk: Completion, wants_usage: bool) -> Option<ChatChunk> {
        match chunk.choices.into_iter().next() {
            Some(choice) => {
                let content = (!choice.text.is_empty()).then_some(choice.text);
                if content.is_none() && choice.finish_reason.is_none() {
                    return None;
                }
                Some(self.chunk(ChatDelta { role: None, content }, choice.finish_reason))
            }
            None => wants_usage.then(|| self.body(Vec::new(), chunk.usage)),
        }
    }
}

fn stream(mut upstream: Upstream, head: Head, wants_usage: bool) -> Response {
    event_stream(async_stream::try_stream! {
        let opening = ChatDelta { role: Some(ASSISTANT.into()), content: Some(String::new()) };
        yield sse::event(&head.chunk(opening, None))?;
        while let Some(chunk) = upstream.next().await {
            match chunk {
                Ok(chunk) => {
                    if let Some(chunk) = head.convert(chunk, wants_usage) {
                        yield sse::event(&chunk)?;
                    }
                }
                Err(error) => {
                    yield sse::event(&error.body())?;
                    return;
                }
            }
        }
        yield sse::done();
    })
}

async fn whole(mut upstream: Upstream, head: Head) -> Result<Response, ApiError> {
    let (mut content, mut finish_reason, mut usage) = (String::new(), None, None);
    while let Some(chunk) = upstream.next().await {
        let chunk = chunk?;
        for choice in chunk.choices {
            content.push_str(&choice.text);
            finish_reason = choice.finish_reason.or(finish_reason);
        }
        usage = chunk.usage.or(usage);
    }
    let message = ChatReply { role: ASSISTANT.into(), content, refusal: None };
    let answer = ChatAnswer {
        id: head.id,
        object: "chat.completion".into(),
        created: head.created,
        model: head.model,
        choices: vec![ChatChoice { index: 0, message, logprobs: None, finish_reason }],
        usage,
    };
    Ok(Json(answer).into_response())
}
