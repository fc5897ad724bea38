//! The output of one request over a split context: step by step, each at one version of the map.

use std::sync::Arc;
use std::time::Duration;

use kvsp_core::reshard::{Ranges, cover};
use kvsp_engine::{Merge, Sampler};
use kvsp_openai::FinishReason;
use kvsp_proto::id::ScopeId;
use kvsp_proto::message::MapId;
use kvsp_proto::uri::BaseUri;
use tokio::sync::mpsc;
use tokio::time::Instant;
use uuid::Uuid;

use super::leader::{Flush, Lead, LeadError, View};
use super::prefill::positions;
use super::trouble::{Trouble, Verdict};
use crate::Agent;
use crate::engine::{Advanced, EngineRequest, Gauges, Output, Pace, PromptTokens};

/// How long a member may take for its part of one layer of a step.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(3);
/// Positions for which staging memory is taken at once.
const STAGE_TOKENS: u64 = 16;
/// Between two attempts at a step that fails for no visible reason: first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));
/// How long the end of a context may take at its members.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Over which map a request is computed, and for whom.
#[derive(Debug, Clone)]
pub(crate) struct LeadOrder {
    pub(crate) map: MapId,
    pub(crate) scope: ScopeId,
    /// The epoch of the session; 0 without one.
    pub(crate) epoch: u64,
    /// The session; a context without one ends with its request.
    pub(crate) session: Option<Uuid>,
    /// Nothing that members may hold of the map is of this request.
    pub(crate) fresh: bool,
}

/// Compute a request over a map; outputs come in order, and dropping the receiver cancels it.
///
/// # Errors
/// [`LeadError`].
pub(crate) fn submit(
    agent: &Arc<Agent>,
    order: &LeadOrder,
    request: EngineRequest,
) -> Result<mpsc::Receiver<Output>, LeadError> {
    let (lead, before) = agent.group.leads.begin(order.map.clone(), order.epoch, order.session.is_some())?;
    let (output, outputs) = mpsc::channel(request.most_outputs());
    let mut generation = Generation::new(agent.clone(), lead.clone(), order, request, output.clone());
    let agent = agent.clone();
    agent.clone().tasks.spawn(async move {
        if let Some(before) = before {
            // It gives back what it staged, which must not be what is staged from now on.
            before.ended.cancelled().await;
        }
        let end = tokio::select! {
            end = generation.run() => Some(end),
            () = output.closed() => None,
            () = lead.cancel.cancelled() => None,
        };
        if let Some(end) = end {
            generation.finish(end);
        }
        generation.close().await;
        agent.group.leads.end(&lead);
        lead.ended.cancel();
    });
    Ok(outputs)
}

/// How a generation ended.
enum End {
    Finished(FinishReason),
    Trouble(Trouble),
}

pub(super) struct Generation {
    pub(super) agent: Arc<Agent>,
    pub(super) lead: Arc<Lead>,
    pub(super) scope: ScopeId,
    pub(super) session: Option<Uuid>,
    /// What members hold of the map by now is not of this request.
    pub(super) fresh: bool,
    /// Prompt and output. The first `unknown` are placeholders.
    pub(super) tokens: Vec<u32>,
    /// How many of them members may hold from leaders before; 0 for a fresh context.
    pub(super) certain: u64,
    /// Leading positions whose tokens are not known.
    pub(super) unknown: u64,
    pub(super) prompt_len: usize,
    max_tokens: usize,
    sampler: Sampler,
    first_step: u64,
    pace: Option<Arc<Pace>>,
    output: mpsc::Sender<Output>,
    /// The version that is computed at, once there is one.
    pub(super) view: Option<View>,
    /// Staged positions on their way to their owners.
    pub(super) flush: Option<Flush>,
    /// Positions up to which the engine keeps memory for the staging.
    pub(super) staging_to: u64,
    /// Positions computed before the first token, and since then because no copy was left.
    pub(super) computed: Ranges,
    step: u64,
    /// The first token was sampled.
    pub(super) started: bool,
    /// Since when nothing has succeeded.
    pub(super) trouble_since: Option<Instant>,
    /// When the context was put together last.
    pub(super) ready_at: Instant,
}

