//! A member's side of resharding (draft section 6.9, profile section 8): which version holds here, what is being
//! prepared, and what may be freed.
//!
//! It decides; its driver moves octets and memory, and knows what is really there. What a call returns to be freed
//! is freed for good, so the rule of the whole is in here: once a plan is acknowledged, only the controller's word
//! ends it.

mod ask;
mod entry;
mod error;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use kvsp_proto::message::{FetchRange, HeldView, MapId, OpenContext, ReshardAnswer, ReshardPlan};
use kvsp_proto::uri::BaseUri;

pub use ask::{Ask, Asked};
pub use error::MemberError;

use self::entry::{Entry, Loading, Prepared, Unopened, cut};
use super::{Ranges, ranges_of};
use crate::time::Time;

/// Bounds and times of [`Member`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberConfig {
    /// Most maps known.
    pub max_maps: usize,
    /// Most aborts remembered whose plan has not come yet.
    pub max_strays: usize,
    /// How long after a plan's deadline, and after a question without an answer, the controller is asked; doubled
    /// each time.
    pub ask_interval: Duration,
    /// The longest such wait.
    pub max_ask_interval: Duration,
}

impl Default for MemberConfig {
    fn default() -> Self {
        Self {
            max_maps: 1024,
            max_strays: 1024,
            ask_interval: Duration::from_millis(250),
            max_ask_interval: Duration::from_secs(4),
        }
    }
}

/// What a plan comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Planned {
    /// Load this, and tell [`Member::loaded`] or [`Member::load_failed`].
    Load(Box<Load>),
    /// It is being loaded already; its outcome is this one's.
    Loading,
    /// It was acknowledged before, or even committed.
    Ready(ReshardAnswer),
}

/// What is to be loaded for a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// The map.
    pub map: MapId,
    /// The version.
    pub to: u64,
    /// The plan's number.
    pub attempt: Option<u64>,
    /// To be freed first: of a plan that this one succeeds, or of a version that is long over.
    pub discard: Ranges,
    /// Positions for which memory is to be there, of both versions; for some of them it is already.
    pub reserve: Ranges,
    /// What to load, cut to the context's length where the plan tells it, but for what is here already. A source may
    /// hold less: what it lacks nobody has, and is not waited for.
    pub fetch: Vec<FetchRange>,
    /// Tokens that stay in place.
    pub retained: u64,
}

/// What the opening of a context asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// To be freed first; of what is reserved again afterwards nothing is held any more.
    pub discard: Ranges,
    /// Positions for which memory is to be there.
    pub reserve: Ranges,
    /// Positions from here on are no longer held; their memory stays. Beyond all where none are to be forgotten.
    pub forget_from: u64,
}

/// The maps of an instance.
#[derive(Debug, Clone)]
pub struct Member {
    config: MemberConfig,
    instance: BaseUri,
    maps: BTreeMap<MapId, Entry>,
    /// Aborts of numbered plans that have not come: the oldest goes first.
    strays: VecDeque<(MapId, u64, u64)>,
    /// Counts what happens to maps, so that an answer of the controller is not taken for one about what came later.
    changes: u64,
}

impl Member {
    /// No map yet.
    #[must_use]
    pub const fn new(config: MemberConfig, instance: BaseUri) -> Self {
        Self { config, instance, maps: BTreeMap::new(), strays: VecDeque::new(), changes: 0 }
    }

    /// Whether a plan says that a later version holds than the one here. That is so where we were given up and missed
    /// versions; then taking the plan frees all that is here. So only the controller's word, asked for, makes it true.
    #[must_use]
    pub fn is_ahead(&self, plan: &ReshardPlan) -> bool {
        self.maps.get(&plan.map).is_some_and(|entry| plan.from > entry.version)
    }

