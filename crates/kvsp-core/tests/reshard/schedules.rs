//! The two schedules that lose a range under naive rules: a decision that is kept in memory alone, and a member that
//! decides by itself after its acknowledgement. One range moves from one member to another. And one that would never
//! end: a member that takes every plan and no commit.

use kvsp_core::reshard::{
    Answer, Asked, Change, Decision, Effect, LengthOutcome, Maps, MapsConfig, Member, MemberConfig, NewMap,
    Outcome, Planned, Ranges, Row, Sent, Ticket,
};
use kvsp_core::time::Time;
use kvsp_proto::message::{MapId, ReshardMessage, ReshardPlan, Shard, TokenRange};

use crate::world::uri;

const START: Time = Time::from_millis(1_000);
const DEADLINE_MS: u64 = 500;

fn map() -> MapId {
    "m".parse().unwrap()
}

fn all_at(instance: usize) -> Vec<Shard> {
    vec![Shard { tokens: TokenRange::new(0, 8).unwrap(), instance: uri(instance) }]
}

/// The row that a write is of.
fn row(change: Change) -> Row {
    let Change::Row(row) = change else { panic!("{change:?}") };
    *row
}

fn persist<T>(outcome: Outcome<T>) -> (Ticket, Row) {
    let Outcome::Persist { ticket, change, .. } = outcome else { panic!("nothing to write") };
    (ticket, row(change))
}

type Sends = Vec<(Sent, ReshardMessage)>;
type Writes = Vec<(Ticket, Row)>;

/// What is to be sent and written now.
fn effects(maps: &mut Maps) -> (Sends, Writes) {
    let (mut sends, mut writes) = (Vec::new(), Vec::new());
    while let Some(effect) = maps.poll_effect() {
        match effect {
            // There is no leader.
            Effect::AskLength { sent, .. } => maps.length(&sent, LengthOutcome::NotLed, START),
            Effect::Send { sent, message } => sends.push((sent, *message)),
            Effect::Persist { ticket, change } => writes.push((ticket, row(change))),
            _ => {}
        }
    }
    (sends, writes)
}

/// A controller whose members have both acknowledged the plan, the row that is on stable storage, and the write of the
/// decision, which is not there yet.
fn decided() -> (Maps, Row, (Ticket, Row)) {
    let mut maps = Maps::new(MapsConfig::default());
    for instance in [0, 1] {
        maps.instance_reported(&uri(instance), 1, 60_000, START);
    }
    let (compat_id, scope_id) = ("22".repeat(32).parse().unwrap(), "33".repeat(16).parse().unwrap());
    let new = NewMap { map: map(), compat_id, scope_id, session: None, shards: all_at(0), leader: None };
    let (ticket, _) = persist(maps.create(new, START).unwrap());
    maps.persisted(ticket, START);
    let (ticket, durable) = persist(maps.reshard(&map(), 1, all_at(1), DEADLINE_MS, START).unwrap());
    assert!(effects(&mut maps).0.is_empty(), "no plan before it is durable");
    maps.persisted(ticket, START);
    let (plans, _) = effects(&mut maps);
    assert_eq!(plans.len(), 2);
    for (sent, message) in &plans {
        assert!(matches!(message, ReshardMessage::Plan(_)), "{message:?}");
        maps.answered(sent, Answer::Ok, START);
    }
    let (sends, mut writes) = effects(&mut maps);
    assert!(sends.is_empty(), "no decision before it is durable: {sends:?}");
    let write = writes.pop().expect("the decision is to be written");
    assert_eq!(write.1.plan.as_ref().unwrap().decision, Some(Decision::Commit));
    (maps, durable, write)
}

/// After a crash, whom a controller that finds this row tells what.
fn after_crash(row: Row) -> Vec<ReshardMessage> {
    let mut maps = Maps::restore(MapsConfig::default(), vec![row], START);
    for instance in [0, 1] {
        maps.instance_reported(&uri(instance), 1, 60_000, START);
    }
    let (mut sends, writes) = effects(&mut maps);
    for (ticket, _) in writes {
        maps.persisted(ticket, START);
    }
    sends.extend(effects(&mut maps).0);
    sends.into_iter().map(|(_, message)| message).collect()
}

