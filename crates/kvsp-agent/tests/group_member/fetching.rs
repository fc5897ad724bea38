//! Octets from one member to another.

use crate::support::{Instance, Setup, client};
use crate::team::*;

#[tokio::test]
async fn ranges_move_at_odd_boundaries_and_octet_for_octet() {
    let (a, b) = pair().await;
    // 60 → all to `a`: what it has stays, what `b` has comes.
    let plan = Plan::new().retain(0, 37).fetch(37, 100, &b.base).length(60);
    let answer = a.plan(plan.clone()).await.unwrap();
    assert_eq!((answer.version, answer.prepared), (1, Some(2)));
    assert_eq!(a.held().await, [range(0, 60)]);
    let moved = octets_of(&a.descriptor, 23);
    assert_eq!(a.metric(FETCHED).await, moved, "the tokens beyond the length are not there to be moved");
    assert_eq!(b.metric(SERVED).await, moved);
    assert_eq!(a.metric(RETAINED).await, 37);

    // Version 1 holds until the commit, and only its owner serves.
    let sections = |start, end| sections(&a.descriptor, range(start, end));
    for (start, end) in [(37, 60), (38, 39), (41, 60)] {
        assert_eq!(b.tokens(1, range(start, end)).await.unwrap(), sections(start, end));
    }
    assert_eq!(problem(a.tokens(2, range(0, 60)).await), (409, "kvsp-reshard-conflict"));
    b.plan(Plan::new().release(37, 100)).await.unwrap();
    for member in [&a, &b] {
        assert_eq!(member.commit(2).await.unwrap().version, 2);
    }
    for (start, end) in [(0, 60), (36, 38), (1, 59), (15, 16)] {
        assert_eq!(a.tokens(2, range(start, end)).await.unwrap(), sections(start, end));
    }
    assert_eq!(b.held().await, []);
    assert_eq!((b.metric(RESERVED).await, a.metric(RESERVED).await), (0, 100));
    // Told again, nothing happens again.
    for member in [&a, &b] {
        assert_eq!(member.commit(2).await.unwrap().version, 2);
    }
    assert_eq!(a.plan(plan).await.unwrap().version, 2);
    assert_eq!(a.metric(FETCHED).await, moved);
}

#[tokio::test]
async fn what_is_retained_does_not_move() {
    let (a, b) = pair().await;
    a.plan(Plan::new().retain(5, 37).release(0, 5).length(60)).await.unwrap();
    b.plan(Plan::new().retain(37, 100).fetch(0, 5, &a.base).length(60)).await.unwrap();
    a.commit(2).await.unwrap();
    b.commit(2).await.unwrap();
    assert_eq!((a.metric(FETCHED).await, b.metric(FETCHED).await), (0, octets_of(&a.descriptor, 5)));
    assert_eq!((a.metric(RETAINED).await, b.metric(RETAINED).await), (32, 23));
    assert_eq!((a.held().await, b.held().await), (vec![range(5, 37)], vec![range(0, 5), range(37, 60)]));
    let whole = sections(&a.descriptor, range(0, 5));
    assert_eq!(b.tokens(2, range(0, 5)).await.unwrap(), whole);
    assert_eq!(problem(a.tokens(2, range(4, 6)).await), (404, "kvsp-layers-unavailable"));
}

#[tokio::test]
async fn pieces_stay_below_the_limit_of_a_container() {
    let mut setup = Setup::alone();
    setup.agent.limits.max_container_octets = 200_000;
    let (a, b) = (Instance::start(setup.clone()).await, Instance::start(setup).await);
    let piece = 200_000 / octets_of(&a.descriptor, 1);
    let end = 5 * piece + 3;
    let split = shards(&[(1, &b.base), (end, &a.base)]);
    a.open(0, end, split.clone()).await;
    b.open(0, end, split).await;
    for start in (1..end).step_by(piece as usize / 2) {
        a.fill(range(start, end.min(start + piece / 2))).await;
    }
    b.plan(Plan::new().retain(0, 1).fetch(1, end, &a.base)).await.unwrap();
    b.commit(2).await.unwrap();
    assert_eq!(b.held().await, [range(1, end)]);
    let odd = range(piece - 3, 2 * piece - 5);
    assert_eq!(b.tokens(2, odd).await.unwrap(), sections(&a.descriptor, odd));
    assert_eq!(problem(b.tokens(2, range(1, end)).await), (413, "kvsp-limit-exceeded"));
}

#[tokio::test]
async fn a_context_that_nobody_has_begun_has_nothing_to_be_loaded() {
    let (a, b) = (member().await, member().await);
    // The source never heard of the map, and no length is told.
    let answer = b.plan(Plan::new().fetch(0, 50, &a.base)).await.unwrap();
    assert_eq!((answer.version, answer.prepared), (1, Some(2)));
    b.commit(2).await.unwrap();
    assert_eq!((b.held().await, b.metric(RESERVED).await), (vec![], 50));
    // A source that has a part.
    a.open(0, 9, shards(&[(50, &a.base)])).await;
    a.fill(range(0, 9)).await;
    client().end_map(&b.base, &map()).await.unwrap();
    assert_eq!(b.metric(RESERVED).await, 0);
    b.plan(Plan::new().fetch(0, 50, &a.base)).await.unwrap();
    assert_eq!(b.held().await, [range(0, 9)]);
}

#[tokio::test]
async fn a_plan_told_twice_at_once_is_loaded_once() {
    let (a, b) = pair().await;
    let plan = Plan::new().retain(0, 37).fetch(37, 100, &b.base).length(60).attempt(3);
    let (one, two, three) = tokio::join!(a.plan(plan.clone()), a.plan(plan.clone()), a.plan(plan));
    for answer in [one, two, three] {
        assert_eq!(answer.unwrap().prepared, Some(2));
    }
    assert_eq!(a.metric(FETCHED).await, octets_of(&a.descriptor, 23));
}
