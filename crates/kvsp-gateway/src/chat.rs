//! `POST v1/chat/completions`: the same, in the form of a chat.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use kvsp_net::Caller;
use kvsp_net::extract::RequestBody;
use kvsp_openai::{ApiError, ChatRequest};
use kvsp_proto::json;

use crate::Gateway;
use crate::error::Refusal;
use crate::form::{Api, Form};
use crate::open::Asked;
use crate::service::{RequestId, created};

/// The handler.
pub(crate) async fn create(
    State(gateway): State<Arc<Gateway>>,
    Extension(id): Extension<RequestId>,
    caller: Caller,
    body: RequestBody,
) -> Result<Response, Refusal> {
    let body = body.json(&gateway.config.limits).await?;
    let request: ChatRequest = json::from_slice(&body)
        .map_err(|e| ApiError::InvalidRequest { message: e.to_string(), param: None })?;
    let tokens = gateway.chat_tokens(&request)?;
    let form = Form {
        api: Api::Chat,
        id: format!("chatcmpl-{}", gateway.random.uuid()),
        created: created(),
        model: gateway.served_name.clone(),
    };
    let asked = Asked { tokens, sampling: request.sampling, form, client: caller.name().to_owned() };
    Ok(gateway.answer(asked, id.as_str()).await?)
}
