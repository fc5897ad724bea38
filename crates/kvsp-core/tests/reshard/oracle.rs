//! What must hold, looked at from above: who really holds what, what was decided, and what anybody did about it.

use std::collections::{BTreeMap, BTreeSet};

use kvsp_core::reshard::{Decision, Ranges, Row, instances_of, ranges_of};
use kvsp_proto::message::{FetchRange, MapId, MapView, ReshardMessage, ReshardPlan, Shard};
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use crate::instance::Instance;
use crate::world::{number, uri};

#[derive(Debug, Clone, PartialEq)]
pub enum Violation {
    /// A live member discarded the last live copy of a position, though nobody had died.
    LastCopy { instance: usize, position: u64, why: Why },
    /// A member freed what is its own in the version that holds.
    ReleasedEarly { instance: usize, position: u64, why: Why },
    /// A member carried out what is not decided, or otherwise.
    DecidedAlone { instance: usize, version: u64, commit: bool },
    /// A decision was sent that is not on stable storage.
    NotDurable { version: u64, commit: bool },
    /// One plan was both committed and aborted, or two plans became the same version.
    TwoDecisions { version: u64 },
    /// A commit was decided that a member had not acknowledged.
    NotAcknowledged { version: u64, instance: usize },
    /// A commit was decided by the acknowledgement of a start that the controller knew to be over.
    VoidAcknowledgement { version: u64, instance: usize },
    /// A commit went out that frees copies whose new owner the controller knew to be lost.
    LastCopyGivenUp { version: u64, instance: usize },
    /// The parts of a plan are not those of the two versions.
    FalsePlan { instance: usize, what: &'static str },
    /// A range that stays was loaded.
    RetainedMoved { instance: usize },
    /// A step was computed with other keys than those of the text.
    WrongKeys { position: u64 },
    /// The version shown fell, or is not the durable one.
    VersionShown { shown: u64 },
    /// Somebody's memory was lost, and the map stayed as it was.
    NotRebuilt { version: u64 },
    /// Nothing went wrong any more, and the map did not come to rest.
    Stuck(String),
}

/// By what something was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Commit,
    Abort,
    /// By a plan that succeeds another, or of a member that had missed versions.
    Succeeded,
    /// By a leader that took over.
    Cut,
    /// By the map's end, or because it goes on without the member.
    End,
}

#[derive(Debug, Clone)]
pub struct Freed {
    pub map: MapId,
    pub instance: usize,
    pub start: u64,
    pub position: u64,
    pub value: u64,
    pub why: Why,
}

/// What one member had when it acknowledged.
#[derive(Debug, Clone)]
struct Ack {
    start: u64,
    held: Ranges,
}

/// A plan as it went out.
#[derive(Debug, Clone)]
struct Plan {
    opened_at: u64,
    sent: bool,
    length: Option<u64>,
    epoch: u64,
    /// Whom the controller counted out when it began.
    lost: BTreeSet<usize>,
}

#[derive(Debug, Default)]
pub struct Oracle {
    pub violation: Option<Violation>,
    pub session: Option<Uuid>,
    /// The session's epoch, and the text so far: what K and V of each position are.
    pub epoch: u64,
    pub text: Vec<u64>,
    pub freed: Vec<Freed>,
    /// The map as it is on stable storage, and whom the controller counts out.
    row: Option<Row>,
    lost: BTreeSet<usize>,
    acks: BTreeMap<(MapId, u64, usize), Ack>,
    /// Plans whose commit is being written, and the starts that the controller knew then.
    deciding: BTreeMap<(MapId, u64), BTreeMap<usize, u64>>,
    plans: BTreeMap<(MapId, u64), Plan>,
    /// The decision of each plan that was sent, and the plan that became each version.
    sent: BTreeMap<(MapId, u64), bool>,
    versions: BTreeMap<(MapId, u64), u64>,
    shown: BTreeMap<MapId, u64>,
    /// When the position came to the instance, and whether it was computed there.
    arrivals: BTreeMap<(usize, u64), (u64, bool)>,
    /// Positions that a leader which took over cut off.
    cut: BTreeSet<(usize, u64)>,
    /// Versions at which an owner died.
    deaths: BTreeMap<MapId, u64>,
    clock: u64,
    leader_died: u64,
    pub excused: BTreeMap<&'static str, u64>,
}

