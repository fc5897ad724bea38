//! The lifecycle of draft section 6.3 and the liveness of profile section 6.

use std::time::Duration;

use kvsp_proto::id::CompatId;
use kvsp_proto::record::InstanceState::{Active, Draining, Failed, Sleeping};
use kvsp_proto::record::{InstanceState, InstanceStatus};
use kvsp_proto::uri::BaseUri;
use serde_json::json;

use super::{Accepted, Instances, InstancesConfig, StateError, StatusError};
use crate::time::Time;

const START: Time = Time::from_millis(5_000);
const ANY: CompatId = CompatId([1; 32]);

fn uri(name: &str) -> BaseUri {
    format!("https://{name}/").parse().unwrap()
}

fn status(name: &str, epoch: u64, state: InstanceState) -> InstanceStatus {
    InstanceStatus::from_value(json!({
        "instance": uri(name), "epoch": epoch, "state": state, "ttl_ms": 3_000, "queued": 2
    }))
    .unwrap()
}

fn fleet(names: &[&str]) -> Instances {
    let mut all = Instances::new(InstancesConfig::default(), START);
    for name in names {
        all.report(status(name, 1, Active), START).unwrap();
    }
    all
}

fn state_of(all: &mut Instances, name: &str, now: Time) -> InstanceState {
    all.view(&uri(name), now).unwrap().state
}

/// The clock goes on in steps short enough to be no stall.
fn run(all: &mut Instances, from: Time, millis: u64) -> (Time, Vec<BaseUri>) {
    let mut failed = Vec::new();
    for step in (0..=millis).step_by(500) {
        failed.extend(all.tick(from.after_millis(step)));
    }
    let end = from.after_millis(millis);
    failed.extend(all.tick(end));
    (end, failed)
}

#[test]
fn an_instance_fails_when_its_status_expires_and_only_then() {
    let mut all = fleet(&["a", "b"]);
    let (now, failed) = run(&mut all, START, 2_999);
    assert_eq!((failed, state_of(&mut all, "a", now)), (vec![], Active));
    all.report(status("b", 1, Active), now).unwrap();
    let (now, failed) = run(&mut all, now, 1);
    assert_eq!((failed, state_of(&mut all, "a", now)), (vec![uri("a")], Failed));
    let mut now = now;
    for _ in 0..6 {
        now = now.after_millis(500);
        assert!(all.view(&uri("b"), now).is_some());
    }
    assert!(all.active(ANY, now).is_empty());
    assert_eq!(all.tick(now), [uri("b")].into(), "whoever looked first");
    all.report(status("b", 1, Active), now).unwrap();
    assert_eq!((all.count(Failed), all.count(Active)), (1, 1));
    assert_eq!(all.set_state(&uri("a"), Active, now), Err(StateError::Failed));
    assert!(all.live_status(&uri("a"), now).is_none());
    all.report(status("a", 1, Active), now).unwrap();
    assert_eq!(state_of(&mut all, "a", now), Active, "it was only late");
}

#[test]
fn a_stall_of_our_own_gives_everyone_a_full_ttl() {
    let mut all = fleet(&["a"]);
    let after = START.after_millis(60_000);
    assert!(all.tick(after).is_empty());
    let (now, failed) = run(&mut all, after, 2_999);
    assert_eq!((failed, state_of(&mut all, "a", now)), (vec![], Active));
    assert_eq!(run(&mut all, now, 1).1, vec![uri("a")]);
    assert!(all.tick(after.after_millis(99_000)).is_empty());
    assert_eq!(all.count(Failed), 1, "a stall revives no one");
}

#[test]
fn epochs_and_seqs_order_statuses() {
    let mut all = fleet(&[]);
    let with = |epoch, seq| InstanceStatus { seq, ..status("a", epoch, Active) };
    assert!(!all.report(with(5, Some(9)), START).unwrap().restarted);
    assert_eq!(all.report(with(4, Some(10)), START), Err(StatusError::StaleEpoch { known: 5 }));
    assert_eq!(all.report(with(5, Some(8)), START), Err(StatusError::StaleSeq { known: 9 }));
    assert!(all.report(with(5, Some(9)), START).is_ok());
    let accepted = all.report(with(6, Some(1)), START).unwrap();
    assert_eq!(accepted, Accepted { state: Active, restarted: true });
    let (now, _) = run(&mut all, START, 4_000);
    assert_eq!(
        all.report(with(5, None), now),
        Err(StatusError::StaleEpoch { known: 6 }),
        "after its failure"
    );
}

