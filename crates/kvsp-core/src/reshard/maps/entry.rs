//! One map in memory: what is durable of it, and what is under way.

use std::collections::{BTreeMap, BTreeSet};

use kvsp_proto::message::{MapView, PendingReshard, Phase, Shard};
use kvsp_proto::uri::BaseUri;

use super::super::Ranges;
use super::super::split::{Copies, instances_of, plan_for, ranges_of};
use super::api::Ticket;
use super::row::{Decision, PlanRow, Row, Spare};
use crate::time::Time;

/// A map. The row is what is on stable storage, but for the starts of its members, which are taken from `epochs`
/// when it is written.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) row: Row,
    /// False until the map itself is durable; nobody sees it before.
    pub(super) created: bool,
    pub(super) pending: Option<(Ticket, Next)>,
    /// The starts of the owners whose memory counts, 0 where one has not reported.
    pub(super) epochs: BTreeMap<BaseUri, u64>,
    /// Owners whose memory is gone.
    pub(super) lost: BTreeSet<BaseUri>,
    /// Those of them that were only not heard of.
    pub(super) silent: BTreeSet<BaseUri>,
    /// Keepers of spare copies that are gone.
    pub(super) dead_keepers: BTreeSet<BaseUri>,
    /// The change under way, once it is durable.
    pub(super) running: Option<Running>,
    pub(super) leader: Option<BaseUri>,
    /// It is to end.
    pub(super) ending: bool,
    /// Whom the end is being told.
    pub(super) forgetting: Option<BTreeMap<BaseUri, Out>>,
    /// The highest number given to a plan, those of failed writes among them.
    pub(super) attempts: u64,
    /// A write of our own failed; the next try is not before.
    pub(super) retry_at: Option<Time>,
    pub(super) regroup_at: Option<Time>,
    pub(super) regroups: u32,
    /// What the table of timers holds.
    pub(super) timer: Option<Time>,
}

/// What becomes true once a write is durable.
#[derive(Debug, Clone)]
pub(super) enum Next {
    Create,
    Open(Box<Row>),
    Decide(Box<Row>),
    Close(Box<Row>),
    End(Box<Row>),
    Erase,
}

/// A change under way.
#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) stage: Stage,
    pub(super) deadline: Time,
    /// What is decided, though it may not be written yet. A write that is reported failed may be durable all the same,
    /// so this never changes.
    pub(super) deciding: Option<Decision>,
    pub(super) length: Option<u64>,
    /// The starts of the members.
    pub(super) epochs: BTreeMap<BaseUri, u64>,
    /// Whose memory was gone when it began.
    pub(super) lost: BTreeSet<BaseUri>,
    /// Copies beside the shards when it began.
    pub(super) spare: Vec<Shard>,
    /// Members lost since.
    pub(super) gone: BTreeSet<BaseUri>,
    /// Members whose acknowledgement of the plan was heard.
    pub(super) acked: BTreeSet<BaseUri>,
    pub(super) outs: BTreeMap<BaseUri, Out>,
}

/// Where a change is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The leader is asked for the context's length.
    Asking,
    /// Members load.
    Preparing,
    /// Members are told what was decided.
    Telling,
}

/// What one instance is being told.
#[derive(Debug, Clone, Default)]
pub(super) struct Out {
    /// The message without an answer.
    pub(super) id: Option<u64>,
    /// When it is sent next.
    pub(super) at: Option<Time>,
    pub(super) tries: u32,
    pub(super) done: bool,
    /// It has no shard: it leads, and is told so that it need not find out.
    pub(super) observer: bool,
    /// What the last commit let it keep.
    pub(super) keep: Ranges,
}

impl Out {
    pub(super) fn due(now: Time) -> Self {
        Self { at: Some(now), ..Self::default() }
    }

    pub(super) fn end(&mut self) {
        (self.id, self.at, self.done) = (None, None, true);
    }
}

