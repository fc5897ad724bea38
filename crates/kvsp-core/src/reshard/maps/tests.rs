use kvsp_proto::message::{Phase, TokenRange};
use kvsp_proto::problem::{Problem, ProblemType};

use super::*;

fn uri(n: usize) -> BaseUri {
    format!("http://i{n}/kvsp/").parse().unwrap()
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn id(name: &str) -> MapId {
    name.parse().unwrap()
}

fn shards(parts: &[(u64, usize)]) -> Vec<Shard> {
    let mut start = 0;
    let mut shard = |&(end, n): &(u64, usize)| {
        let tokens = TokenRange::new(start, end).unwrap();
        start = end;
        Shard { tokens, instance: uri(n) }
    };
    parts.iter().map(&mut shard).collect()
}

fn new(name: &str, parts: &[(u64, usize)]) -> NewMap {
    NewMap {
        map: id(name),
        compat_id: "22".repeat(32).parse().unwrap(),
        scope_id: "33".repeat(16).parse().unwrap(),
        session: Some(Uuid::from_u128(1)),
        shards: shards(parts),
        leader: None,
    }
}

/// Does a write to the end; its change and its answer.
fn durable<T>(maps: &mut Maps, outcome: Result<Outcome<T>, MapError>) -> (Change, T) {
    let Outcome::Persist { ticket, change, then } = outcome.unwrap() else { panic!("nothing to write") };
    maps.persisted(ticket, at(0));
    (change, then)
}

fn with_map() -> Maps {
    let mut maps = Maps::new(MapsConfig::default());
    let outcome = maps.create(new("m", &[(8, 0)]), at(0));
    durable(&mut maps, outcome);
    effects(&mut maps);
    maps
}

fn effects(maps: &mut Maps) -> Vec<Effect> {
    std::iter::from_fn(|| maps.poll_effect()).filter(|effect| !matches!(effect, Effect::Changed(_))).collect()
}

#[test]
fn a_map_is_made_once_it_is_durable_and_again_only_as_it_is() {
    let mut maps = Maps::new(MapsConfig { max_maps: 1, ..MapsConfig::default() });
    let Ok(Outcome::Persist { ticket, then, .. }) = maps.create(new("m", &[(8, 0)]), at(0)) else { panic!() };
    assert_eq!((then.version, maps.view(&id("m"))), (1, Err(MapError::Unknown)));
    assert_eq!(maps.create(new("m", &[(8, 0)]), at(0)), Ok(Outcome::Busy));
    maps.persisted(ticket, at(0));
    assert_eq!(maps.view(&id("m")), Ok(then.clone()));
    assert_eq!(maps.create(new("m", &[(8, 0)]), at(0)), Ok(Outcome::Done(then)));
    assert_eq!(maps.create(new("m", &[(8, 1)]), at(0)), Err(MapError::Exists { version: 1 }));
    assert_eq!(maps.create(new("n", &[(8, 1)]), at(0)), Err(MapError::Full));
    let mut gapped = new("m", &[(8, 0)]);
    gapped.shards = shards(&[(4, 0), (8, 1)]).split_off(1);
    assert_eq!(maps.create(gapped, at(0)), Err(MapError::Invalid));
}

#[test]
fn a_map_whose_write_failed_is_not_there() {
    let mut maps = Maps::new(MapsConfig::default());
    let Ok(Outcome::Persist { ticket, .. }) = maps.create(new("m", &[(8, 0)]), at(0)) else { panic!() };
    maps.persist_failed(ticket, at(0));
    assert_eq!((maps.view(&id("m")), maps.count()), (Err(MapError::Unknown), (0, 0)));
    let again = maps.create(new("m", &[(8, 0)]), at(0));
    durable(&mut maps, again);
    assert_eq!(maps.count(), (1, 0));
}

#[test]
fn a_change_begins_from_the_version_that_holds_and_alone() {
    let mut maps = with_map();
    let reshard = |maps: &mut Maps, from, parts: &[(u64, usize)]| {
        maps.reshard(&id("m"), from, shards(parts), 100, at(0))
    };
    assert_eq!(maps.reshard(&id("n"), 1, shards(&[(8, 1)]), 100, at(0)), Err(MapError::Unknown));
    assert_eq!(reshard(&mut maps, 1, &[(9, 1)]), Err(MapError::Invalid), "another total");
    assert_eq!(reshard(&mut maps, 2, &[(8, 1)]), Err(MapError::Version { version: 1 }));
    maps.instance_reported(&uri(1), 1, 1000, at(0));
    maps.instance_failed(&uri(1), at(0));
    assert_eq!(reshard(&mut maps, 1, &[(8, 1)]), Err(MapError::Failed { instance: uri(1) }));
    let Ok(Outcome::Persist { ticket, then, .. }) = reshard(&mut maps, 1, &[(8, 2)]) else { panic!() };
    assert_eq!(then.pending.as_ref().map(|pending| (pending.to, pending.phase)), Some((2, Phase::Preparing)));
    assert_eq!(reshard(&mut maps, 1, &[(8, 2)]), Ok(Outcome::Busy));
    assert!(effects(&mut maps).is_empty(), "nobody hears of it before it is durable");
    maps.persisted(ticket, at(0));
    assert_eq!(reshard(&mut maps, 1, &[(8, 2)]), Err(MapError::Pending { to: 2 }));
    assert!(matches!(effects(&mut maps)[..], [Effect::AskLength { .. }]), "the only owner may lead it");
}

#[test]
fn the_leader_is_asked_and_hears_what_was_decided() {
    let mut maps = with_map();
    maps.leader_moved(Uuid::from_u128(1), &uri(5));
    let outcome = maps.reshard(&id("m"), 1, shards(&[(8, 1)]), 100, at(0));
    durable(&mut maps, outcome);
    let asked = effects(&mut maps);
    let [Effect::AskLength { sent, version: 1, .. }] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(sent.instance, uri(5));
    maps.length(sent, LengthOutcome::Unreachable, at(0));
    assert!(effects(&mut maps).is_empty());
    maps.tick(maps.poll_timeout().unwrap());
    let again = effects(&mut maps);
    let [Effect::AskLength { sent, .. }] = &again[..] else { panic!("{again:?}") };
    maps.length(sent, LengthOutcome::Length(6), at(60));
    let plans = effects(&mut maps);
    let lengths = plans.iter().map(|effect| match effect {
        Effect::Send { message, .. } => match &**message {
            kvsp_proto::message::ReshardMessage::Plan(plan) => plan.length,
            _ => None,
        },
        _ => None,
    });
    assert_eq!(lengths.collect::<Vec<_>>(), [Some(6), Some(6)]);
    for effect in &plans {
        let Effect::Send { sent, .. } = effect else { panic!("{effect:?}") };
        maps.answered(sent, Answer::Ok, at(61));
    }
    let decided = effects(&mut maps);
    let [Effect::Persist { ticket, .. }] = decided[..] else { panic!("{decided:?}") };
    maps.persisted(ticket, at(62));
    let told = effects(&mut maps);
    let told = told.iter().map(|effect| match effect {
        Effect::Send { sent, .. } => sent.instance.clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(told.collect::<Vec<_>>(), [uri(0), uri(1), uri(5)]);
    assert_eq!(maps.view(&id("m")).unwrap().version, 2);
}

#[test]
fn what_is_desired_already_changes_nothing() {
    let mut maps = with_map();
    let view = maps.view(&id("m")).unwrap();
    assert_eq!(maps.desired(&id("m"), shards(&[(8, 0)]), at(0)), Ok(Outcome::Done(view)));
    let outcome = maps.desired(&id("m"), shards(&[(8, 1)]), at(0));
    let (change, _) = durable(&mut maps, outcome);
    let Change::Row(row) = change else { panic!("{change:?}") };
    assert_eq!(row.plan.unwrap().deadline_ms, MapsConfig::default().deadline_ms);
    assert_eq!(maps.desired(&id("m"), shards(&[(8, 0)]), at(0)), Ok(Outcome::Busy));
}

#[test]
fn a_map_that_ends_is_forgotten_by_its_members_and_then_erased() {
    let mut maps = with_map();
    maps.session_ended(Uuid::from_u128(1), at(0));
    let ending = effects(&mut maps);
    let [Effect::Persist { ticket, change: Change::Row(row) }] = &ending[..] else { panic!("{ending:?}") };
    assert!(row.ended);
    maps.persisted(*ticket, at(0));
    assert_eq!(maps.view(&id("m")), Err(MapError::Unknown));
    assert_eq!(maps.create(new("m", &[(8, 0)]), at(0)), Err(MapError::Exists { version: 1 }));
    let forget = effects(&mut maps);
    let [Effect::Forget(sent)] = &forget[..] else { panic!("{forget:?}") };
    // After a start of the controller the members are told again.
    let mut restored = Maps::restore(MapsConfig::default(), vec![Row::clone(row)], at(0));
    assert_eq!(effects(&mut restored).len(), 1);
    maps.answered(sent, Answer::Refused(404), at(1));
    let erased = effects(&mut maps);
    let [Effect::Persist { ticket, change: Change::Erase(_) }] = &erased[..] else { panic!("{erased:?}") };
    maps.persisted(*ticket, at(1));
    assert!(maps.create(new("m", &[(8, 1)]), at(2)).is_ok());
}

#[test]
fn an_instance_that_does_not_report_after_a_start_has_failed() {
    let mut maps = with_map();
    maps.instance_reported(&uri(0), 3, 1000, at(0));
    let outcome = maps.reshard(&id("m"), 1, shards(&[(4, 0), (8, 1)]), 100, at(0));
    let (change, _) = durable(&mut maps, outcome);
    let Change::Row(row) = change else { panic!("{change:?}") };
    let mut maps = Maps::restore(MapsConfig::default(), vec![Row { plan: None, ..*row }], at(0));
    assert_eq!(maps.of_instance(&uri(0)), [id("m")]);
    let mut now = 0;
    while maps.lost(&id("m")).is_empty() {
        let next = maps.poll_timeout().expect("it is waited for").as_micros() / 1000;
        assert!(next <= 1000 && next > now, "{next}");
        now = next;
        maps.tick(at(now));
    }
    assert_eq!(now, 1000, "a whole TTL");
    assert!(effects(&mut maps).iter().any(|effect| matches!(effect, Effect::Regroup { .. })));
    maps.instance_reported(&uri(0), 3, 1000, at(1001));
    assert!(maps.lost(&id("m")).is_empty(), "it was only silent");
    maps.instance_reported(&uri(0), 4, 1000, at(1002));
    assert_eq!(maps.lost(&id("m")), BTreeSet::from([uri(0)]));
}

#[test]
fn a_stall_of_our_own_makes_nobody_late() {
    let maps = with_map();
    let member = MemberRow { instance: uri(0), epoch: 3, ttl_ms: 1000 };
    let row = Row { members: vec![member], ..maps.row(&id("m")).unwrap().clone() };
    let mut maps = Maps::restore(MapsConfig::default(), vec![row], at(0));
    maps.tick(at(5_000));
    assert!(maps.lost(&id("m")).is_empty());
}

#[test]
fn every_refusal_has_its_problem_type() {
    let cases = [
        (MapError::Unknown, "kvsp-map-unknown", 404),
        (MapError::Invalid, "kvsp-invalid-shard-map", 422),
        (MapError::Exists { version: 3 }, "kvsp-reshard-conflict", 409),
        (MapError::Version { version: 3 }, "kvsp-reshard-conflict", 409),
        (MapError::Pending { to: 3 }, "kvsp-reshard-conflict", 409),
        (MapError::Failed { instance: uri(0) }, "kvsp-instance-not-active", 409),
        (MapError::Full, "kvsp-overloaded", 503),
    ];
    for (error, name, status) in cases {
        let problem = Problem::from(error);
        assert_eq!(problem.problem_type().map(ProblemType::name), Some(name));
        assert_eq!(problem.status(), status);
    }
}
