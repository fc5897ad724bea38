mod property;
mod storm;

use std::collections::BTreeMap;

use super::*;

const TTL: u64 = 3000;

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn desired() -> Desired<u32> {
    Desired::new(PACE)
}

const PACE: Pace =
    Pace { min_backoff_ms: 100, max_backoff_ms: 1000, max_refusal_ms: 1000, max_withdrawals: 3 };

fn all(desired: &mut Desired<u32>, now: Time) -> Vec<Job<u32>> {
    desired.take(now, |_| true)
}

fn answer(desired: &mut Desired<u32>, jobs: &[Job<u32>], created: bool, now: Time) {
    desired.heard(now, now, 0);
    for job in jobs {
        let answer = match job.kind {
            JobKind::Put => Answer::Published { ttl_ms: TTL, created },
            JobKind::Delete => Answer::Withdrawn,
        };
        desired.answered(*job, answer, now, now, 0);
    }
}

fn kinds(jobs: &[Job<u32>]) -> Vec<(u32, JobKind)> {
    jobs.iter().map(|job| (job.key, job.kind)).collect()
}

#[test]
fn a_record_is_refreshed_at_a_third_of_its_ttl() {
    let mut desired = desired();
    desired.publish(1, at(0));
    let jobs = all(&mut desired, at(0));
    assert_eq!(kinds(&jobs), [(1, JobKind::Put)]);
    assert!(all(&mut desired, at(0)).is_empty(), "it is under way");
    answer(&mut desired, &jobs, true, at(0));
    assert_eq!(desired.next(), Some(at(1000)));
    assert_eq!(desired.remaining_ms(&1, at(500)), 2500);
    assert!(all(&mut desired, at(999)).is_empty());
    let jobs = all(&mut desired, at(1000));
    desired.answered(jobs[0], Answer::Published { ttl_ms: TTL, created: false }, at(1000), at(1000), 249);
    assert_eq!(desired.next(), Some(at(1000 + 751)));
}

#[test]
fn changes_while_a_job_is_under_way_make_another() {
    let mut desired = desired();
    desired.publish(1, at(0));
    let jobs = all(&mut desired, at(0));
    desired.withdraw(1, at(1));
    answer(&mut desired, &jobs, true, at(2));
    let jobs = all(&mut desired, at(2));
    assert_eq!(kinds(&jobs), [(1, JobKind::Delete)]);
    desired.publish(1, at(3));
    answer(&mut desired, &jobs, true, at(4));
    let jobs = all(&mut desired, at(4));
    assert_eq!(kinds(&jobs), [(1, JobKind::Put)]);
    answer(&mut desired, &jobs, true, at(5));
    desired.withdraw(1, at(6));
    let jobs = all(&mut desired, at(6));
    answer(&mut desired, &jobs, true, at(7));
    assert_eq!((desired.len(), desired.next()), (0, None));
}

#[test]
fn what_the_index_never_heard_of_needs_no_withdrawal() {
    let mut desired = desired();
    desired.publish(1, at(0));
    desired.withdraw(1, at(0));
    desired.withdraw(2, at(0));
    assert_eq!((desired.len(), desired.next()), (0, None));
}

#[test]
fn an_outage_holds_everything_back_and_forgets_nothing() {
    let mut desired = desired();
    desired.publish(1, at(0));
    let jobs = all(&mut desired, at(0));
    desired.unanswered(&jobs, TTL, None, at(0), 0);
    desired.publish(2, at(10));
    assert_eq!(desired.next(), Some(at(100)));
    assert!(all(&mut desired, at(99)).is_empty());
    // One record finds out whether the index is back; the rest waits for its answer.
    let jobs = all(&mut desired, at(100));
    assert_eq!(kinds(&jobs), [(1, JobKind::Put)]);
    desired.unanswered(&jobs, TTL, None, at(100), 0);
    assert_eq!(desired.next(), Some(at(300)));
    // The index may have taken the record although no answer came; its withdrawal goes before all else.
    desired.withdraw(1, at(200));
    let jobs = all(&mut desired, at(300));
    assert_eq!(kinds(&jobs), [(1, JobKind::Delete)]);
    answer(&mut desired, &jobs, false, at(300));
    let jobs = all(&mut desired, at(300));
    assert_eq!(kinds(&jobs), [(2, JobKind::Put)]);
    answer(&mut desired, &jobs, true, at(300));
    assert_eq!(desired.len(), 1);
}

