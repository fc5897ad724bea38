//! Groups that the controller chooses: for long prompts, for output, when memory runs short, when a member leaves or is
//! lost (profile section 8).

use std::collections::BTreeSet;
use std::sync::Arc;

use kvsp_core::reshard::{GroupCandidate, GroupPolicy, NewMap, Outcome, Row};
use kvsp_proto::id::CompatId;
use kvsp_proto::message::{MapId, MapVersion, PlacementRequest, Shard};
use kvsp_proto::record::{InstanceState, InstanceStatus};
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use crate::place::Weighed;
use crate::service::ControllerService;

/// Changes of a map that failed, after which its group is changed only where it must be: because a member leaves or is
/// lost.
const MAX_FAILED_CHANGES: u64 = 3;

/// How the context of a session that is being placed is to be split.
#[derive(Debug, Clone)]
pub(crate) struct Split {
    new: NewMap,
}

impl ControllerService {
    /// How the context of a request is to be split, where it asks for a session and its prompt is long enough.
    pub(crate) fn split_of(&self, request: &PlacementRequest, weighed: &Weighed) -> Option<Split> {
        let settings = &self.config.groups;
        let leader = weighed.best()?.instance();
        if !request.session {
            return None;
        }
        let wanted = request.continuation.as_ref().and_then(|given| given.get("max_tokens")?.as_u64());
        let output = wanted.unwrap_or(settings.default_output_tokens).min(self.config.sessions.max_tokens);
        let others: Vec<BaseUri> =
            weighed.ranked.iter().skip(1).map(|ranked| ranked.instance().clone()).collect();
        let shards = self.policy().for_prompt(request.tokens, output, leader, &others)?;
        let new = NewMap {
            map: Uuid::nil().into(),
            compat_id: request.compat_id,
            scope_id: request.scope_id,
            session: None,
            shards,
            leader: Some(leader.clone()),
        };
        Some(Split { new })
    }

    /// Splits the context of a session; resolves once that is on stable storage. The session stands also where that
    /// fails: then it is at one instance.
    pub(crate) async fn split(self: &Arc<Self>, session: Uuid, split: Option<Split>) -> Option<MapVersion> {
        let new = NewMap { map: session.into(), session: Some(session), ..split?.new };
        match self.change_map(|maps, now| maps.create(new.clone(), now)).await {
            Ok(view) => {
                // It may have ended or moved meanwhile, when nobody knew that it has a map.
                self.session_changed(session);
                Some(MapVersion { map: view.map, version: view.version })
            }
            Err(error) => {
                tracing::warn!(%session, %error, "the context of a session is not split");
                None
            }
        }
    }

    /// The map over which the context of a session is split.
    pub(crate) fn map_of(&self, session: Uuid) -> Option<MapId> {
        self.maps.any().then(|| self.maps.lock().of_session(session).next().cloned())?
    }

    /// The instance of a session.
    pub(super) fn leader_of(self: &Arc<Self>, session: Uuid) -> Option<BaseUri> {
        self.with_session(session, |sessions, _| sessions.instance(session).ok().cloned())
    }

    /// Tells the maps of a session who leads them, or that it has ended.
    pub(crate) fn session_changed(self: &Arc<Self>, session: Uuid) {
        if self.map_of(session).is_none() {
            return;
        }
        match self.with_session(session, |sessions, now| sessions.view(session, now)) {
            Ok(view) if !view.state.is_final() => {
                self.with_maps(|maps, _| maps.leader_moved(session, &view.instance));
            }
            Ok(_) => self.with_maps(|maps, now| maps.session_ended(session, now)),
            // Somebody else may have named a session that is not of this controller.
            Err(_) if self.map_of(session) == Some(session.into()) => {
                self.with_maps(|maps, now| maps.session_ended(session, now));
            }
            Err(_) => {}
        }
    }

    /// Tells all maps of sessions who leads them, at the start of the controller.
    pub(crate) fn follow_sessions(self: &Arc<Self>) {
        let maps = self.maps.lock().list(usize::MAX, |row| row.session.is_some()).maps;
        let sessions: BTreeSet<Uuid> = maps.into_iter().filter_map(|view| view.session).collect();
        sessions.into_iter().for_each(|session| self.session_changed(session));
    }

    /// A session has recorded output: its prompt is computed, and fewer instances do.
    pub(crate) fn output_recorded(self: &Arc<Self>, session: Uuid) {
        let Some(row) = self.map_of(session).and_then(|map| self.may_change(&map)) else { return };
        let Some(leader) = self.leader_of(session) else { return };
        let candidates = self.candidates(row.compat_id);
        let Some(leader) = candidates.iter().find(|candidate| candidate.instance == leader) else { return };
        let wanted = self.policy().for_output(&row.shards, leader);
        self.change_group(&row.map, wanted, "the prompt is computed");
    }