    /// Begins a plan, or finds it begun. One that [is ahead](Self::is_ahead) is to be confirmed first. Of what it
    /// retains, something may be missing, as after a restart that the controller has not heard of yet: then nobody has
    /// it, and whoever needs it computes it.
    ///
    /// # Errors
    /// [`MemberError::Conflict`]: another version holds, another plan is open, or this one was aborted;
    /// [`MemberError::Invalid`]: it retains and releases other ranges than are ours; [`MemberError::Full`].
    pub fn plan(&mut self, plan: &ReshardPlan, now: Time) -> Result<Planned, MemberError> {
        self.refuse_stray(plan)?;
        let stamp = self.stamp();
        let retain: Ranges = plan.retain.iter().copied().collect();
        let before: Ranges = retain.union(&plan.release.iter().copied().collect());
        let fetched = plan.fetch.iter().map(|fetch| fetch.tokens);
        let next: Ranges =
            plan.retain.iter().copied().chain(fetched).chain(plan.rebuild.iter().copied()).collect();
        if !plan.shards.is_empty() && ranges_of(&plan.shards, &self.instance) != next {
            return Err(MemberError::Invalid);
        }
        // The decision that led to `from` has not reached us, and the controller counts on us all the same.
        if let Some(entry) = self.maps.get_mut(&plan.map)
            && entry.ready() == Some(plan.from)
            && entry.prepared.as_ref().is_some_and(|prepared| prepared.next == before)
        {
            entry.adopt();
            entry.unsaid = true;
        }
        let stale = match self.maps.get(&plan.map) {
            None => None,
            // We were given up and missed versions: what we have may be of another context's tokens by now.
            Some(entry) if plan.from > entry.version => Some(entry.all()),
            Some(entry) => {
                if let Some(answer) = entry.known(plan)? {
                    return Ok(answer);
                }
                if before != entry.owned {
                    return Err(MemberError::Invalid);
                }
                None
            }
        };
        let epoch = self.maps.get(&plan.map).map_or(0, |entry| entry.epoch);
        if stale.is_some() {
            self.maps.remove(&plan.map);
        } else if !self.maps.contains_key(&plan.map) {
            self.make_room()?;
        }
        let believed = || Entry { epoch, ..Entry::believed(plan.from, before) };
        let entry = self.maps.entry(plan.map.clone()).or_insert_with(believed);
        entry.changes = stamp;
        // A plan with a higher number than that of the open one says that the open one was aborted.
        let former = entry.prepared.take().map(|former| entry.fresh(&former.next));
        let discard = stale.or(former).unwrap_or_default();
        let reserve = entry.owned.union(&next);
        let deadline = now.after_millis(plan.deadline_ms);
        entry.prepared = Some(Prepared {
            plan: plan.clone(),
            next,
            state: Loading::Loading,
            ask_at: deadline + self.config.ask_interval,
            asks: 0,
            unopened: Unopened::default(),
        });
        Ok(Planned::Load(Box::new(Load {
            map: plan.map.clone(),
            to: plan.to,
            attempt: plan.attempt,
            discard,
            reserve,
            fetch: cut(&plan.fetch, plan.length),
            retained: plan.length.map_or_else(|| retain.clone(), |length| retain.clip(0..length)).tokens(),
        })))
    }

    /// Something was loaded for a plan from a source whose view ([`HeldView`]) had this epoch before. To be said before
    /// [`Member::loaded`]: where another leader has taken the context over meanwhile, the next opening discards it.
    pub fn fetched(&mut self, map: &MapId, to: u64, attempt: Option<u64>, tokens: &Ranges, epoch: u64) {
        let entry = self.maps.get_mut(map);
        if let Some(prepared) = entry.and_then(|entry| entry.prepared_for(to, attempt)) {
            prepared.unopened.add(tokens, epoch);
        }
    }

    /// All that a plan fetches is here: its acknowledgement. From here on only the controller ends it.
    ///
    /// # Errors
    /// [`MemberError::Conflict`]: the plan was ended meanwhile; [`MemberError::Unknown`].
    pub fn loaded(
        &mut self,
        map: &MapId,
        to: u64,
        attempt: Option<u64>,
    ) -> Result<ReshardAnswer, MemberError> {
        let entry = self.maps.get_mut(map).ok_or(MemberError::Unknown)?;
        let version = entry.version;
        let prepared = entry.prepared_for(to, attempt).ok_or(MemberError::Conflict { version })?;
        prepared.state = Loading::Ready;
        Ok(entry.answer(map))
    }