impl Oracle {
    pub fn violate(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    /// A session begins, or another leader takes over; the last `unsure` tokens are not certain.
    pub fn take_over(&mut self, session: Uuid, unsure: u64) -> (u64, Vec<u64>) {
        self.epoch += 1;
        self.session = Some(session);
        let certain = self.text.len().saturating_sub(unsure as usize).max(1);
        self.text.resize(certain, 7);
        (self.epoch, self.text.clone())
    }

    pub fn end(&mut self) {
        let excused = std::mem::take(&mut self.excused);
        *self = Self { excused, clock: self.clock, ..Self::default() };
    }

    pub fn merged(&mut self, session: Uuid, epoch: u64, seen: &[(u64, u64)]) -> bool {
        if epoch != self.epoch || self.session != Some(session) {
            // One that does not know yet that another leads; its tokens are recorded nowhere.
            return true;
        }
        let wrong = seen.iter().find(|(position, value)| self.text.get(*position as usize) != Some(value));
        if let Some((position, _)) = wrong {
            self.violate(Violation::WrongKeys { position: *position });
        }
        true
    }

    pub fn grown(&mut self, session: Uuid, epoch: u64, value: u64) {
        if epoch == self.epoch && self.session == Some(session) {
            self.text.push(value);
        }
    }

    /// A position came to an instance: computed there or stored by a leader of this epoch, or loaded.
    pub fn arrived(&mut self, instance: usize, position: u64, computed: bool, epoch: Option<u64>) {
        let late = computed || epoch.is_some_and(|epoch| epoch != self.epoch);
        self.arrivals.insert((instance, position), (self.clock, late));
    }

    pub fn crashed(&mut self, instance: usize, led: bool) {
        if led {
            self.leader_died = self.clock;
        }
        // One whose creation was reported failed is nobody's yet.
        let owns = |row: &&Row| instances_of(&row.shards).contains(&uri(instance));
        let seen = |row: &&Row| self.shown.contains_key(&row.map);
        if let Some(row) = self.row.as_ref().filter(owns).filter(seen) {
            self.deaths.insert(row.map.clone(), row.version);
        }
    }

    /// The row of the context's map as it now is on stable storage, and whom the controller counts out.
    pub fn look(&mut self, row: Option<&Row>, lost: Option<BTreeSet<BaseUri>>) {
        self.clock += 1;
        if let Some(lost) = lost {
            self.lost = lost.iter().map(number).collect();
        }
        if let Some(row) = row {
            if let Some(attempt) = row.attempt {
                let before = self.versions.insert((row.map.clone(), row.version), attempt);
                if before.is_some_and(|before| before != attempt) {
                    self.violate(Violation::TwoDecisions { version: row.version });
                }
            }
            if let Some(plan) = &row.plan {
                let (opened_at, epoch) = (self.clock, self.epoch);
                let key = (row.map.clone(), plan.attempt);
                let plan = || Plan { opened_at, sent: false, length: None, epoch, lost: self.lost.clone() };
                self.plans.entry(key).or_insert_with(plan);
            }
        }
        self.row = row.cloned();
    }

    pub fn shows(&mut self, view: &MapView, durable: u64) {
        let before = self.shown.insert(view.map.clone(), view.version).unwrap_or(0);
        if view.version < before || view.version > durable {
            self.violate(Violation::VersionShown { shown: view.version });
        }
    }

    /// A message goes out; `over` are instances that the controller knows to have been lost since the plan began.
    pub fn sends(&mut self, to: usize, message: &ReshardMessage, over: &BTreeSet<usize>) {
        let Some(row) = self.row.clone().filter(|row| row.map == *message.map()) else { return };
        match message {
            ReshardMessage::Plan(plan) => self.check_plan(to, plan, &row),
            ReshardMessage::Commit { version, attempt, keep, .. } => {
                let holds = row.version > *version || (row.version == *version && row.attempt == *attempt);
                if !holds {
                    self.violate(Violation::NotDurable { version: *version, commit: true });
                }
                self.decision(&row, *version, *attempt, true);
                let Some(plan) = row.plan.as_ref().filter(|plan| Some(plan.attempt) == *attempt) else {
                    return;
                };
                if !plan.members.contains(&uri(to)) {
                    // A leader that is told of it, and frees nothing.
                    return;
                }
                let keep: Ranges = keep.iter().copied().collect();
                let released =
                    ranges_of(&plan.former, &uri(to)).difference(&ranges_of(&plan.shards, &uri(to)));
                for owner in over.iter().filter(|owner| **owner != to) {
                    let orphaned = ranges_of(&plan.shards, &uri(*owner)).intersection(&released);
                    let known = self.plans.get(&(row.map.clone(), plan.attempt));
                    let counts = !known.is_some_and(|known| known.lost.contains(&to)) && !over.contains(&to);
                    if !keep.covers_all(&orphaned) && counts && !self.lost.contains(&to) {
                        self.violate(Violation::LastCopyGivenUp { version: *version, instance: to });
                    }
                }
            }
            ReshardMessage::Abort { version, attempt, .. } => {
                let decided = row.plan.as_ref().filter(|plan| Some(plan.attempt) == *attempt);
                let right = decided.is_some_and(|plan| plan.decision == Some(Decision::Abort));
                if !right {
                    self.violate(Violation::NotDurable { version: *version, commit: false });
                }
                self.decision(&row, *version, *attempt, false);
            }
        }
    }

    fn decision(&mut self, row: &Row, version: u64, attempt: Option<u64>, commit: bool) {
        let Some(attempt) = attempt else { return };
        let before = self.sent.insert((row.map.clone(), attempt), commit);
        if before.is_some_and(|before| before != commit) {
            self.violate(Violation::TwoDecisions { version });
        }
    }

    fn check_plan(&mut self, to: usize, plan: &ReshardPlan, row: &Row) {
        let Some(open) = row.plan.clone() else {
            return self.violate(Violation::FalsePlan { instance: to, what: "none is open" });
        };
        if let Some(attempt) = plan.attempt
            && let Some(known) = self.plans.get_mut(&(row.map.clone(), attempt))
            && !std::mem::replace(&mut known.sent, true)
        {
            (known.length, known.epoch) = (plan.length, self.epoch);
            known.lost.extend(&self.lost);
        }
        let set = |ranges: &[kvsp_proto::message::TokenRange]| ranges.iter().copied().collect::<Ranges>();
        let (retain, release, rebuild) = (set(&plan.retain), set(&plan.release), set(&plan.rebuild));
        let fetch: Ranges = plan.fetch.iter().map(|part| part.tokens).collect();
        let (before, next) = (ranges_of(&open.former, &uri(to)), ranges_of(&open.shards, &uri(to)));
        let right = [
            ("retain and fetch meet", retain.intersection(&fetch).is_empty()),
            ("retain and release are not the ranges before", retain.union(&release) == before),
            ("retain, fetch and rebuild are not those after", retain.union(&fetch).union(&rebuild) == next),
            ("what stays is not retained", self.lost.contains(&to) || retain == before.intersection(&next)),
            ("from or to", plan.from == row.version && plan.to == row.version + 1),
        ];
        for (what, _) in right.into_iter().filter(|(_, right)| !right) {
            self.violate(Violation::FalsePlan { instance: to, what });
        }
    }

    pub fn fetches(&mut self, instance: usize, plan: &ReshardPlan, part: &FetchRange) {
        let retained: Ranges = plan.retain.iter().copied().collect();
        if retained.intersects(&part.tokens.into()) {
            self.violate(Violation::RetainedMoved { instance });
        }
    }

    pub fn acknowledges(&mut self, instance: usize, start: u64, plan: &ReshardPlan, held: Ranges) {
        if let Some(attempt) = plan.attempt.or_else(|| self.row.as_ref()?.plan.as_ref().map(|p| p.attempt)) {
            self.acks.insert((plan.map.clone(), attempt, instance), Ack { start, held });
        }
    }

    /// The controller is about to write a commit; `known` are the epochs that it has heard of.
    pub fn decides(&mut self, row: &Row, known: &BTreeMap<usize, u64>) {
        let Some(plan) =
            row.plan.as_ref().filter(|plan| plan.decision == Some(Decision::Commit) && !row.ended)
        else {
            return;
        };
        // A write that failed may be durable all the same: it is written again whatever happened meanwhile.
        let key = (row.map.clone(), plan.attempt);
        if self.deciding.contains_key(&key) {
            return;
        }
        self.deciding.insert(key, known.clone());
        for member in plan.members.iter().map(number) {
            let Some(ack) = self.acks.get(&(row.map.clone(), plan.attempt, member)) else {
                return self.violate(Violation::NotAcknowledged { version: plan.to, instance: member });
            };
            if known.get(&member).is_some_and(|epoch| *epoch > ack.start) {
                return self.violate(Violation::VoidAcknowledgement { version: plan.to, instance: member });
            }
        }
    }

    /// A member carries out a decision about a plan that it had acknowledged.
    pub fn took(&mut self, instance: usize, map: &MapId, version: u64, attempt: Option<u64>, commit: bool) {
        let Some(row) = self.row.as_ref().filter(|row| row.map == *map && !row.ended) else { return };
        let Some(attempt) = attempt else { return };
        let acknowledged = self.acks.contains_key(&(map.clone(), attempt, instance));
        let committed = self.versions.get(&(map.clone(), version)) == Some(&attempt);
        let undecided =
            row.plan.as_ref().is_some_and(|plan| plan.attempt == attempt && plan.decision.is_none());
        let wrong = if commit { !committed } else { acknowledged && (committed || undecided) };
        if wrong {
            self.violate(Violation::DecidedAlone { instance, version, commit });
        }
    }

    /// What was freed in this step, against what is left.
    pub fn look_at_copies(&mut self, instances: &[Instance]) {
        for freed in std::mem::take(&mut self.freed) {
            if let Some(violation) = self.judge(&freed, instances) {
                self.violate(violation);
            }
        }
    }

    fn excuse(&mut self, what: &'static str) -> Option<Violation> {
        *self.excused.entry(what).or_default() += 1;
        None
    }

    fn judge(&mut self, freed: &Freed, instances: &[Instance]) -> Option<Violation> {
        let row = self.row.clone().filter(|row| row.map == freed.map && !row.ended)?;
        let Freed { instance, position, why, .. } = *freed;
        if why == Why::Cut {
            self.cut.insert((instance, position));
        }
        let live = instances[instance].up && instances[instance].start == freed.start;
        if !live || self.lost.contains(&instance) || why == Why::Cut {
            return None;
        }
        let in_book = |shards: &[Shard]| ranges_of(shards, &uri(instance)).contains(position);
        let owner = row.shards.iter().find(|shard| Ranges::one(shard.tokens.into()).contains(position))?;
        let missed = why == Why::Succeeded || why == Why::End;
        if in_book(&row.shards) && !missed {
            return Some(Violation::ReleasedEarly { instance, position, why });
        }
        if self.text.get(position as usize) != Some(&freed.value) {
            return None;
        }
        let copy = |other: &Instance| other.up && other.value(&freed.map, position) == Some(freed.value);
        let staged = |other: &Instance| {
            let leader =
                other.leader.as_ref().filter(|l| l.epoch == self.epoch && self.session == Some(l.session));
            leader.is_some_and(|leader| leader.staging.get(&position) == Some(&freed.value))
        };
        if instances.iter().any(|other| copy(other) || (other.up && staged(other))) {
            return None;
        }
        let former = row
            .plan
            .as_ref()
            .filter(|_| !missed)
            .map(|plan| [plan.former.clone(), plan.shards.clone()].concat());
        let spare = row
            .spare
            .iter()
            .any(|s| s.instance == uri(instance) && Ranges::one(s.tokens.into()).contains(position));
        if !spare && !former.is_some_and(|shards| in_book(&shards)) && !in_book(&row.shards) {
            return self.excuse("freed by one that was given up");
        }
        let owner = number(&owner.instance);
        let attempt = row.attempt?;
        if self.plans.get(&(row.map.clone(), attempt)).is_some_and(|plan| plan.lost.contains(&instance)) {
            return self.excuse("freed by one that was given up before the plan");
        }
        let Some(ack) = self.acks.get(&(row.map.clone(), attempt, owner)) else {
            return self.excuse("the owner never acknowledged");
        };
        if !instances[owner].up || instances[owner].start != ack.start {
            return self.excuse("the new owner died after its acknowledgement");
        }
        if ack.held.contains(position) || self.cut.contains(&(owner, position)) {
            return self.excuse("a leader that took over cut it off at the owner");
        }
        let known = self.deciding.get(&(row.map.clone(), attempt));
        let former = row.plan.as_ref().map_or(&[][..], |plan| &plan.former);
        let source = former.iter().find(|shard| Ranges::one(shard.tokens.into()).contains(position));
        if let (Some(known), Some(source)) = (known, source.map(|shard| number(&shard.instance)))
            && known.get(&source).is_none_or(|epoch| instances[source].start > *epoch)
        {
            return self.excuse("its owner had been restarted, unheard of");
        }
        let plan = self.plans.get(&(row.map.clone(), attempt))?;
        let (arrived, computed) = self.arrivals.get(&(instance, position)).copied().unwrap_or((0, false));
        let leader_is_gone = plan.epoch != self.epoch || self.leader_died >= plan.opened_at;
        if arrived > plan.opened_at && (computed || leader_is_gone || plan.length.is_none()) {
            return self
                .excuse("it came here when the plan was open, and its leader is gone or did not know");
        }
        Some(Violation::LastCopy { instance, position, why })
    }

    /// At rest: whoever died, the map has gone on to another version since.
    pub fn at_rest(&mut self, row: &Row) {
        if self.deaths.get(&row.map).is_some_and(|died_at| *died_at >= row.version) {
            self.violate(Violation::NotRebuilt { version: row.version });
        }
    }
}
