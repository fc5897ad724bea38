//! Placing a request and reading the instance's stream.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::header::{ACCEPT, CONTENT_TYPE};
use kvsp_client::StreamedBody;
use kvsp_openai::{ApiError, Completion, CompletionRequest, ErrorBody, Prompt, Sampling, StreamOptions, sse};
use kvsp_proto::block_key::block_keys;
use kvsp_proto::id::ScopeId;
use kvsp_proto::message::{PlacementAnswer, PlacementRequest};
use kvsp_proto::path::{COMPLETIONS, REQUEST_REF_HEADER, SCOPE_HEADER};
use kvsp_proto::uri::BaseUri;

use crate::Gateway;
use crate::prompt::Tokens;

/// The scope of requests that share nothing: no key hashes to it in practice, and no keys are sent.
const NO_SCOPE: ScopeId = ScopeId([0; 16]);
/// Longest error body that is read from an instance.
const MAX_ERROR_OCTETS: usize = 64 << 10;

/// The stream of one request.
pub(crate) struct Upstream {
    body: StreamedBody,
    reader: sse::EventReader,
    ready: VecDeque<String>,
}

/// Why one instance did not take a request.
enum Refused {
    /// Another may.
    Elsewhere(String),
    /// None would.
    Request(ApiError),
}

impl Gateway {
    /// Place a request and open its stream. Where an instance does not take it, the request is placed once
    /// more, without that one, so that the next instance is told to load what it lacks, too.
    pub(crate) async fn open(
        &self,
        tokens: Tokens,
        sampling: Sampling,
        request_ref: &str,
    ) -> Result<Upstream, ApiError> {
        let mut request = self.placement_request(&tokens, request_ref);
        let body = Bytes::from(
            serde_json::to_vec(&self.upstream_request(tokens, sampling))
                .map_err(|e| ApiError::Upstream(e.to_string()))?,
        );
        let mut last: Option<String> = None;
        for _ in 0..self.config.max_attempts.max(1) {
            let placement = match (self.place(&request).await, last.take()) {
                (Ok(placement), _) => placement,
                (Err(ApiError::Overloaded(_)), Some(why)) => return Err(nobody(&why)),
                (Err(error), _) => return Err(error),
            };
            let candidates = placement.candidates.into_iter().map(|c| c.instance);
            let instance =
                std::iter::once(placement.instance).chain(candidates).find(|i| !request.exclude.contains(i));
            let Some(instance) = instance else { break };
            match self.open_at(&instance, body.clone(), &placement.request_ref).await {
                Ok(upstream) => return Ok(upstream),
                Err(Refused::Request(error)) => return Err(error),
                Err(Refused::Elsewhere(why)) => {
                    tracing::warn!(%instance, why, "an instance did not take a request");
                    self.counters.upstream_failures.inc();
                    request.exclude.push(instance);
                    last = Some(why);
                }
            }
        }
        Err(nobody(last.as_deref().unwrap_or("there is none left")))
    }

    fn placement_request(&self, tokens: &Tokens, request_ref: &str) -> PlacementRequest {
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

    async fn place(&self, request: &PlacementRequest) -> Result<PlacementAnswer, ApiError> {
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

    fn upstream_request(&self, tokens: Tokens, sampling: Sampling) -> CompletionRequest {
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

    async fn open_at(&self, instance: &BaseUri, body: Bytes, request_ref: &str) -> Result<Upstream, Refused> {
        let mut request = Request::post("/")
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream")
            .header(REQUEST_REF_HEADER, request_ref);
        if let Some(scope) = &self.scope {
            request = request.header(SCOPE_HEADER, scope.scope_id().to_string());
        }
        let request = request.body(body).map_err(|e| Refused::Request(ApiError::Upstream(e.to_string())))?;
        let client = self.client.with_timeout(Duration::from_millis(self.config.upstream_timeout_ms));
        let answer = client.forward(instance, COMPLETIONS, request).await;
        let (head, mut answer) = answer.map_err(|e| Refused::Elsewhere(e.to_string()))?.into_parts();
        let status = head.status;
        if status.is_success() {
            return Ok(Upstream {
                body: answer,
                reader: sse::EventReader::default(),
                ready: VecDeque::new(),
            });
        }
        let mut octets = Vec::new();
        while let Ok(Some(data)) = answer.chunk().await {
            octets.extend_from_slice(&data);
            if octets.len() > MAX_ERROR_OCTETS {
                break;
            }
        }
        let told = serde_json::from_slice::<ErrorBody>(&octets).map(|body| body.error);
        Err(match (status.as_u16(), told) {
            (400, Ok(error)) => Refused::Request(ApiError::Refused(error)),
            (status, Ok(error)) => Refused::Elsewhere(format!("{status}: {}", error.message)),
            (status, Err(_)) => Refused::Elsewhere(format!("status {status}")),
        })
    }
}

fn nobody(last: &str) -> ApiError {
    ApiError::Overloaded(format!("no instance took the request; the last one: {last}"))
}

impl Upstream {
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
