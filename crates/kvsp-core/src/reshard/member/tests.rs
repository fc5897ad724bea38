use kvsp_proto::message::{MapView, PendingReshard, Phase, Shard, TokenRange};

use super::*;

fn uri(n: u8) -> BaseUri {
    format!("http://i{n}/kvsp/").parse().unwrap()
}

fn map() -> MapId {
    "m".parse().unwrap()
}

fn wire(ranges: &[(u64, u64)]) -> Vec<TokenRange> {
    ranges.iter().map(|(start, end)| TokenRange::new(*start, *end).unwrap()).collect()
}

fn set(ranges: &[(u64, u64)]) -> Ranges {
    wire(ranges).into_iter().collect()
}

fn member() -> Member {
    Member::new(MemberConfig::default(), uri(1))
}

/// Instance 1 goes from 0..4 to 0..2 and 6..8.
fn plan(from: u64, attempt: Option<u64>) -> ReshardPlan {
    let fetch = FetchRange { tokens: wire(&[(6, 8)])[0], from: uri(2) };
    ReshardPlan {
        map: map(),
        from,
        to: from + 1,
        deadline_ms: 100,
        retain: wire(&[(0, 2)]),
        fetch: vec![fetch],
        release: wire(&[(2, 4)]),
        rebuild: Vec::new(),
        length: None,
        shards: Vec::new(),
        compat_id: None,
        scope_id: None,
        session: None,
        attempt,
    }
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn view(version: u64, attempt: Option<u64>, pending: Option<(u64, Phase, Option<u64>)>) -> MapView {
    let shards = vec![Shard { tokens: wire(&[(0, 8)])[0], instance: uri(1) }];
    let pending = pending.map(|(to, phase, attempt)| PendingReshard {
        to,
        shards: shards.clone(),
        phase,
        acks: Vec::new(),
        attempt,
    });
    let (compat_id, scope_id) = ("22".repeat(32).parse().unwrap(), "33".repeat(16).parse().unwrap());
    MapView { map: map(), version, shards, compat_id, scope_id, session: None, attempt, pending }
}

/// A member that has acknowledged a plan from version 4.
fn ready(attempt: Option<u64>) -> Member {
    let mut member = member();
    assert!(matches!(member.plan(&plan(4, attempt), at(0)), Ok(Planned::Load(_))));
    member.loaded(&map(), 5, attempt).unwrap();
    member
}

#[test]
fn a_plan_reserves_both_versions_and_loads_what_is_lacking() {
    let mut member = member();
    let Ok(Planned::Load(load)) = member.plan(&plan(4, None), at(0)) else { panic!() };
    assert_eq!(load.reserve, set(&[(0, 4), (6, 8)]));
    assert_eq!((load.discard, load.fetch.len(), load.retained), (Ranges::new(), 1, 2));
    assert_eq!(member.plan(&plan(4, None), at(1)), Ok(Planned::Loading));
    let answer = member.loaded(&map(), 5, None).unwrap();
    assert_eq!((answer.version, answer.prepared), (4, Some(5)));
    assert_eq!(member.plan(&plan(4, None), at(1)), Ok(Planned::Ready(answer)));
}

#[test]
fn what_lies_beyond_the_length_is_not_loaded() {
    let mut member = member();
    let short = ReshardPlan { length: Some(7), ..plan(4, None) };
    let Ok(Planned::Load(load)) = member.plan(&short, at(0)) else { panic!() };
    assert_eq!(load.fetch[0].tokens, wire(&[(6, 7)])[0]);
}

#[test]
fn a_commit_frees_what_is_released_and_may_be_said_twice() {
    let mut member = ready(Some(3));
    assert_eq!(member.may_serve(&map(), 5), Err(MemberError::Conflict { version: 4 }));
    assert_eq!(member.may_compute(&map(), 5, 0), Ok(()));
    assert_eq!(member.commit(&map(), 5, Some(3), &set(&[(3, 4)])), Ok(set(&[(2, 3)])));
    assert_eq!(member.may_serve(&map(), 5), Ok(()));
    assert_eq!(member.may_serve(&map(), 4), Err(MemberError::Conflict { version: 5 }));
    assert_eq!(member.commit(&map(), 5, Some(3), &Ranges::new()), Ok(set(&[(3, 4)])));
    assert_eq!(member.commit(&map(), 5, Some(3), &Ranges::new()), Ok(Ranges::new()));
    assert_eq!(member.abort(&map(), 5, Some(3), &Ranges::new()), Err(MemberError::Conflict { version: 5 }));
    assert_eq!(member.owned(&map()), Ok(&set(&[(0, 2), (6, 8)])));
}

#[test]
fn a_commit_without_an_acknowledgement_is_refused() {
    let mut member = member();
    assert_eq!(member.commit(&map(), 5, None, &Ranges::new()), Err(MemberError::Unknown));
    member.plan(&plan(4, None), at(0)).unwrap();
    assert_eq!(member.commit(&map(), 5, None, &Ranges::new()), Err(MemberError::Conflict { version: 4 }));
    assert_eq!(member.load_failed(&map(), 5, None), set(&[(6, 8)]));
    assert_eq!(member.loaded(&map(), 5, None), Err(MemberError::Conflict { version: 4 }));
}

#[test]
fn an_abort_frees_what_was_fetched_alone() {
    let mut member = ready(None);
    assert_eq!(member.abort(&map(), 5, None, &Ranges::new()), Ok(set(&[(6, 8)])));
    assert_eq!(member.abort(&map(), 5, None, &Ranges::new()), Ok(Ranges::new()));
    assert_eq!(member.commit(&map(), 5, None, &Ranges::new()), Err(MemberError::Conflict { version: 4 }));
    assert_eq!(member.owned(&map()), Ok(&set(&[(0, 4)])));
}

#[test]
fn an_abort_keeps_what_has_no_other_copy() {
    let mut member = ready(Some(1));
    assert_eq!(member.abort(&map(), 5, Some(1), &set(&[(1, 7)])), Ok(set(&[(7, 8)])));
    assert_eq!(member.owned(&map()), Ok(&set(&[(0, 4)])));
    let again = ReshardPlan { attempt: Some(2), ..plan(4, None) };
    let Ok(Planned::Load(load)) = member.plan(&again, at(0)) else { panic!() };
    assert_eq!((load.discard, load.reserve), (Ranges::new(), set(&[(0, 4), (6, 8)])));
    member.loaded(&map(), 5, Some(2)).unwrap();
    assert_eq!(member.abort(&map(), 5, Some(2), &set(&[(6, 7)])), Ok(set(&[(7, 8)])), "what was kept stays");
    assert_eq!(member.abort(&map(), 5, Some(1), &Ranges::new()), Ok(Ranges::new()), "that is an old one");
    assert_eq!(member.abort(&map(), 5, Some(2), &Ranges::new()), Ok(set(&[(6, 7)])));
}

#[test]
fn an_abort_that_comes_before_its_plan_refuses_it() {
    let mut member = member();
    let plan = |attempt| plan(4, attempt);
    assert_eq!(member.abort(&map(), 5, Some(2), &Ranges::new()), Err(MemberError::Unknown));
    for late in [1, 2] {
        let refused = member.plan(&plan(Some(late)), at(0));
        assert_eq!(refused, Err(MemberError::Conflict { version: 4 }));
    }
    assert!(matches!(member.plan(&plan(Some(3)), at(0)), Ok(Planned::Load(_))));
    // Of plans without a number it cannot be told which is late: refused, the next one would be aborted too, for ever.
    let mut member = self::member();
    assert_eq!(member.abort(&map(), 5, None, &Ranges::new()), Err(MemberError::Unknown));
    assert!(member.plan(&plan(None), at(0)).is_ok());
}

#[test]
fn an_abort_of_a_former_plan_does_not_end_the_next() {
    let mut member = ready(Some(2));
    assert_eq!(member.abort(&map(), 5, Some(1), &Ranges::new()), Ok(Ranges::new()));
    let next = member.plan(&plan(4, Some(3)), at(0));
    assert!(matches!(next, Ok(Planned::Load(load)) if load.discard == set(&[(6, 8)])));
    assert_eq!(member.plan(&plan(4, Some(2)), at(0)), Err(MemberError::Conflict { version: 4 }));
    assert_eq!(member.commit(&map(), 5, Some(2), &Ranges::new()), Err(MemberError::Conflict { version: 4 }));
    member.loaded(&map(), 5, Some(3)).unwrap();
    assert_eq!(member.commit(&map(), 5, Some(3), &Ranges::new()), Ok(set(&[(2, 4)])));
    assert_eq!(member.abort(&map(), 5, Some(2), &Ranges::new()), Ok(Ranges::new()));
}

#[test]
fn who_missed_versions_begins_anew() {
    let mut member = ready(Some(2));
    let Ok(Planned::Load(load)) = member.plan(&plan(7, Some(9)), at(0)) else { panic!() };
    assert_eq!(load.discard, set(&[(0, 4), (6, 8)]));
    assert_eq!(member.plan(&plan(4, Some(10)), at(0)), Err(MemberError::Conflict { version: 7 }));
}

#[test]
fn the_controller_is_asked_after_the_deadline_alone() {
    let mut member = ready(Some(2));
    assert!(member.due_to_ask(at(100)).is_empty());
    let due = member.poll_timeout().unwrap();
    let asks = member.due_to_ask(due);
    assert_eq!(asks.len(), 1);
    assert!(member.due_to_ask(due).is_empty() && member.poll_timeout().unwrap() > due);
    let wait = view(4, None, Some((5, Phase::Preparing, Some(2))));
    assert_eq!(member.asked(&asks[0], Some(&wait)), Asked::Wait);
    let telling = view(4, None, Some((5, Phase::Aborting, Some(2))));
    assert_eq!(member.asked(&asks[0], Some(&telling)), Asked::Wait, "the abort says what is to be kept");
    for over in [view(4, None, None), view(4, None, Some((5, Phase::Preparing, Some(3))))] {
        let mut aborted = member.clone();
        assert_eq!(aborted.asked(&asks[0], Some(&over)), Asked::Abort(set(&[(6, 8)])));
    }
    let mut committed = member.clone();
    let telling = view(5, Some(2), Some((5, Phase::Committing, Some(2))));
    assert_eq!(committed.asked(&asks[0], Some(&telling)), Asked::Commit(Ranges::new()));
    let sweep = committed.sweep().remove(0);
    assert_eq!(committed.clone().asked(&sweep, Some(&telling)), Asked::Wait);
    let counted_out = committed.clone().asked(&sweep, Some(&view(5, Some(2), None)));
    assert_eq!(counted_out, Asked::Commit(set(&[(2, 4)])));
    assert_eq!(committed.commit(&map(), 5, Some(2), &Ranges::new()), Ok(set(&[(2, 4)])));
    let mut settled = member.clone();
    assert_eq!(settled.asked(&asks[0], Some(&view(5, None, None))), Asked::Commit(set(&[(2, 4)])));
    for gone in [Some(view(5, Some(3), None)), Some(view(6, Some(3), None)), None] {
        assert_eq!(member.clone().asked(&asks[0], gone.as_ref()), Asked::Forget);
    }
}

#[test]
fn an_answer_to_a_former_question_changes_nothing() {
    let mut member = ready(Some(2));
    let ask = member.sweep().remove(0);
    member.abort(&map(), 5, Some(2), &Ranges::new()).unwrap();
    member.plan(&plan(4, Some(3)), at(0)).unwrap();
    member.loaded(&map(), 5, Some(3)).unwrap();
    assert_eq!(member.asked(&ask, Some(&view(4, None, None))), Asked::Wait);
}

#[test]
fn what_no_message_will_end_is_swept() {
    let mut member = ready(Some(2));
    member.commit(&map(), 5, Some(2), &set(&[(2, 4)])).unwrap();
    let swept = |member: &Member, view: Option<&MapView>| {
        let mut member = member.clone();
        let ask = member.sweep().remove(0);
        member.asked(&ask, view)
    };
    let elsewhere = |version| {
        let shards = vec![Shard { tokens: wire(&[(0, 8)])[0], instance: uri(2) }];
        MapView { shards, ..view(version, None, None) }
    };
    assert_eq!(swept(&member, Some(&view(5, None, None))), Asked::Wait);
    assert_eq!(swept(&member, Some(&elsewhere(5))), Asked::Wait, "it is kept for others");
    assert_eq!(swept(&member, Some(&elsewhere(6))), Asked::Forget);
    assert_eq!(swept(&member, None), Asked::Forget);
    member.commit(&map(), 5, Some(2), &Ranges::new()).unwrap();
    assert_eq!(swept(&member, Some(&elsewhere(5))), Asked::Forget);
    assert!(member.forget(&map()) && !member.forget(&map()));
}

#[test]
fn a_leader_of_a_lower_epoch_is_refused() {
    let mut member = member();
    let open = |version, epoch, shards: &[(u64, u64)]| OpenContext {
        version,
        epoch,
        length: 3,
        certain: Some(1),
        shards: wire(shards).into_iter().map(|tokens| Shard { tokens, instance: uri(1) }).collect(),
        compat_id: "22".repeat(32).parse().unwrap(),
        scope_id: "33".repeat(16).parse().unwrap(),
        session: None,
    };
    let opened = member.open(&map(), &open(4, 2, &[(0, 4)])).unwrap();
    assert_eq!((opened.reserve, opened.forget_from), (set(&[(0, 4)]), 3));
    let again = member.open(&map(), &open(4, 2, &[(0, 4)])).unwrap();
    assert_eq!(again.forget_from, u64::MAX, "it may be a late one");
    assert_eq!(member.open(&map(), &open(4, 1, &[(0, 4)])), Err(MemberError::StaleEpoch { known: 2 }));
    assert_eq!(member.may_compute(&map(), 4, 1), Err(MemberError::StaleEpoch { known: 2 }));
    assert_eq!(member.may_store(&map(), 4, &(1..3), 2), Ok(()));
    assert_eq!(member.may_store(&map(), 4, &(3..5), 2), Err(MemberError::Invalid));
    assert_eq!(member.may_store(&map(), 5, &(3..5), 2), Err(MemberError::Conflict { version: 4 }));
    assert_eq!(member.may_store(&map(), 4, &(1..3), 1), Err(MemberError::StaleEpoch { known: 2 }));
    member.plan(&plan(4, Some(1)), at(0)).unwrap();
    assert_eq!(member.may_store(&map(), 5, &(6..8), 2), Ok(()));
    assert_eq!(member.may_compute(&map(), 5, 2), Err(MemberError::Conflict { version: 4 }));
    let newer = member.open(&map(), &open(9, 3, &[(0, 8)])).unwrap();
    assert_eq!((newer.discard, newer.reserve), (set(&[(0, 4), (6, 8)]), set(&[(0, 8)])));
    assert_eq!(member.open(&map(), &open(8, 3, &[(0, 8)])), Err(MemberError::Conflict { version: 9 }));
}

#[test]
fn a_plan_of_other_ranges_than_ours_is_false() {
    let mut member = ready(None);
    member.commit(&map(), 5, None, &Ranges::new()).unwrap();
    assert_eq!(member.plan(&plan(5, None), at(0)), Err(MemberError::Invalid));
    let shards = vec![Shard { tokens: wire(&[(0, 8)])[0], instance: uri(1) }];
    let named = ReshardPlan { shards, ..plan(5, None) };
    assert_eq!(member.plan(&named, at(0)), Err(MemberError::Invalid));
    assert_eq!(member.plan(&plan(3, None), at(0)), Err(MemberError::Conflict { version: 5 }));
}

#[test]
fn maps_and_strays_are_bounded() {
    let config = MemberConfig { max_maps: 2, max_strays: 2, ..MemberConfig::default() };
    let mut member = Member::new(config, uri(1));
    let named = |n: u64| ReshardPlan { map: format!("m{n}").parse().unwrap(), ..plan(4, None) };
    for n in 0..9 {
        member.abort(&named(n).map, 5, Some(1), &Ranges::new()).unwrap_err();
    }
    assert_eq!(member.strays.len(), 2);
    member.plan(&named(0), at(0)).unwrap();
    member.plan(&named(1), at(0)).unwrap();
    assert_eq!(member.plan(&named(2), at(0)), Err(MemberError::Full));
    member.loaded(&named(0).map, 5, None).unwrap();
    let leaves = ReshardPlan {
        from: 5,
        to: 6,
        retain: Vec::new(),
        fetch: Vec::new(),
        release: wire(&[(0, 2), (6, 8)]),
        ..named(0)
    };
    member.commit(&leaves.map, 5, None, &Ranges::new()).unwrap();
    member.plan(&leaves, at(0)).unwrap();
    member.loaded(&leaves.map, 6, None).unwrap();
    member.commit(&leaves.map, 6, None, &Ranges::new()).unwrap();
    assert!(member.plan(&named(2), at(0)).is_ok(), "a map of which nothing is ours makes room");
}

#[test]
fn what_came_under_a_former_leader_is_cut_where_the_next_one_is_certain() {
    let open = |version, epoch, certain| OpenContext {
        version,
        epoch,
        length: 8,
        certain,
        shards: vec![
            Shard { tokens: wire(&[(0, 2)])[0], instance: uri(1) },
            Shard { tokens: wire(&[(2, 6)])[0], instance: uri(2) },
            Shard { tokens: wire(&[(6, 8)])[0], instance: uri(1) },
        ],
        compat_id: "22".repeat(32).parse().unwrap(),
        scope_id: "33".repeat(16).parse().unwrap(),
        session: None,
    };
    let fetched = |epoch| {
        let mut member = member();
        member.plan(&plan(4, Some(1)), at(0)).unwrap();
        member.fetched(&map(), 5, Some(1), &set(&[(6, 8)]), epoch);
        member.loaded(&map(), 5, Some(1)).unwrap();
        member.commit(&map(), 5, Some(1), &Ranges::new()).unwrap();
        member
    };
    let discarded = |member: &Member, epoch, certain| {
        member.clone().open(&map(), &open(5, epoch, certain)).unwrap().discard
    };
    let mut member = fetched(2);
    assert_eq!(member.view(&map(), &set(&[(6, 8)])).unwrap().epoch, 2);
    assert_eq!(discarded(&member, 2, Some(1)), set(&[(0, 2)]), "what was loaded is of this leader");
    assert_eq!(discarded(&member, 3, Some(7)), set(&[(0, 2), (7, 8)]), "nobody had opened what stayed");
    assert_eq!(
        discarded(&member, 4, Some(7)),
        set(&[(0, 2), (6, 8)]),
        "there may have been a leader between"
    );
    member.open(&map(), &open(5, 2, None)).unwrap();
    assert_eq!(discarded(&member, 2, Some(0)), Ranges::new());
    assert_eq!(discarded(&member, 3, Some(1)), set(&[(1, 2), (6, 8)]));
    assert_eq!(member.may_compute(&map(), 5, 3), Err(MemberError::Conflict { version: 5 }));
    member.may_store(&map(), 5, &(0..1), 3).unwrap();
    assert_eq!(discarded(&member, 3, Some(0)), set(&[(1, 2), (6, 8)]), "what it stored itself stays");
    assert_eq!(discarded(&member, 4, Some(0)), set(&[(0, 2), (6, 8)]));
}

#[test]
fn a_plan_of_a_later_version_is_to_be_confirmed_before_it_is_taken() {
    let mut member = ready(None);
    assert!(!member.is_ahead(&plan(4, None)), "it is open");
    assert!(member.is_ahead(&plan(5, None)), "the open one is not decided");
    member.commit(&map(), 5, None, &Ranges::new()).unwrap();
    assert!(!member.is_ahead(&plan(5, None)) && member.is_ahead(&plan(6, None)));
    assert!(!self::member().is_ahead(&plan(6, None)), "nothing is here that could be lost");
}
