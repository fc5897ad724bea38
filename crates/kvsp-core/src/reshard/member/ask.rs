//! What a member learns from the controller's view of a map: past the deadline of a plan, and now and then.

use kvsp_proto::message::{MapId, MapView, Phase};
use kvsp_proto::uri::BaseUri;

use super::super::Ranges;
use super::Member;
use super::entry::{Entry, Loading};
use crate::time::Time;

/// The controller is to be asked what became of a plan (`GET {pc}maps/{map}`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The map.
    pub map: MapId,
    /// The version of the plan.
    pub to: u64,
    /// The plan's number.
    pub attempt: Option<u64>,
    changes: u64,
}

/// What the controller's view comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Nothing changes.
    Wait,
    /// The plan was committed; this is to be freed.
    Commit(Ranges),
    /// The plan was aborted; this is to be freed.
    Abort(Ranges),
    /// The map is over, or goes on without us: all its memory is to be freed.
    Forget,
}

impl Member {
    /// Plans whose deadline has passed without a decision. They are due again later.
    pub fn due_to_ask(&mut self, now: Time) -> Vec<Ask> {
        let config = self.config;
        let mut due = Vec::new();
        for (map, entry) in &mut self.maps {
            let changes = entry.changes;
            let Some(prepared) = entry.prepared.as_mut().filter(|prepared| prepared.ask_at <= now) else {
                continue;
            };
            let doublings = prepared.asks.min(16);
            prepared.asks = doublings + 1;
            let wait = config.ask_interval.saturating_mul(1 << doublings).min(config.max_ask_interval);
            prepared.ask_at = now + wait;
            let (to, attempt) = (prepared.plan.to, prepared.plan.attempt);
            due.push(Ask { map: map.clone(), to, attempt, changes });
        }
        due
    }

    /// When [`Member::due_to_ask`] has something.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.maps.values().filter_map(|entry| entry.prepared.as_ref().map(|prepared| prepared.ask_at)).min()
    }

    /// All maps, for the question whether the controller still knows them. To be asked every few seconds, so that
    /// what no message will ever end does not keep its memory.
    #[must_use]
    pub fn sweep(&self) -> Vec<Ask> {
        let ask = |(map, entry): (&MapId, &Entry)| {
            let prepared = entry.prepared.as_ref();
            let to = prepared.map_or(entry.version, |prepared| prepared.plan.to);
            let attempt = prepared.map_or(entry.attempt, |prepared| prepared.plan.attempt);
            Ask { map: map.clone(), to, attempt, changes: entry.changes }
        };
        self.maps.iter().map(ask).collect()
    }

    /// The controller's answer; None where it does not know the map (`kvsp-map-unknown`, and nothing else: no answer is
    /// none). An answer to what was asked before the map changed here changes nothing.
    pub fn asked(&mut self, ask: &Ask, view: Option<&MapView>) -> Asked {
        let stamp = self.stamp();
        let Some(entry) = self.maps.get_mut(&ask.map).filter(|entry| entry.changes == ask.changes) else {
            return Asked::Wait;
        };
        let outcome = match view {
            None => Asked::Forget,
            Some(view) if entry.prepared.is_some() => decided(entry, view),
            Some(view) if is_over(entry, view, &self.instance) => Asked::Forget,
            // All have been told, and we were not: we are counted out.
            Some(view) if entry.unsaid && view.pending.is_none() && view.version == entry.version => {
                entry.unsaid = false;
                Asked::Commit(std::mem::take(&mut entry.spare))
            }
            Some(_) => Asked::Wait,
        };
        if outcome != Asked::Wait {
            entry.changes = stamp;
        }
        if outcome == Asked::Forget {
            self.forget(&ask.map);
        }
        outcome
    }
}

/// What became of the open plan.
fn decided(entry: &mut Entry, view: &MapView) -> Asked {
    let Some(prepared) = &entry.prepared else { return Asked::Wait };
    let (to, number) = (prepared.plan.to, prepared.plan.attempt);
    let agree = |attempt: Option<u64>| attempt.is_none() || number.is_none() || attempt == number;
    if view.version == to && agree(view.attempt) && prepared.state == Loading::Ready {
        entry.adopt();
        // While others are being told, what may be freed comes with the commit itself.
        entry.unsaid = view.pending.is_some();
        let free = if entry.unsaid { Ranges::new() } else { std::mem::take(&mut entry.spare) };
        return Asked::Commit(free);
    }
    if view.version >= to {
        // It went on without us.
        return Asked::Forget;
    }
    if view.version.saturating_add(1) < to {
        return Asked::Wait;
    }
    let pending = view.pending.as_ref().filter(|pending| pending.to == to && agree(pending.attempt));
    match pending.map(|pending| pending.phase) {
        Some(Phase::Preparing | Phase::Committing) => Asked::Wait,
        // What may be freed comes with the abort itself.
        Some(Phase::Aborting) if number.is_some() => Asked::Wait,
        Some(Phase::Aborting) | None => Asked::Abort(entry.drop_prepared()),
    }
}

/// Whether a map without an open plan is none of our business any more.
fn is_over(entry: &Entry, view: &MapView, instance: &BaseUri) -> bool {
    let pending = view.pending.iter().flat_map(|pending| &pending.shards);
    let named = view.shards.iter().chain(pending).any(|shard| shard.instance == *instance);
    view.version > entry.version || (view.version == entry.version && !named && entry.spare.is_empty())
}
