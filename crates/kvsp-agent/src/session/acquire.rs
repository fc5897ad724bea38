//! Getting a session into the engine: loading what its former instance left behind, or waiting for the prompt.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvsp_core::prefetch::Directive;
use kvsp_proto::block_key::BlockKeyChain;
use kvsp_proto::id::{BlockKey, ScopeId};
use kvsp_proto::message::{Detail, DirectiveBlock, LayerOrder, LookupRequest, PrefetchDirective};
use kvsp_proto::uri::BaseUri;
use tokio::sync::mpsc;

use super::{Phase, Session, SessionCounters};
use crate::Agent;
use crate::engine::{EngineRequest, Expectation, Output, Pin, PromptTokens, ScopedKey, SubmitError};
use crate::group::{self, LeadError, LeadOrder};
use crate::load::Load;

/// Times that a session is loaded anew, after the engine lost blocks that it cannot compute, before its prompt
/// is asked for.
const MAX_LOADS: u64 = 2;
/// Lookups of one load: each ends at the first block without a replica.
const MAX_LOOKUPS: usize = 16;
/// How long the index may take: a session that goes on without it is the lesser evil.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a source of blocks may be silent: it may be the instance that the session was taken from.
const SOURCE_PATIENCE: Duration = Duration::from_millis(500);
/// How soon a full queue of the engine is tried again.
const QUEUE_AGAIN: Duration = Duration::from_millis(20);

/// The engine can take the session no more, for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoEngine {
    /// It takes nothing any more.
    #[error("the engine has stopped")]
    Stopped,
    /// The session's split context is led by another request.
    #[error(transparent)]
    Led(LeadError),
}

/// Have the engine go on with a session, whatever that needs: its blocks, or its prompt from the front end. Does
/// not end before the front end has brought what is needed.
pub(super) async fn acquire(
    agent: Arc<Agent>,
    session: Arc<Session>,
) -> Result<mpsc::Receiver<Output>, NoEngine> {
    if let Some(order) = session.lead_order(false) {
        return lead(&agent, &session, order).await;
    }
    let generated = session.with(|state| state.output.tokens().to_vec());
    let facts = &session.facts;
    let keys = keys(&agent, &session, &generated);
    let prompt = loop {
        if let Some(prompt) = session.prompt() {
            bring(&agent, &session, &keys).await;
            break PromptTokens::Known(prompt);
        }
        // The logits after the last token are wanted, so that token must be known.
        let last_is_known = !facts.prompt_tail.is_empty() || !generated.is_empty();
        if last_is_known && session.lost.load(Ordering::Relaxed) < MAX_LOADS {
            let here = bring(&agent, &session, &keys).await;
            if here >= facts.prompt_blocks.len() {
                let (blocks, tail) = (facts.prompt_blocks.clone(), facts.prompt_tail.clone());
                break PromptTokens::Keyed { blocks, tail };
            }
        }
        wait_for_prompt(&agent, &session).await;
    };
    // The engine took over the blocks above by this name.
    let request_ref = Some(pin_name(&session));
    loop {
        let request = EngineRequest {
            prompt: prompt.clone(),
            generated: generated.clone(),
            max_tokens: facts.max_tokens,
            sampler: facts.sampler.clone(),
            first_step: facts.first_step,
            scope: Some(facts.scope.clone()),
            request_ref: request_ref.clone(),
            pace: Some(session.pace()),
        };
        match agent.engine.submit(request).await {
            Ok(outputs) => return Ok(outputs),
            Err(SubmitError::QueueFull) => tokio::time::sleep(QUEUE_AGAIN).await,
            Err(SubmitError::Stopped) => return Err(NoEngine::Stopped),
        }
    }
}

/// Lead a split context on from what its members hold. What they lack is computed from the tokens, so that the
/// prompt is needed once something of it is gone that is known by its blocks' keys alone.
async fn lead(
    agent: &Arc<Agent>,
    session: &Arc<Session>,
    order: LeadOrder,
) -> Result<mpsc::Receiver<Output>, NoEngine> {
    let generated = session.with(|state| state.output.tokens().to_vec());
    let facts = &session.facts;
    let last_is_known = !facts.prompt_tail.is_empty() || !generated.is_empty();
    if session.prompt().is_none() && (!last_is_known || session.lost.load(Ordering::Relaxed) > 0) {
        wait_for_prompt(agent, session).await;
    }
    let keyed =
        || PromptTokens::Keyed { blocks: facts.prompt_blocks.clone(), tail: facts.prompt_tail.clone() };
    loop {
        let request = EngineRequest {
            prompt: session.prompt().map_or_else(keyed, PromptTokens::Known),
            generated: generated.clone(),
            max_tokens: facts.max_tokens,
            sampler: facts.sampler.clone(),
            first_step: facts.first_step,
            scope: Some(facts.scope.clone()),
            request_ref: None,
            pace: Some(session.pace()),
        };
        match group::submit(agent, &order, request) {
            Ok(outputs) => return Ok(outputs),
            Err(LeadError::Full) => tokio::time::sleep(QUEUE_AGAIN).await,
            Err(error @ LeadError::Taken) => return Err(NoEngine::Led(error)),
        }
    }
}

fn pin_name(session: &Session) -> String {
    format!("session {} {}", session.facts.id, session.facts.epoch)
}

async fn wait_for_prompt(agent: &Agent, session: &Session) {
    let mut changes = session.changed.subscribe();
    if session.prompt().is_none() {
        SessionCounters::count(&agent.sessions.counters.prompts_needed);
        tracing::info!(session = %session.facts.id, "the session's blocks are gone: its prompt is needed");
        session.enter(Phase::NeedsPrompt(agent.clock.now()));
    }
    while session.prompt().is_none() {
        if changes.changed().await.is_err() {
            return;
        }
    }
    session.enter(Phase::Running);
}

