//! `POST v1/completions`: the instance's inference API, which the gateway calls.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use kvsp_engine::{Detokenizer, Sampler, SamplerParams};
use kvsp_net::extract::RequestBody;
use kvsp_net::principal::Role;
use kvsp_net::{Caller, Failure};
use kvsp_openai::{
    ApiError, Completion, CompletionChoice, CompletionRequest, FinishReason, Prompt, Usage, sse,
};
use kvsp_proto::block_key::ScopeKey;
use kvsp_proto::id::ScopeId;
use kvsp_proto::json;
use kvsp_proto::message::MapId;
use kvsp_proto::path::{REQUEST_REF_HEADER, SCOPE_HEADER};
use kvsp_proto::problem::Problem;
use tokio::time::{Instant, timeout_at};

use crate::Agent;
use crate::engine::{EngineRequest, PromptTokens, SubmitError};
use crate::generation::{Generation, GenerationError, Piece};
use crate::group::{self, LeadError, LeadOrder};
use crate::session::{self, SessionHeaders};

/// Output tokens where the request names no limit, as the OpenAI API has it.
const DEFAULT_MAX_TOKENS: i64 = 16;
/// A silent stream carries a comment this often, well within the silence that clients bear.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// The handler. A request of a session is answered by the session's token stream.
pub(crate) async fn create(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    headers: HeaderMap,
    body: RequestBody,
) -> Response {
    let (session, map) = match admit(&agent, &caller, &headers) {
        Ok(admitted) => admitted,
        Err(problem) => return Failure(problem).into_response(),
    };
    let body = match body.json(&agent.config.limits).await {
        Ok(body) => body,
        Err(failure) => return failure.into_response(),
    };
    let context = if map.is_some() { agent.engine.info().max_context } else { agent.context() };
    let (request, engine_request, scope) = match read(&agent, &headers, &body, context) {
        Ok(read) => read,
        Err(error) => return refuse(&error),
    };
    if let Some(scope) = scope
        && let Err(problem) = caller.require_scope(scope)
    {
        return Failure(problem).into_response();
    }
    if let Some(session) = session {
        let begun = session::start(&agent, &caller, session, map, engine_request).await;
        return begun.unwrap_or_else(axum::response::IntoResponse::into_response);
    }
    let order = match map {
        Some(map) => match group::admit(&agent, &caller, &map, prompt_len(&engine_request.prompt)).await {
            Ok(scope) => Some(LeadOrder { map, scope, epoch: 0, session: None, fresh: true }),
            Err(problem) => return Failure(problem).into_response(),
        },
        None => None,
    };
    match begin(&agent, request, engine_request, order).await {
        Ok((request, generation)) if request.sampling.streams() => stream(&agent, &request, generation),
        Ok((request, generation)) => whole(&agent, &request, generation).await,
        Err(error) => refuse(&error),
    }
}

/// What is checked before the body is read. A session may be here already, and be read while the instance
/// drains.
fn admit(
    agent: &Agent,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<(Option<SessionHeaders>, Option<MapId>), Problem> {
    caller.require_role(&Role::ALL)?;
    let session = SessionHeaders::read(headers)?;
    let map = group::map_header(headers)?;
    if session.is_none() {
        agent.require_active()?;
    }
    Ok((session, map))
}

/// An error in the form of the OpenAI API.
pub(crate) fn refuse(error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, axum::Json(error.body())).into_response();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

type Read = (CompletionRequest, EngineRequest, Option<ScopeId>);

/// `context`: most tokens of prompt and output together.
fn read(agent: &Agent, headers: &HeaderMap, body: &[u8], context: usize) -> Result<Read, ApiError> {
    let request: CompletionRequest = json::from_slice(body).map_err(|e| ApiError::InvalidRequest {
        message: format!("the body is not a completion request: {e}"),
        param: None,
    })?;
    if request.model != agent.served_name {
        return Err(ApiError::ModelNotFound(request.model));
    }
    request.check()?;
    let prompt = tokens(agent, &request.prompt)?;
    let info = agent.engine.info();
    if prompt.iter().any(|&token| token as usize >= info.vocab) {
        return Err(ApiError::invalid("prompt", format!("token identifiers are below {}", info.vocab)));
    }
    if prompt.len() >= context {
        return Err(ApiError::ContextLength { context, tokens: prompt.len(), param: "prompt" });
    }
    let wanted = usize::try_from(request.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)).unwrap_or(usize::MAX);
    let scope = scope_key(agent, headers)?;
    let request_ref = headers.get(REQUEST_REF_HEADER).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let engine_request = EngineRequest {
        max_tokens: wanted.min(context - prompt.len()),
        prompt: PromptTokens::Known(prompt),
        generated: Vec::new(),
        sampler: sampler(agent, &request)?,
        first_step: 0,
        scope: scope.clone(),
        request_ref,
        pace: None,
    };
    Ok((request, engine_request, scope.map(|key| key.scope_id())))
}

fn tokens(agent: &Agent, prompt: &Prompt) -> Result<Vec<u32>, ApiError> {
    let text = match prompt {
        Prompt::Text(text) => text,
        Prompt::Texts(texts) if texts.len() == 1 => &texts[0],
        Prompt::Tokens(tokens) if !tokens.is_empty() => return Ok(tokens.clone()),
        Prompt::TokenLists(lists) if lists.len() == 1 && !lists[0].is_empty() => return Ok(lists[0].clone()),
        _ => return Err(ApiError::invalid("prompt", "prompt is one non-empty text or list of tokens")),
    };
    let tokens = agent.tokenizer.encode(text).map_err(|e| ApiError::invalid("prompt", e.to_string()))?;
    if tokens.is_empty() { Err(ApiError::invalid("prompt", "prompt is empty")) } else { Ok(tokens) }
}

