//! The lifecycle of draft section 6.3 and the liveness of profile section 6.

use std::time::Duration;

use kvsp_proto::id::CompatId;
use kvsp_proto::record::InstanceState::{Active, Draining, Failed, Sleeping};
use kvsp_proto::record::{InstanceState, InstanceStatus};
use kvsp_proto::uri::BaseUri;
use serde_json::json;

use super::{Accepted, InstanceChange, InstanceRow, Instances, InstancesConfig, StateError, StatusError};
use crate::time::Time;

const START: Time = Time::from_millis(5_000);
const ANY: CompatId = CompatId([1; 32]);

fn uri(name: &str) -> BaseUri {
    format!("https://{name}/").parse().unwrap()
}

fn status(name: &str, epoch: u64, state: InstanceState) -> InstanceStatus {
    InstanceStatus::from_value(json!({
        "instance": uri(name), "epoch": epoch, "state": state, "ttl_ms": 3_000, "queued": 2, "batch_size": 8
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
    all.view(&uri(name), now).unwrap().status.state
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
    assert_eq!(all.set_state(&uri("a"), Active, false, now), Err(StateError::Failed));
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
    let want = Accepted { state: Active, restarted: true, fresh: true, activated: true, migrate: false };
    assert_eq!(accepted, want);
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
    assert_eq!(all.set_state(&uri("a"), Active, false, START), Ok(Active));
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
    all.set_state(&uri("a"), Draining, false, START).unwrap();
    assert!(all.active(ANY, START).is_empty());
    assert_eq!(all.report(status("a", 1, Active), START).unwrap().state, Draining, "an order stands");
    all.set_state(&uri("a"), Sleeping, false, START).unwrap();
    assert_eq!(state_of(&mut all, "a", START), Draining, "it has requests to finish");
    assert_eq!(all.report(status("a", 1, Draining), START).unwrap().state, Sleeping);
    assert_eq!(all.report(status("a", 2, Active), START).unwrap().state, Active, "a new start is a new one");
    assert_eq!(all.set_state(&uri("a"), Failed, false, START), Err(StateError::NotAState));
    assert_eq!(all.set_state(&uri("x"), Active, false, START), Err(StateError::Unknown));
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
    let names: Vec<BaseUri> = all.list(later).into_iter().map(|s| s.status.instance).collect();
    assert_eq!(names, [uri("a"), uri("c")]);
}

#[test]
fn nobody_falls_asleep_while_the_others_are_busy_or_compute_something_else() {
    let asks = || InstanceStatus { requested_state: Some(Sleeping), queued: 0, ..status("a", 1, Active) };
    let other = |running, queued| InstanceStatus { batch_size: 8, running, queued, ..status("b", 1, Active) };
    let answer = |other: InstanceStatus, placed: u64| {
        let mut all = fleet(&["a"]);
        all.report(other, START).unwrap();
        (0..placed).for_each(|_| all.placed(&uri("b")));
        all.report(asks(), START).unwrap().state
    };
    assert_eq!(answer(other(3, 1), 0), Draining, "half of its batch");
    assert_eq!(answer(other(4, 1), 0), Active, "above the threshold");
    assert_eq!(answer(other(3, 1), 1), Active, "with what was placed there since");
    let computes = |n| Some(vec![CompatId([n; 32])]);
    let mut all = Instances::new(InstancesConfig::default(), START);
    let asking = || InstanceStatus { compat_ids: computes(1), ..asks() };
    all.report(InstanceStatus { compat_ids: computes(2), ..other(0, 0) }, START).unwrap();
    assert_eq!(all.report(asking(), START).unwrap().state, Active, "nobody else computes it");
    all.report(InstanceStatus { compat_ids: computes(1), ..other(0, 0) }, START).unwrap();
    assert_eq!(all.report(asking(), START).unwrap().state, Draining);
    let config = InstancesConfig { min_active: 0, ..InstancesConfig::default() };
    let mut all = Instances::new(config, START);
    assert_eq!(all.report(asking(), START).unwrap().state, Draining, "the last one where that is allowed");
}

#[test]
fn an_answer_counts_as_a_report() {
    let mut all = fleet(&["a"]);
    all.report(status("a", 1, Sleeping), START).unwrap();
    assert!(all.active(ANY, START).is_empty());
    assert_eq!(all.wakeable(ANY, START).len(), 1);
    assert!(!all.answered(&uri("a"), 1, Active, START), "nobody told it to wake");
    assert_eq!(state_of(&mut all, "a", START), Draining, "so it is told to sleep again");
    all.answered(&uri("a"), 1, Sleeping, START);
    all.set_state(&uri("a"), Active, false, START).unwrap();
    assert!(!all.answered(&uri("a"), 2, Active, START), "another start");
    assert!(all.answered(&uri("a"), 1, Active, START));
    assert!(!all.answered(&uri("a"), 1, Active, START), "once");
    assert_eq!(all.active(ANY, START).len(), 1);
    let (now, _) = run(&mut all, START, 3_000);
    assert!(!all.answered(&uri("a"), 1, Active, now), "it has failed");
}

/// Writes what is to be written.
fn write(all: &mut Instances, disk: &mut Vec<InstanceRow>) -> usize {
    let changes = all.unrecorded();
    for change in &changes {
        let (InstanceChange::Put(InstanceRow { instance, .. }) | InstanceChange::Forget(instance)) = change;
        disk.retain(|known| known.instance != *instance);
        if let InstanceChange::Put(row) = change {
            disk.push(row.clone());
        }
    }
    let count = changes.len();
    all.recorded(changes);
    count
}

/// The controller's process ends: what was written is what the next one knows.
fn restarted(disk: &[InstanceRow]) -> Instances {
    let config = InstancesConfig { max_instances: 2, ..InstancesConfig::default() };
    Instances::restore(config, disk.to_vec(), START)
}

#[test]
fn epochs_and_orders_outlive_the_controller() {
    let mut disk = Vec::new();
    let mut all = fleet(&[]);
    all.report(status("a", 5, Active), START).unwrap();
    all.report(status("b", 7, Active), START).unwrap();
    assert!(!all.is_recorded(&uri("a")));
    assert_eq!(write(&mut all, &mut disk), 2);
    assert!(all.is_recorded(&uri("a")) && all.unrecorded().is_empty());
    all.report(status("a", 5, Active), START).unwrap();
    assert!(all.is_recorded(&uri("a")), "a status as usual needs no write");
    all.set_state(&uri("a"), Draining, true, START).unwrap();
    assert!(!all.is_recorded(&uri("a")));
    all.take_back(&uri("a"));
    assert_eq!((state_of(&mut all, "a", START), all.migrates(&uri("a"))), (Active, false));
    all.set_state(&uri("a"), Draining, true, START).unwrap();
    assert_eq!(write(&mut all, &mut disk), 1);

    let mut all = restarted(&disk);
    assert!(all.list(START).is_empty(), "they have not reported yet");
    assert_eq!(all.report(status("a", 4, Active), START), Err(StatusError::StaleEpoch { known: 5 }));
    let accepted = all.report(status("a", 5, Active), START).unwrap();
    let want = Accepted { state: Draining, restarted: false, fresh: false, activated: false, migrate: true };
    assert_eq!(accepted, want, "the order stands");
    all.report(status("a", 5, Sleeping), START).unwrap();
    all.set_state(&uri("b"), Sleeping, false, START).expect("it may still report");
    write(&mut all, &mut disk);

    let mut all = restarted(&disk);
    assert_eq!(
        all.report(status("a", 5, Active), START).unwrap().state,
        Sleeping,
        "it wakes by an order only"
    );
    assert_eq!(all.report(status("b", 7, Active), START).unwrap().state, Sleeping);
    let accepted = all.report(status("b", 8, Active), START).unwrap();
    assert_eq!((accepted.state, accepted.restarted), (Active, true), "a new start is a new one");

    // A third one displaces who has been silent the longest, and only after the TTL.
    write(&mut all, &mut disk);
    let mut all = restarted(&disk);
    assert_eq!(all.report(status("c", 1, Active), START), Err(StatusError::Full { max: 2 }));
    let (now, _) = run(&mut all, START, 1_000);
    all.report(status("b", 8, Active), now).unwrap();
    let (now, _) = run(&mut all, now, 2_000);
    assert_eq!(all.set_state(&uri("a"), Active, false, now), Err(StateError::Failed));
    all.report(status("c", 1, Active), now).unwrap();
    assert!(all.unrecorded().contains(&InstanceChange::Forget(uri("a"))));
    assert_eq!(all.report(status("a", 1, Active), now), Err(StatusError::Full { max: 2 }));
}

#[test]
fn who_handed_over_is_not_woken_by_a_placement() {
    let mut all = fleet(&["a"]);
    all.set_state(&uri("a"), Draining, true, START).unwrap();
    all.report(status("a", 1, Sleeping), START).unwrap();
    assert!(all.wakeable(ANY, START).is_empty());
    all.set_state(&uri("a"), Sleeping, false, START).unwrap();
    assert_eq!(all.wakeable(ANY, START).len(), 1, "another order is another wish");
}

#[test]
fn after_a_restart_those_who_were_active_are_expected_for_a_third_of_their_ttl() {
    let row = |name: &str, state| InstanceRow {
        instance: uri(name),
        epoch: 1,
        ttl_ms: 3000,
        state,
        ordered: false,
        migrate: false,
    };
    let restore = |rows| Instances::restore(InstancesConfig::default(), rows, START);
    let mut all = restore(vec![row("a", Active), row("b", Sleeping)]);
    let until = START.after_millis(1250);
    assert_eq!(all.expected_until(START), Some(until));
    assert_eq!(all.expected_until(until), None, "it is late, and waited for no longer");
    let mut all = restore(vec![row("a", Active)]);
    all.report(status("a", 1, Active), START).unwrap();
    assert_eq!(all.expected_until(START), None);
    assert_eq!(restore(vec![row("b", Sleeping)]).expected_until(START), None);
}