#[test]
fn a_crash_before_the_decision_is_durable_aborts_and_one_after_it_commits() {
    let (_, durable, _) = decided();
    let told = after_crash(durable);
    assert_eq!(told.len(), 2);
    assert!(
        told.iter().all(|message| matches!(message, ReshardMessage::Abort { version: 2, .. })),
        "{told:?}"
    );

    let (mut maps, _, (ticket, row)) = decided();
    maps.persisted(ticket, START);
    let (sends, _) = effects(&mut maps);
    assert!(sends.iter().all(|(_, message)| matches!(message, ReshardMessage::Commit { version: 2, .. })));
    // One member has been told, the other has not, when the controller dies.
    let told = after_crash(row);
    assert_eq!((sends.len(), told.len()), (2, 2));
    assert!(
        told.iter().all(|message| matches!(message, ReshardMessage::Commit { version: 2, .. })),
        "{told:?}"
    );
}

#[test]
fn a_member_that_has_acknowledged_asks_after_the_deadline_and_frees_nothing() {
    let (mut maps, _, (ticket, _)) = decided();
    let mut member = Member::new(MemberConfig::default(), uri(1));
    let plan = ReshardPlan {
        map: map(),
        from: 1,
        to: 2,
        deadline_ms: DEADLINE_MS,
        retain: Vec::new(),
        fetch: Vec::new(),
        release: Vec::new(),
        rebuild: vec![TokenRange::new(0, 8).unwrap()],
        length: None,
        shards: all_at(1),
        compat_id: None,
        scope_id: None,
        session: None,
        attempt: None,
    };
    assert!(matches!(member.plan(&plan, START), Ok(Planned::Load(_))));
    member.loaded(&map(), 2, None).unwrap();
    // The controller takes long to write its decision.
    let mut now = START;
    for _ in 0..8 {
        now = member.poll_timeout().expect("it asks until it knows");
        let asks = member.due_to_ask(now);
        assert_eq!(asks.len(), 1);
        assert_eq!(member.asked(&asks[0], Some(&maps.view(&map()).unwrap())), Asked::Wait);
        assert_eq!(member.view(&map(), &Ranges::new()).unwrap().prepared, Some(2));
    }
    assert!(now.since(START).as_millis() > u128::from(DEADLINE_MS));
    maps.persisted(ticket, now);
    assert_eq!(member.commit(&map(), 2, None, &Ranges::new()), Ok(Ranges::new()));
    assert_eq!(member.owned(&map()).unwrap(), &Ranges::one(0..8));
}

#[test]
fn a_member_that_takes_no_commit_does_not_get_version_after_version() {
    let (mut maps, _, (ticket, _)) = decided();
    maps.persisted(ticket, START);
    let end = START.after_millis(20_000);
    let mut now = START;
    while now < end {
        while let Some(effect) = maps.poll_effect() {
            match effect {
                Effect::Persist { ticket, .. } => maps.persisted(ticket, now),
                Effect::AskLength { sent, .. } => maps.length(&sent, LengthOutcome::NotLed, now),
                Effect::Send { sent, message } => {
                    let takes = !matches!(*message, ReshardMessage::Commit { .. }) || sent.instance != uri(1);
                    maps.answered(&sent, if takes { Answer::Ok } else { Answer::Refused(409) }, now);
                }
                Effect::Regroup { map, .. } => {
                    if let Outcome::Persist { ticket, .. } = maps.desired(&map, all_at(1), now).unwrap() {
                        maps.persisted(ticket, now);
                    }
                }
                Effect::Forget(_) | Effect::Changed(_) => {}
            }
        }
        now = now.after_millis(50);
        for instance in [0, 1] {
            maps.instance_reported(&uri(instance), 1, 60_000, now);
        }
        maps.tick(now);
    }
    let version = maps.view(&map()).unwrap().version;
    // 0.2, 0.4 … s and then every 5 s.
    assert!((4..=12).contains(&version), "{version} in 20 s");
}
