//! Writes: begun one at a time for a map, and what becomes true when they end.

use kvsp_proto::message::MapId;
use kvsp_proto::uri::BaseUri;

use super::Maps;
use super::api::{Change, Effect, Ticket};
use super::entry::{Entry, Next};
use super::row::{Decision, MemberRow, Row};
use crate::reshard::split::instances_of;
use crate::time::Time;

impl Maps {
    /// Begins the one write of a map.
    pub(super) fn begin(&mut self, map: &MapId, next: Next) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        if let Some(entry) = self.maps.get_mut(map) {
            entry.pending = Some((ticket, next));
            self.tickets.insert(ticket, map.clone());
        }
        ticket
    }

    /// Begins a write of our own accord.
    pub(super) fn begin_own(&mut self, map: &MapId, row: Row, next: impl FnOnce(Box<Row>) -> Next) {
        let row = Box::new(self.with_members(map, row));
        let ticket = self.begin(map, next(row.clone()));
        self.effects.push_back(Effect::Persist { ticket, change: Change::Row(row) });
    }

    pub(super) fn begin_erase(&mut self, map: &MapId) {
        let ticket = self.begin(map, Next::Erase);
        self.effects.push_back(Effect::Persist { ticket, change: Change::Erase(map.clone()) });
    }

    /// A row with the starts of its members as they are known.
    pub(super) fn with_members(&self, map: &MapId, row: Row) -> Row {
        let Some(entry) = self.maps.get(map) else { return row };
        // The next version's owners are the members of the plan that made it.
        let running = entry.running.as_ref().filter(|_| row.version > entry.row.version);
        let known = running.map_or(&entry.epochs, |running| &running.epochs);
        let owners = instances_of(&row.shards);
        let members = owners.iter().map(|instance| self.member_row(instance, known.get(instance).copied()));
        Row { members: members.collect(), ..row }
    }

    /// A start of an instance: a certain one, or the last one known.
    pub(super) fn member_row(&self, instance: &BaseUri, epoch: Option<u64>) -> MemberRow {
        let host = self.hosts.get(instance);
        let epoch = epoch.or_else(|| host.map(|host| host.epoch)).unwrap_or(0);
        MemberRow { instance: instance.clone(), epoch, ttl_ms: host.map_or(0, |host| host.ttl_ms) }
    }

    /// The write is durable.
    pub fn persisted(&mut self, ticket: Ticket, now: Time) {
        self.look(now);
        let Some((map, next)) = self.take(ticket) else { return };
        self.changed.insert(map.clone());
        let before = self.maps.get(&map).map(Entry::instances).unwrap_or_default();
        match next {
            Next::Create => {
                if let Some(entry) = self.maps.get_mut(&map) {
                    entry.created = true;
                }
            }
            Next::Open(row) => {
                self.replace(&map, *row);
                self.opened(&map, now);
            }
            Next::Decide(row) => {
                self.replace(&map, *row);
                self.decided(&map, now);
            }
            Next::Close(row) => {
                self.replace(&map, *row);
                self.closed(&map, now);
            }
            Next::End(row) => {
                self.replace(&map, *row);
                self.ended(&map, now);
            }
            Next::Erase => {
                self.remove(&map);
                return;
            }
        }
        let after = self.maps.get(&map).map(Entry::instances).unwrap_or_default();
        after.difference(&before).for_each(|instance| self.attach(instance, &map));
        before.difference(&after).for_each(|instance| self.detach(instance, &map));
        after.iter().for_each(|instance| self.lose_if_gone(&map, instance));
        self.catch_up(&map, now);
    }

    /// The write failed: it was told to nobody, and may be durable all the same.
    pub fn persist_failed(&mut self, ticket: Ticket, now: Time) {
        self.look(now);
        let Some((map, next)) = self.take(ticket) else { return };
        self.changed.insert(map.clone());
        match next {
            Next::Create => return self.remove(&map),
            // Whoever asked asks again.
            Next::Open(_) => {}
            Next::End(_) if !self.maps.get(&map).is_some_and(|entry| entry.ending) => {}
            Next::Decide(_) | Next::Close(_) | Next::End(_) | Next::Erase => {
                if let Some(entry) = self.maps.get_mut(&map) {
                    entry.backoff(now + self.config.backoff);
                }
            }
        }
        self.catch_up(&map, now);
    }

    fn take(&mut self, ticket: Ticket) -> Option<(MapId, Next)> {
        let map = self.tickets.remove(&ticket)?;
        let pending = self.maps.get_mut(&map)?.pending.take_if(|(of, _)| *of == ticket)?;
        Some((map, pending.1))
    }

    fn replace(&mut self, map: &MapId, row: Row) {
        if let Some(entry) = self.maps.get_mut(map) {
            entry.row = row;
        }
    }

    /// The row with which a change is decided.
    pub(super) fn decision_row(entry: &Entry, decision: Decision) -> Option<Row> {
        let plan = entry.row.plan.clone()?;
        let mut row = entry.row.clone();
        if decision == Decision::Commit {
            row.version = plan.to;
            row.attempt = Some(plan.attempt);
            row.shards.clone_from(&plan.shards);
        }
        row.plan = Some(super::PlanRow { decision: Some(decision), ..plan });
        Some(row)
    }
}