impl Generation {
    fn new(
        agent: Arc<Agent>,
        lead: Arc<Lead>,
        order: &LeadOrder,
        request: EngineRequest,
        output: mpsc::Sender<Output>,
    ) -> Self {
        let block_tokens = agent.descriptor.block_tokens as usize;
        let (mut tokens, unknown) = match request.prompt {
            PromptTokens::Known(tokens) => (tokens, 0),
            PromptTokens::Keyed { blocks, tail } => {
                let unknown = blocks.len().saturating_mul(block_tokens);
                let mut tokens = vec![0; unknown];
                tokens.extend(tail);
                (tokens, unknown as u64)
            }
        };
        let prompt_len = tokens.len();
        tokens.extend(request.generated);
        Self {
            agent,
            lead,
            scope: order.scope,
            session: order.session,
            fresh: order.fresh,
            certain: if order.fresh { 0 } else { tokens.len() as u64 },
            tokens,
            unknown,
            prompt_len,
            max_tokens: request.max_tokens,
            sampler: request.sampler,
            first_step: request.first_step,
            pace: request.pace,
            output,
            view: None,
            flush: None,
            staging_to: 0,
            computed: Ranges::new(),
            step: 0,
            started: false,
            trouble_since: None,
            ready_at: Instant::now(),
        }
    }

    /// Tokens of prompt and output.
    pub(super) const fn length(&self) -> u64 {
        self.tokens.len() as u64
    }

    async fn run(&mut self) -> End {
        match self.generate().await {
            Ok(reason) => End::Finished(reason),
            Err(trouble) => End::Trouble(trouble),
        }
    }

    async fn generate(&mut self) -> Result<FinishReason, Trouble> {
        self.put_together().await?;
        loop {
            if let Some(pace) = self.pace.clone() {
                pace.until_allowed(self.generated()).await;
            }
            let wanted = Instant::now();
            let logits = self.next_logits(wanted).await?;
            if let Some(reason) = self.take(&logits) {
                return Ok(reason);
            }
        }
    }

