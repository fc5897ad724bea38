//! One placement: ask, weigh, choose, direct, answer (draft sections 6.4 and 6.5).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kvsp_core::instances::ActiveInstance;
use kvsp_core::placement::{DirectiveIds, Prefix, Ranked, Request, directive, rank};
use kvsp_core::session::{Choice, NewSession, SessionError};
use kvsp_proto::message::{PlacedSession, PlacementAnswer, PlacementRequest, PrefetchDirective};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::uri::BaseUri;

use crate::metrics::Outcome;
use crate::service::ControllerService;
use crate::sessions::Unrecorded;

/// Seconds after which a client that found no capacity may ask again: about an instance's start.
const RETRY_AFTER_S: u64 = 1;

/// How long the index may hold up a failover.
const FAILOVER_PATIENCE: Duration = Duration::from_millis(200);

/// Identifiers that are tried for a session before there is no room: each falls into another shard.
const SESSION_TRIES: usize = 32;

/// What instances are weighed by.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// What the index knows of the prompt's blocks; `None` where it could not be asked.
    pub(crate) prefix: Option<Prefix>,
    /// The tokens of a block, where they are known.
    pub(crate) block_tokens: Option<u32>,
}

/// All that were weighed, the best first, and what they were weighed by.
pub(crate) struct Weighed {
    pub(crate) ranked: Vec<Ranked>,
    pub(crate) known: Arc<Known>,
}

impl Weighed {
    /// The one that costs the least.
    pub(crate) fn best(&self) -> Option<&Ranked> {
        self.ranked.first()
    }
}

impl ControllerService {
    /// Places a request of the principal `owner`; where it asks for a session, that is on stable storage then.
    ///
    /// # Errors
    /// `kvsp-no-capacity` where no instance is active; `kvsp-overloaded` where there is no room for a session.
    pub(crate) async fn place(
        self: Arc<Self>,
        mut request: PlacementRequest,
        owner: &str,
    ) -> Result<PlacementAnswer, Problem> {
        let weighed = self.find(&request).await?;
        let Some(best) = weighed.best() else { return Err(self.no_capacity()) };
        self.instances().placed(best.instance());
        let request_ref = request.request_ref.take().unwrap_or_else(|| self.random.uuid().to_string());
        let split = self.split_of(&request, &weighed);
        // A context that is split is computed by the group from its tokens, whatever is cached.
        let directive = match &split {
            Some(_) => None,
            None => self.directive(&request, &request_ref, best, weighed.known.prefix.as_ref()),
        };
        let prefetch = async {
            match directive {
                Some(directive) => self.send(best, &directive).await,
                None => {
                    let outcome =
                        if weighed.known.prefix.is_some() { Outcome::Placed } else { Outcome::Blind };
                    self.metrics.placed(outcome);
                    None
                }
            }
        };
        let session = async {
            if !request.session {
                return Ok((None, None));
            }
            let session = self.begin(request, best.instance(), owner).await?;
            let map = self.split(session.session, split).await;
            Ok::<_, Problem>((Some(session), map))
        };
        let (prefetch, session) = tokio::join!(prefetch, session);
        let (session, map) = session?;
        Ok(PlacementAnswer {
            instance: best.instance().clone(),
            request_ref,
            session,
            cost_us: best.candidate.cost_us,
            candidates: weighed.ranked.into_iter().map(|ranked| ranked.candidate).collect(),
            prefetch,
            map,
        })
    }

    /// The instance that a session is best continued at; `None` where there is none, and then one is woken or started
    /// where the session `needs` one. A user waits: an index that does not answer is not waited for.
    pub(crate) async fn choose_one(
        self: &Arc<Self>,
        request: &PlacementRequest,
        needs: bool,
    ) -> Option<Choice> {
        if self.eligible(request).is_empty() && !(needs && self.may_grow(request)) {
            return None;
        }
        let known = self.ask(request, FAILOVER_PATIENCE).await;
        let weighed = Arc::clone(self).choose(request, &known).await.ok()?;
        let Some(best) = weighed.best() else {
            if needs {
                self.grow(request, &known).await.ok()?;
            }
            return None;
        };
        self.instances().placed(best.instance());
        self.chosen(best.instance())
    }

    /// An instance, as a session remembers it; `None` where it has failed meanwhile.
    fn chosen(&self, instance: &BaseUri) -> Option<Choice> {
        let status = self.instances().live_status(instance, self.now())?;
        Some(Choice { instance: instance.clone(), instance_epoch: status.epoch, ttl_ms: status.ttl_ms })
    }

