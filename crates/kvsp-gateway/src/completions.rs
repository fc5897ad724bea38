//! `POST v1/completions`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use kvsp_net::extract::RequestBody;
use kvsp_openai::{ApiError, Completion, CompletionChoice, CompletionRequest, sse};
use kvsp_proto::json;

use crate::Gateway;
use crate::error::Refusal;
use crate::service::{RequestId, event_stream};
use crate::upstream::Upstream;

/// The handler.
pub(crate) async fn create(
    State(gateway): State<Arc<Gateway>>,
    Extension(id): Extension<RequestId>,
    body: RequestBody,
) -> Result<Response, Refusal> {
    let body = body.json(&gateway.config.limits).await?;
    let request: CompletionRequest = json::from_slice(&body)
        .map_err(|e| ApiError::InvalidRequest { message: e.to_string(), param: None })?;
    let tokens = gateway.completion_tokens(&request)?;
    gateway.counters.requests.inc();
    let upstream = gateway.open(tokens, request.sampling.clone(), id.as_str()).await?;
    let name = format!("cmpl-{}", gateway.random.uuid());
    if request.sampling.streams() {
        Ok(stream(upstream, name, request.sampling.wants_usage()))
    } else {
        Ok(whole(upstream, name).await?)
    }
}

fn stream(mut upstream: Upstream, name: String, wants_usage: bool) -> Response {
    event_stream(async_stream::try_stream! {
        while let Some(chunk) = upstream.next().await {
            match chunk {
                // The instance always tells the usage, in a chunk without a choice.
                Ok(chunk) if chunk.choices.is_empty() && !wants_usage => {}
                Ok(chunk) => yield sse::event(&Completion { id: name.clone(), ..chunk })?,
                Err(error) => {
                    yield sse::event(&error.body())?;
                    return;
                }
            }
        }
        yield sse::done();
    })
}

async fn whole(mut upstream: Upstream, name: String) -> Result<Response, ApiError> {
    let mut answer: Option<Completion> = None;
    while let Some(chunk) = upstream.next().await {
        let chunk = chunk?;
        let whole = answer.get_or_insert_with(|| Completion {
            id: name.clone(),
            choices: vec![CompletionChoice {
                index: 0,
                text: String::new(),
                logprobs: None,
                finish_reason: None,
            }],
            ..chunk.clone()
        });
        for (to, from) in whole.choices.iter_mut().zip(chunk.choices) {
            to.text.push_str(&from.text);
            to.finish_reason = from.finish_reason.or(to.finish_reason);
        }
        whole.usage = chunk.usage.or(whole.usage);
    }
    let answer = answer.ok_or_else(|| ApiError::Upstream("the instance sent no answer".into()))?;
    Ok(Json(answer).into_response())
}
