//! The session resources of an instance (profile section 5).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::{StatusCode, Uri};
use kvsp_core::session::Output;
use kvsp_engine::Sampler;
use kvsp_net::extract::{PathOf, PathSegment, RequestBody, query};
use kvsp_net::principal::Role;
use kvsp_net::{Caller, Failure, reply};
use kvsp_proto::block_key::block_keys;
use kvsp_proto::json;
use kvsp_proto::message::{Needs, PromptRequest, ResumeAnswer, ResumeRequest};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::record::SessionCheckpoint;
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use super::start::{is_deterministic, no_scope_key, output_config};
use super::table::Opened;
use super::{Facts, Phase, Session, SessionCounters, driver, stream};
use crate::Agent;

/// How long the answer to a resume waits to learn whether the prompt is needed. Later it is told to the front
/// end alone, which connects in any case.
const NEEDS_WAIT: Duration = Duration::from_millis(150);

/// `POST sessions/{session}/resume`.
pub(crate) async fn resume(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Controller])?;
    let body = body.json(&agent.config.limits).await?;
    let request = ResumeRequest::from_json(&body)
        .map_err(|error| error.into_problem(ProblemType::InvalidCheckpoint))?;
    caller.require_scope(request.checkpoint.scope_id)?;
    let facts = facts(&agent, id, &request)?;
    if let Some(known) = agent.sessions.at_epoch(id, request.epoch, true)? {
        return Ok(accepted(&known).await);
    }
    agent.require_active()?;
    let controller = require_controller(&agent)?;
    if agent.engine.queued() >= agent.config.max_queued as u64 {
        let full = Problem::new(ProblemType::Overloaded, "the instance's queue is full; try again");
        return Err(full.retry_after(1).into());
    }
    let now = agent.clock.now();
    let output = Output::new(
        output_config(&agent, facts.prompt_len),
        request.epoch,
        request.checkpoint.generated,
        facts.deterministic,
        true,
        now,
    );
    match agent.sessions.open(Session::new(facts, output), now)? {
        Opened::Known(known) => Ok(accepted(&known).await),
        Opened::New(session) => {
            SessionCounters::count(&agent.sessions.counters.resumed);
            tracing::info!(session = %id, epoch = request.epoch, "a session is resumed");
            driver::spawn(&agent, controller, session.clone(), None);
            Ok(accepted(&session).await)
        }
    }
}

/// 202, with what the session needs as far as that is known soon.
async fn accepted(session: &Session) -> Response {
    let mut changes = session.changed.subscribe();
    let known = async {
        while session.phase() == Phase::Running && !session.is_in_engine() && changes.changed().await.is_ok()
        {
        }
    };
    drop(tokio::time::timeout(NEEDS_WAIT, known).await);
    let needs = matches!(session.phase(), Phase::NeedsPrompt(_)).then_some(Needs::Prompt);
    let answer = ResumeAnswer { session: Some(session.facts.id), epoch: Some(session.facts.epoch), needs };
    reply::json(StatusCode::ACCEPTED, &answer)
}

/// What a checkpoint says of the session, where it can be gone on with here.
fn facts(agent: &Agent, id: Uuid, request: &ResumeRequest) -> Result<Facts, Problem> {
    let SessionCheckpoint { prompt_blocks, prompt_tail, generated, sampler: state, .. } = &request.checkpoint;
    let checkpoint = &request.checkpoint;
    let invalid = |detail: &str| Err(Problem::new(ProblemType::InvalidCheckpoint, detail));
    if checkpoint.session != id {
        return invalid("the checkpoint is of another session");
    }
    if checkpoint.epoch > request.epoch {
        return invalid("the checkpoint is of a higher epoch");
    }
    if checkpoint.compat_id != agent.descriptor.compat_id() {
        let detail = "the instance runs another model, or the same one otherwise";
        return Err(Problem::new(ProblemType::CompatMismatch, detail));
    }
    let Some(scope) = agent.scopes.iter().find(|key| key.scope_id() == checkpoint.scope_id) else {
        return Err(no_scope_key());
    };
    let block_tokens = agent.descriptor.block_tokens as usize;
    if prompt_tail.len() >= block_tokens {
        return invalid("prompt_tail is as long as a block");
    }
    let prompt_len = prompt_blocks.len().saturating_mul(block_tokens).saturating_add(prompt_tail.len());
    // A split context needs not fit this instance.
    let context = if request.map.is_some() { agent.engine.info().max_context } else { agent.context() };
    if prompt_len == 0 {
        return invalid("the prompt is empty");
    }
    if prompt_len >= context || prompt_len.saturating_add(generated.len()) > context {
        return invalid("the session is longer than the context of this instance");
    }
    if !are_tokens(agent, prompt_tail) || !are_tokens(agent, generated) {
        return invalid("a token is not in the vocabulary");
    }
    let sampler = match Sampler::from_checkpoint(state.method, &state.params, state.seed) {
        Ok(sampler) => sampler,
        Err(error) => return invalid(&format!("the sampler cannot be restored: {error}")),
    };
    let wanted = request.continuation.as_ref().and_then(|c| c.get("max_tokens")?.as_u64());
    let wanted = wanted.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let map = request.map.clone();
    let deterministic = map.is_none() && state.deterministic && is_deterministic(agent, &sampler);
    Ok(Facts {
        id,
        epoch: request.epoch,
        resumed: true,
        scope: scope.clone(),
        owner: None,
        prompt_blocks: prompt_blocks.clone(),
        prompt_tail: prompt_tail.clone(),
        prompt_len,
        sampler,
        first_step: state.step.wrapping_sub(checkpoint.output_offset),
        deterministic,
        max_tokens: wanted.min(context - prompt_len),
        map,
    })
}

