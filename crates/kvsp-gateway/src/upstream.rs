//! Placing a request, and what an instance answers to it.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Request, Response};
use kvsp_client::StreamedBody;
use kvsp_openai::{ApiError, Completion, CompletionRequest, ErrorBody, Prompt, Sampling, StreamOptions, sse};
use kvsp_proto::block_key::block_keys;
use kvsp_proto::id::ScopeId;
use kvsp_proto::message::{MapId, PlacementAnswer, PlacementRequest};
use kvsp_proto::path::{
    COMPLETIONS, MAP_HEADER, REQUEST_REF_HEADER, SCOPE_HEADER, SESSION_EPOCH_HEADER, SESSION_HEADER,
};
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use crate::Gateway;
use crate::prompt::Tokens;

/// The scope of requests that share nothing: no key hashes to it in practice, and no keys are sent.
const NO_SCOPE: ScopeId = ScopeId([0; 16]);
/// Longest error body that is read from an instance.
const MAX_ERROR_OCTETS: usize = 64 << 10;

/// The stream of one request that has no session.
pub(crate) struct Upstream {
    body: StreamedBody,
    reader: sse::EventReader,
    ready: VecDeque<String>,
}

/// Why one instance did not take a request.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Another may.
    Elsewhere {
        /// The status, where there was an answer.
        status: Option<u16>,
        why: String,
    },
    /// None would.
    Request(ApiError),
}

impl Refused {
    /// Without an answer.
    pub(crate) const fn elsewhere(why: String) -> Self {
        Self::Elsewhere { status: None, why }
    }
}

/// Of which session a request is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionPart<'a> {
    pub(crate) session: Uuid,
    pub(crate) epoch: u64,
    /// The shard map that the session's context is split by.
    pub(crate) map: Option<&'a MapId>,
}

impl Gateway {
    /// A placement of a prompt.
    pub(crate) fn placement_request(&self, tokens: &Tokens, request_ref: &str) -> PlacementRequest {
        let keys = match &self.scope {
            Some(scope) => block_keys(scope, self.compat, self.block_tokens, &tokens.prompt),
            None => Vec::new(),
        };
        PlacementRequest {
            scope_id: self.scope.as_ref().map_or(NO_SCOPE, |scope| scope.scope_id()),
            compat_id: self.compat,
            block_keys: keys,
            tokens: tokens.prompt.len() as u64,
            request_ref: Some(request_ref.to_owned()),
            session: false,
            continuation: None,
            exclude: Vec::new(),
        }
    }

    /// Has the controller place a request.
    pub(crate) async fn place(&self, request: &PlacementRequest) -> Result<PlacementAnswer, ApiError> {
        let limit = Duration::from_millis(self.config.placement_timeout_ms);
        match tokio::time::timeout(limit, self.client.place(&self.controller, request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kvsp_client::ClientError::Problem(problem))) if problem.status() == 503 => {
                Err(ApiError::Overloaded("no instance can take the request now; try again".into()))
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "the controller did not place a request");
                Err(ApiError::Upstream("the placement controller did not answer".into()))
            }
            Err(_) => Err(ApiError::Upstream("the placement controller took too long".into())),
        }
    }

    /// The request as instances take it: with tokens, and streamed.
    pub(crate) fn upstream_request(&self, tokens: Tokens, sampling: Sampling) -> CompletionRequest {
        CompletionRequest {
            model: self.served_name.clone(),
            prompt: Prompt::Tokens(tokens.prompt),
            max_tokens: Some(i64::try_from(tokens.max_tokens).unwrap_or(i64::MAX)),
            echo: None,
            logprobs: None,
            best_of: None,
            suffix: None,
            sampling: Sampling {
                stream: Some(true),
                stream_options: Some(StreamOptions { include_usage: true }),
                ..sampling
            },
        }
    }

    /// Sends a request to an instance, as part of a session where one is given; only a success is an answer.
    pub(crate) async fn post(
        &self,
        instance: &BaseUri,
        request: &CompletionRequest,
        request_ref: &str,
        session: Option<SessionPart<'_>>,
    ) -> Result<Response<StreamedBody>, Refused> {
        let invalid = |error: &dyn std::fmt::Display| Refused::Request(ApiError::Upstream(error.to_string()));
        let body = Bytes::from(serde_json::to_vec(request).map_err(|error| invalid(&error))?);
        let mut request = Request::post("/")
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream")
            .header(REQUEST_REF_HEADER, request_ref);
        if let Some(scope) = &self.scope {
            request = request.header(SCOPE_HEADER, scope.scope_id().to_string());
        }
        if let Some(SessionPart { session, epoch, map }) = session {
            request = request.header(SESSION_HEADER, session.to_string());
            request = request.header(SESSION_EPOCH_HEADER, epoch);
            if let Some(map) = map {
                request = request.header(MAP_HEADER, map.as_str());
            }
        }
        let request = request.body(body).map_err(|error| invalid(&error))?;
        let client = self.client.with_timeout(Duration::from_millis(self.config.upstream_timeout_ms));
        let answer = client.forward(instance, COMPLETIONS, request).await;
        let answer = answer.map_err(|error| Refused::elsewhere(error.to_string()))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let (head, mut answer) = answer.into_parts();
        let mut octets = Vec::new();
        while let Ok(Some(data)) = answer.chunk().await {
            octets.extend_from_slice(&data);
            if octets.len() > MAX_ERROR_OCTETS {
                break;
            }
        }
        let told = serde_json::from_slice::<ErrorBody>(&octets).map(|body| body.error);
        let elsewhere = |status, why| Refused::Elsewhere { status: Some(status), why };
        Err(match (head.status.as_u16(), told) {
            (400, Ok(error)) => Refused::Request(ApiError::Refused(error)),
            (status, Ok(error)) => elsewhere(status, format!("{status}: {}", error.message)),
            (status, Err(_)) => elsewhere(status, format!("status {status}")),
        })
    }
}

impl Upstream {
    /// Reads a successful answer.
    pub(crate) fn new(answer: Response<StreamedBody>) -> Self {
        let reader = sse::EventReader::default();
        Self { body: answer.into_body(), reader, ready: VecDeque::new() }
    }

    /// The next chunk; `None` after the stream's end.
    pub(crate) async fn next(&mut self) -> Option<Result<Completion, ApiError>> {
        loop {
            if let Some(payload) = self.ready.pop_front() {
                if payload == sse::DONE {
                    return None;
                }
                return Some(match serde_json::from_str::<Completion>(&payload) {
                    Ok(chunk) => Ok(chunk),
                    Err(_) => Err(match serde_json::from_str::<ErrorBody>(&payload) {
                        Ok(body) => ApiError::Upstream(body.error.message),
                        Err(_) => {
                            ApiError::Upstream("the instance sent an event that is no completion".into())
                        }
                    }),
                });
            }
            let broken = |what: &str| Some(Err(ApiError::Upstream(what.to_owned())));
            match self.body.chunk().await {
                Ok(None) => return broken("the instance's stream ended before the answer did"),
                Err(error) => return broken(&format!("the connection to the instance broke: {error}")),
                Ok(Some(data)) => match self.reader.push(&data) {
                    Ok(payloads) => self.ready.extend(payloads),
                    Err(error) => return broken(&error.to_string()),
                },
            }
        }
    }
}
