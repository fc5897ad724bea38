//! Schedules by name. The first two are those that a model checker found to break naive rules: a decision that is only
//! in memory, and a member that gives up alone. The others are those in which the random schedules found something.

use std::collections::BTreeMap;

use kvsp_core::reshard::{
    Answer, Asked, Change, Decision, Effect, LengthOutcome, MapError, Maps, Member, MemberConfig, NewMap,
    Outcome, Planned, Ranges, Row, Sent, Ticket,
};
use kvsp_core::time::Time;
use kvsp_proto::message::{MapId, MapView, Phase, ReshardMessage, Shard, TokenRange};
use kvsp_proto::problem::Problem;
use uuid::Uuid;

use crate::controller::config;
use crate::world::{number, uri};

const SESSION: Uuid = Uuid::from_u128(7);
const TTL_MS: u64 = 1000;
const DEADLINE_MS: u64 = 100;

fn map() -> MapId {
    MapId::from(SESSION)
}

/// Shards by where each ends and whose it is.
fn shards(parts: &[(u64, usize)]) -> Vec<Shard> {
    let mut start = 0;
    let mut shard = |&(end, n): &(u64, usize)| {
        let tokens = TokenRange::new(start, end).unwrap();
        start = end;
        Shard { tokens, instance: uri(n) }
    };
    parts.iter().map(&mut shard).collect()
}

/// One instance: its machine, and the positions that it holds.
struct Node {
    member: Member,
    held: Ranges,
    epoch: u64,
}

/// A controller with its disk, and instances; everything happens when the schedule says so.
struct Desk {
    maps: Maps,
    disk: BTreeMap<MapId, Row>,
    now: u64,
    nodes: Vec<Node>,
    writes: Vec<(Ticket, Change)>,
    sent: Vec<(Sent, ReshardMessage)>,
    regroups: u64,
}

impl Desk {
    /// Three instances; the first one holds a context of 8 tokens.
    fn new() -> Self {
        let node =
            |n| Node { member: Member::new(MemberConfig::default(), uri(n)), held: Ranges::new(), epoch: 1 };
        let mut desk = Self {
            maps: Maps::new(config()),
            disk: BTreeMap::new(),
            now: 0,
            nodes: (0..3).map(node).collect(),
            writes: Vec::new(),
            sent: Vec::new(),
            regroups: 0,
        };
        desk.report();
        let new = NewMap {
            map: map(),
            compat_id: "22".repeat(32).parse().unwrap(),
            scope_id: "33".repeat(16).parse().unwrap(),
            session: Some(SESSION),
            shards: shards(&[(8, 0)]),
            leader: None,
        };
        let made = desk.maps.create(new, desk.time());
        desk.begin(made);
        desk.end_writes();
        desk.nodes[0].held = Ranges::one(0..8);
        desk
    }

    fn time(&self) -> Time {
        Time::from_millis(self.now)
    }

    fn report(&mut self) {
        for n in 0..self.nodes.len() {
            self.maps.instance_reported(&uri(n), self.nodes[n].epoch, TTL_MS, self.time());
        }
        self.drain();
    }

    fn begin(&mut self, outcome: Result<Outcome<MapView>, MapError>) {
        let Outcome::Persist { ticket, change, .. } = outcome.unwrap() else { panic!("nothing to write") };
        self.writes.push((ticket, change));
        self.drain();
    }

    fn reshard(&mut self, parts: &[(u64, usize)]) {
        let from = self.view().version;
        let outcome = self.maps.reshard(&map(), from, shards(parts), DEADLINE_MS, self.time());
        self.begin(outcome);
        self.end_writes();
    }

    fn end_writes(&mut self) {
        while let Some((ticket, change)) = self.writes.pop() {
            if let Change::Row(row) = change {
                self.disk.insert(row.map.clone(), *row);
            }
            self.maps.persisted(ticket, self.time());
            self.drain();
        }
    }

