//! `prefetch` and its status resources (draft section 6.5).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::header::{HeaderValue, LOCATION};
use kvsp_core::prefetch::{Admission, Directive, DirectiveTable};
use kvsp_net::extract::{PathOf, RequestBody};
use kvsp_net::principal::Role;
use kvsp_net::{Caller, Failure, reply};
use kvsp_proto::id::BlockKey;
use kvsp_proto::message::{DirectiveState, PrefetchDirective};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::{json, path};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::Agent;
use crate::engine::{Expectation, Pin, ScopedKey};
use crate::load::Load;

/// The directives of an instance.
pub(crate) struct Directives {
    table: Mutex<DirectiveTable<Arc<Load>>>,
    /// Judging a directive and remembering it is one step: a copy that arrives meanwhile waits.
    admission: tokio::sync::Mutex<()>,
    running: Arc<Semaphore>,
}

impl Directives {
    pub(crate) fn new(running: usize, history: usize) -> Self {
        Self {
            table: Mutex::new(DirectiveTable::new(history.max(running))),
            admission: tokio::sync::Mutex::new(()),
            running: Arc::new(Semaphore::new(running)),
        }
    }

    fn with<R>(&self, run: impl FnOnce(&mut DirectiveTable<Arc<Load>>) -> R) -> R {
        run(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn find(&self, directive: &Uuid) -> Result<Arc<Load>, Failure> {
        self.with(|table| table.get(directive).cloned())
            .ok_or_else(|| Failure::new(ProblemType::DirectiveUnknown, "no such directive is remembered"))
    }
}

/// `POST prefetch`.
pub(crate) async fn create(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    body: RequestBody,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Controller])?;
    let body = body.json(&agent.config.limits).await?;
    let directive: PrefetchDirective = json::from_slice(&body)?;
    caller.require_scope(directive.scope_id)?;
    check(&agent, &directive)?;
    let _admission = agent.directives.admission.lock().await;
    match agent.directives.with(|table| table.admit(&directive)) {
        Ok(Admission::Known(_)) => return Ok(accepted(&agent, directive.directive)),
        Ok(Admission::New) => {}
        Err(conflict) => return Err(Failure::new(ProblemType::DirectiveConflict, conflict.to_string())),
    }
    agent.require_active()?;
    start(&agent, directive).await
}

fn check(agent: &Agent, directive: &PrefetchDirective) -> Result<(), Failure> {
    if directive.blocks.len() as u64 > agent.config.limits.max_lookup_keys {
        return Err(Failure::new(
            ProblemType::LimitExceeded,
            format!("a directive has at most {} blocks", agent.config.limits.max_lookup_keys),
        ));
    }
    if directive.compat_id != agent.descriptor.compat_id() {
        return Err(Failure::new(
            ProblemType::CompatMismatch,
            "the instance runs another model, or the same one otherwise",
        ));
    }
    let allowed = |source| agent.client.config().policy.allow(source).is_ok();
    match directive.blocks.iter().flat_map(|b| &b.sources).find(|source| !allowed(source)) {
        None => Ok(()),
        Some(source) => Err(Failure::new(ProblemType::SourceForbidden, format!("policy forbids {source}"))),
    }
}

/// Reserve what the engine needs before the answer, so that a request that arrives right after it finds the
/// blocks on their way; then load in the background.
async fn start(agent: &Arc<Agent>, body: PrefetchDirective) -> Result<Response, Failure> {
    let permit = agent.directives.running.clone().try_acquire_owned().map_err(|_| {
        Failure(Problem::new(ProblemType::Overloaded, "too many directives are loading").retry_after(1))
    })?;
    let now = agent.clock.now();
    let longest = agent.config.limits.max_lease_ttl_ms;
    let pin = body.request_ref.clone().map(|request_ref| Pin {
        request_ref,
        until: now.after_millis(body.deadline_ms.saturating_add(body.lease_ms).min(longest)),
    });
    let keys = body.blocks.iter().map(|b| b.block_key).collect();
    let expected = agent
        .engine
        .expect(body.scope_id, keys, pin)
        .await
        .map_err(|_| Failure(Problem::new(ProblemType::Overloaded, "the engine has stopped")))?;
    let held = body.blocks.iter().zip(&expected).filter_map(|(block, answer)| {
        let key = ScopedKey { scope: body.scope_id, key: block.block_key };
        (*answer == Expectation::Resident || agent.host_holds(&key)).then_some(block.block_key)
    });
    let held: BTreeSet<BlockKey> = held.collect();
    let directive = Directive::new(body.clone(), |key| held.contains(key), now);
    let load = Arc::new(Load::new(agent.clone(), directive, &expected));
    let id = body.directive;
    if let Some(forgotten) = agent.directives.with(|table| table.insert(body, load.clone())) {
        forgotten.cancel();
    }
    agent.tasks.spawn(async move {
        load.run().await;
        drop(permit);
    });
    Ok(accepted(agent, id))
}

fn accepted(agent: &Agent, directive: Uuid) -> Response {
    let mut response = StatusCode::ACCEPTED.into_response();
    let location = agent.base.join(&path::directive(directive));
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

/// `GET prefetch/{directive}`.
pub(crate) async fn read(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    Ok(reply::json(StatusCode::OK, &agent.directives.find(&id)?.status()))
}

/// `DELETE prefetch/{directive}`: cancels; an ended directive stays as it ended.
pub(crate) async fn cancel(
    State(agent): State<Arc<Agent>>,
    caller: Caller,
    PathOf(id): PathOf<Uuid>,
) -> Result<Response, Failure> {
    caller.require_role(&[Role::Controller])?;
    let load = agent.directives.find(&id)?;
    if load.status().state == DirectiveState::Pending {
        load.cancel();
    }
    Ok(reply::empty(StatusCode::NO_CONTENT))
}
