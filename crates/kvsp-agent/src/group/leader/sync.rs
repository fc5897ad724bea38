//! Putting a context together at a version: opening it at all members, storing what they lack from the staging,
//! and having computed what nobody holds.

use std::time::Duration;

use futures_util::future::{BoxFuture, try_join_all};
use kvsp_client::ClientError;
use kvsp_core::reshard::{Ranges, instances_of, ranges_of};
use kvsp_proto::message::{OpenContext, Phase, PrefillRequest, Shard, TokenRange};
use kvsp_proto::problem::ProblemType;
use kvsp_proto::uri::BaseUri;
use tokio::time::Instant;

use super::super::cover::by_owner;
use super::super::generation::{Generation, STEP_TIMEOUT};
use super::super::remote::Peers;
use super::super::trouble::Trouble;
use super::super::{member, prefill};
use super::flush::{Target, store};
use super::{Plan, View};

/// How long the controller may take to tell how a map stands.
pub(super) const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a member may take to open a context.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the computation of a range may take at its owner.
const PREFILL_TIMEOUT: Duration = Duration::from_secs(600);
/// As many positions are sooner computed twice than waited for.
const CHEAP_TOKENS: u64 = 64;
/// How long what nobody holds waits for a change of the map that is being prepared.
const PREPARING_WAIT: Duration = Duration::from_secs(2);
/// Between two attempts: first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(250));

/// How a map stands.
struct Known {
    version: u64,
    shards: Vec<Shard>,
    /// The version and the shards of a change that members prepare.
    preparing: Option<(u64, Vec<Shard>)>,
}

impl Generation {
    /// Go over to the version that holds, as soon as that can be had: afterwards every position before the last
    /// is held, by its owner.
    ///
    /// # Errors
    /// [`Trouble`] that does not pass, or has not for as long as is borne.
    pub(in super::super) async fn put_together(&mut self) -> Result<(), Trouble> {
        let mut wait = AGAIN.0;
        let mut changes = self.lead.subscribe();
        loop {
            changes.mark_unchanged();
            match self.attempt().await {
                Ok(()) => break,
                Err(trouble) => self.bear(trouble)?,
            }
            // A decision that comes in ends the wait.
            drop(tokio::time::timeout(wait, changes.changed()).await);
            wait = (wait * 2).min(AGAIN.1);
        }
        self.ready_at = Instant::now();
        Ok(())
    }

    async fn attempt(&mut self) -> Result<(), Trouble> {
        // A flush to another version has nothing more to say.
        self.flush = None;
        let Known { version, shards, preparing } = self.look().await?;
        let held = self.open(version, &shards).await?;
        self.fresh = false;
        let wanted = Ranges::one(0..self.length().saturating_sub(1));
        let lacking = wanted.difference(&held);
        let rest = self.store_staged(version, &shards, &lacking).await?;
        if rest.start().is_some_and(|start| start < self.unknown) {
            return Err(Trouble::NeedsPrompt);
        }
        let is_early = self.trouble_since.is_none_or(|since| since.elapsed() < PREPARING_WAIT);
        if rest.tokens() > CHEAP_TOKENS && preparing.is_some() && is_early {
            // Computed now, it would be with the owners of this version alone, and soon be computed once more.
            return Err(Trouble::Changing);
        }
        self.compute(version, &shards, &rest).await?;
        self.go_over(version, shards, preparing).await;
        Ok(())
    }

    /// The version that holds.
    async fn look(&self) -> Result<Known, Trouble> {
        let known = self.view.as_ref().map(|view| Known {
            version: view.version,
            shards: view.shards.clone(),
            preparing: None,
        });
        let at = known.as_ref().map_or(0, |known| known.version);
        // Told by a commit of a change whose shards were told before: the shortest way.
        let told = self.lead.with(|standing| standing.told_shards.take());
        if let Some((version, shards)) = told.filter(|(version, _)| *version > at) {
            return Ok(Known { version, shards, preparing: None });
        }
        let Some(controller) = &self.agent.config.controller else {
            return known.ok_or_else(|| Trouble::Ended("no controller is configured here".into()));
        };
        let client = self.agent.client.with_timeout(LOOK_TIMEOUT);
        match client.map(controller, &self.lead.map).await {
            Ok(view) if view.compat_id != self.agent.descriptor.compat_id() => {
                Err(Trouble::Ended("it is of another model".into()))
            }
            Ok(view) if view.scope_id != self.scope => Err(Trouble::Ended("it is of another scope".into())),
            Ok(view) if view.version >= at => {
                // What was told otherwise was wrong, or comes again with a commit.
                self.lead.with(|standing| standing.told = view.version);
                let pending = view.pending.filter(|pending| pending.phase == Phase::Preparing);
                let preparing = pending.map(|pending| (pending.to, pending.shards));
                Ok(Known { version: view.version, shards: view.shards, preparing })
            }
            Err(error) if error.problem_type() == Some(ProblemType::MapUnknown) => {
                Err(Trouble::Ended("the controller does not know the map".into()))
            }
            // A controller that is away, or has fallen back, decides nothing now; members know their version.
            Ok(_) => known.ok_or(Trouble::Layers),
            Err(error) => known.ok_or(Trouble::Controller(error)),
        }
    }