    /// An instance reported: it gets help where it is short of memory, and gives its parts away where it leaves.
    pub(crate) fn member_reported(
        self: &Arc<Self>,
        instance: &BaseUri,
        state: InstanceState,
        kv_utilization: f64,
    ) {
        if !self.maps.any() {
            return;
        }
        match state {
            InstanceState::Active if kv_utilization > self.config.groups.high_utilization => {
                self.help(&GroupCandidate { instance: instance.clone(), kv_utilization });
            }
            InstanceState::Draining | InstanceState::Sleeping => self.maps_without(instance),
            InstanceState::Active | InstanceState::Failed => {}
        }
    }

    /// Takes its largest part away from an instance by half.
    fn help(self: &Arc<Self>, pressed: &GroupCandidate) {
        let maps = self.maps.lock().of_instance(&pressed.instance);
        let rows = maps.iter().filter_map(|map| self.may_change(map));
        let part = |row: &Row| {
            let own = row.shards.iter().filter(|shard| shard.instance == pressed.instance);
            own.map(|shard| shard.tokens.tokens()).max().unwrap_or(0)
        };
        let Some(row) = rows.max_by_key(part) else { return };
        let wanted = self.policy().with_help(&row.shards, pressed, &self.candidates(row.compat_id));
        self.change_group(&row.map, wanted, "a member is short of memory");
    }

    /// Gives the parts of an instance that leaves to others. What it leads itself it keeps until its sessions have ended
    /// or gone elsewhere.
    pub(crate) fn maps_without(self: &Arc<Self>, instance: &BaseUri) {
        let maps = self.maps.lock().of_instance(instance);
        for map in maps {
            let leads = self.maps.lock().leader(&map) == Some(instance);
            if !leads {
                self.give_away(&map, &BTreeSet::from([instance.clone()]), "a member leaves");
            }
        }
    }

    /// Memory of a map's members is lost: whoever is there again gets what it had, to be built anew, and else others do.
    pub(super) fn regroup(self: &Arc<Self>, map: &MapId, lost: Vec<BaseUri>) {
        let Some(row) = self.row(map) else { return };
        let active: BTreeSet<BaseUri> =
            self.candidates(row.compat_id).into_iter().map(|candidate| candidate.instance).collect();
        let gone = lost.into_iter().filter(|instance| !active.contains(instance)).collect();
        self.give_away(map, &gone, "the memory of a member is lost");
    }

    fn give_away(self: &Arc<Self>, map: &MapId, leaving: &BTreeSet<BaseUri>, why: &str) {
        let Some(row) = self.row(map) else { return };
        let leader = self.maps.lock().leader(map).cloned();
        let candidates = self.candidates(row.compat_id);
        let wanted = self.policy().without(&row.shards, leaving, leader.as_ref(), &candidates);
        if wanted.is_none() {
            tracing::debug!(%map, why, "nobody is there to take the parts of a member");
        }
        self.change_group(map, wanted, why);
    }

    fn change_group(self: &Arc<Self>, map: &MapId, wanted: Option<Vec<Shard>>, why: &str) {
        let Some(shards) = wanted else { return };
        match self.with_maps(|maps, now| maps.desired(map, shards, now)) {
            Ok(Outcome::Persist { ticket, change, then }) => {
                tracing::info!(%map, version = then.version, why, "the group changes");
                self.write_map(ticket, change, None);
            }
            // It comes again as long as there is a reason.
            Ok(Outcome::Done(_) | Outcome::Busy) => {}
            Err(error) => tracing::debug!(%map, why, %error, "the group cannot change"),
        }
    }

    /// A map whose group the controller chose and may change for the better.
    fn may_change(&self, map: &MapId) -> Option<Row> {
        let row = self.row(map)?;
        let is_own = row.session.is_some_and(|session| MapId::from(session) == *map);
        let failed = row.attempts.saturating_sub(row.version.saturating_sub(1));
        (is_own && row.plan.is_none() && failed < MAX_FAILED_CHANGES).then_some(row)
    }

    fn row(&self, map: &MapId) -> Option<Row> {
        self.maps.lock().row(map).ok().cloned()
    }

    /// The instances that may be given parts of contexts of a compatibility.
    fn candidates(&self, compat: CompatId) -> Vec<GroupCandidate> {
        let active = self.instances().active(compat, self.now());
        let candidate = |status: &InstanceStatus| GroupCandidate {
            instance: status.instance.clone(),
            kv_utilization: status.kv_utilization,
        };
        active.iter().map(|instance| candidate(&instance.status)).collect()
    }

    fn policy(&self) -> GroupPolicy {
        let settings = &self.config.groups;
        GroupPolicy {
            min_tokens: settings.min_tokens,
            max_members: settings.max_members,
            output_members: settings.decode_members,
            high_utilization: settings.high_utilization,
            low_utilization: settings.low_utilization,
        }
    }
}
