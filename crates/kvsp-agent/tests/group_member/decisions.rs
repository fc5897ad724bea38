//! Commits and aborts, early, late and again.

use kvsp_proto::message::ReshardPlan;

use crate::support::{Instance, Setup, client};
use crate::team::*;

#[tokio::test]
async fn an_abort_discards_what_was_fetched_and_nothing_else() {
    let (a, b) = pair().await;
    let plan = Plan::new().retain(0, 37).fetch(37, 100, &b.base).length(60).attempt(1);
    a.plan(plan.clone()).await.unwrap();
    assert_eq!(a.held().await, [range(0, 60)]);
    for _ in 0..2 {
        let answer = a.abort_plan(2, 1).await.unwrap();
        assert_eq!((answer.version, answer.prepared), (1, None));
        assert_eq!((a.held().await, a.metric(RESERVED).await), (vec![range(0, 37)], 37));
    }
    assert_eq!(a.tokens(1, range(0, 37)).await.unwrap(), sections(&a.descriptor, range(0, 37)));
    assert_eq!(problem(a.commit(2).await), (409, "kvsp-reshard-conflict"));
    // The same plan, late, is refused; the next one for the same version is another.
    assert_eq!(problem(a.plan(plan.clone()).await), (409, "kvsp-reshard-conflict"));
    a.plan(plan.attempt(2)).await.unwrap();
    a.commit(2).await.unwrap();
    assert_eq!(problem(a.abort(2).await), (409, "kvsp-reshard-conflict"));
    assert_eq!(a.held().await, [range(0, 60)]);
}

#[tokio::test]
async fn a_decision_on_a_map_that_is_not_known() {
    let member = member().await;
    assert_eq!(problem(member.commit(2).await), (404, "kvsp-map-unknown"));
    assert_eq!(problem(member.abort(2).await), (404, "kvsp-map-unknown"));
    assert_eq!(problem(member.abort_plan(2, 7).await), (404, "kvsp-map-unknown"));
    let plan = Plan::new().retain(0, 9);
    assert_eq!(
        problem(member.plan(plan.clone().attempt(7)).await),
        (409, "kvsp-reshard-conflict"),
        "aborted before it came"
    );
    assert_eq!(member.metric(RESERVED).await, 0);
    // One without a number may be another than the one that was aborted.
    member.plan(plan).await.unwrap();
    member.commit(2).await.unwrap();
    assert_eq!(member.metric(RESERVED).await, 9);
    assert_eq!(problem(member.commit(3).await), (409, "kvsp-reshard-conflict"));
}

#[tokio::test]
async fn one_plan_at_a_time_and_from_the_version_that_holds() {
    let (a, b) = pair().await;
    a.plan(Plan::new().retain(0, 37).length(60)).await.unwrap();
    let other = Plan::new().retain(0, 30).release(30, 37).length(60);
    assert_eq!(problem(a.plan(other.clone()).await), (409, "kvsp-reshard-conflict"));
    a.commit(2).await.unwrap();
    a.plan(Plan::new().from(2).retain(0, 30).release(30, 37).length(60)).await.unwrap();
    a.commit(3).await.unwrap();
    assert_eq!(problem(a.plan(other).await), (409, "kvsp-reshard-conflict"));
    assert_eq!(problem(a.commit(5).await), (409, "kvsp-reshard-conflict"));
    assert_eq!(problem(a.abort(3).await), (409, "kvsp-reshard-conflict"));
    assert_eq!(a.held().await, [range(0, 30)]);
    // What it retains and releases is what it has.
    let false_claim = Plan::new().retain(37, 90).length(60);
    assert_eq!(problem(b.plan(false_claim).await), (422, "kvsp-invalid-shard-map"));
    assert_eq!(b.held().await, [range(37, 60)]);
}

