//! The course of a change: ask how long the context is, send the plans, decide, tell, close.

use std::collections::BTreeSet;

use kvsp_proto::message::{LengthRequest, MapId, ReshardMessage, ReshardPlan};
use kvsp_proto::uri::BaseUri;

use super::super::Ranges;
use super::super::split::{Copies, instances_of, plan_for};
use super::api::{Answer, Effect, LengthOutcome, Sent};
use super::entry::{Entry, Next, Out, Running, Stage};
use super::row::{Decision, PlanRow, Row};
use super::{Maps, MapsConfig};
use crate::time::Time;

impl Maps {
    /// A change is durable: it begins.
    pub(super) fn opened(&mut self, map: &MapId, now: Time) {
        let Some(entry) = self.maps.get_mut(map) else { return };
        let Some(plan) = &entry.row.plan else { return };
        let epoch = |instance: &BaseUri| self.hosts.get(instance).map_or(0, |host| host.epoch);
        let epochs = plan.members.iter().map(|instance| (instance.clone(), epoch(instance))).collect();
        let failed = |instance: &BaseUri| self.hosts.get(instance).is_some_and(|host| host.failed);
        // Where the leader is not known any owner may be it.
        let asked = match entry.leader.clone().filter(|leader| !failed(leader)) {
            Some(leader) => BTreeSet::from([leader]),
            None => entry.owners().into_iter().filter(|owner| !entry.lost.contains(owner)).collect(),
        };
        // Who was counted out when the change was asked for is not told of it, and so is no source, even if it has come back.
        let told = |instance: &BaseUri| plan.members.contains(instance);
        let untold = instances_of(&plan.former).into_iter().filter(|owner| !told(owner));
        let lost = entry.lost.iter().cloned().chain(untold).collect();
        let spare = entry.live_spare().into_iter().filter(|spare| told(&spare.instance)).collect();
        entry.running = Some(Running {
            stage: Stage::Asking,
            deadline: now.after_millis(plan.deadline_ms),
            deciding: None,
            length: None,
            epochs,
            lost,
            spare,
            gone: BTreeSet::new(),
            acked: BTreeSet::new(),
            outs: asked.into_iter().map(|instance| (instance, Out::due(now))).collect(),
        });
    }

    /// The length is known, or that nobody knows it: the plans go out.
    fn prepare(&mut self, map: &MapId, now: Time) {
        let Some((plan, running)) = self.maps.get_mut(map).and_then(Entry::plan) else { return };
        running.stage = Stage::Preparing;
        running.outs = plan.members.iter().map(|instance| (instance.clone(), Out::due(now))).collect();
    }

    /// The decision is durable: whoever had a plan, and the leader, hears of it.
    pub(super) fn decided(&mut self, map: &MapId, now: Time) {
        let Some(entry) = self.maps.get_mut(map) else { return };
        let (Some(plan), Some(running)) = (&entry.row.plan, &mut entry.running) else { return };
        if running.stage == Stage::Preparing {
            let acked = running.outs.iter().filter(|(_, out)| out.done);
            running.acked = acked.map(|(instance, _)| instance.clone()).collect();
        }
        running.stage = Stage::Telling;
        running.outs = plan.members.iter().map(|instance| (instance.clone(), Out::due(now))).collect();
        if let Some(leader) = &entry.leader {
            let observer = || Out { observer: true, ..Out::due(now) };
            running.outs.entry(leader.clone()).or_insert_with(observer);
        }
        for instance in &running.gone {
            running.outs.entry(instance.clone()).and_modify(Out::end);
        }
        let silent = |instance: &BaseUri| {
            let host = self.hosts.get(instance);
            host.is_some_and(|host| running.epochs.get(instance) == Some(&host.epoch))
        };
        let gone: Vec<_> = running.gone.iter().map(|gone| (silent(gone), gone.clone())).collect();
        if plan.decision == Some(Decision::Commit) {
            entry.lost.clear();
            entry.silent.clear();
            entry.epochs.clone_from(&running.epochs);
        }
        for (silent, instance) in gone {
            if !entry.counts_on(&instance) {
                continue;
            }
            if silent {
                entry.silent.insert(instance.clone());
            }
            entry.lost.insert(instance);
        }
    }

    /// All have been told.
    pub(super) fn closed(&mut self, map: &MapId, now: Time) {
        let Some(entry) = self.maps.get_mut(map) else { return };
        entry.running = None;
        entry.dead_keepers.clear();
        let owners = entry.owners();
        entry.epochs.retain(|instance, _| owners.contains(instance));
        entry.lost.retain(|instance| owners.contains(instance));
        for instance in entry.silent.clone() {
            self.revive(map, &instance);
        }
        let Some(entry) = self.maps.get_mut(map) else { return };
        entry.regroup_at = Some(now + regroup_wait(&self.config, entry.regroups));
        if entry.regroups == 0 {
            entry.regroup_at = Some(now);
        }
    }