#[test]
fn an_index_that_says_when_to_come_again_is_not_asked_before() {
    let mut desired = desired();
    desired.publish(1, at(0));
    let jobs = all(&mut desired, at(0));
    desired.unanswered(&jobs, TTL, Some(7000), at(0), 0);
    assert_eq!(desired.next(), Some(at(7000)));
    let jobs = all(&mut desired, at(7000));
    // Everybody was told the same seconds: chance spreads them.
    desired.unanswered(&jobs, TTL, Some(2000), at(7000), 999);
    assert_eq!(desired.next(), Some(at(7000 + 2999)));
}

#[test]
fn a_withdrawal_is_not_needed_once_the_record_has_expired() {
    let mut desired = desired();
    desired.publish(1, at(0));
    let jobs = all(&mut desired, at(0));
    answer(&mut desired, &jobs, true, at(0));
    desired.withdraw(1, at(10));
    let jobs = all(&mut desired, at(10));
    desired.unanswered(&jobs, TTL, None, at(TTL), 0);
    assert!(all(&mut desired, at(2 * TTL)).is_empty());
    assert_eq!(desired.len(), 0);
}

#[test]
fn too_many_withdrawals_become_one() {
    let mut desired = desired();
    for key in 0..6 {
        desired.publish(key, at(0));
    }
    let jobs = all(&mut desired, at(0));
    answer(&mut desired, &jobs, true, at(0));
    for key in 0..4 {
        desired.withdraw(key, at(1));
    }
    assert!(desired.needs_reset(at(1)));
    assert_eq!(desired.len(), 2);
    assert!(all(&mut desired, at(1)).is_empty(), "nothing goes before the reset");
    desired.was_reset(at(1), 0);
    let jobs = all(&mut desired, at(1));
    assert_eq!(kinds(&jobs), [(4, JobKind::Put), (5, JobKind::Put)]);
    // Both are new to the index, which is no loss.
    answer(&mut desired, &jobs, true, at(2));
    assert!(desired.next() > Some(at(TTL / 6)));
}

/// An index that keeps the `seq` of each record.
#[derive(Clone, Default)]
struct Index {
    records: BTreeMap<u32, u64>,
    seq: u64,
}

/// Runs until nothing is due before `until`; answers when what was told. Questions are no records.
fn settle(desired: &mut Desired<u32>, index: &mut Index, from: u64, until: u64) -> Vec<(u64, u32)> {
    let mut told = Vec::new();
    let mut now = from;
    while let Some(next) = desired.next().filter(|next| *next <= at(until)) {
        now = now.max(next.as_micros().div_ceil(1000));
        if let Some((key, seq)) = desired.question(at(now)) {
            let known = index.records.get(&key).is_some_and(|known| *known >= seq);
            desired.is_known(known, at(now), at(now), 0);
            continue;
        }
        let jobs = all(desired, at(now));
        desired.heard(at(now), at(now), 0);
        for job in jobs {
            index.seq += 1;
            let answer = match job.kind {
                JobKind::Put => {
                    told.push((now, job.key));
                    let created = index.records.insert(job.key, index.seq).is_none();
                    Answer::Published { ttl_ms: 600_000, created }
                }
                JobKind::Delete => {
                    index.records.remove(&job.key);
                    Answer::Withdrawn
                }
            };
            desired.answered(Job { seq: index.seq, ..job }, answer, at(now), at(now), 0);
        }
        now += 1;
        assert!(told.len() < 5000, "it ends");
    }
    told
}

fn filled(desired: &mut Desired<u32>, index: &mut Index) {
    desired.set_canary(5000);
    (0..1000).for_each(|key| desired.publish(key, at(0)));
    assert_eq!(settle(desired, index, 0, 100).len(), 1000);
}

#[test]
fn an_idle_holder_finds_an_empty_index_within_seconds_and_tells_everything_once() {
    let (mut desired, mut index) = (desired(), Index::default());
    filled(&mut desired, &mut index);
    index.records.clear();
    let told = settle(&mut desired, &mut index, 100, 30_000);
    assert_eq!((told.len(), index.records.len()), (1000, 1000));
    let (first, last) = (told[0].0, told[999].0);
    assert!(first <= 6250 && last <= first + 5000, "{first} {last}");
}