#[tokio::test]
async fn an_abort_stops_a_load_that_hangs() {
    let (a, _) = pair().await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/kvsp/", silent.local_addr().unwrap()).parse().unwrap();
    let plan = Plan::new().retain(0, 37).fetch(37, 100, &base).length(60);
    let (planned, ()) = tokio::join!(a.plan(plan), async {
        // Once it is asked, the load is under way.
        let _connection = silent.accept().await.unwrap();
        assert_eq!(a.metric(RESERVED).await, 100);
        a.abort(2).await.unwrap();
        assert_eq!(a.metric(RESERVED).await, 37);
    });
    assert_eq!(problem(planned), (409, "kvsp-reshard-conflict"));
    assert_eq!(a.held().await, [range(0, 37)]);
}

#[tokio::test]
async fn a_restart_voids_what_was_acknowledged() {
    let (a, b) = pair().await;
    a.plan(Plan::new().retain(0, 37).fetch(37, 100, &b.base).length(60)).await.unwrap();
    a.running.stop().await.unwrap();
    let again = member().await;
    assert_eq!(problem(again.commit(2).await), (404, "kvsp-map-unknown"));
    assert_eq!(problem(again.tokens(2, range(0, 1)).await), (404, "kvsp-map-unknown"));
}

#[tokio::test]
async fn without_memory_a_plan_is_refused_and_nothing_stays_reserved() {
    let small = Setup { pool_octets: 1 << 20, ..Setup::alone() };
    let tight = Instance::start(small).await;
    let other = member().await;
    let split = shards(&[(20, &tight.base), (1_000_000, &other.base)]);
    tight.open(0, 20, split).await;
    tight.fill(range(0, 20)).await;
    let before = tight.metric("kvsp_context_tokens_reserved").await;
    let refused = tight.plan(Plan::new().retain(0, 20).fetch(20, 1_000_000, &other.base)).await;
    assert_eq!(problem(refused), (507, "kvsp-storage-full"));
    assert_eq!((before, tight.metric(RESERVED).await), (20, 20));
    assert_eq!(tight.held().await, [range(0, 20)]);
    // What fits is taken all the same, and the context that is too large for anybody is not.
    tight.plan(Plan::new().retain(0, 20).fetch(20, 40, &other.base)).await.unwrap();
    assert_eq!(tight.metric(RESERVED).await, 40);
    let huge = opening(&tight, 0, 0, shards(&[(u64::from(u32::MAX), &tight.base)]));
    let refused = client().open_context(&tight.base, &"huge".parse().unwrap(), &huge).await;
    assert_eq!(problem(refused), (507, "kvsp-storage-full"));
    let unknown = client().held(&tight.base, &"huge".parse().unwrap()).await;
    assert_eq!(problem(unknown), (404, "kvsp-map-unknown"));
}

#[tokio::test]
async fn a_plan_of_a_version_that_does_not_hold_costs_nothing_that_is_here() {
    let (a, b) = pair().await;
    let nothing = Plan::new().from(3);
    let retains = Plan::new().from(9).retain(0, 37);
    let forbidden = Plan::new().from(3).fetch(37, 100, &b.base);
    for plan in [nothing.clone(), retains, forbidden] {
        assert_eq!(problem(a.plan(plan).await), (409, "kvsp-reshard-conflict"));
    }
    // Nor does one that would succeed an open one, which the controller alone decides about.
    a.plan(Plan::new().release(0, 37).length(60)).await.unwrap();
    assert_eq!(problem(a.plan(Plan::new().from(2)).await), (409, "kvsp-reshard-conflict"));
    a.abort(2).await.unwrap();
    assert_eq!((a.held().await, a.metric(RESERVED).await), (vec![range(0, 37)], 37));
    assert_eq!(a.tokens(1, range(0, 37)).await.unwrap(), sections(&a.descriptor, range(0, 37)));
    // Without a number the same plan may come again after its abort.
    for _ in 0..2 {
        a.plan(Plan::new().retain(0, 37).length(60)).await.unwrap();
        a.abort(2).await.unwrap();
    }
    let other_scope = Plan::new().retain(0, 37).length(60);
    let other_scope = Plan(ReshardPlan { scope_id: Some(Default::default()), ..other_scope.0 });
    assert_eq!(problem(a.plan(other_scope).await), (422, "kvsp-invalid-shard-map"));
    a.plan(Plan::new().retain(0, 37).length(60)).await.unwrap();
}