    /// Open the context at all members; the positions that their owners hold.
    async fn open(&self, version: u64, shards: &[Shard]) -> Result<Ranges, Trouble> {
        let members = instances_of(shards);
        let held = try_join_all(members.iter().map(|member| self.open_at(member, version, shards))).await?;
        if self.fresh && !members.contains(&self.agent.base) {
            self.agent.engine.context_forget(&self.lead.map, 0).await;
        }
        let of_owners =
            members.iter().zip(held).map(|(member, held)| held.intersection(&ranges_of(shards, member)));
        Ok(of_owners.fold(Ranges::new(), |all, held| all.union(&held)))
    }

    async fn open_at(&self, member: &BaseUri, version: u64, shards: &[Shard]) -> Result<Ranges, Trouble> {
        let open = OpenContext {
            version,
            epoch: self.lead.epoch,
            length: if self.fresh { 0 } else { self.length() },
            certain: Some(self.certain),
            shards: shards.to_vec(),
            compat_id: self.agent.descriptor.compat_id(),
            scope_id: self.scope,
            session: self.session,
        };
        let map = &self.lead.map;
        let view = if *member == self.agent.base {
            member::open(&self.agent, map, &open).await.map_err(Trouble::of_here)?
        } else {
            let client = self.agent.client.with_timeout(OPEN_TIMEOUT);
            client.open_context(member, map, &open).await.map_err(|e| Trouble::of_member(member, e))?
        };
        Ok(view.held.into_iter().collect())
    }

    /// Store at their owners what they lack and is here; what is left.
    async fn store_staged(
        &self,
        version: u64,
        shards: &[Shard],
        lacking: &Ranges,
    ) -> Result<Ranges, Trouble> {
        if lacking.is_empty() {
            return Ok(Ranges::new());
        }
        let here = self.agent.engine.context_held(&self.lead.map).await.intersection(lacking);
        let target = |(member, range): (BaseUri, TokenRange)| Target {
            map: self.lead.map.clone(),
            version,
            epoch: self.lead.epoch,
            member,
            range,
        };
        let parts = by_owner(shards, &here);
        let elsewhere = parts.into_iter().filter(|(member, _)| *member != self.agent.base);
        let targets: Vec<Target> = elsewhere.map(target).collect();
        try_join_all(targets.iter().map(|target| store(&self.agent, target))).await?;
        Ok(lacking.difference(&here))
    }

    /// Have positions computed by their owners, all at once.
    async fn compute(&mut self, version: u64, shards: &[Shard], rest: &Ranges) -> Result<(), Trouble> {
        if rest.is_empty() {
            return Ok(());
        }
        if self.started {
            self.agent.group.leads.rebuilt.inc_by(rest.tokens());
        }
        let parts = by_owner(shards, rest);
        let computing = parts.into_iter().map(|(member, range)| -> BoxFuture<'_, Result<(), Trouble>> {
            let tokens = self.tokens_of(range);
            if member == self.agent.base {
                let order = prefill::Order {
                    map: self.lead.map.clone(),
                    version,
                    epoch: self.lead.epoch,
                    shards: shards.to_vec(),
                    position: range.start(),
                    tokens,
                };
                Box::pin(prefill::compute(&self.agent, order))
            } else {
                Box::pin(self.compute_at(member, version, range, tokens))
            }
        });
        try_join_all(computing.collect::<Vec<_>>()).await?;
        self.computed = self.computed.union(rest);
        Ok(())
    }

    async fn compute_at(
        &self,
        member: BaseUri,
        version: u64,
        range: TokenRange,
        tokens: Vec<u32>,
    ) -> Result<(), Trouble> {
        let request = PrefillRequest { epoch: self.lead.epoch, position: range.start(), tokens };
        let client = self.agent.client.with_timeout(PREFILL_TIMEOUT);
        let answer = client.prefill(&member, &self.lead.map, version, &request).await;
        let answer = answer.map_err(|error| Trouble::of_member(&member, error))?;
        if answer.computed == range {
            return Ok(());
        }
        let error = ClientError::Protocol("another range was computed than was asked for".into());
        Err(Trouble::of_member(&member, error))
    }

    fn tokens_of(&self, range: TokenRange) -> Vec<u32> {
        let at = |position: u64| usize::try_from(position).unwrap_or(usize::MAX).min(self.tokens.len());
        self.tokens.get(at(range.start())..at(range.end())).unwrap_or_default().to_vec()
    }

    /// Compute at this version from now on. The owners have all positions before the last one. A change that is
    /// being prepared, of which this leader was told nothing, keeps what is computed from now on in the staging.
    async fn go_over(&mut self, version: u64, shards: Vec<Shard>, preparing: Option<(u64, Vec<Shard>)>) {
        let (map, epoch) = (self.lead.map.clone(), self.lead.epoch);
        let peers = Peers::new(&self.agent.client, STEP_TIMEOUT, map.clone(), (version, epoch));
        self.view = Some(View::new(version, shards, &self.agent.base, peers));
        let end = self.length().saturating_sub(1);
        let gone = self.lead.with(|standing| {
            if standing.version != version {
                standing.version = version;
                standing.stored = 0;
                standing.is_ready = true;
                standing.plan.take_if(|plan| plan.to <= version);
            }
            standing.told = standing.told.max(version);
            let unheard = preparing.filter(|(to, _)| standing.plan.is_none() && *to > standing.told);
            let gone = standing.stored_to(end);
            standing.plan =
                standing.plan.take().or(unheard.map(|(to, shards)| Plan { to, shards, length: end }));
            gone
        });
        if !gone.is_empty() {
            self.agent.engine.context_unstage(&map, Some(gone)).await;
        }
    }
}
