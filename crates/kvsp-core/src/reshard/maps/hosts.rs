//! Instances: one start of each, whether it still lives, and in which maps it is.

use std::collections::BTreeSet;

use kvsp_proto::message::MapId;
use kvsp_proto::uri::BaseUri;

use super::entry::{Out, Stage};
use super::row::{Decision, Spare};
use super::{MapError, Maps};
use crate::time::Time;

/// An instance that has reported, or is in a map.
#[derive(Debug, Clone, Default)]
pub(super) struct Host {
    /// The highest epoch known; 0 where it has not reported.
    pub(super) epoch: u64,
    pub(super) ttl_ms: u64,
    pub(super) failed: bool,
    pub(super) expected: Option<Time>,
    pub(super) maps: BTreeSet<MapId>,
}

impl Maps {
    /// An instance reported. A higher epoch than the last ends the start before: what was in its memory is lost, and
    /// what it acknowledged is void.
    pub fn instance_reported(&mut self, instance: &BaseUri, epoch: u64, ttl_ms: u64, now: Time) {
        self.look(now);
        if !self.hosts.contains_key(instance) && self.hosts.len() >= self.config.max_instances {
            self.hosts.retain(|_, host| !host.failed || !host.maps.is_empty());
            if self.hosts.len() >= self.config.max_instances {
                return;
            }
        }
        let host = self.hosts.entry(instance.clone()).or_default();
        if epoch < host.epoch {
            return;
        }
        let news = host.failed || epoch > host.epoch;
        (host.epoch, host.ttl_ms, host.failed) = (epoch, ttl_ms, false);
        if let Some(at) = host.expected.take() {
            self.expected.remove(&(at, instance.clone()));
        }
        if news {
            for map in host.maps.clone() {
                self.lose_if_gone(&map, instance);
                self.welcome(&map, instance, now);
                self.catch_up(&map, now);
            }
        }
    }

    /// An instance failed: its status expired.
    pub fn instance_failed(&mut self, instance: &BaseUri, now: Time) {
        self.look(now);
        self.fail(instance, now);
    }

    pub(super) fn fail(&mut self, instance: &BaseUri, now: Time) {
        let Some(host) = self.hosts.get_mut(instance) else { return };
        host.failed = true;
        if let Some(at) = host.expected.take() {
            self.expected.remove(&(at, instance.clone()));
        }
        for map in host.maps.clone() {
            self.lose_if_gone(&map, instance);
            self.catch_up(&map, now);
        }
    }

    /// Where the start of a member that counts is over its memory is lost.
    pub(super) fn lose_if_gone(&mut self, map: &MapId, instance: &BaseUri) {
        let (Some(entry), Some(host)) = (self.maps.get_mut(map), self.hosts.get(instance)) else { return };
        let is_gone = |epoch: &mut u64| {
            // It had not reported before: this is the start that is meant.
            if *epoch == 0 {
                *epoch = host.epoch;
            }
            host.failed || host.epoch > *epoch
        };
        let counts = entry.counts_on(instance);
        let over = entry.epochs.get_mut(instance).is_some_and(is_gone);
        let silent = over && entry.epochs.get(instance) == Some(&host.epoch);
        let lost = over && counts;
        let is_over = |epoch: u64| host.failed || (epoch > 0 && host.epoch > epoch);
        if entry.row.spare.iter().any(|spare| spare.instance == *instance && is_over(spare.epoch)) {
            entry.dead_keepers.insert(instance.clone());
        }
        let running = entry.running.as_mut();
        let of_plan = running.and_then(|running| running.epochs.get_mut(instance)).is_some_and(is_gone);
        if let Some((plan, running)) = entry.plan()
            && of_plan
            && running.gone.insert(instance.clone())
        {
            self.changed.insert(map.clone());
            if plan.decision.is_none() {
                running.deciding = running.deciding.or(Some(Decision::Abort));
            }
            let telling = running.stage == Stage::Telling;
            running.outs.entry(instance.clone()).and_modify(|out| {
                if telling {
                    out.end();
                }
            });
        }
        // A leader without a shard that is gone hears nothing more.
        if let Some(running) = &mut entry.running
            && host.failed
            && running.stage != Stage::Preparing
        {
            running.outs.get_mut(instance).into_iter().filter(|out| !out.done).for_each(Out::end);
        }
        if let Some(out) = entry.forgetting.as_mut().and_then(|outs| outs.get_mut(instance))
            && host.failed
        {
            out.end();
        }
        let news = lost && entry.lost.insert(instance.clone());
        if news && silent {
            entry.silent.insert(instance.clone());
        } else if over && !silent {
            entry.silent.remove(instance);
        }
        if news {
            self.changed.insert(map.clone());
        }
    }