fn are_tokens(agent: &Agent, tokens: &[u32]) -> bool {
    tokens.iter().all(|&token| (token as usize) < agent.engine.info().vocab)
}

/// `POST sessions/{session}/prompt`: taken only where it yields the checkpoint's blocks and tail.
pub(crate) async fn prompt(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let body = body.json(&agent.config.limits).await?;
    let PromptRequest { epoch, tokens } = json::from_slice(&body)?;
    let session = live(&agent, id)?;
    require_reader(&caller, &session)?;
    let facts = &session.facts;
    match epoch.cmp(&facts.epoch) {
        std::cmp::Ordering::Less => {
            let detail = format!("the session is at epoch {}", facts.epoch);
            return Err(Failure::new(ProblemType::StaleEpoch, detail));
        }
        std::cmp::Ordering::Greater => {
            let detail = format!("the session is at epoch {} here", facts.epoch);
            return Err(Failure::new(ProblemType::UnknownEpoch, detail));
        }
        std::cmp::Ordering::Equal => {}
    }
    let (compat, block_tokens) = (agent.descriptor.compat_id(), agent.descriptor.block_tokens);
    let is_the_one = tokens.len() == facts.prompt_len
        && tokens.ends_with(&facts.prompt_tail)
        && are_tokens(&agent, &tokens)
        && block_keys(&facts.scope, compat, block_tokens, &tokens) == facts.prompt_blocks;
    if !is_the_one {
        let detail = "the tokens do not yield the checkpoint's prompt_blocks and prompt_tail";
        return Err(Failure::new(ProblemType::InvalidCheckpoint, detail));
    }
    session.supply(tokens);
    let answer = ResumeAnswer { session: Some(id), epoch: Some(epoch), needs: None };
    Ok(reply::json(StatusCode::ACCEPTED, &answer))
}

/// `GET sessions/{session}/tokens`.
pub(crate) async fn tokens(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
    uri: Uri,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let from = from(&uri)?;
    let session = live(&agent, id)?;
    require_reader(&caller, &session)?;
    Ok(stream::answer(session, from))
}

/// The index of the first token that is wanted.
fn from(uri: &Uri) -> Result<u64, Failure> {
    let parameters = query(uri)?;
    let mut given = parameters.iter().filter(|(name, _)| name == "from").map(|(_, value)| value);
    match (given.next(), given.next()) {
        (None, _) => Ok(0),
        (Some(value), None) => u64::from_segment(value)
            .map_err(|_| Failure::new(ProblemType::InvalidRange, "from is the index of an output token")),
        (Some(_), Some(_)) => Err(Failure::new(ProblemType::InvalidRange, "from is given twice")),
    }
}

/// `DELETE sessions/{session}` (an extension): the front end has all it wants. Idempotent.
pub(crate) async fn end(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    if let Some(session) = agent.sessions.get(id) {
        require_reader(&caller, &session)?;
        agent.sessions.forget(&session);
        session.stop(Phase::Failed(agent.clock.now()));
    }
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

/// The session, where it is served here.
fn live(agent: &Agent, id: Uuid) -> Result<Arc<Session>, Failure> {
    let unknown = || Failure::new(ProblemType::SessionUnknown, "the session is not served here");
    let session = agent.sessions.get(id).ok_or_else(unknown)?;
    match session.phase() {
        Phase::Fenced(_) => {
            Err(Failure::new(ProblemType::StaleEpoch, "the session went to another instance"))
        }
        Phase::Failed(_) => Err(unknown()),
        _ => Ok(session),
    }
}

/// Whether the caller may see the session: it placed it, or its role is above that. Who placed a session that
/// was resumed, this instance does not know; there the scope decides.
pub(super) fn require_reader(caller: &Caller, session: &Session) -> Result<(), Problem> {
    caller.require_scope(session.facts.scope.scope_id())?;
    let owns = session.facts.owner.as_deref().is_none_or(|owner| owner == caller.name());
    if owns || caller.has_role(Role::Admin) || caller.has_role(Role::Controller) {
        return Ok(());
    }
    Err(Problem::blank(403, "the session is another principal's"))
}

/// The controller, which keeps the checkpoints.
pub(super) fn require_controller(agent: &Agent) -> Result<BaseUri, Problem> {
    agent.config.controller.clone().ok_or_else(|| {
        Problem::blank(
            501,
            "no controller is configured here, so nobody would keep the session's checkpoints",
        )
    })
}