    fn drain(&mut self) {
        while let Some(effect) = self.maps.poll_effect() {
            match effect {
                Effect::Persist { ticket, change } => self.writes.push((ticket, change)),
                Effect::Send { sent, message } => self.sent.push((sent, *message)),
                Effect::AskLength { sent, .. } => {
                    self.maps.length(&sent, LengthOutcome::NotLed, Time::from_millis(self.now));
                }
                Effect::Regroup { .. } => self.regroups += 1,
                Effect::Forget(_) | Effect::Changed(_) => {}
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += 1;
            self.maps.tick(self.time());
            self.drain();
        }
    }

    fn view(&self) -> MapView {
        self.maps.view(&map()).unwrap()
    }

    fn phase(&self) -> Option<Phase> {
        self.view().pending.map(|pending| pending.phase)
    }

    /// The controller dies, and starts again from its disk.
    fn crash(&mut self) {
        self.writes.clear();
        self.sent.clear();
        self.maps = Maps::restore(config(), self.disk.values().cloned().collect(), self.time());
        self.drain();
    }

    /// A member dies with all that it holds, and starts again.
    fn restart(&mut self, n: usize) {
        let member = Member::new(MemberConfig::default(), uri(n));
        self.nodes[n] = Node { member, held: Ranges::new(), epoch: self.nodes[n].epoch + 1 };
    }

    /// The last message to a member.
    fn take(&mut self, n: usize) -> (Sent, ReshardMessage) {
        let at = self.sent.iter().rposition(|(sent, _)| sent.instance == uri(n));
        self.sent.remove(at.expect("a message to it"))
    }

    /// A member gets its message; its answer.
    fn hear(&mut self, n: usize, message: &ReshardMessage) -> Answer {
        let now = self.time();
        let set = |keep: &[TokenRange]| keep.iter().copied().collect::<Ranges>();
        let done = match message {
            ReshardMessage::Plan(plan) => match self.nodes[n].member.plan(plan, now) {
                Ok(Planned::Load(load)) => {
                    self.nodes[n].held = self.nodes[n].held.difference(&load.discard);
                    for part in load.fetch {
                        let from = self.nodes[number(&part.from)].held.clip(part.tokens.into());
                        self.nodes[n].held = self.nodes[n].held.union(&from);
                    }
                    self.nodes[n].member.loaded(&map(), load.to, load.attempt).map(|_| Ranges::new())
                }
                Ok(_) => Ok(Ranges::new()),
                Err(error) => Err(error),
            },
            ReshardMessage::Commit { version, attempt, keep, .. } => {
                self.nodes[n].member.commit(&map(), *version, *attempt, &set(keep))
            }
            ReshardMessage::Abort { version, attempt, keep, .. } => {
                self.nodes[n].member.abort(&map(), *version, *attempt, &set(keep))
            }
        };
        match done {
            Ok(free) => {
                self.nodes[n].held = self.nodes[n].held.difference(&free);
                Answer::Ok
            }
            Err(error) => Answer::Refused(Problem::from(error).status()),
        }
    }

    /// A member gets its message, and the controller its answer.
    fn tell(&mut self, n: usize) -> Answer {
        let (sent, message) = self.take(n);
        let answer = self.hear(n, &message);
        self.maps.answered(&sent, answer, self.time());
        self.drain();
        answer
    }

    fn held(&self) -> Ranges {
        self.nodes.iter().fold(Ranges::new(), |all, node| all.union(&node.held))
    }
}

/// The controller dies with its decision before that is durable: nobody has heard of it, and it is another one.
#[test]
fn a_decision_counts_once_it_is_durable() {
    let mut desk = Desk::new();
    desk.reshard(&[(8, 1)]);
    assert_eq!((desk.tell(0), desk.tell(1)), (Answer::Ok, Answer::Ok));
    assert_eq!(desk.writes.len(), 1, "it is being written");
    assert!(desk.sent.is_empty() && desk.view().version == 1, "and nobody hears of it");
    desk.crash();
    desk.end_writes();
    assert_eq!((desk.view().version, desk.phase()), (1, Some(Phase::Aborting)));
    assert_eq!((desk.tell(0), desk.tell(1)), (Answer::Ok, Answer::Ok));
    desk.end_writes();
    assert_eq!(desk.nodes[0].held, Ranges::one(0..8));
    assert!(desk.nodes[1].held.is_empty(), "only what was fetched for it was discarded");
}

/// The controller dies between two commits: after its start it tells the same decision, to all.
#[test]
fn a_durable_decision_survives() {
    let mut desk = Desk::new();
    desk.reshard(&[(8, 1)]);
    desk.tell(0);
    desk.tell(1);
    desk.end_writes();
    assert_eq!((desk.view().version, desk.phase()), (2, Some(Phase::Committing)));
    desk.tell(0);
    desk.crash();
    assert_eq!((desk.view().version, desk.phase()), (2, Some(Phase::Committing)));
    assert_eq!((desk.tell(0), desk.tell(1)), (Answer::Ok, Answer::Ok));
    desk.end_writes();
    assert_eq!((desk.phase(), desk.nodes[1].held.clone()), (None, Ranges::one(0..8)));
    assert!(desk.nodes[0].held.is_empty());
}

/// A member waits past its deadline: it asks, and goes on waiting as long as nothing is decided. Had it given up alone,
/// the commit would find the range gone at both.
#[test]
fn a_member_that_has_acknowledged_waits_for_the_decision() {
    let mut desk = Desk::new();
    desk.reshard(&[(8, 1)]);
    desk.tell(1);
    let later = Time::from_millis(10_000);
    let ask = desk.nodes[1].member.due_to_ask(later).remove(0);
    let view = desk.view();
    assert_eq!(desk.nodes[1].member.asked(&ask, Some(&view)), Asked::Wait);
    desk.tell(0);
    desk.end_writes();
    desk.tell(0);
    let ask = desk.nodes[1].member.due_to_ask(Time::from_millis(20_000)).remove(0);
    let view = desk.view();
    assert_eq!(desk.nodes[1].member.asked(&ask, Some(&view)), Asked::Commit(Ranges::new()));
    assert_eq!((desk.held(), desk.tell(1)), (Ranges::one(0..8), Answer::Ok));
}

/// The write of a decision fails; it may be durable all the same, so it is written again, and never another one.
#[test]
fn a_decision_whose_write_failed_stays() {
    let mut desk = Desk::new();
    desk.reshard(&[(8, 1)]);
    desk.tell(0);
    desk.tell(1);
    let (ticket, _) = desk.writes.pop().unwrap();
    desk.maps.persist_failed(ticket, desk.time());
    desk.maps.instance_failed(&uri(1), desk.time());
    desk.pass(DEADLINE_MS + 50);
    let (_, change) = &desk.writes[0];
    let Change::Row(row) = change else { panic!("{change:?}") };
    assert_eq!(row.plan.as_ref().unwrap().decision, Some(Decision::Commit));
}

/// The abort of a plan comes late, when the next plan for the same version is acknowledged.
#[test]
fn a_late_abort_does_not_end_the_next_plan() {
    let mut desk = Desk::new();
    desk.reshard(&[(8, 1)]);
    desk.tell(1);
    desk.pass(DEADLINE_MS);
    desk.end_writes();
    let (late, abort) = desk.take(1);
    desk.maps.answered(&late, Answer::Unreachable, desk.time());
    desk.pass(20);
    desk.tell(1);
    desk.tell(0);
    desk.end_writes();
    desk.reshard(&[(4, 0), (8, 1)]);
    desk.tell(1);
    assert_eq!(desk.hear(1, &abort), Answer::Ok);
    assert_eq!(desk.nodes[1].held, Ranges::one(4..8), "it is still what was acknowledged");
    desk.tell(0);
    desk.end_writes();
    desk.tell(0);
    assert_eq!((desk.tell(1), desk.held()), (Answer::Ok, Ranges::one(0..8)));
}

/// A member restarts after its acknowledgement: that is void, and the change is aborted.
#[test]
fn the_acknowledgement_of_a_former_start_is_void() {
    let mut desk = Desk::new();
    desk.reshard(&[(8, 1)]);
    desk.tell(1);
    desk.restart(1);
    desk.report();
    desk.tell(0);
    desk.end_writes();
    assert_eq!((desk.view().version, desk.phase()), (1, Some(Phase::Aborting)));
    assert_eq!(desk.held(), Ranges::one(0..8));
}

/// The same, but the controller has not heard of it when it decides: the range died with its only owner, and is built
/// again under another version.
#[test]
fn a_range_that_died_with_its_owner_is_rebuilt_under_another_version() {
    let mut desk = Desk::new();
    desk.reshard(&[(8, 1)]);
    desk.tell(0);
    desk.tell(1);
    desk.end_writes();
    desk.tell(0);
    desk.restart(1);
    assert_eq!(desk.tell(1), Answer::Refused(404));
    desk.end_writes();
    assert_eq!((desk.phase(), desk.regroups), (None, 1));
    let outcome = desk.maps.desired(&map(), shards(&[(8, 1)]), desk.time());
    desk.begin(outcome);
    desk.end_writes();
    let (_, message) = desk.take(1);
    let ReshardMessage::Plan(plan) = message else { panic!("{message:?}") };
    assert_eq!((plan.from, plan.to, plan.retain.len(), plan.fetch.len()), (2, 3, 0, 0));
    assert_eq!(plan.rebuild.iter().copied().collect::<Ranges>(), Ranges::one(0..8));
}

/// The new owner dies while the commit is being written: the former one is told to keep what only it has, and gives it
/// to the next.
#[test]
fn what_its_new_owner_lost_is_kept_for_the_next() {
    let mut desk = Desk::new();
    desk.reshard(&[(8, 1)]);
    desk.tell(0);
    desk.tell(1);
    desk.maps.instance_failed(&uri(1), desk.time());
    desk.end_writes();
    desk.tell(0);
    desk.end_writes();
    assert_eq!(desk.nodes[0].held, Ranges::one(0..8));
    assert_eq!((desk.view().version, desk.phase(), desk.regroups), (2, None, 1));
    desk.crash();
    desk.report();
    desk.maps.instance_failed(&uri(1), desk.time());
    let outcome = desk.maps.desired(&map(), shards(&[(8, 2)]), desk.time());
    desk.begin(outcome);
    desk.end_writes();
    assert_eq!((desk.tell(2), desk.tell(0)), (Answer::Ok, Answer::Ok));
    desk.end_writes();
    assert_eq!((desk.tell(0), desk.tell(2)), (Answer::Ok, Answer::Ok));
    assert!(desk.nodes[0].held.is_empty(), "it is let go of with the next commit");
    assert_eq!(desk.nodes[2].held, Ranges::one(0..8));
}

/// The source dies after the acknowledgement: what was fetched is the last copy, and the abort does not discard it.
#[test]
fn what_its_source_lost_is_kept_at_the_abort() {
    let mut desk = Desk::new();
    desk.reshard(&[(8, 1)]);
    desk.tell(1);
    desk.restart(0);
    desk.report();
    desk.end_writes();
    assert_eq!((desk.view().version, desk.phase()), (1, Some(Phase::Aborting)));
    desk.tell(1);
    desk.end_writes();
    assert_eq!(desk.held(), Ranges::one(0..8));
    let outcome = desk.maps.desired(&map(), shards(&[(4, 0), (8, 1)]), desk.time());
    desk.begin(outcome);
    desk.end_writes();
    assert_eq!((desk.tell(0), desk.tell(1)), (Answer::Ok, Answer::Ok));
    desk.end_writes();
    assert_eq!((desk.tell(0), desk.tell(1)), (Answer::Ok, Answer::Ok));
    desk.end_writes();
    let held = |n: usize| desk.nodes[n].held.clone();
    assert_eq!((held(0), held(1)), (Ranges::one(0..4), Ranges::one(4..8)));
    assert_eq!((desk.view().version, desk.phase()), (2, None));
}

/// A member misses its commit while it is not heard of; the controller counts on it again, and its next plan tells it.
#[test]
fn who_missed_a_commit_learns_it_from_the_next_plan() {
    let mut desk = Desk::new();
    desk.reshard(&[(8, 1)]);
    desk.tell(0);
    desk.tell(1);
    desk.end_writes();
    desk.tell(0);
    desk.maps.instance_failed(&uri(1), desk.time());
    desk.drain();
    desk.end_writes();
    assert_eq!(desk.phase(), None, "who has failed is not waited for");
    desk.report();
    desk.reshard(&[(4, 1), (8, 2)]);
    assert_eq!((desk.tell(1), desk.tell(2)), (Answer::Ok, Answer::Ok));
    desk.end_writes();
    assert_eq!((desk.tell(1), desk.tell(2)), (Answer::Ok, Answer::Ok));
    assert_eq!(desk.nodes[1].held, Ranges::one(0..4));
    assert_eq!(desk.nodes[2].held, Ranges::one(4..8));
}

/// No memory for a plan: it is aborted at once. An answer that may be another one soon is asked for again.
#[test]
fn a_refusal_aborts_at_once_and_a_failure_is_tried_again() {
    let mut desk = Desk::new();
    desk.reshard(&[(8, 1)]);
    let (sent, _) = desk.take(1);
    desk.maps.answered(&sent, Answer::Refused(503), desk.time());
    desk.pass(30);
    assert_eq!(desk.phase(), Some(Phase::Preparing));
    let (again, _) = desk.take(1);
    assert_ne!(again, sent);
    desk.maps.answered(&sent, Answer::Refused(409), desk.time());
    assert!(desk.writes.is_empty(), "that is the answer to another message");
    desk.maps.answered(&again, Answer::Refused(507), desk.time());
    desk.drain();
    desk.end_writes();
    assert_eq!((desk.view().version, desk.phase()), (1, Some(Phase::Aborting)));
}