    /// A plan could not be loaded. What is to be freed.
    pub fn load_failed(&mut self, map: &MapId, to: u64, attempt: Option<u64>) -> Ranges {
        let stamp = self.stamp();
        let Some(entry) = self.maps.get_mut(map) else { return Ranges::new() };
        entry.changes = stamp;
        let loading = entry.prepared_for(to, attempt).is_some_and(|p| p.state == Loading::Loading);
        if loading { entry.drop_prepared() } else { Ranges::new() }
    }

    /// A version holds from now on. What is to be freed: all that is not ours in it, but for `keep`. Saying it again
    /// changes nothing, but that what is no longer in `keep` is freed.
    ///
    /// # Errors
    /// [`MemberError::Unknown`]; [`MemberError::Conflict`]: it was never prepared here, or it was aborted.
    pub fn commit(
        &mut self,
        map: &MapId,
        version: u64,
        attempt: Option<u64>,
        keep: &Ranges,
    ) -> Result<Ranges, MemberError> {
        let stamp = self.stamp();
        let entry = self.maps.get_mut(map).ok_or(MemberError::Unknown)?;
        entry.changes = stamp;
        let current = entry.version;
        if version < current {
            return Ok(Ranges::new());
        }
        if version > current {
            let ready = entry.prepared_for(version, attempt).is_some_and(|p| p.state == Loading::Ready);
            if !ready {
                return Err(MemberError::Conflict { version: current });
            }
            entry.adopt();
        } else if attempt.is_some() && entry.attempt.is_some() && attempt != entry.attempt {
            return Err(MemberError::Conflict { version: current });
        }
        Ok(entry.keep_only(attempt, keep))
    }

    /// A version will never hold. What is to be freed: what was reserved for it alone, but for `keep`.
    ///
    /// # Errors
    /// [`MemberError::Unknown`]: no such map, but a numbered plan that comes late is refused; [`MemberError::Conflict`]: it
    /// was committed.
    pub fn abort(
        &mut self,
        map: &MapId,
        version: u64,
        attempt: Option<u64>,
        keep: &Ranges,
    ) -> Result<Ranges, MemberError> {
        let stamp = self.stamp();
        let Some(entry) = self.maps.get_mut(map) else {
            self.remember(map, version, attempt);
            return Err(MemberError::Unknown);
        };
        if version <= entry.version {
            // That an earlier plan for a version was aborted does not contradict its commit.
            let same = attempt.is_none() || entry.attempt.is_none() || attempt == entry.attempt;
            let conflict = MemberError::Conflict { version: entry.version };
            return if same || version < entry.version { Err(conflict) } else { Ok(Ranges::new()) };
        }
        let ends = entry.prepared.as_ref().is_some_and(|prepared| prepared.is_ended_by(version, attempt));
        if ends {
            entry.changes = stamp;
            entry.keep_fetched(keep);
            let fetched = entry.drop_prepared();
            let free = fetched.union(&entry.keep_only(attempt, keep));
            self.remember(map, version, attempt);
            return Ok(free);
        }
        // The plan is over, or has not come yet and must not count when it comes.
        let free = if attempt.is_some() { entry.keep_only(attempt, keep) } else { Ranges::new() };
        self.remember(map, version, attempt);
        Ok(free)
    }

