use super::*;

fn order(policy: &TinyLfu<u32>) -> Vec<u32> {
    policy.order().collect()
}

/// Inserts a block and evicts the first one where there are more than `most`.
fn put(policy: &mut TinyLfu<u32>, key: u32, most: usize) {
    policy.insert(key);
    if policy.uses.len() > most {
        let first = policy.order().next().unwrap();
        policy.remove(&first);
    }
}

#[test]
fn blocks_used_once_go_by_age() {
    let mut policy = TinyLfu::default();
    (1..=4).for_each(|key| policy.insert(key));
    policy.remove(&3);
    policy.touch(&3);
    assert_eq!(order(&policy), [1, 2, 4]);
}

#[test]
fn a_scan_does_not_drive_out_what_is_used_again_and_again() {
    let mut policy = TinyLfu::default();
    let hot: Vec<u32> = (0..10).collect();
    hot.iter().for_each(|key| put(&mut policy, *key, 100));
    for round in 0..5 {
        policy.touch_prefix(&hot);
        (0..20).for_each(|n| put(&mut policy, 1000 + round * 20 + n, 100));
    }
    (2000..2250).for_each(|key| put(&mut policy, key, 100));
    let kept = order(&policy);
    assert!(hot.iter().all(|key| kept.contains(key)), "{kept:?}");
}

#[test]
fn what_is_not_used_any_more_goes() {
    let mut policy = TinyLfu::default();
    for round in 0..15 {
        put(&mut policy, 1, 100);
        (0..50).for_each(|n| put(&mut policy, 1000 + round * 50 + n, 100));
    }
    (10_000..10_400).for_each(|key| put(&mut policy, key, 100));
    assert!(!order(&policy).contains(&1));
}

#[test]
fn a_block_that_comes_back_is_remembered() {
    let mut policy = TinyLfu::default();
    (0..3).for_each(|_| {
        policy.insert(1);
        policy.remove(&1);
    });
    (2..=20).for_each(|key| policy.insert(key));
    policy.insert(1);
    policy.insert(21);
    assert_eq!(order(&policy).last(), Some(&1));
}

#[test]
fn the_tail_of_a_prefix_goes_before_its_head() {
    let mut policy = TinyLfu::default();
    (1..=4).for_each(|key| policy.insert(key));
    policy.touch_prefix(&[1, 2, 3]);
    assert_eq!(order(&policy), [4, 3, 2, 1]);
}

#[test]
fn a_tail_that_looks_more_used_than_its_head_still_goes_first() {
    let mut policy = TinyLfu::default();
    (1..=64).for_each(|key| policy.insert(key));
    for _ in 0..4 {
        policy.touch(&3);
        policy.touch(&4);
        policy.touch(&5);
    }
    policy.touch_prefix(&[1, 2, 3]);
    let order = order(&policy);
    let at = |key| order.iter().position(|k| *k == key);
    assert!(at(3) < at(2) && at(2) < at(1), "{order:?}");
}

#[test]
fn uses_in_quick_succession_are_one() {
    let mut policy = TinyLfu::default();
    (0..6400).for_each(|key| policy.insert(key));
    for _ in 0..10 {
        policy.touch(&6399);
    }
    assert_eq!(policy.sketch.estimate(&6399), 1);
    (0..100).for_each(|key| policy.touch(&key));
    policy.touch(&6399);
    assert_eq!(policy.sketch.estimate(&6399), 2);
}