    /// A member that was taken for gone is there all the same, with its memory: it was only silent.
    fn welcome(&mut self, map: &MapId, instance: &BaseUri, now: Time) {
        self.revive(map, instance);
        let Some(entry) = self.maps.get_mut(map) else { return };
        // A start that has just come may be what was waited for.
        if !entry.lost.is_empty() {
            entry.regroup_at = entry.regroup_at.min(Some(now));
        }
    }

    /// What a member that was only silent holds counts again.
    pub(super) fn revive(&mut self, map: &MapId, instance: &BaseUri) {
        let (Some(entry), Some(host)) = (self.maps.get_mut(map), self.hosts.get(instance)) else { return };
        if host.failed || entry.running.is_some() {
            return;
        }
        let keeps = |spare: &Spare| spare.instance == *instance && [0, host.epoch].contains(&spare.epoch);
        if entry.row.spare.iter().any(keeps) {
            entry.dead_keepers.remove(instance);
        }
        if entry.epochs.get(instance) == Some(&host.epoch) && entry.silent.remove(instance) {
            entry.lost.remove(instance);
        }
    }

    /// A member has answered so that it must have been restarted, whatever epoch it reported last.
    pub(super) fn forget_start(&mut self, map: &MapId, instance: &BaseUri) {
        let Some(entry) = self.maps.get_mut(map) else { return };
        // On stable storage stays the start that had the memory: the next one will be seen not to be it.
        if let Some(running) = &mut entry.running {
            running.epochs.remove(instance);
            running.gone.insert(instance.clone());
        }
        entry.silent.remove(instance);
        if entry.counts_on(instance) {
            entry.lost.insert(instance.clone());
        }
    }

    /// An instance that has failed gets no shard.
    pub(super) fn refuse_failed(&self, instances: &BTreeSet<BaseUri>) -> Result<(), MapError> {
        let failed = |instance: &&BaseUri| self.hosts.get(*instance).is_some_and(|host| host.failed);
        let failed = instances.iter().find(failed).cloned();
        failed.map_or(Ok(()), |instance| Err(MapError::Failed { instance }))
    }

    pub(super) fn attach(&mut self, instance: &BaseUri, map: &MapId) {
        self.hosts.entry(instance.clone()).or_default().maps.insert(map.clone());
    }

    pub(super) fn detach(&mut self, instance: &BaseUri, map: &MapId) {
        let Some(host) = self.hosts.get_mut(instance) else { return };
        host.maps.remove(map);
        // Of one that has reported its last start is remembered, so that another is known for one.
        if host.maps.is_empty() && host.epoch == 0 {
            self.hosts.remove(instance);
        }
    }

    /// After a start of the controller: an instance is to report within its TTL.
    pub(super) fn expect(&mut self, instance: &BaseUri, epoch: u64, ttl_ms: u64, now: Time) {
        let Some(host) = self.hosts.get_mut(instance) else { return };
        host.epoch = host.epoch.max(epoch);
        host.ttl_ms = host.ttl_ms.max(ttl_ms);
        let at = now.after_millis(host.ttl_ms);
        if let Some(former) = host.expected.replace(at) {
            self.expected.remove(&(former, instance.clone()));
        }
        self.expected.insert((at, instance.clone()));
    }

    /// After a stall of ours those that are expected have a full TTL again.
    pub(super) fn expect_anew(&mut self, now: Time) {
        for (_, instance) in std::mem::take(&mut self.expected) {
            if let Some(host) = self.hosts.get_mut(&instance) {
                let at = now.after_millis(host.ttl_ms);
                host.expected = Some(at);
                self.expected.insert((at, instance));
            }
        }
    }

    pub(super) fn fail_silent(&mut self, now: Time) {
        while let Some((at, instance)) = self.expected.first().cloned()
            && at <= now
        {
            self.expected.pop_first();
            self.fail(&instance, now);
        }
    }
}
