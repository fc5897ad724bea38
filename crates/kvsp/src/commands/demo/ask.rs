//! One question to the gateway, streamed, with a clock on the first token.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http::header::CONTENT_TYPE;
use kvsp_client::Client;
use kvsp_openai::{ChatChunk, ErrorBody, Usage, sse};
use kvsp_proto::path::CHAT_COMPLETIONS;
use kvsp_proto::uri::BaseUri;
use serde_json::json;

use super::DemoError;
use crate::commands::fleet::Scrape;

/// Longest error body that is shown.
const MAX_ERROR_OCTETS: usize = 4096;

/// What came back.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) first_token: Duration,
    pub(super) prompt_tokens: u64,
    pub(super) completion_tokens: u64,
    pub(super) cached_tokens: u64,
}

/// Ask a question about a document, greedily.
pub(super) async fn ask(
    client: &Client,
    gateway: &BaseUri,
    model: &str,
    document: &str,
    question: &str,
    max_tokens: u32,
) -> Result<Answer, DemoError> {
    let body = json!({
        "model": model,
        "messages": [
            {"role": "system", "content": "Answer the question with the help of the document."},
            {"role": "user", "content": format!("{document}\n\nQuestion: {question}")},
        ],
        "temperature": 0,
        "max_tokens": max_tokens,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    let request = Request::post("/")
        .header(CONTENT_TYPE, "application/json")
        .body(Bytes::from(body.to_string()))
        .map_err(|e| DemoError::Answer(e.to_string()))?;
    let begin = Instant::now();
    let (head, mut stream) = client.forward(gateway, CHAT_COMPLETIONS, request).await?.into_parts();
    if !head.status.is_success() {
        let mut body = Vec::new();
        while let Some(chunk) = stream.chunk().await? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_ERROR_OCTETS {
                break;
            }
        }
        return Err(DemoError::Gateway {
            status: head.status.as_u16(),
            body: String::from_utf8_lossy(&body).into_owned(),
        });
    }
    let (mut text, mut first_token, mut usage) = (String::new(), None, None);
    let mut reader = sse::EventReader::default();
    while let Some(chunk) = stream.chunk().await? {
        for payload in reader.push(&chunk).map_err(|e| DemoError::Answer(e.to_string()))? {
            if payload == sse::DONE {
                continue;
            }
            let chunk = read(&payload)?;
            usage = chunk.usage.or(usage);
            for choice in chunk.choices {
                let content = choice.delta.content.unwrap_or_default();
                if !content.is_empty() {
                    first_token.get_or_insert_with(|| begin.elapsed());
                }
                text.push_str(&content);
            }
        }
    }
    let usage: Usage =
        usage.ok_or_else(|| DemoError::Answer("the stream broke off before its end".into()))?;
    Ok(Answer {
        first_token: first_token.unwrap_or_else(|| begin.elapsed()),
        text,
        prompt_tokens: usage.prompt_tokens,
        completion_tokens: usage.completion_tokens,
        cached_tokens: usage.prompt_tokens_details.unwrap_or_default().cached_tokens,
    })
}

fn read(payload: &str) -> Result<ChatChunk, DemoError> {
    serde_json::from_str(payload).map_err(|error| match serde_json::from_str::<ErrorBody>(payload) {
        Ok(body) => DemoError::Answer(body.error.message),
        Err(_) => DemoError::Answer(error.to_string()),
    })
}

/// A counter or gauge of a service's `/metrics`; 0 where it is not there.
pub(super) async fn metric(client: &Client, admin: &BaseUri, name: &str) -> Result<u64, DemoError> {
    Ok(Scrape::of(client, admin).await?.count(name))
}
