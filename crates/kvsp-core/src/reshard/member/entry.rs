//! One map at a member.

use kvsp_proto::message::{FetchRange, MapId, ReshardAnswer, ReshardPlan};

use super::super::Ranges;
use super::{MemberError, Planned};
use crate::time::Time;

/// A map of which something is ours, or was.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) version: u64,
    /// The number of the plan that led to this version, where it had one.
    pub(super) attempt: Option<u64>,
    /// The highest number of a plan whose decision was carried out here.
    pub(super) decided: Option<u64>,
    /// Our ranges in this version.
    pub(super) owned: Ranges,
    /// What we were told to keep beside them.
    pub(super) spare: Ranges,
    /// The highest epoch of a leader.
    pub(super) epoch: u64,
    /// The epoch of the leader that opened the context here last.
    pub(super) opened: Option<u64>,
    pub(super) unopened: Unopened,
    /// It was learnt by asking that this version holds; what is to be kept beside our ranges was not said yet.
    pub(super) unsaid: bool,
    pub(super) prepared: Option<Prepared>,
    /// Another number after each thing that happens to the map.
    pub(super) changes: u64,
}

/// A plan that is open here.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    pub(super) plan: ReshardPlan,
    /// Our ranges in its version.
    pub(super) next: Ranges,
    pub(super) state: Loading,
    /// When to ask the controller what became of it.
    pub(super) ask_at: Time,
    pub(super) asks: u32,
    pub(super) unopened: Unopened,
}

/// What came here for a leader that has not opened the context here: it may be of tokens that a later leader cut off
/// elsewhere.
#[derive(Debug, Clone, Default)]
pub(super) struct Unopened {
    pub(super) ranges: Ranges,
    /// The lowest epoch of any of it.
    pub(super) epoch: Option<u64>,
}

impl Unopened {
    pub(super) fn add(&mut self, ranges: &Ranges, epoch: u64) {
        self.ranges = self.ranges.union(ranges);
        self.epoch = Some(self.epoch.map_or(epoch, |known| known.min(epoch)));
    }
}

/// Whether a plan is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loading {
    Loading,
    Ready,
}

impl Prepared {
    /// Whether the abort of a plan ends this one: of this plan, or of one that came after it.
    pub(super) fn is_ended_by(&self, version: u64, attempt: Option<u64>) -> bool {
        let number = self.plan.attempt;
        self.plan.to == version && (attempt.is_none() || number.is_none() || number <= attempt)
    }
}

impl Entry {
    /// A map that was not known: what is said of the version that holds is believed.
    pub(super) fn believed(version: u64, owned: Ranges) -> Self {
        Self {
            version,
            attempt: None,
            decided: None,
            owned,
            spare: Ranges::new(),
            epoch: 0,
            opened: None,
            unopened: Unopened::default(),
            unsaid: false,
            prepared: None,
            changes: 0,
        }
    }

    /// All positions for which there is, or may be, memory.
    pub(super) fn all(&self) -> Ranges {
        let next = self.prepared.as_ref().map_or_else(Ranges::new, |prepared| prepared.next.clone());
        self.owned.union(&self.spare).union(&next)
    }

    /// What of the next version's ranges is there for its sake alone.
    pub(super) fn fresh(&self, next: &Ranges) -> Ranges {
        next.difference(&self.owned).difference(&self.spare)
    }

    /// The epoch that what is here can be relied on in.
    pub(super) fn content_epoch(&self) -> u64 {
        let opened = self.opened.unwrap_or(self.epoch);
        self.unopened
            .epoch
            .map_or(opened, |epoch| if self.opened.is_some() { epoch.min(opened) } else { epoch })
    }

    /// A leader of this epoch opens the context, of which so many tokens are certain: what is here under leaders before
    /// it and cannot be relied on. Of the last one's that is what lies beyond; those before had the tokens of yet other
    /// leaders, whose ends are not known.
    pub(super) fn open(&mut self, epoch: u64, certain: u64) -> Ranges {
        let all = self.all();
        let prepared = self.prepared.as_mut().map(|prepared| std::mem::take(&mut prepared.unopened));
        let reliable = |under: u64| if under + 1 >= epoch { certain } else { 0 };
        let (mut discard, mut own) = (Ranges::new(), Ranges::new());
        for part in prepared.into_iter().chain([std::mem::take(&mut self.unopened)]) {
            match part.epoch {
                Some(under) if under < epoch => {
                    discard.extend(part.ranges.clip(reliable(under)..u64::MAX).iter());
                    own.extend(part.ranges.iter());
                }
                _ => own.extend(part.ranges.iter()),
            }
        }
        if self.opened < Some(epoch) {
            let from = self.opened.map_or(0, reliable);
            discard.extend(all.difference(&own).clip(from..u64::MAX).iter());
        }
        self.opened = Some(epoch);
        discard
    }