#[test]
fn an_instance_may_sleep_while_others_are_awake() {
    let mut all = fleet(&["a", "b"]);
    let asks =
        |name| InstanceStatus { requested_state: Some(Sleeping), queued: 0, ..status(name, 1, Active) };
    assert_eq!(all.report(asks("a"), START).unwrap().state, Draining);
    assert_eq!(state_of(&mut all, "a", START), Draining);
    assert_eq!(all.report(asks("b"), START).unwrap().state, Active, "the last one stays");
    assert_eq!(all.report(status("a", 1, Active), START).unwrap().state, Draining, "it had not heard");
    assert_eq!(all.report(status("a", 1, Draining), START).unwrap().state, Draining);
    assert_eq!(all.report(status("a", 1, Sleeping), START).unwrap().state, Sleeping);
    assert_eq!(all.report(status("a", 1, Active), START).unwrap().state, Sleeping, "only by an order");
    assert_eq!(state_of(&mut all, "a", START), Draining);
    assert_eq!(all.report(status("a", 1, Sleeping), START).unwrap().state, Sleeping);
    assert_eq!(all.set_state(&uri("a"), Active, START), Ok(Active));
    assert_eq!(state_of(&mut all, "a", START), Sleeping, "until it says so");
    assert_eq!(all.report(status("a", 1, Sleeping), START).unwrap().state, Active);
    assert_eq!(all.report(status("a", 1, Active), START).unwrap().state, Active);
    assert_eq!(state_of(&mut all, "a", START), Active);
}

#[test]
fn states_are_ordered_and_taken_on_ones_own_account() {
    let mut all = fleet(&["a"]);
    assert_eq!(all.report(status("a", 1, Draining), START).unwrap().state, Draining, "it drains itself");
    assert_eq!(all.report(status("a", 1, Active), START).unwrap().state, Active, "and returns");
    all.set_state(&uri("a"), Draining, START).unwrap();
    assert!(all.active(ANY, START).is_empty());
    assert_eq!(all.report(status("a", 1, Active), START).unwrap().state, Draining, "an order stands");
    all.set_state(&uri("a"), Sleeping, START).unwrap();
    assert_eq!(state_of(&mut all, "a", START), Draining, "it has requests to finish");
    assert_eq!(all.report(status("a", 1, Draining), START).unwrap().state, Sleeping);
    assert_eq!(all.report(status("a", 2, Active), START).unwrap().state, Active, "a new start is a new one");
    assert_eq!(all.set_state(&uri("a"), Failed, START), Err(StateError::NotAState));
    assert_eq!(all.set_state(&uri("x"), Active, START), Err(StateError::Unknown));
}

#[test]
fn placements_count_as_queued_until_the_next_status() {
    let mut all = fleet(&["a", "b"]);
    all.placed(&uri("a"));
    all.placed(&uri("a"));
    let queued = |all: &mut Instances| all.active(ANY, START).iter().map(|i| i.queued).collect::<Vec<_>>();
    assert_eq!(queued(&mut all), [4, 2]);
    all.report(status("a", 1, Active), START).unwrap();
    assert_eq!(queued(&mut all), [2, 2]);
}

#[test]
fn the_fleets_service_time_stands_in() {
    let mut all = fleet(&["a", "b", "c"]);
    let means =
        |all: &mut Instances| all.active(ANY, START).iter().map(|i| i.mean_service_us).collect::<Vec<_>>();
    assert_eq!(means(&mut all), [0.0, 0.0, 0.0]);
    for (name, us) in [("a", Some(100.0)), ("b", Some(300.0)), ("c", Some(-1.0))] {
        all.report(InstanceStatus { mean_service_us: us, ..status(name, 1, Active) }, START).unwrap();
    }
    assert_eq!(means(&mut all), [100.0, 300.0, 200.0]);
}

#[test]
fn only_instances_of_the_compatibility_are_active_for_it() {
    let mut all = fleet(&["a"]);
    let other = InstanceStatus { compat_ids: Some(vec![CompatId([2; 32])]), ..status("b", 1, Active) };
    all.report(other, START).unwrap();
    assert_eq!(all.active(ANY, START).len(), 1);
    assert_eq!(all.active(CompatId([2; 32]), START).len(), 2);
}

#[test]
fn a_new_instance_displaces_the_longest_failed() {
    let config = InstancesConfig { max_instances: 2, stall: Duration::MAX, ..InstancesConfig::default() };
    let mut all = Instances::new(config, START);
    all.report(status("b", 1, Active), START).unwrap();
    all.report(status("a", 1, Active), START.after_millis(1)).unwrap();
    assert_eq!(all.report(status("c", 1, Active), START), Err(StatusError::Full { max: 2 }));
    let later = START.after_millis(9_000);
    all.report(status("c", 1, Active), later).unwrap();
    let names: Vec<BaseUri> = all.list(later).into_iter().map(|s| s.instance).collect();
    assert_eq!(names, [uri("a"), uri("c")]);
}