    /// Begins a session at an instance.
    async fn begin(
        self: &Arc<Self>,
        request: PlacementRequest,
        instance: &BaseUri,
        owner: &str,
    ) -> Result<PlacedSession, Problem> {
        let choice = self.chosen(instance).ok_or_else(|| self.no_capacity())?;
        let new = NewSession {
            session: self.random.uuid(),
            owner: owner.to_owned(),
            scope_id: request.scope_id,
            compat_id: request.compat_id,
            tokens: request.tokens,
            block_keys: request.block_keys,
            continuation: request.continuation,
            choice: choice.clone(),
        };
        let placed = self.create(new).await?;
        self.check_again(placed.session, &choice);
        Ok(placed)
    }

    /// Creates a session, under another identifier where there is no room in the shard of the first.
    async fn create(self: &Arc<Self>, mut new: NewSession) -> Result<PlacedSession, Unrecorded> {
        for _ in 1..SESSION_TRIES {
            match self.record(new.session, |sessions, now| sessions.create(new.clone(), now)).await {
                Err(Unrecorded::Refused(SessionError::Full)) => new.session = self.random.uuid(),
                made => return made,
            }
        }
        self.record(new.session, |sessions, now| sessions.create(new.clone(), now)).await
    }

    /// The instances that can take a request, weighed. Where none is active, or all would cost too much, others are
    /// woken or started, and waited for.
    async fn find(self: &Arc<Self>, request: &PlacementRequest) -> Result<Weighed, Problem> {
        if self.eligible(request).is_empty() && !self.may_grow(request) {
            return Ok(Weighed { ranked: Vec::new(), known: Arc::default() });
        }
        let known = self.ask(request, Duration::MAX).await;
        let weighed = Arc::clone(self).choose(request, &known).await?;
        if self.is_acceptable(&weighed) {
            return Ok(weighed);
        }
        self.await_capacity(request, &known, weighed).await
    }

    /// Asks for what is known of the prompt, for as long as `patience` lasts.
    async fn ask(self: &Arc<Self>, request: &PlacementRequest, patience: Duration) -> Arc<Known> {
        let ask = async {
            let descriptor = self.descriptor(request.compat_id).await;
            let prefix = self.prefix(request, descriptor.as_ref().map(|d| d.layers)).await;
            (descriptor, prefix)
        };
        let (descriptor, prefix) = tokio::time::timeout(patience, ask).await.unwrap_or_default();
        let block_tokens = descriptor.map(|d| d.block_tokens).or_else(|| largest_block(request));
        Arc::new(Known { prefix, block_tokens })
    }

    /// Whether an instance is there whose cost is no reason to look for another one. A cost that is not known is none.
    pub(crate) fn is_acceptable(&self, weighed: &Weighed) -> bool {
        let Some(best) = weighed.best() else { return false };
        let limit = self.config.acceptable_cost_ms.map(|ms| ms.saturating_mul(1000));
        best.candidate.cost_us.zip(limit).is_none_or(|(cost, limit)| cost <= limit)
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

    /// Weighs the active instances as they are now.
    pub(crate) async fn choose(
        self: Arc<Self>,
        request: &PlacementRequest,
        known: &Arc<Known>,
    ) -> Result<Weighed, Problem> {
        let active = self.eligible(request);
        self.rank(request, known, active).await
    }

    /// Weighs some instances, off the reactor where there is much to weigh.
    pub(crate) async fn rank(
        self: Arc<Self>,
        request: &PlacementRequest,
        known: &Arc<Known>,
        instances: Vec<ActiveInstance>,
    ) -> Result<Weighed, Problem> {
        /// Blocks times instances that are weighed at once.
        const LIGHT: usize = 4096;
        let (tokens, known, turn) = (request.tokens, Arc::clone(known), self.turn());
        let blocks = known.prefix.as_ref().map_or(0, |prefix| prefix.blocks.len());
        let is_light = blocks.saturating_mul(instances.len()) <= LIGHT;
        let weigh = move || {
            let Known { prefix, block_tokens } = &*known;
            let request = Request { tokens, block_tokens: *block_tokens, prefix: prefix.as_ref() };
            let ranked = rank(&request, &instances, turn);
            Weighed { ranked, known }
        };
        if is_light {
            return Ok(weigh());
        }
        tokio::task::spawn_blocking(weigh).await.map_err(|error| {
            tracing::error!(%error, "weighing broke");
            Problem::blank(500, "the request could not be placed")
        })
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
