//! The controller's side: shard maps, their versions, and the one decision about each change (draft section 6.9,
//! profile section 8).
//!
//! What is in memory is what is on stable storage: a request or an event begins a write, and only
//! [`Maps::persisted`] makes it true. So a decision that anybody has heard of survives a crash, and a change without
//! one is aborted after it. A map has one write under way at most.

mod api;
mod config;
mod drive;
mod entry;
mod error;
mod hosts;
mod restore;
mod row;
#[cfg(test)]
mod tests;
mod time;
mod write;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kvsp_proto::message::{MapId, MapList, MapView, Shard, check_shards};
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

pub use api::{Answer, Change, Effect, LengthOutcome, NewMap, Outcome, Sent, Ticket};
pub use config::MapsConfig;
pub use error::MapError;
pub use row::{Decision, MemberRow, PlanRow, Row, Spare};

use self::entry::{Entry, Next, view_of};
use self::hosts::Host;
use super::split::instances_of;
use crate::time::Time;

/// The maps of a controller.
#[derive(Debug, Clone)]
pub struct Maps {
    config: MapsConfig,
    maps: BTreeMap<MapId, Entry>,
    by_session: BTreeMap<Uuid, BTreeSet<MapId>>,
    hosts: BTreeMap<BaseUri, Host>,
    /// Instances that have not reported since the controller's start, by when they are to have done so.
    expected: BTreeSet<(Time, BaseUri)>,
    tickets: BTreeMap<Ticket, MapId>,
    next_ticket: u64,
    next_sent: u64,
    timers: BTreeSet<(Time, MapId)>,
    last_look: Option<Time>,
    /// At most a few for each member of each map: each is followed by an answer before the next.
    effects: VecDeque<Effect>,
    changed: BTreeSet<MapId>,
}

impl Maps {
    /// No map yet.
    #[must_use]
    pub const fn new(config: MapsConfig) -> Self {
        Self {
            config,
            maps: BTreeMap::new(),
            by_session: BTreeMap::new(),
            hosts: BTreeMap::new(),
            expected: BTreeSet::new(),
            tickets: BTreeMap::new(),
            next_ticket: 1,
            next_sent: 1,
            timers: BTreeSet::new(),
            last_look: None,
            effects: VecDeque::new(),
            changed: BTreeSet::new(),
        }
    }

    /// Makes version 1 of a map. It exists once the write is durable. [`Outcome::Done`] where it exists already and is
    /// the same.
    ///
    /// # Errors
    /// [`MapError::Invalid`], [`MapError::Exists`], [`MapError::Failed`], [`MapError::Full`].
    pub fn create(&mut self, new: NewMap, now: Time) -> Result<Outcome<MapView>, MapError> {
        self.look(now);
        check_shards(&new.shards).map_err(|_| MapError::Invalid)?;
        if let Some(entry) = self.maps.get(&new.map) {
            if !entry.created || entry.pending.is_some() {
                return Ok(Outcome::Busy);
            }
            let row = &entry.row;
            let same = row.shards == new.shards
                && (row.compat_id, row.scope_id, row.session) == (new.compat_id, new.scope_id, new.session);
            let exists = MapError::Exists { version: row.version };
            return if same && !row.ended { Ok(Outcome::Done(entry.view())) } else { Err(exists) };
        }
        let instances = instances_of(&new.shards);
        self.refuse_failed(&instances)?;
        if self.maps.len() >= self.config.max_maps {
            return Err(MapError::Full);
        }
        let row = Row {
            map: new.map.clone(),
            compat_id: new.compat_id,
            scope_id: new.scope_id,
            session: new.session,
            version: 1,
            attempt: None,
            shards: new.shards,
            members: instances.iter().map(|instance| self.member_row(instance, None)).collect(),
            spare: Vec::new(),
            attempts: 0,
            plan: None,
            ended: false,
        };
        let (map, then) = (new.map, view_of(&row, None));
        self.insert(Entry { leader: new.leader, ..Entry::new(row.clone(), false) });
        let ticket = self.begin(&map, Next::Create);
        Ok(Outcome::Persist { ticket, change: Change::Row(Box::new(row)), then })
    }