    /// A map has ended.
    pub(super) fn ended(&mut self, map: &MapId, now: Time) {
        let Some(entry) = self.maps.get_mut(map) else { return };
        entry.running = None;
        let told = entry
            .instances()
            .into_iter()
            .filter(|instance| self.hosts.get(instance).is_none_or(|host| !host.failed));
        entry.forgetting = Some(told.map(|instance| (instance, Out::due(now))).collect());
    }

    /// Does for a map what no longer has to wait.
    pub(super) fn advance(&mut self, map: &MapId, now: Time) {
        let Some(entry) = self.maps.get_mut(map) else { return };
        if !entry.created || entry.pending.is_some() || entry.retry_at.is_some_and(|retry| retry > now) {
            return;
        }
        entry.retry_at = None;
        if entry.row.ended {
            let over = entry.forgetting.as_ref().is_none_or(|outs| outs.values().all(|out| out.done));
            return if over { self.begin_erase(map) } else { self.send_due(map, now) };
        }
        if entry.ending {
            let row = Row { ended: true, ..entry.row.clone() };
            return self.begin_own(map, row, Next::End);
        }
        let Some(running) = &mut entry.running else { return self.regroup(map, now) };
        match running.stage {
            Stage::Telling if running.all_done() => {
                let silent = |instance: &BaseUri, epoch| {
                    self.hosts.get(instance).is_some_and(|host| host.epoch == epoch)
                };
                let mut spare = entry.kept(silent);
                for copy in &mut spare {
                    copy.ttl_ms = self.hosts.get(&copy.instance).map_or(copy.ttl_ms, |host| host.ttl_ms);
                }
                let row = Row { spare, plan: None, ..entry.row.clone() };
                self.begin_own(map, row, Next::Close);
            }
            Stage::Telling => self.send_due(map, now),
            Stage::Asking | Stage::Preparing => {
                if running.deciding.is_none() && now >= running.deadline {
                    running.deciding = Some(Decision::Abort);
                }
                if running.deciding.is_none() && running.all_done() {
                    if running.stage == Stage::Asking {
                        self.prepare(map, now);
                    } else {
                        running.deciding = Some(Decision::Commit);
                    }
                }
                self.decide_or_send(map, now);
            }
        }
    }

    fn decide_or_send(&mut self, map: &MapId, now: Time) {
        let Some(entry) = self.maps.get(map) else { return };
        let Some(decision) = entry.running.as_ref().and_then(|running| running.deciding) else {
            return self.send_due(map, now);
        };
        if let Some(row) = Self::decision_row(entry, decision) {
            self.begin_own(map, row, Next::Decide);
        }
    }

    /// Asks for another group where memory is lost.
    fn regroup(&mut self, map: &MapId, now: Time) {
        let config = self.config;
        let Some(entry) = self.maps.get_mut(map) else { return };
        if entry.lost.is_empty() {
            (entry.regroup_at, entry.regroups) = (None, 0);
            return;
        }
        if entry.regroup_at.is_some_and(|at| at > now) {
            return;
        }
        entry.regroup_at = Some(now + regroup_wait(&config, entry.regroups));
        entry.regroups = entry.regroups.saturating_add(1);
        let lost = entry.lost.iter().cloned().collect();
        self.effects.push_back(Effect::Regroup { map: map.clone(), lost });
    }

    /// Sends what is due.
    fn send_due(&mut self, map: &MapId, now: Time) {
        let Some(entry) = self.maps.get_mut(map) else { return };
        let ended = entry.row.ended;
        let stage = entry.running.as_ref().map(|running| running.stage);
        let outs = match &mut entry.forgetting {
            Some(outs) if ended => outs,
            _ => match &mut entry.running {
                Some(running) => &mut running.outs,
                None => return,
            },
        };
        let is_due = |out: &Out| !out.done && out.at.is_some_and(|at| at <= now);
        let due: Vec<BaseUri> = outs.iter().filter(|(_, out)| is_due(out)).map(|(i, _)| i.clone()).collect();
        for instance in &due {
            if let Some(out) = outs.get_mut(instance) {
                out.id = Some(self.next_sent);
                self.next_sent += 1;
                // What loads takes as long as it takes; its deadline is the plan's.
                out.at = match stage {
                    Some(Stage::Asking | Stage::Preparing) if !ended => None,
                    _ => Some(now + self.config.answer_timeout),
                };
            }
        }
        due.iter().for_each(|instance| self.send(map, instance));
    }

