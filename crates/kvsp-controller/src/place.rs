//! One placement: ask, weigh, choose, direct, answer (draft sections 6.4 and 6.5).

use std::collections::BTreeSet;
use std::sync::Arc;

use kvsp_core::instances::ActiveInstance;
use kvsp_core::placement::{DirectiveIds, Prefix, Ranked, Request, directive, rank};
use kvsp_proto::message::{PlacementAnswer, PlacementRequest, PrefetchDirective};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::uri::BaseUri;

use crate::metrics::Outcome;
use crate::service::ControllerService;

/// Seconds after which a client that found no capacity may ask again: about an instance's start.
const RETRY_AFTER_S: u64 = 1;

/// A choice, and what it was made from.
struct Choice {
    ranked: Vec<Ranked>,
    prefix: Option<Prefix>,
}

impl ControllerService {
    /// Places a request.
    ///
    /// # Errors
    /// `kvsp-no-capacity` where no instance is active.
    pub(crate) async fn place(
        self: Arc<Self>,
        request: PlacementRequest,
    ) -> Result<PlacementAnswer, Problem> {
        if self.eligible(&request).is_empty() {
            return Err(self.no_capacity());
        }
        let descriptor = self.descriptor(request.compat_id).await;
        let prefix = self.prefix(&request, descriptor.as_ref().map(|d| d.layers)).await;
        let block_tokens = descriptor.map(|d| d.block_tokens).or_else(|| largest_block(&request));
        let request_ref = request.request_ref.clone().unwrap_or_else(|| self.random.uuid().to_string());
        let choice = Arc::clone(&self).choose(&request, prefix, block_tokens).await?;
        let Some(best) = choice.ranked.first() else { return Err(self.no_capacity()) };
        let prefetch = match self.directive(&request, &request_ref, best, choice.prefix.as_ref()) {
            Some(directive) => self.send(best, &directive).await,
            None => {
                self.metrics.placed(if choice.prefix.is_some() { Outcome::Placed } else { Outcome::Blind });
                None
            }
        };
        Ok(PlacementAnswer {
            instance: best.instance().clone(),
            request_ref,
            session: None,
            cost_us: best.candidate.cost_us,
            candidates: choice.ranked.into_iter().map(|ranked| ranked.candidate).collect(),
            prefetch,
        })
    }

    /// The active instances that the caller has not found to refuse the request.
    fn eligible(&self, request: &PlacementRequest) -> Vec<ActiveInstance> {
        let mut active = self.instances().active(request.compat_id, self.now());
        let excluded: BTreeSet<&BaseUri> = request.exclude.iter().collect();
        active.retain(|instance| !excluded.contains(&instance.status.instance));
        active
    }

    fn no_capacity(&self) -> Problem {
        self.metrics.placed(Outcome::NoCapacity);
        let detail = "no active instance computes this compatibility; start or wake one, or retry later";
        Problem::new(ProblemType::NoCapacity, detail).retry_after(RETRY_AFTER_S)
    }

    /// Weighs the instances as they are now, off the reactor where there is much to weigh, and counts the
    /// placement at the one chosen.
    async fn choose(
        self: Arc<Self>,
        request: &PlacementRequest,
        prefix: Option<Prefix>,
        block_tokens: Option<u32>,
    ) -> Result<Choice, Problem> {
        /// Blocks times instances that are weighed at once.
        const LIGHT: usize = 4096;
        let tokens = request.tokens;
        let active = self.eligible(request);
        let work = prefix.as_ref().map_or(0, |prefix| prefix.blocks.len()).saturating_mul(active.len());
        let turn = self.turn();
        let weigh = move || {
            let ranked = rank(&Request { tokens, block_tokens, prefix: prefix.as_ref() }, &active, turn);
            Choice { ranked, prefix }
        };
        let choice = if work <= LIGHT {
            weigh()
        } else {
            tokio::task::spawn_blocking(weigh).await.map_err(|error| {
                tracing::error!(%error, "weighing broke");
                Problem::blank(500, "the request could not be placed")
            })?
        };
        if let Some(best) = choice.ranked.first() {
            self.instances().placed(best.instance());
        }
        Ok(choice)
    }

    fn directive(
        &self,
        request: &PlacementRequest,
        request_ref: &str,
        best: &Ranked,
        prefix: Option<&Prefix>,
    ) -> Option<PrefetchDirective> {
        let ids = DirectiveIds {
            directive: self.random.uuid(),
            request_ref: request_ref.to_owned(),
            scope_id: request.scope_id,
            compat_id: request.compat_id,
        };
        directive(best, prefix?, ids, &self.config.bounds())
    }

    /// Sends a directive and returns its status resource. The placement stands also where the instance
    /// does not take it, or not in time: then it computes what it lacks.
    async fn send(&self, best: &Ranked, directive: &PrefetchDirective) -> Option<String> {
        let sending = self.client.prefetch(best.instance(), directive);
        let sent = tokio::time::timeout(self.config.prefetch_timeout(), sending).await;
        let outcome = match sent {
            Ok(Ok(uri)) => {
                self.metrics.placed(Outcome::Prefetched);
                return Some(uri);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it did not answer in time".to_owned(),
        };
        tracing::warn!(instance = %best.instance(), reason = outcome, "a directive was not taken");
        self.metrics.placed(Outcome::PrefetchFailed);
        None
    }
}

/// The largest block that `block_keys` allows: the keys are of the prompt's whole blocks.
fn largest_block(request: &PlacementRequest) -> Option<u32> {
    let tokens = request.tokens.checked_div(request.block_keys.len() as u64)?;
    u32::try_from(tokens).ok().filter(|&tokens| tokens > 0)
}