    /// A leader begins to use a context here (`PUT {ii}maps/{map}`).
    ///
    /// # Errors
    /// [`MemberError::StaleEpoch`]; [`MemberError::Conflict`]: a version that is over, or with other ranges of ours;
    /// [`MemberError::Invalid`]: nothing of it is ours; [`MemberError::Full`].
    pub fn open(&mut self, map: &MapId, open: &OpenContext) -> Result<Opened, MemberError> {
        let ours = ranges_of(&open.shards, &self.instance);
        let fresh = !self.maps.contains_key(map);
        // The tokens of one session's epoch only grow: an opening that comes late again cuts nothing off.
        let again = open.epoch > 0 && self.maps.get(map).is_some_and(|e| e.opened == Some(open.epoch));
        let forget_from = if again { u64::MAX } else { open.length };
        let stamp = self.stamp();
        if fresh && ours.is_empty() {
            return Err(MemberError::Invalid);
        }
        if fresh {
            self.make_room()?;
        }
        let believed = || Entry { opened: Some(open.epoch), ..Entry::believed(open.version, ours.clone()) };
        let entry = self.maps.entry(map.clone()).or_insert_with(believed);
        if open.epoch < entry.epoch {
            return Err(MemberError::StaleEpoch { known: entry.epoch });
        }
        let mut discard = Ranges::new();
        let prepared = entry.prepared.as_ref().filter(|prepared| prepared.plan.to == open.version);
        let expected = match prepared {
            Some(prepared) => &prepared.next,
            None if open.version < entry.version => {
                return Err(MemberError::Conflict { version: entry.version });
            }
            None if open.version > entry.version => {
                // We were given up and missed versions.
                discard = entry.all();
                *entry = Entry { epoch: entry.epoch, ..believed() };
                &ours
            }
            None => &entry.owned,
        };
        if *expected != ours {
            return Err(MemberError::Conflict { version: entry.version });
        }
        entry.epoch = open.epoch;
        discard.extend(entry.open(open.epoch, open.certain.unwrap_or(open.length)).iter());
        entry.changes = stamp;
        Ok(Opened { discard, reserve: ours, forget_from })
    }

    /// Forgets a map. Whether it was known; all its memory is to be freed.
    pub fn forget(&mut self, map: &MapId) -> bool {
        self.strays.retain(|(of, ..)| of != map);
        self.maps.remove(map).is_some()
    }

    /// Whether a version holds here, so that K and V may be read at it.
    ///
    /// # Errors
    /// [`MemberError::Unknown`]; [`MemberError::Conflict`].
    pub fn may_serve(&self, map: &MapId, version: u64) -> Result<(), MemberError> {
        let entry = self.maps.get(map).ok_or(MemberError::Unknown)?;
        if entry.version == version { Ok(()) } else { Err(MemberError::Conflict { version: entry.version }) }
    }

    /// Whether a leader of this epoch may ask for attention or have keys computed at a version: one that holds here, or
    /// that is loaded and that the leader knows to hold.
    ///
    /// # Errors
    /// [`MemberError::Unknown`]; [`MemberError::StaleEpoch`]; [`MemberError::Conflict`]: also where it has not opened the
    /// context here and another leader has.
    pub fn may_compute(&mut self, map: &MapId, version: u64, epoch: u64) -> Result<(), MemberError> {
        let entry = self.fenced(map, epoch)?;
        if entry.opened.is_some_and(|opened| opened != epoch) {
            // It has not said yet what of the context is certain.
            return Err(MemberError::Conflict { version: entry.version });
        }
        let ready = |prepared: &Prepared| prepared.plan.to == version && prepared.state == Loading::Ready;
        if entry.version == version || entry.prepared.as_ref().is_some_and(ready) {
            return Ok(());
        }
        Err(MemberError::Conflict { version: entry.version })
    }

    /// Whether a leader of this epoch may store K and V of a range at a version: the one that holds here, or the one
    /// that a plan is open for.
    ///
    /// # Errors
    /// [`MemberError::Unknown`]; [`MemberError::StaleEpoch`]; [`MemberError::Conflict`]; [`MemberError::Invalid`]: the
    /// range is not ours in that version.
    pub fn may_store(
        &mut self,
        map: &MapId,
        version: u64,
        range: &Range<u64>,
        epoch: u64,
    ) -> Result<(), MemberError> {
        let entry = self.fenced(map, epoch)?;
        let (ours, unopened) = match &mut entry.prepared {
            _ if entry.version == version => {
                (&entry.owned, (entry.opened != Some(epoch)).then_some(&mut entry.unopened))
            }
            Some(prepared) if prepared.plan.to == version => (&prepared.next, Some(&mut prepared.unopened)),
            _ => return Err(MemberError::Conflict { version: entry.version }),
        };
        if !ours.covers(range) {
            return Err(MemberError::Invalid);
        }
        if let Some(unopened) = unopened {
            unopened.add(&Ranges::one(range.clone()), epoch);
        }
        Ok(())
    }