    /// Begins a change of a map from version `from` to the next, which has these shards. Who is to hear of it is told
    /// once the write is durable.
    ///
    /// # Errors
    /// [`MapError::Unknown`]; [`MapError::Invalid`]: also where the total range is another; [`MapError::Version`];
    /// [`MapError::Pending`]; [`MapError::Failed`].
    pub fn reshard(
        &mut self,
        map: &MapId,
        from: u64,
        shards: Vec<Shard>,
        deadline_ms: u64,
        now: Time,
    ) -> Result<Outcome<MapView>, MapError> {
        self.look(now);
        let entry = self.visible(map)?;
        if check_shards(&shards) != Ok(entry.capacity()) {
            return Err(MapError::Invalid);
        }
        let version = entry.row.version;
        if from != version {
            return Err(MapError::Version { version });
        }
        if let Some(plan) = &entry.row.plan {
            return Err(MapError::Pending { to: plan.to });
        }
        if entry.pending.is_some() || entry.ending {
            return Ok(Outcome::Busy);
        }
        self.refuse_failed(&instances_of(&shards))?;
        let Some(entry) = self.maps.get_mut(map) else { return Err(MapError::Unknown) };
        entry.attempts += 1;
        let live = |instance: &BaseUri| !entry.lost.contains(instance);
        let mut members = instances_of(&shards);
        members.extend(instances_of(&entry.row.shards).into_iter().filter(live));
        members.extend(instances_of(&entry.live_spare()));
        let plan = PlanRow {
            attempt: entry.attempts,
            to: version + 1,
            former: entry.row.shards.clone(),
            shards,
            members: members.into_iter().collect(),
            deadline_ms,
            decision: None,
        };
        let row = Row { plan: Some(plan), attempts: entry.attempts, ..entry.row.clone() };
        let row = self.with_members(map, row);
        let then = view_of(&row, None);
        let ticket = self.begin(map, Next::Open(Box::new(row.clone())));
        Ok(Outcome::Persist { ticket, change: Change::Row(Box::new(row)), then })
    }

    /// As [`Maps::reshard`], from whatever version holds and with the configured deadline: what a policy wants, or the
    /// answer to [`Effect::Regroup`]. [`Outcome::Done`] where the map is so already and no memory is lost,
    /// [`Outcome::Busy`] where a change is under way.
    ///
    /// # Errors
    /// [`MapError::Unknown`], [`MapError::Invalid`], [`MapError::Failed`].
    pub fn desired(
        &mut self,
        map: &MapId,
        shards: Vec<Shard>,
        now: Time,
    ) -> Result<Outcome<MapView>, MapError> {
        let entry = self.visible(map)?;
        if entry.row.plan.is_some() {
            return Ok(Outcome::Busy);
        }
        if entry.row.shards == shards && entry.lost.is_empty() {
            return Ok(Outcome::Done(entry.view()));
        }
        let (from, deadline_ms) = (entry.row.version, self.config.deadline_ms);
        self.reshard(map, from, shards, deadline_ms, now)
    }

    /// Ends a map: nobody sees it from then on, and its members are told to forget it.
    ///
    /// # Errors
    /// [`MapError::Unknown`].
    pub fn end(&mut self, map: &MapId, now: Time) -> Result<Outcome<()>, MapError> {
        self.look(now);
        let entry = self.visible(map)?;
        if entry.pending.is_some() {
            return Ok(Outcome::Busy);
        }
        let row = Row { ended: true, ..entry.row.clone() };
        let row = self.with_members(map, row);
        let ticket = self.begin(map, Next::End(Box::new(row.clone())));
        Ok(Outcome::Persist { ticket, change: Change::Row(Box::new(row)), then: () })
    }

    /// A session has ended, and with it its maps.
    pub fn session_ended(&mut self, session: Uuid, now: Time) {
        self.look(now);
        for map in self.by_session.get(&session).cloned().unwrap_or_default() {
            if let Some(entry) = self.maps.get_mut(&map) {
                entry.ending = true;
                self.catch_up(&map, now);
            }
        }
    }