    /// The open plan, where it is this one.
    pub(super) fn prepared_for(&mut self, to: u64, attempt: Option<u64>) -> Option<&mut Prepared> {
        let same = |prepared: &&mut Prepared| {
            let number = prepared.plan.attempt;
            prepared.plan.to == to && (attempt.is_none() || number.is_none() || number == attempt)
        };
        self.prepared.as_mut().filter(same)
    }

    /// The version of an acknowledged plan.
    pub(super) fn ready(&self) -> Option<u64> {
        let ready = self.prepared.as_ref().filter(|prepared| prepared.state == Loading::Ready);
        ready.map(|prepared| prepared.plan.to)
    }

    /// The next version holds. Nothing is freed yet: what is not ours in it is spare.
    pub(super) fn adopt(&mut self) {
        let Some(prepared) = self.prepared.take() else { return };
        self.spare = self.owned.union(&self.spare).difference(&prepared.next);
        self.owned = prepared.next;
        self.version = prepared.plan.to;
        if let Some(epoch) = prepared.unopened.epoch {
            self.unopened.add(&prepared.unopened.ranges, epoch);
        }
        self.attempt = prepared.plan.attempt;
    }

    /// Of what an acknowledged plan fetched, this is kept.
    pub(super) fn keep_fetched(&mut self, keep: &Ranges) {
        let Some(prepared) = self.prepared.as_ref().filter(|prepared| prepared.state == Loading::Ready)
        else {
            return;
        };
        let kept = self.fresh(&prepared.next).intersection(keep);
        if let Some(epoch) = prepared.unopened.epoch {
            self.unopened.add(&prepared.unopened.ranges.intersection(&kept), epoch);
        }
        self.spare = self.spare.union(&kept);
    }

    /// A decision says what is to be kept beside our ranges; what is not. One that comes again after a later one says
    /// nothing.
    pub(super) fn keep_only(&mut self, attempt: Option<u64>, keep: &Ranges) -> Ranges {
        if attempt.is_some() && attempt < self.decided {
            return Ranges::new();
        }
        self.decided = self.decided.max(attempt);
        self.unsaid = false;
        let free = self.spare.difference(keep);
        self.spare = self.spare.intersection(keep);
        free
    }

    /// The open plan is over; what was for its sake alone.
    pub(super) fn drop_prepared(&mut self) -> Ranges {
        self.prepared.take().map_or_else(Ranges::new, |prepared| self.fresh(&prepared.next))
    }

    pub(super) fn answer(&self, map: &MapId) -> ReshardAnswer {
        ReshardAnswer { map: map.clone(), version: self.version, prepared: self.ready() }
    }

    /// What is known of a plan whose `from` we have reached. None: it is a new one.
    pub(super) fn known(&self, plan: &ReshardPlan) -> Result<Option<Planned>, MemberError> {
        let conflict = MemberError::Conflict { version: self.version };
        let agree =
            |number: Option<u64>| number.is_none() || plan.attempt.is_none() || number == plan.attempt;
        if plan.from < self.version {
            let done = plan.to == self.version && agree(self.attempt);
            return if done { Ok(Some(Planned::Ready(self.answer(&plan.map)))) } else { Err(conflict) };
        }
        let Some(prepared) = &self.prepared else { return Ok(None) };
        let same = match (plan.attempt, prepared.plan.attempt) {
            (Some(theirs), Some(ours)) if theirs > ours => return Ok(None),
            (Some(theirs), Some(ours)) => theirs == ours,
            _ => ReshardPlan { deadline_ms: prepared.plan.deadline_ms, ..plan.clone() } == prepared.plan,
        };
        match prepared.state {
            _ if !same => Err(conflict),
            Loading::Loading => Ok(Some(Planned::Loading)),
            Loading::Ready => Ok(Some(Planned::Ready(self.answer(&plan.map)))),
        }
    }
}

/// What of the ranges to fetch lies below the length.
pub(super) fn cut(fetch: &[FetchRange], length: Option<u64>) -> Vec<FetchRange> {
    let Some(length) = length else { return fetch.to_vec() };
    let below = |part: &FetchRange| {
        let tokens = (part.tokens.start()..part.tokens.end().min(length)).try_into().ok()?;
        Some(FetchRange { tokens, from: part.from.clone() })
    };
    fetch.iter().filter_map(below).collect()
}