    /// The logits after the last token, however often the map changes meanwhile.
    async fn next_logits(&mut self, wanted: Instant) -> Result<Vec<f32>, Trouble> {
        let before = self.version();
        let mut wait = Duration::ZERO;
        loop {
            if self.lead.with(|standing| standing.told > standing.version) {
                self.put_together().await?;
            }
            self.look_after_flush().await;
            match self.step().await {
                Ok(logits) => {
                    self.trouble_since = None;
                    self.switched(before, wanted);
                    return Ok(logits);
                }
                Err(trouble) => {
                    self.agent.group.leads.repeated.inc();
                    self.bear(trouble)?;
                    // The first time it is most likely the map that has changed.
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).clamp(AGAIN.0, AGAIN.1);
                    self.put_together().await?;
                }
            }
        }
    }

    /// Bear with trouble that may pass, for a while.
    ///
    /// # Errors
    /// The trouble, where it does not or has not.
    pub(super) fn bear(&mut self, trouble: Trouble) -> Result<(), Trouble> {
        let patience = Duration::from_millis(self.agent.config.max_group_wait_ms);
        let since = *self.trouble_since.get_or_insert_with(Instant::now);
        if trouble.verdict() != Verdict::Again || since.elapsed() >= patience {
            return Err(trouble);
        }
        tracing::debug!(map = %self.lead.map, %trouble, "a step over a split context is repeated");
        Ok(())
    }

    /// Note how long decoding stood still where the version has changed since it wanted to go on.
    fn switched(&self, before: u64, wanted: Instant) {
        let version = self.version();
        if version != before {
            let pause = self.ready_at.saturating_duration_since(wanted);
            self.agent.group.leads.pauses.observe(pause.as_secs_f64());
            tracing::info!(
                map = %self.lead.map, from = before, to = version, pause_us = pause.as_micros() as u64,
                "a split context goes on at another version"
            );
        }
    }

    fn version(&self) -> u64 {
        self.view.as_ref().map_or(0, |view| view.version)
    }

    /// One pass over the last token: its K and V into the staging, its attention from wherever the keys are.
    async fn step(&mut self) -> Result<Vec<f32>, Trouble> {
        self.step += 1;
        let position = self.length().saturating_sub(1);
        self.stage(position).await?;
        let (Some(view), Some(&token)) = (&self.view, self.tokens.last()) else {
            return Err(Trouble::Uncovered(position));
        };
        let mut here = self.lead.with(|standing| standing.staged.clone());
        here.extend(view.own.clip(0..position).iter());
        here.insert(position..position + 1);
        let cover = cover(&view.shards, &self.agent.base, &here, position + 1);
        if let Some(at) = cover.missing.start() {
            return Err(Trouble::Uncovered(at));
        }
        let peers = view.peers.clone();
        let engine = &self.agent.engine;
        let pass = engine.pass_begin(&self.lead.map, position, vec![token]).await?;
        let mut attention = None;
        while let Advanced::Layer { layer, queries, local } =
            engine.pass_advance(&pass, attention.take(), cover.local.clone()).await?
        {
            let mut merge = Merge::new(&queries);
            for (keys, partial) in local {
                merge.add(positions(&keys), partial)?;
            }
            for (keys, partial) in peers.attend((self.step, layer), &queries, &cover.remote).await? {
                merge.add(keys, partial)?;
            }
            attention = Some(merge.finish()?);
        }
        let logits = engine.pass_finish(pass, true).await?.ok_or(Trouble::Layers)?;
        self.lead.with(|standing| standing.staged.insert(position..position + 1));
        Ok(logits)
    }

    /// Have memory for a position of the staging, and some after it.
    async fn stage(&mut self, position: u64) -> Result<(), Trouble> {
        if position < self.staging_to {
            return Ok(());
        }
        let end = position.saturating_add(STAGE_TOKENS).min(self.capacity().max(position + 1));
        self.agent.engine.context_stage(&self.lead.map, Ranges::one(position..end)).await?;
        self.staging_to = end;
        Ok(())
    }

    /// Where the last shard ends.
    fn capacity(&self) -> u64 {
        self.view.as_ref().and_then(|view| view.shards.last()).map_or(0, |shard| shard.tokens.end())
    }

    /// Sample the next token; the reason, where the output ends with it.
    fn take(&mut self, logits: &[f32]) -> Option<FinishReason> {
        if !self.started {
            self.started = true;
            let computed = self.computed.clip(0..self.prompt_len as u64).tokens();
            // The last token of the prompt is computed in any case.
            let known = self.prompt_len.saturating_sub(1);
            let reused = known.saturating_sub(usize::try_from(computed).unwrap_or(usize::MAX));
            self.send(Output::Started { reused });
        }
        let token = self.sampler.sample(logits, self.first_step.wrapping_add(self.generated() as u64));
        let info = self.agent.engine.info();
        if info.eos.contains(&token) {
            return Some(FinishReason::Stop);
        }
        self.tokens.push(token);
        Gauges::count(&self.agent.engine.gauges().tokens_generated, 1);
        let full = self.tokens.len() >= info.max_context || self.length() >= self.capacity();
        self.send(Output::Token(token));
        (self.generated() >= self.max_tokens || full).then_some(FinishReason::Length)
    }

    fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Send an output. The channel has room for all of them; it fails where the client is gone.
    fn send(&self, output: Output) {
        drop(self.output.try_send(output));
    }

    fn finish(&self, end: End) {
        match end {
            End::Finished(reason) => self.send(Output::Finished(reason)),
            End::Trouble(trouble) if trouble.verdict() == Verdict::NeedsPrompt => {
                self.send(Output::NeedsPrompt);
            }
            End::Trouble(trouble) => {
                tracing::warn!(map = %self.lead.map, %trouble, "a split context is led no longer");
                self.send(Output::Failed(trouble.to_string()));
            }
        }
    }

    /// Give back what was kept here. A context of no session ends, at all its members.
    async fn close(&mut self) {
        self.flush = None;
        let map = &self.lead.map;
        self.agent.engine.context_unstage(map, None).await;
        if self.session.is_some() {
            return;
        }
        let members = self.view.as_ref().map(View::others).unwrap_or_default();
        let client = self.agent.client.with_timeout(END_TIMEOUT);
        let forget = |member: BaseUri| {
            let client = client.clone();
            async move {
                if let Err(error) = client.end_map(&member, map).await {
                    tracing::debug!(%map, %member, %error, "a member did not forget a context");
                }
            }
        };
        futures_util::future::join_all(members.into_iter().map(forget)).await;
        super::member::forget(&self.agent, map).await;
    }
}