impl Running {
    pub(super) fn all_done(&self) -> bool {
        self.outs.values().all(|out| out.done)
    }
}

impl Entry {
    pub(super) fn new(row: Row, created: bool) -> Self {
        Self {
            attempts: row.attempts,
            epochs: row.members.iter().map(|member| (member.instance.clone(), member.epoch)).collect(),
            row,
            created,
            pending: None,
            lost: BTreeSet::new(),
            silent: BTreeSet::new(),
            dead_keepers: BTreeSet::new(),
            running: None,
            leader: None,
            ending: false,
            forgetting: None,
            retry_at: None,
            regroup_at: None,
            regroups: 0,
            timer: None,
        }
    }

    /// The open plan with what is known of it.
    pub(super) fn plan(&mut self) -> Option<(&PlanRow, &mut Running)> {
        self.row.plan.as_ref().zip(self.running.as_mut())
    }

    /// The tokens that the map covers.
    pub(super) fn capacity(&self) -> u64 {
        self.row.shards.last().map_or(0, |shard| shard.tokens.end())
    }

    /// Every instance that has, or is to have, something of the map.
    pub(super) fn instances(&self) -> BTreeSet<BaseUri> {
        let plan = self.row.plan.iter().flat_map(|plan| plan.former.iter().chain(&plan.shards));
        let all = self.row.shards.iter().chain(plan).map(|shard| &shard.instance);
        let members = self.row.plan.iter().flat_map(|plan| &plan.members);
        all.chain(self.keepers()).chain(members).cloned().collect()
    }

    /// Whether an instance has a shard at the version that holds.
    pub(super) fn counts_on(&self, instance: &BaseUri) -> bool {
        self.row.shards.iter().any(|shard| shard.instance == *instance)
    }

    pub(super) fn view(&self) -> MapView {
        view_of(&self.row, self.running.as_ref())
    }

    /// The copies beside the shards that are still there.
    pub(super) fn live_spare(&self) -> Vec<Shard> {
        let live = |spare: &&Spare| !self.dead_keepers.contains(&spare.instance);
        self.row.spare.iter().filter(live).map(Spare::shard).collect()
    }

    /// Of what a member lets go with the decision, what it is to keep: at a commit what it gave to somebody who is lost,
    /// at an abort what it fetched from somebody who is lost.
    pub(super) fn keep(&self, instance: &BaseUri) -> Ranges {
        let Some((plan, running)) = self.row.plan.as_ref().zip(self.running.as_ref()) else {
            return Ranges::new();
        };
        if running.gone.contains(instance) {
            return Ranges::new();
        }
        let lost = |instance: &BaseUri| running.gone.contains(instance) || running.lost.contains(instance);
        let of = |shards: &[Shard], whose: &dyn Fn(&BaseUri) -> bool| -> Ranges {
            shards.iter().filter(|shard| whose(&shard.instance)).map(|shard| shard.tokens).collect()
        };
        let own = |shards: &[Shard]| ranges_of(shards, instance);
        let spare = own(&running.spare);
        let had = if running.lost.contains(instance) { Ranges::new() } else { own(&plan.former) };
        let next = own(&plan.shards);
        match plan.decision {
            Some(Decision::Commit) => {
                let orphaned = of(&plan.shards, &|owner| running.gone.contains(owner));
                had.union(&spare).difference(&next).intersection(&orphaned)
            }
            _ => {
                let kept = of(&running.spare, &|keeper| !running.gone.contains(keeper));
                let orphaned = of(&plan.former, &lost).difference(&kept);
                let copies = Copies { shards: &plan.former, spare: &running.spare, lost: &running.lost };
                let fetched = plan_for(instance, copies, &plan.shards).fetch;
                let fetched: Ranges = fetched.into_iter().map(|part| part.tokens).collect();
                fetched.intersection(&orphaned).union(&spare)
            }
        }
    }

