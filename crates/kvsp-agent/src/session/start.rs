//! A session that begins with a request: `POST v1/completions` with the session's headers.

use std::sync::Arc;

use axum::response::Response;
use http::HeaderMap;
use kvsp_core::session::{Output, OutputConfig};
use kvsp_engine::Sampler;
use kvsp_net::extract::PathSegment;
use kvsp_net::{Caller, Failure};
use kvsp_proto::block_key::block_keys;
use kvsp_proto::message::MapId;
use kvsp_proto::path::{SESSION_EPOCH_HEADER, SESSION_HEADER};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use super::routes::{require_controller, require_reader};
use super::table::Opened;
use super::{Facts, Session, SessionCounters, driver, stream};
use crate::Agent;
use crate::engine::{EngineRequest, PromptTokens, SubmitError};
use crate::group;

/// The session that a request is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionHeaders {
    pub(crate) session: Uuid,
    pub(crate) epoch: u64,
}

impl SessionHeaders {
    /// Read the headers; none where the request is of no session.
    ///
    /// # Errors
    /// `kvsp-bad-identifier` where one is malformed, or there without the other.
    pub(crate) fn read(headers: &HeaderMap) -> Result<Option<Self>, Problem> {
        let one = |name: &str| {
            let mut values = headers.get_all(name).iter();
            match (values.next(), values.next()) {
                (None, _) => Ok(None),
                (Some(value), None) => Ok(Some(value.to_str().unwrap_or_default())),
                (Some(_), Some(_)) => {
                    Err(Problem::new(ProblemType::BadIdentifier, format!("{name} is given twice")))
                }
            }
        };
        match (one(SESSION_HEADER)?, one(SESSION_EPOCH_HEADER)?) {
            (None, None) => Ok(None),
            (Some(session), Some(epoch)) => {
                Ok(Some(Self { session: Uuid::from_segment(session)?, epoch: u64::from_segment(epoch)? }))
            }
            _ => Err(Problem::new(
                ProblemType::BadIdentifier,
                format!("{SESSION_HEADER} and {SESSION_EPOCH_HEADER} come together"),
            )),
        }
    }
}

/// Begin a session, over a split context where `map` is given, or connect to it where it is here at that epoch; the answer is its token stream from the
/// first token on.
pub(crate) async fn start(
    agent: &Arc<Agent>,
    caller: &Caller,
    SessionHeaders { session: id, epoch }: SessionHeaders,
    map: Option<MapId>,
    request: EngineRequest,
) -> Result<Response, Failure> {
    if let Some(known) = agent.sessions.at_epoch(id, epoch, false)? {
        require_reader(caller, &known)?;
        return Ok(stream::answer(known, 0));
    }
    agent.require_active()?;
    let controller = require_controller(agent)?;
    agent.sessions.has_place()?;
    let facts = facts(agent, caller, (id, epoch), map, &request)?;
    if let Some(map) = &facts.map {
        let scope = group::admit(agent, caller, map, facts.prompt_len).await?;
        if scope != facts.scope.scope_id() {
            return Err(Failure::new(
                ProblemType::ScopeDenied,
                "the map is of another scope than the request",
            ));
        }
    }
    let config = output_config(agent, facts.prompt_len);
    let output = Output::new(config, epoch, Vec::new(), facts.deterministic, false, agent.clock.now());
    let session = Session::new(facts, output);
    begin(agent, controller, session, request).await
}

async fn begin(
    agent: &Arc<Agent>,
    controller: BaseUri,
    session: Session,
    mut request: EngineRequest,
) -> Result<Response, Failure> {
    request.pace = Some(session.pace());
    let outputs = match session.lead_order(true) {
        Some(order) => group::submit(agent, &order, request)
            .map_err(|error| Problem::new(ProblemType::Overloaded, error.to_string()).retry_after(1))?,
        None => agent.engine.submit(request).await.map_err(|error| match error {
            SubmitError::QueueFull => {
                Problem::new(ProblemType::Overloaded, "the instance's queue is full; try again")
                    .retry_after(1)
            }
            SubmitError::Stopped => Problem::new(ProblemType::Overloaded, "the engine has stopped"),
        })?,
    };
    match agent.sessions.open(session, agent.clock.now())? {
        // The same request came twice at once: what the other one began is as good.
        Opened::Known(known) => Ok(stream::answer(known, 0)),
        Opened::New(session) => {
            SessionCounters::count(&agent.sessions.counters.started);
            driver::spawn(agent, controller, session.clone(), Some(outputs));
            Ok(stream::answer(session, 0))
        }
    }
}

fn facts(
    agent: &Agent,
    caller: &Caller,
    (id, epoch): (Uuid, u64),
    map: Option<MapId>,
    request: &EngineRequest,
) -> Result<Facts, Problem> {
    let (Some(scope), PromptTokens::Known(prompt)) = (&request.scope, &request.prompt) else {
        return Err(no_scope_key());
    };
    let block_tokens = agent.descriptor.block_tokens;
    let blocks = block_keys(scope, agent.descriptor.compat_id(), block_tokens, prompt);
    let tail = prompt.get(blocks.len() * block_tokens as usize..).unwrap_or_default().to_vec();
    Ok(Facts {
        id,
        epoch,
        resumed: false,
        scope: scope.clone(),
        owner: Some(caller.name().to_owned()),
        prompt_blocks: blocks,
        prompt_tail: tail,
        prompt_len: prompt.len(),
        sampler: request.sampler.clone(),
        first_step: 0,
        deterministic: map.is_none() && is_deterministic(agent, &request.sampler),
        max_tokens: request.max_tokens,
        map,
    })
}

/// A session whose block keys could not be computed could not be resumed.
pub(super) fn no_scope_key() -> Problem {
    Problem::new(ProblemType::InvalidCheckpoint, "this instance has no key of the session's scope")
}

/// Whether every instance that may take a session over computes its tokens alike. How a context is split changes
/// the rounding, so that sessions over one never are.
pub(super) fn is_deterministic(agent: &Agent, sampler: &Sampler) -> bool {
    agent.config.equal_hardware && agent.engine.info().batch_invariant && sampler.is_greedy()
}

/// The bounds of an output after a prompt of so many tokens.
pub(super) fn output_config(agent: &Agent, prompt_len: usize) -> OutputConfig {
    let config = &agent.config;
    let ms = std::time::Duration::from_millis;
    OutputConfig {
        max_unacked_tokens: config.max_unacked_tokens,
        max_checkpoint_delay: ms(config.max_checkpoint_delay_ms),
        block_tokens: agent.descriptor.block_tokens,
        prompt_tokens: prompt_len as u64,
        max_store_wait: ms(config.max_store_wait_ms),
        ..OutputConfig::default()
    }
}
