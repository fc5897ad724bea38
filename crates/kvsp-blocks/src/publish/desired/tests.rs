use super::*;

const TTL: u64 = 3000;

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn desired() -> Desired<u32> {
    Desired::new(Pace { min_backoff_ms: 100, max_backoff_ms: 1000, max_withdrawals: 3 })
}

fn all(desired: &mut Desired<u32>, now: Time) -> Vec<Job<u32>> {
    desired.take(now, |_| true)
}

fn answer(desired: &mut Desired<u32>, jobs: &[Job<u32>], created: bool, now: Time) {
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
    desired.unanswered(&jobs, TTL, at(0), 0);
    desired.publish(2, at(10));
    assert_eq!(desired.next(), Some(at(100)));
    assert!(all(&mut desired, at(99)).is_empty());
    let jobs = all(&mut desired, at(100));
    assert_eq!(kinds(&jobs), [(1, JobKind::Put), (2, JobKind::Put)]);
    desired.unanswered(&jobs, TTL, at(100), 0);
    assert_eq!(desired.next(), Some(at(300)));
    // The index may have taken the record although no answer came.
    desired.withdraw(1, at(200));
    assert_eq!(kinds(&all(&mut desired, at(300)))[0], (1, JobKind::Delete));
}

#[test]
fn a_withdrawal_is_not_needed_once_the_record_has_expired() {
    let mut desired = desired();
    desired.publish(1, at(0));
    let jobs = all(&mut desired, at(0));
    answer(&mut desired, &jobs, true, at(0));
    desired.withdraw(1, at(10));
    let jobs = all(&mut desired, at(10));
    desired.unanswered(&jobs, TTL, at(TTL), 0);
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
    desired.was_reset();
    assert_eq!(kinds(&all(&mut desired, at(1))), [(4, JobKind::Put), (5, JobKind::Put)]);
}

#[test]
fn an_index_that_lost_a_record_is_told_everything_once() {
    let mut desired = desired();
    for key in 0..100 {
        desired.publish(key, at(0));
    }
    let jobs = all(&mut desired, at(0));
    answer(&mut desired, &jobs, true, at(0));
    let mut index = BTreeSet::new();
    let mut told = 0;
    let mut now = 1000;
    // Ten at a time, as batches are.
    while desired.next().is_some_and(|next| next <= at(now)) {
        let mut room = 10;
        let jobs = desired.take(at(now), |_| {
            room -= 1;
            room >= 0
        });
        told += jobs.len();
        for job in jobs {
            answer(&mut desired, &[job], index.insert(job.key), at(now));
        }
        now += 1;
        assert!(told < 300, "it ends");
    }
    assert!((100..=120).contains(&told), "{told}");
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