    /// A session is served by this instance from now on, which leads its maps. To be said of every session with a map
    /// also after a start of the controller.
    pub fn leader_moved(&mut self, session: Uuid, instance: &BaseUri) {
        for map in self.by_session.get(&session).into_iter().flatten() {
            if let Some(entry) = self.maps.get_mut(map) {
                entry.leader = Some(instance.clone());
            }
        }
    }

    /// A map as it is.
    ///
    /// # Errors
    /// Unknown.
    pub fn view(&self, map: &MapId) -> Result<MapView, MapError> {
        self.visible(map).map(Entry::view)
    }

    /// What is durable of a map.
    ///
    /// # Errors
    /// Unknown.
    pub fn row(&self, map: &MapId) -> Result<&Row, MapError> {
        self.visible(map).map(|entry| &entry.row)
    }

    /// Up to `limit` of the maps that `shown` accepts, ordered by identifier.
    #[must_use]
    pub fn list(&self, limit: usize, shown: impl Fn(&Row) -> bool) -> MapList {
        let seen = self.maps.values().filter(|entry| entry.created && !entry.row.ended && shown(&entry.row));
        MapList { maps: seen.take(limit).map(Entry::view).collect() }
    }

    /// The maps of a session.
    pub fn of_session(&self, session: Uuid) -> impl Iterator<Item = &MapId> {
        let maps = self.by_session.get(&session).into_iter().flatten();
        maps.filter(|map| self.visible(map).is_ok())
    }

    /// The maps in which an instance has a shard, at the version that holds or at the next.
    #[must_use]
    pub fn of_instance(&self, instance: &BaseUri) -> Vec<MapId> {
        let maps = self.hosts.get(instance).into_iter().flat_map(|host| &host.maps);
        maps.filter(|map| self.visible(map).is_ok()).cloned().collect()
    }

    /// The instance that leads a map's context, where it is known.
    #[must_use]
    pub fn leader(&self, map: &MapId) -> Option<&BaseUri> {
        self.maps.get(map)?.leader.as_ref()
    }

    /// Instances whose copies no longer count, because their memory is known or taken to be gone.
    #[must_use]
    pub fn lost(&self, map: &MapId) -> BTreeSet<BaseUri> {
        let Some(entry) = self.maps.get(map) else { return BTreeSet::new() };
        let gone = entry.running.iter().flat_map(|running| &running.gone);
        entry.lost.iter().chain(gone).cloned().collect()
    }

    /// How many maps there are, and how many of them are being changed or have lost memory. For metrics.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let seen = self.maps.values().filter(|entry| entry.created && !entry.row.ended);
        let restless = |entry: &&Entry| entry.row.plan.is_some() || !entry.lost.is_empty();
        (seen.clone().count(), seen.filter(restless).count())
    }

    /// The next thing to do. To be asked after every other call until there is none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front().or_else(|| self.changed.pop_first().map(Effect::Changed))
    }

    /// A map that is durable and has not ended.
    fn visible(&self, map: &MapId) -> Result<&Entry, MapError> {
        let entry = self.maps.get(map).filter(|entry| entry.created && !entry.row.ended);
        entry.ok_or(MapError::Unknown)
    }

    fn insert(&mut self, entry: Entry) {
        let map = entry.row.map.clone();
        if let Some(session) = entry.row.session {
            self.by_session.entry(session).or_default().insert(map.clone());
        }
        let instances = entry.instances();
        self.maps.insert(map.clone(), entry);
        instances.iter().for_each(|instance| self.attach(instance, &map));
    }

    fn remove(&mut self, map: &MapId) {
        let Some(entry) = self.maps.remove(map) else { return };
        entry.instances().iter().for_each(|instance| self.detach(instance, map));
        if let Some(timer) = entry.timer {
            self.timers.remove(&(timer, map.clone()));
        }
        if let Some(session) = entry.row.session
            && let Some(maps) = self.by_session.get_mut(&session)
        {
            maps.remove(map);
            if maps.is_empty() {
                self.by_session.remove(&session);
            }
        }
    }
}