    fn send(&mut self, map: &MapId, instance: &BaseUri) {
        let Some(entry) = self.maps.get_mut(map) else { return };
        let sent = |id| Sent { map: map.clone(), instance: instance.clone(), id };
        if entry.row.ended {
            let id = entry.forgetting.as_ref().and_then(|outs| outs.get(instance)?.id);
            self.effects.extend(id.map(|id| Effect::Forget(sent(id))));
            return;
        }
        let keep = entry.keep(instance);
        let (row, Some(running)) = (&entry.row, &mut entry.running) else { return };
        let (Some(plan), Some(out)) = (&row.plan, running.outs.get_mut(instance)) else { return };
        let Some(sent) = out.id.map(sent) else { return };
        let (map, version, attempt) = (map.clone(), plan.to, Some(plan.attempt));
        let message = match plan.decision {
            None if running.stage == Stage::Asking => {
                let request = Box::new(LengthRequest { to: plan.to, shards: plan.shards.clone() });
                self.effects.push_back(Effect::AskLength { sent, version: row.version, request });
                return;
            }
            None => ReshardMessage::Plan(Box::new(plan_message(row, plan, running, instance))),
            Some(Decision::Commit) => {
                out.keep = keep.clone();
                ReshardMessage::Commit { map, version, attempt, keep: keep.to_wire() }
            }
            Some(Decision::Abort) => {
                out.keep = keep.clone();
                ReshardMessage::Abort { map, version, attempt, keep: keep.to_wire() }
            }
        };
        self.effects.push_back(Effect::Send { sent, message: Box::new(message) });
    }

    /// What became of a message. That of a message which another has taken the place of changes nothing.
    pub fn answered(&mut self, sent: &Sent, answer: Answer, now: Time) {
        self.look(now);
        let config = self.config;
        let Some(entry) = self.maps.get_mut(&sent.map) else { return };
        if entry.row.ended {
            let outs = entry.forgetting.as_mut();
            let Some(out) = outs.and_then(|outs| outs.get_mut(&sent.instance)).filter(|out| out.is_of(sent))
            else {
                return;
            };
            match answer {
                Answer::Refused(status) if is_passing(status) => out.again(&config, now),
                Answer::Unreachable => out.again(&config, now),
                Answer::Ok | Answer::Refused(_) => out.end(),
            }
            if out.tries >= config.max_tries {
                out.end();
            }
            return self.catch_up(&sent.map, now);
        }
        let Some((plan, running)) = entry.plan() else { return };
        let Some(out) = running.outs.get_mut(&sent.instance).filter(|out| out.is_of(sent)) else { return };
        let decision = plan.decision;
        let passing = match answer {
            Answer::Ok => false,
            // Where a plan finds no memory now it will find none before its deadline.
            Answer::Refused(status) => is_passing(status) && !(status == 507 && decision.is_none()),
            Answer::Unreachable => true,
        };
        if passing {
            out.again(&config, now);
            if out.observer && out.tries >= config.max_tries {
                out.end();
            }
        } else if decision.is_none() && answer != Answer::Ok {
            running.deciding = running.deciding.or(Some(Decision::Abort));
        } else {
            let forgot = answer != Answer::Ok && decision == Some(Decision::Commit) && !out.observer;
            if answer != Answer::Ok {
                out.keep = Ranges::new();
            }
            out.end();
            self.changed.insert(sent.map.clone());
            if forgot {
                // It acknowledged the plan and knows nothing of it: it has been restarted since.
                self.forget_start(&sent.map, &sent.instance);
            }
        }
        self.catch_up(&sent.map, now);
    }

    /// What a leader said of the context's length.
    pub fn length(&mut self, sent: &Sent, outcome: LengthOutcome, now: Time) {
        self.look(now);
        let config = self.config;
        let Some((_, running)) = self.maps.get_mut(&sent.map).and_then(Entry::plan) else { return };
        if running.stage != Stage::Asking {
            return;
        }
        let Some(out) = running.outs.get_mut(&sent.instance).filter(|out| out.is_of(sent)) else { return };
        match outcome {
            LengthOutcome::Length(length) => {
                running.length = running.length.max(Some(length));
                out.end();
            }
            LengthOutcome::NotLed => out.end(),
            LengthOutcome::Unreachable => out.again(&config, now),
        }
        self.catch_up(&sent.map, now);
    }
}

impl Out {
    fn is_of(&self, sent: &Sent) -> bool {
        self.id == Some(sent.id)
    }

    fn again(&mut self, config: &MapsConfig, now: Time) {
        let wait = config.backoff.saturating_mul(1 << self.tries.min(16)).min(config.max_backoff);
        self.tries = self.tries.saturating_add(1);
        (self.id, self.at) = (None, Some(now + wait));
    }
}

/// Whether a status may be another one soon.
const fn is_passing(status: u16) -> bool {
    status == 429 || status >= 500
}

fn regroup_wait(config: &MapsConfig, regroups: u32) -> std::time::Duration {
    config.regroup.saturating_mul(1 << regroups.min(16)).min(config.max_regroup)
}

fn plan_message(row: &Row, plan: &PlanRow, running: &Running, instance: &BaseUri) -> ReshardPlan {
    let copies = Copies { shards: &plan.former, spare: &running.spare, lost: &running.lost };
    let parts = plan_for(instance, copies, &plan.shards);
    ReshardPlan {
        map: row.map.clone(),
        from: row.version,
        to: plan.to,
        deadline_ms: plan.deadline_ms,
        retain: parts.retain,
        fetch: parts.fetch,
        release: parts.release,
        rebuild: parts.rebuild,
        length: running.length,
        shards: plan.shards.clone(),
        compat_id: Some(row.compat_id),
        scope_id: Some(row.scope_id),
        session: row.session,
        attempt: Some(plan.attempt),
    }
}