#[test]
fn nobody_asks_after_a_record_of_a_holder_without_any() {
    let (mut desired, mut index) = (desired(), Index::default());
    desired.set_canary(5000);
    assert_eq!(desired.next(), None);
    desired.publish(1, at(0));
    settle(&mut desired, &mut index, 0, 10);
    assert_eq!(desired.next(), Some(at(5000)), "a canary");
    desired.withdraw(1, at(20));
    settle(&mut desired, &mut index, 20, 30);
    assert_eq!((desired.next(), index.records.len()), (None, 0));
}

#[test]
fn an_index_that_went_back_to_a_snapshot_is_found_out() {
    // What was told after the snapshot: a new record, a refresh, and one that came again.
    for change in 0..3 {
        let (mut desired, mut index) = (desired(), Index::default());
        filled(&mut desired, &mut index);
        let snapshot = index.clone();
        desired.publish(5000, at(200));
        settle(&mut desired, &mut index, 200, 300);
        if change == 1 {
            desired.publish(7, at(400));
        } else if change == 2 {
            desired.withdraw(7, at(400));
            settle(&mut desired, &mut index, 400, 450);
            desired.publish(7, at(500));
        }
        settle(&mut desired, &mut index, 400, 600);
        index.records = snapshot.records;
        settle(&mut desired, &mut index, 600, 12_000);
        assert!(index.records.contains_key(&5000), "{change}");
    }
}

#[test]
fn a_new_record_does_not_hide_a_loss() {
    let (mut desired, mut index) = (desired(), Index::default());
    filled(&mut desired, &mut index);
    index.records.clear();
    desired.publish(5000, at(300));
    // The question goes before the record, which would else be the one to ask after.
    settle(&mut desired, &mut index, 300, 6000);
    assert_eq!(index.records.len(), 1001);
}

#[test]
fn a_withdrawal_goes_before_all_else_and_news_before_what_is_told_again() {
    let (mut desired, mut index) = (desired(), Index::default());
    filled(&mut desired, &mut index);
    index.records.clear();
    let told = settle(&mut desired, &mut index, 100, 6000);
    assert!((2..1000).contains(&told.len()), "{}", told.len());
    let now = desired.next().unwrap().as_micros().div_ceil(1000) + 1;
    desired.publish(5000, at(now));
    desired.withdraw(999, at(now));
    assert_eq!(desired.question(at(now)), None);
    let jobs = all(&mut desired, at(now));
    assert_eq!(kinds(&jobs[..2]), [(999, JobKind::Delete), (5000, JobKind::Put)]);
    assert!(jobs.len() > 2);
}

#[test]
fn refreshes_of_blocks_that_came_together_spread_evenly() {
    let mut desired = desired();
    (0..3000).for_each(|key| desired.publish(key, at(0)));
    let (mut random, mut seconds) = (1_u64, vec![0_u32; 1200]);
    let ttl_ms = 600_000;
    while let Some(next) = desired.next().filter(|next| *next < at(1_200_000)) {
        let jobs = all(&mut desired, next);
        desired.heard(next, next, 0);
        for job in jobs {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seconds[usize::try_from(next.as_micros() / 1_000_000).unwrap()] += 1;
            let created = next == at(0);
            desired.answered(job, Answer::Published { ttl_ms, created }, next, next, random >> 33);
        }
    }
    // 3000 records, each about every 150 s: 20 a second.
    let late = &seconds[600..];
    let (most, total) = (late.iter().max().unwrap(), late.iter().sum::<u32>());
    assert!((10_000..14_000).contains(&total) && *most <= 45, "{most} {total}");
}

#[test]
fn a_refused_job_comes_again_later_and_later() {
    let mut desired = desired();
    desired.publish(1, at(0));
    let mut now = 0;
    for wait in [100, 200, 400, 800, 1000, 1000] {
        let jobs = all(&mut desired, at(now));
        desired.answered(jobs[0], Answer::Refused, at(now), at(now), 0);
        desired.publish(1, at(now));
        assert_eq!(desired.next(), Some(at(now + wait)));
        now += wait;
    }
}