    /// The copies beside the shards, once all members have been told of the decision. One that is only `silent` may
    /// come back with them.
    pub(super) fn kept(&self, silent: impl Fn(&BaseUri, u64) -> bool) -> Vec<Spare> {
        let Some((plan, running)) = self.row.plan.as_ref().zip(self.running.as_ref()) else {
            return Vec::new();
        };
        let mut kept = Vec::new();
        if plan.decision == Some(Decision::Abort) {
            // Who was silent when it began was told nothing and has what it had.
            let untold = |spare: &&Spare| !running.outs.contains_key(&spare.instance);
            kept.extend(self.row.spare.iter().filter(untold).cloned());
        }
        for (instance, out) in &running.outs {
            let epoch = running.epochs.get(instance).copied().unwrap_or(0);
            let ranges = match running.gone.contains(instance) {
                true if !silent(instance, epoch) => continue,
                true => out.keep.union(&ranges_of(&running.spare, instance)),
                false => out.keep.clone(),
            };
            let spare = |tokens| Spare { tokens, instance: instance.clone(), epoch, ttl_ms: 0 };
            kept.extend(ranges.to_wire().into_iter().map(spare));
        }
        // The first copy of a range is the one that is loaded: one known from before, else one that was acknowledged.
        let known = |spare: &Spare| self.row.spare.iter().position(|known| known.instance == spare.instance);
        kept.sort_by_key(|spare| {
            let at = known(spare).unwrap_or(self.row.spare.len());
            (at, !running.acked.contains(&spare.instance))
        });
        kept
    }

    /// Instances that keep copies beside the shards.
    pub(super) fn keepers(&self) -> impl Iterator<Item = &BaseUri> {
        self.row.spare.iter().map(|spare| &spare.instance)
    }

    /// The owners at the version that holds.
    pub(super) fn owners(&self) -> BTreeSet<BaseUri> {
        instances_of(&self.row.shards)
    }

    pub(super) fn backoff(&mut self, at: Time) {
        self.retry_at = Some(at);
    }

    /// When something is due next.
    pub(super) fn deadline(&self) -> Option<Time> {
        if !self.created || self.pending.is_some() {
            return None;
        }
        if let Some(retry) = self.retry_at {
            return Some(retry);
        }
        let outs = self.running.iter().flat_map(|running| running.outs.values());
        let forgetting = self.forgetting.iter().flat_map(BTreeMap::values);
        let sends = outs.chain(forgetting).filter(|out| !out.done).filter_map(|out| out.at);
        let undecided = self.running.as_ref().filter(|running| running.stage != Stage::Telling);
        let deadline = undecided.map(|running| running.deadline);
        let regroup = self.regroup_at.filter(|_| self.running.is_none() && !self.row.ended);
        sends.chain(deadline).chain(regroup).min()
    }
}

/// A row as it is shown.
pub(super) fn view_of(row: &Row, running: Option<&Running>) -> MapView {
    let pending = row.plan.as_ref().map(|plan| {
        let acks = running.filter(|running| running.stage != Stage::Asking).into_iter();
        let acks = acks.flat_map(|running| {
            running
                .outs
                .iter()
                .filter(|(instance, out)| out.done && !out.observer && !running.gone.contains(*instance))
        });
        PendingReshard {
            to: plan.to,
            shards: plan.shards.clone(),
            phase: match plan.decision {
                None => Phase::Preparing,
                Some(Decision::Commit) => Phase::Committing,
                Some(Decision::Abort) => Phase::Aborting,
            },
            acks: acks.map(|(instance, _)| instance.clone()).collect(),
            attempt: Some(plan.attempt),
        }
    });
    MapView {
        map: row.map.clone(),
        version: row.version,
        shards: row.shards.clone(),
        compat_id: row.compat_id,
        scope_id: row.scope_id,
        session: row.session,
        attempt: row.attempt,
        pending,
    }
}
