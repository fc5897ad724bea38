use kvsp_net::metrics::Metrics;
use kvsp_proto::message::TokenRange;

use super::*;

fn shards(member: u16) -> Vec<Shard> {
    let instance = format!("http://127.0.0.1:{member}/kvsp/").parse().unwrap();
    vec![Shard { tokens: TokenRange::new(0, 100).unwrap(), instance }]
}

fn map() -> MapId {
    "m".parse().unwrap()
}

/// A lead that is ready at version 3, with so many positions stored and those up to the other staged.
fn ready(leads: &Leads, stored: u64, staged: u64) -> Arc<Lead> {
    let (lead, _) = leads.begin(map(), 1, true).unwrap();
    lead.with(|standing| {
        standing.version = 3;
        standing.told = 3;
        standing.is_ready = true;
        standing.stored = stored;
        standing.staged = Ranges::one(stored..staged);
    });
    lead
}

#[test]
fn the_staging_is_kept_from_the_length_on_until_the_decision() {
    let leads = Leads::new(&Metrics::new());
    let lead = ready(&leads, 10, 20);
    assert_eq!(leads.length(&map(), 3, 4, shards(1)).unwrap().unwrap(), 10);
    // What the owners have by now is kept all the same, and the length stays as it was told.
    assert!(lead.with(|standing| standing.stored_to(16)).is_empty());
    assert_eq!(leads.length(&map(), 3, 4, shards(1)).unwrap().unwrap(), 10);
    // Another plan to the same version follows an abort that was not heard of.
    assert_eq!(leads.length(&map(), 3, 4, shards(2)).unwrap().unwrap(), 16);
    assert_eq!(lead.with(|standing| standing.stored_to(16)), Ranges::one(10..16));
    leads.aborted(&map(), 4);
    assert_eq!(lead.with(|standing| standing.stored_to(20)), Ranges::one(16..20));
}

#[test]
fn a_commit_is_told_with_the_shards_of_its_plan() {
    let leads = Leads::new(&Metrics::new());
    let lead = ready(&leads, 10, 20);
    leads.length(&map(), 3, 4, shards(1)).unwrap().unwrap();
    leads.committed(&map(), 4);
    leads.committed(&map(), 4);
    lead.with(|standing| {
        assert_eq!((standing.told, standing.told_shards.take()), (4, Some((4, shards(1)))));
        assert!(standing.plan.is_none());
    });
    let refused = leads.length(&map(), 3, 4, shards(2)).unwrap().unwrap_err();
    assert_eq!(refused.problem_type(), Some(ProblemType::ReshardConflict));
    leads.committed(&"other".parse().unwrap(), 9);
    assert!(leads.length(&"other".parse().unwrap(), 8, 9, shards(1)).is_none());
}

/// An owner that died just before the commit leaves the leader between two versions, and only another change leads
/// on from there.
#[test]
fn a_change_may_follow_before_the_one_before_is_carried_out() {
    let leads = Leads::new(&Metrics::new());
    let lead = ready(&leads, 10, 20);
    assert_eq!(leads.length(&map(), 3, 4, shards(1)).unwrap().unwrap(), 10);
    lead.with(|standing| standing.stored_to(20));
    // That version 4 holds is told by the question for the change to version 5.
    assert_eq!(leads.length(&map(), 4, 5, shards(2)).unwrap().unwrap(), 10);
    lead.with(|standing| {
        assert_eq!((standing.version, standing.told), (3, 4));
        assert!(standing.stored_to(20).is_empty(), "what the owners of version 4 may lack is kept");
    });
}

#[test]
fn the_length_is_told_once_the_context_was_put_together() {
    let leads = Leads::new(&Metrics::new());
    let lead = ready(&leads, 10, 20);
    lead.with(|standing| standing.is_ready = false);
    assert!(leads.length(&map(), 3, 4, shards(1)).is_none());
    lead.with(|standing| standing.is_ready = true);
    assert_eq!(leads.length(&map(), 3, 4, shards(1)).unwrap().unwrap(), 10);
}

#[test]
fn a_higher_epoch_takes_the_place_of_a_lower_one() {
    let leads = Leads::new(&Metrics::new());
    let (first, none) = leads.begin(map(), 1, true).unwrap();
    assert!(none.is_none() && leads.leads(&map()));
    let (second, before) = leads.begin(map(), 2, true).unwrap();
    assert!(first.cancel.is_cancelled() && before.is_some_and(|before| Arc::ptr_eq(&before, &first)));
    // The first one is late to end, and takes nothing away.
    assert!(!leads.end(&first) && leads.leads(&map()));
    assert_eq!(leads.begin(map(), 1, true).unwrap_err(), LeadError::Taken);
    assert_eq!(leads.begin(map(), 3, false).unwrap_err(), LeadError::Taken);
    assert!(leads.end(&second) && leads.count() == 0);
}