    /// What is shown of a map, of which the positions `held` are here in all layers; its epoch is the one that all of
    /// them can be relied on in.
    ///
    /// # Errors
    /// [`MemberError::Unknown`].
    pub fn view(&self, map: &MapId, held: &Ranges) -> Result<HeldView, MemberError> {
        let entry = self.maps.get(map).ok_or(MemberError::Unknown)?;
        let (version, epoch, prepared) = (entry.version, entry.content_epoch(), entry.ready());
        Ok(HeldView { map: map.clone(), version, epoch, held: held.to_wire(), prepared })
    }

    /// The answer to a decision that was carried out.
    ///
    /// # Errors
    /// [`MemberError::Unknown`].
    pub fn answer(&self, map: &MapId) -> Result<ReshardAnswer, MemberError> {
        self.maps.get(map).map(|entry| entry.answer(map)).ok_or(MemberError::Unknown)
    }

    /// The maps known, in order.
    pub fn maps(&self) -> impl Iterator<Item = &MapId> {
        self.maps.keys()
    }

    /// Our ranges in the version that holds here.
    ///
    /// # Errors
    /// [`MemberError::Unknown`].
    pub fn owned(&self, map: &MapId) -> Result<&Ranges, MemberError> {
        self.maps.get(map).map(|entry| &entry.owned).ok_or(MemberError::Unknown)
    }

    const fn stamp(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    fn fenced(&mut self, map: &MapId, epoch: u64) -> Result<&mut Entry, MemberError> {
        let entry = self.maps.get_mut(map).ok_or(MemberError::Unknown)?;
        if epoch < entry.epoch {
            return Err(MemberError::StaleEpoch { known: entry.epoch });
        }
        entry.epoch = epoch;
        Ok(entry)
    }

    /// A numbered plan whose abort has been here before it.
    fn refuse_stray(&self, plan: &ReshardPlan) -> Result<(), MemberError> {
        let is_it = |(map, to, attempt): &(MapId, u64, u64)| {
            *map == plan.map && *to == plan.to && plan.attempt.is_some_and(|number| number <= *attempt)
        };
        if self.strays.iter().any(is_it) {
            return Err(MemberError::Conflict { version: plan.from });
        }
        Ok(())
    }

    /// Remembers an abort. One without a number cannot be told from that of the next plan for the version, which would
    /// be refused for it; a plan that comes late is found to be over when the controller is asked.
    fn remember(&mut self, map: &MapId, to: u64, attempt: Option<u64>) {
        let Some(attempt) = attempt else { return };
        // Of the plans for a version the highest number tells of all.
        let same = |(of, version, _): &(MapId, u64, u64)| of == map && *version == to;
        let known = self.strays.iter().position(same).and_then(|at| self.strays.remove(at));
        let attempt = known.map_or(attempt, |(_, _, number)| number.max(attempt));
        if self.strays.len() >= self.config.max_strays.max(1) {
            self.strays.pop_front();
        }
        self.strays.push_back((map.clone(), to, attempt));
    }

    /// Makes room for one more map. One of which nothing is ours is kept only so that what is said twice is answered
    /// twice the same.
    fn make_room(&mut self) -> Result<(), MemberError> {
        if self.maps.len() < self.config.max_maps {
            return Ok(());
        }
        let empty = |entry: &Entry| entry.prepared.is_none() && entry.all().is_empty();
        let idle = self.maps.iter().find(|(_, entry)| empty(entry)).map(|(map, _)| map.clone());
        self.maps.remove(&idle.ok_or(MemberError::Full)?);
        Ok(())
    }
}