/// The keys of the complete blocks of prompt and output, without the one that holds the last token: that token
/// is computed in any case.
fn keys(agent: &Agent, session: &Session, generated: &[u32]) -> Vec<BlockKey> {
    let facts = &session.facts;
    let (compat, block_tokens) = (agent.descriptor.compat_id(), agent.descriptor.block_tokens);
    let mut keys = facts.prompt_blocks.clone();
    let mut chain = match keys.last() {
        Some(last) => BlockKeyChain::after(*last, &facts.scope, compat, block_tokens),
        None => BlockKeyChain::new(&facts.scope, compat, block_tokens),
    };
    keys.extend(chain.extend(&facts.prompt_tail));
    keys.extend(chain.extend(generated));
    let tokens = facts.prompt_len + generated.len();
    keys.truncate(tokens.saturating_sub(1) / (block_tokens as usize).max(1));
    keys
}

/// Bring the leading blocks that are somewhere into the engine, or on their way into it; how many. What enters
/// passes all the checks of a prefetch directive, because it is one.
async fn bring(agent: &Arc<Agent>, session: &Session, keys: &[BlockKey]) -> usize {
    let scope = session.facts.scope.scope_id();
    let here: Vec<bool> = keys
        .iter()
        .map(|&key| ScopedKey { scope, key })
        .map(|block| agent.resident.has(&block) || agent.host_holds(&block))
        .collect();
    let sources = sources(agent, session, keys, &here).await;
    let reach = here.iter().zip(&sources).take_while(|(here, sources)| **here || !sources.is_empty()).count();
    if reach == 0 {
        return 0;
    }
    let held = keys.iter().zip(&here).filter(|(_, here)| **here).map(|(key, _)| *key).collect();
    let blocks = keys[..reach]
        .iter()
        .zip(sources)
        .map(|(&block_key, sources)| DirectiveBlock { block_key, sources })
        .collect();
    // A task of its own: a session that is cancelled meanwhile must not leave pages behind that wait for ever.
    let begun = agent.tasks.spawn(begin_load(agent.clone(), pin_name(session), scope, blocks, held));
    if begun.await.unwrap_or(false) { reach } else { 0 }
}

/// Begin to load blocks, as a directive of the instance's own. False where the engine has stopped.
async fn begin_load(
    agent: Arc<Agent>,
    request_ref: String,
    scope: ScopeId,
    blocks: Vec<DirectiveBlock>,
    held: BTreeSet<BlockKey>,
) -> bool {
    // Every load ends, so that a permit is not waited for in vain.
    let permit = agent.sessions.loads.clone().acquire_owned().await;
    let now = agent.clock.now();
    let deadline_ms = agent.config.max_load_ms;
    let lease_ms = deadline_ms.min(agent.config.limits.max_lease_ttl_ms).max(1);
    let pin = Pin { request_ref, until: now.after_millis(deadline_ms.saturating_add(lease_ms)) };
    let keys = blocks.iter().map(|block| block.block_key).collect();
    let Ok(expected) = agent.engine.expect(scope, keys, Some(pin)).await else { return false };
    let body = PrefetchDirective {
        directive: agent.random.uuid(),
        request_ref: None,
        scope_id: scope,
        compat_id: agent.descriptor.compat_id(),
        blocks,
        layer_order: LayerOrder::Ascending,
        deadline_ms,
        lease_ms,
    };
    let directive = Directive::new(body, |key| held.contains(key), now);
    let load = Arc::new(Load::new(agent.clone(), directive, &expected).with_patience(SOURCE_PATIENCE));
    let loading = agent.tasks.spawn(async move {
        load.run().await;
        drop(permit);
    });
    // A block without a page comes into the host tier alone, where the engine finds it once it is whole.
    if expected.contains(&Expectation::NoRoom) {
        drop(loading.await);
    }
    true
}

/// Where each block can be had, in the order of preference: the holder first, because of the others one may be the
/// instance that was lost. A place that is this instance itself is none.
async fn sources(agent: &Agent, session: &Session, keys: &[BlockKey], here: &[bool]) -> Vec<Vec<BaseUri>> {
    let mut sources = vec![Vec::new(); keys.len()];
    let Some(index) = &agent.config.index else { return sources };
    let mut at = 0;
    for _ in 0..MAX_LOOKUPS {
        at += here[at..].iter().take_while(|here| **here).count();
        if at >= keys.len() {
            break;
        }
        let request = LookupRequest {
            scope_id: session.facts.scope.scope_id(),
            compat_id: agent.descriptor.compat_id(),
            block_keys: keys[at..].to_vec(),
            targets: Vec::new(),
            detail: Detail::Location,
            block_tokens: None,
        };
        let answer = match agent.client.with_timeout(LOOKUP_TIMEOUT).lookup(index, &request).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::warn!(%error, "the index did not answer; the session's blocks are not loaded");
                break;
            }
        };
        let blocks = answer.blocks.unwrap_or_default();
        if blocks.is_empty() {
            break;
        }
        for (place, block) in sources[at..].iter_mut().zip(&blocks) {
            *place = block
                .replicas
                .iter()
                .filter_map(|record| record.http_holder())
                .filter(|holder| *holder != agent.base && agent.client.config().policy.allow(holder).is_ok())
                .collect();
            place.sort_by_key(|source| agent.config.holder.as_ref() != Some(source));
        }
        at += blocks.len().min(keys.len() - at);
    }
    sources
}