fn sampler(agent: &Agent, request: &CompletionRequest) -> Result<Sampler, ApiError> {
    let sampling = &request.sampling;
    let params = SamplerParams {
        temperature: sampling.temperature.unwrap_or(1.0),
        top_k: sampling.top_k.filter(|k| *k > 0).and_then(|k| u32::try_from(k).ok()),
        top_p: sampling.top_p.filter(|p| *p < 1.0),
        min_p: sampling.min_p.filter(|p| *p > 0.0),
    };
    let seed = sampling.seed.map_or_else(|| agent.random.u64(), i64::cast_unsigned);
    // A checkpoint is I-JSON, and the same seed gives the same text in a session and without.
    Sampler::new(params, seed & json::MAX_INTEGER)
        .map_err(|e| ApiError::InvalidRequest { message: e.to_string(), param: None })
}

/// The scope in which the request's blocks are shared: the one it names, else the first configured.
fn scope_key(agent: &Agent, headers: &HeaderMap) -> Result<Option<Arc<ScopeKey>>, ApiError> {
    let Some(value) = headers.get(SCOPE_HEADER) else { return Ok(agent.scopes.first().cloned()) };
    let scope: ScopeId =
        value.to_str().ok().and_then(|text| text.parse().ok()).ok_or_else(|| ApiError::InvalidRequest {
            message: "Kvsp-Scope-Id is not 32 lowercase hex digits".into(),
            param: None,
        })?;
    // A scope whose key the instance lacks is served, without reuse: the keys could not be computed.
    Ok(agent.scopes.iter().find(|key| key.scope_id() == scope).cloned())
}

/// Tokens of a prompt that a request brought.
const fn prompt_len(prompt: &PromptTokens) -> usize {
    match prompt {
        PromptTokens::Known(tokens) | PromptTokens::Keyed { tail: tokens, .. } => tokens.len(),
    }
}

async fn begin(
    agent: &Arc<Agent>,
    request: CompletionRequest,
    engine_request: EngineRequest,
    order: Option<LeadOrder>,
) -> Result<(CompletionRequest, Generation), ApiError> {
    let prompt_tokens = prompt_len(&engine_request.prompt);
    let outputs = match order {
        Some(order) => group::submit(agent, &order, engine_request)
            .map_err(|error: LeadError| ApiError::Overloaded(error.to_string()))?,
        None => agent.engine.submit(engine_request).await.map_err(|error| match error {
            SubmitError::QueueFull => ApiError::Overloaded("the instance's queue is full; try again".into()),
            SubmitError::Stopped => ApiError::Upstream("the engine has stopped".into()),
        })?,
    };
    let detokenizer = Detokenizer::new(agent.tokenizer.clone());
    let stops = request.sampling.stops();
    Ok((request, Generation::new(outputs, detokenizer, stops, prompt_tokens)))
}

/// Seconds since the Unix epoch, for people to read.
fn created() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

struct Head {
    id: String,
    model: String,
    created: u64,
}

impl Head {
    fn new(agent: &Agent, request: &CompletionRequest) -> Self {
        Self { id: format!("cmpl-{}", agent.random.uuid()), model: request.model.clone(), created: created() }
    }

    fn body(&self, choice: Option<(String, Option<FinishReason>)>, usage: Option<Usage>) -> Completion {
        let choices = choice
            .into_iter()
            .map(|(text, finish_reason)| CompletionChoice { index: 0, text, logprobs: None, finish_reason })
            .collect();
        Completion {
            id: self.id.clone(),
            object: "text_completion".into(),
            created: self.created,
            model: self.model.clone(),
            choices,
            usage,
        }
    }
}

async fn whole(agent: &Agent, request: &CompletionRequest, mut generation: Generation) -> Response {
    let head = Head::new(agent, request);
    let mut text = String::new();
    loop {
        match generation.next().await {
            Some(Ok(Piece::Text(piece))) => text.push_str(&piece),
            Some(Ok(Piece::End(reason, usage))) => {
                return axum::Json(head.body(Some((text, Some(reason))), Some(usage))).into_response();
            }
            Some(Err(error)) => return refuse(&ApiError::Upstream(error.to_string())),
            None => return refuse(&ApiError::Upstream(GenerationError::Stopped.to_string())),
        }
    }
}

fn stream(agent: &Agent, request: &CompletionRequest, mut generation: Generation) -> Response {
    let head = Head::new(agent, request);
    let wants_usage = request.sampling.wants_usage();
    let events = async_stream::try_stream! {
        loop {
            let Ok(piece) = timeout_at(Instant::now() + KEEP_ALIVE, generation.next()).await else {
                yield sse::keep_alive();
                continue;
            };
            match piece {
                Some(Ok(Piece::Text(text))) => yield sse::event(&head.body(Some((text, None)), None))?,
                Some(Ok(Piece::End(reason, usage))) => {
                    yield sse::event(&head.body(Some((String::new(), Some(reason))), None))?;
                    if wants_usage {
                        yield sse::event(&head.body(None, Some(usage)))?;
                    }
                    yield sse::done();
                    break;
                }
                Some(Err(error)) => {
                    // The status is out; the error goes as an event, and no `[DONE]` follows.
                    yield sse::event(&ApiError::Upstream(error.to_string()).body())?;
                    break;
                }
                None => break,
            }
        }
    };
    let body: std::pin::Pin<
        Box<dyn futures_util::Stream<Item = Result<bytes::Bytes, serde_json::Error>> + Send>,
    > = Box::pin(events);
    let mut response = Response::new(Body::from_stream(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
