//! What the index should know of each block, and what remains to be told: a map of desired states, so that
//! no outage of the index can make it grow beyond the blocks it is about.

use std::collections::{BTreeMap, BTreeSet};

use kvsp_core::time::Time;

use super::pace::{Pace, Pacer};
use super::watch::Watch;

/// Withdrawals sent at once to an index that did not answer before.
const PROBE_WITHDRAWALS: usize = 100;

/// Refreshes of long-lived records that are due within this many µs go together.
const MICROS_TOGETHER: u64 = 1_000_000;

/// Something to tell the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Job<K> {
    pub(crate) key: K,
    /// The state told; anything newer makes another job.
    pub(crate) version: u64,
    pub(crate) kind: JobKind,
    /// The `seq` with which it is told; filled in by who tells it.
    pub(crate) seq: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobKind {
    Put,
    Delete,
}

/// What the index answered to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A record is there for `ttl_ms`; `created` where none was there before.
    Published { ttl_ms: u64, created: bool },
    /// No record is there.
    Withdrawn,
    /// The index refused this job; it is repeated later.
    Refused,
    /// The index did not look at this job; it is repeated now.
    Repeat,
}

/// Where an entry waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A job is with the index.
    UnderWay,
    Withdrawal(Time),
    Due(Time),
    Backlog,
}

#[derive(Debug)]
struct Entry {
    wanted: bool,
    version: u64,
    place: Place,
    /// When the index drops what it was last told, or may have been told.
    expires: Option<Time>,
    /// The generation in which the index last confirmed the record.
    confirmed: Option<u64>,
    refusals: u32,
}

/// The desired state of every block.
///
/// Withdrawals go first, then news and refreshes as they fall due, then what is told again after a loss or
/// an outage, as fast as the [`Pacer`] says. While the index does not answer, one small batch at a time
/// finds out whether it is back.
#[derive(Debug)]
pub(crate) struct Desired<K> {
    pace: Pace,
    pacer: Pacer,
    watch: Watch<K>,
    entries: BTreeMap<K, Entry>,
    withdrawals: BTreeSet<(Time, K)>,
    due: BTreeSet<(Time, K)>,
    backlog: BTreeSet<K>,
    /// Entries that are not wanted.
    unwanted: usize,
    version: u64,
    /// Counts the times at which everything had to be told again, so that one loss is not found anew with
    /// every record that is created again.
    generation: u64,
    /// The TTL that the index last granted, in ms.
    ttl_ms: u64,
    /// Withdrawals went; the question is next, whatever came meanwhile.
    question_waits: bool,
    /// Nothing is sent before: the index did not answer.
    held_until: Time,
    outages: u32,
    /// All records must be withdrawn at once before anything else.
    reset: bool,
}

impl<K: Copy + Ord> Desired<K> {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            pace,
            pacer: Pacer::new(),
            watch: Watch::new(0),
            entries: BTreeMap::new(),
            withdrawals: BTreeSet::new(),
            due: BTreeSet::new(),
            backlog: BTreeSet::new(),
            unwanted: 0,
            version: 0,
            generation: 0,
            ttl_ms: u64::MAX,
            question_waits: false,
            held_until: Time::default(),
            outages: 0,
            reset: false,
        }
    }

    /// Asks after a record about every `period_ms`; 0 for never.
    pub(crate) const fn set_canary(&mut self, period_ms: u64) {
        self.watch.set_period(period_ms);
    }

    /// Entries kept; at most the blocks held and [`Pace::max_withdrawals`].
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The block is held, or something about it changed: tell the index at `due`.
    pub(crate) fn publish(&mut self, key: K, due: Time) {
        self.change(key, true, due);
    }

    /// The block is not held any more: tell the index, unless it never heard of it.
    pub(crate) fn withdraw(&mut self, key: K, now: Time) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        if entry.expires.is_none() && entry.place != Place::UnderWay {
            self.remove(key);
            return;
        }
        self.change(key, false, now);
        if self.unwanted > self.pace.max_withdrawals {
            self.reset = true;
            self.drop_unwanted();
        }
    }

    fn change(&mut self, key: K, wanted: bool, due: Time) {
        self.version = self.version.saturating_add(1);
        let entry = self.entries.entry(key).or_insert(Entry {
            wanted: true,
            version: 0,
            place: Place::Backlog,
            expires: None,
            confirmed: None,
            refusals: 0,
        });
        entry.version = self.version;
        let turned = entry.wanted != wanted;
        if turned {
            entry.wanted = wanted;
            entry.refusals = 0;
            self.unwanted = if wanted { self.unwanted.saturating_sub(1) } else { self.unwanted + 1 };
            if !wanted {
                self.watch.forget(key);
            }
        }
        let place = match entry.place {
            // The answer of that job finds the newer version and makes this one due.
            Place::UnderWay => return,
            _ if !wanted => Place::Withdrawal(due),
            // What was refused is not repeated at once because it changed.
            Place::Due(before) if !turned && entry.refusals > 0 => Place::Due(before),
            Place::Due(before) => Place::Due(due.min(before)),
            _ => Place::Due(due),
        };
        self.put(key, place);
    }

    fn drop_unwanted(&mut self) {
        self.entries.retain(|_, entry| entry.wanted);
        self.withdrawals.clear();
        self.unwanted = 0;
    }

    /// Whether all records of this holder must be withdrawn first ([`Desired::was_reset`] ends that).
    pub(crate) const fn needs_reset(&self, now: Time) -> bool {
        self.reset && now.as_micros() >= self.held_until.as_micros()
    }

    /// The index has dropped all records of this holder: tell it what is held.
    pub(crate) fn was_reset(&mut self, now: Time, jitter: u64) {
        self.reset = false;
        self.outages = 0;
        self.drop_unwanted();
        self.retell(now, false, jitter);
    }

    /// Tells everything again that is not under way.
    fn retell(&mut self, now: Time, after_loss: bool, jitter: u64) {
        self.generation = self.generation.saturating_add(1);
        self.watch.clear();
        self.due.clear();
        for (key, entry) in &mut self.entries {
            if matches!(entry.place, Place::Due(_) | Place::Backlog) {
                entry.place = Place::Backlog;
                entry.refusals = 0;
                self.backlog.insert(*key);
            }
        }
        self.pacer.begin(self.entries.len(), self.ttl_ms, after_loss, now, jitter);
    }

    /// When there is something to do next.
    pub(crate) fn next(&self) -> Option<Time> {
        if self.reset {
            return Some(self.held_until);
        }
        let queues = [self.withdrawals.first(), self.due.first()];
        let times = queues.into_iter().flatten().map(|&(due, _)| due);
        let backlog = (!self.backlog.is_empty()).then(|| self.pacer.next());
        times.chain(backlog).chain(self.watch.next()).min().map(|due| due.max(self.held_until))
    }

    /// The jobs that are due while `fits` takes them; they are under way until they are answered or the
    /// index is found to be away.
    pub(crate) fn take(&mut self, now: Time, mut fits: impl FnMut(&K) -> bool) -> Vec<Job<K>> {
        let mut jobs = Vec::new();
        if now < self.held_until || self.reset {
            return jobs;
        }
        if self.outages > 0 {
            self.take_withdrawals(now, &mut |_| true, PROBE_WITHDRAWALS, &mut jobs);
            // Anything that is to be told finds out whether the index is back.
            let due = || self.due.first().filter(|(due, _)| *due <= now).map(|&(_, key)| key);
            if jobs.is_empty()
                && let Some(key) = self.backlog.first().copied().or_else(due)
            {
                jobs.push(self.begin(key));
            }
            return jobs;
        }
        if !self.take_withdrawals(now, &mut fits, usize::MAX, &mut jobs) {
            return jobs;
        }
        if !jobs.is_empty() && self.watch.is_due(self.tells(now), now) {
            // The question, which withdrawals do not wait for, comes before the rest.
            self.question_waits = true;
            return jobs;
        }
        self.take_puts(now, &mut fits, &mut jobs);
        jobs
    }

    /// Whether records are to be told now.
    fn tells(&self, now: Time) -> bool {
        let due = self.due.first().is_some_and(|(due, _)| *due <= now);
        due || (!self.backlog.is_empty() && self.pacer.allowance(now) > 0)
    }

    /// The record to ask the index after now, and the `seq` that it must have at least. While the index does
    /// not answer, this is what finds out whether it is back.
    pub(crate) fn question(&mut self, now: Time) -> Option<(K, u64)> {
        let withdrawals = self.withdrawals.first().is_some_and(|(due, _)| *due <= now);
        if now < self.held_until || self.reset || (withdrawals && !self.question_waits) {
            return None;
        }
        if !self.watch.is_due(self.tells(now) || self.outages > 0, now) {
            return None;
        }
        self.question_waits = false;
        self.watch.asks(now);
        loop {
            let (key, seq) = self.watch.last()?;
            // One that may have expired by itself tells nothing.
            if self.entries.get(&key).and_then(|entry| entry.expires).is_some_and(|expires| expires > now) {
                return Some((key, seq));
            }
            self.watch.forget(key);
        }
    }

    /// The answer to a question of `sent`: whether the index has the record, as it was told or later.
    pub(crate) fn is_known(&mut self, known: bool, sent: Time, now: Time, jitter: u64) {
        self.heard(sent, now, jitter);
        self.watch.answered(now, jitter);
        if !known {
            self.retell(now, true, jitter);
        }
    }

    /// Whether all withdrawals that are due fit.
    fn take_withdrawals(
        &mut self,
        now: Time,
        fits: &mut impl FnMut(&K) -> bool,
        max: usize,
        jobs: &mut Vec<Job<K>>,
    ) -> bool {
        while let Some(&(due, key)) = self.withdrawals.first() {
            if due > now {
                break;
            }
            let expires = self.entries.get(&key).and_then(|entry| entry.expires);
            if expires.is_none_or(|expires| expires <= now) {
                // The index has dropped the record by itself.
                self.remove(key);
                continue;
            }
            if jobs.len() >= max || !fits(&key) {
                return false;
            }
            let job = self.begin(key);
            jobs.push(job);
        }
        true
    }

    fn take_puts(&mut self, now: Time, fits: &mut impl FnMut(&K) -> bool, jobs: &mut Vec<Job<K>>) {
        while let Some(&(due, key)) = self.due.first() {
            if due > now {
                break;
            }
            if !fits(&key) {
                return;
            }
            let job = self.begin(key);
            jobs.push(job);
        }
        let mut sent = 0;
        for _ in 0..self.pacer.allowance(now) {
            let Some(key) = self.backlog.first().copied().filter(&mut *fits) else {
                break;
            };
            let job = self.begin(key);
            jobs.push(job);
            sent += 1;
        }
        if sent > 0 {
            self.pacer.sent(sent, now);
        }
    }

    /// Hands an entry to the index.
    fn begin(&mut self, key: K) -> Job<K> {
        self.put(key, Place::UnderWay);
        let (wanted, version) =
            self.entries.get(&key).map_or((false, 0), |entry| (entry.wanted, entry.version));
        Job { key, version, kind: if wanted { JobKind::Put } else { JobKind::Delete }, seq: 0 }
    }

    /// The index answered what was sent at `sent`; to be told before the answers to the jobs.
    pub(crate) fn heard(&mut self, sent: Time, now: Time, jitter: u64) {
        self.held_until = Time::default();
        self.pacer.answered(sent.millis_until(now));
        if std::mem::take(&mut self.outages) > 0 {
            // What gathered meanwhile is not let go in one flood.
            while let Some(&(due, key)) = self.due.first() {
                if due > now {
                    break;
                }
                self.put(key, Place::Backlog);
            }
            self.pacer.begin(self.entries.len(), self.ttl_ms, false, now, jitter);
        }
    }

    /// The answer to a job that was sent at `sent`. `jitter` is random: refreshes of blocks that came
    /// together spread out.
    pub(crate) fn answered(&mut self, job: Job<K>, answer: Answer, sent: Time, now: Time, jitter: u64) {
        let Some(entry) = self.entries.get_mut(&job.key) else {
            return;
        };
        let mut lost = false;
        let current = entry.version == job.version;
        let place = match answer {
            Answer::Published { ttl_ms, created } => {
                self.ttl_ms = ttl_ms;
                let confirmed = entry.confirmed.replace(self.generation) == Some(self.generation);
                lost = created && confirmed && entry.expires.is_some_and(|expires| expires > now);
                entry.expires = Some(sent.after_millis(ttl_ms));
                entry.refusals = 0;
                if entry.wanted {
                    self.watch.told(job.key, job.seq, now);
                }
                entry.next_place(if current { refresh(sent, ttl_ms, jitter) } else { now })
            }
            Answer::Withdrawn if current && !entry.wanted => return self.remove(job.key),
            Answer::Withdrawn => {
                entry.expires = None;
                entry.confirmed = None;
                entry.refusals = 0;
                entry.next_place(now)
            }
            Answer::Refused => {
                entry.refusals = entry.refusals.saturating_add(1);
                let wait = self.pace.refusal(entry.refusals, jitter);
                entry.next_place(if current { now.after_millis(wait) } else { now })
            }
            Answer::Repeat => entry.next_place(now),
        };
        self.put(job.key, place);
        if lost {
            self.retell(now, true, jitter);
        }
    }

    /// The index did not answer, or shed load: the jobs are due again, and nothing is sent for a while, for
    /// `retry_ms` at least where it said so. `ttl_ms` is what it may have granted all the same.
    pub(crate) fn unanswered(
        &mut self,
        jobs: &[Job<K>],
        ttl_ms: u64,
        retry_ms: Option<u64>,
        now: Time,
        jitter: u64,
    ) {
        self.outages = self.outages.saturating_add(1);
        let wait = self.pace.backoff(self.outages, jitter);
        // Everybody was told the same time.
        let asked = retry_ms.map_or(0, |ms| ms.saturating_add(jitter % (ms / 2).max(1)));
        self.held_until = now.after_millis(wait.max(asked));
        self.pacer.slow_down();
        self.watch.unanswered(now);
        self.question_waits = false;
        for job in jobs {
            let Some(entry) = self.entries.get_mut(&job.key) else {
                continue;
            };
            if job.kind == JobKind::Put {
                // Not known to be there, but a withdrawal must not be forgotten.
                entry.expires = Some(now.after_millis(ttl_ms));
            }
            let place = if entry.wanted { Place::Backlog } else { Place::Withdrawal(now) };
            self.put(job.key, place);
        }
    }

    /// What remains of the time for which the index knows the block, in ms.
    pub(crate) fn remaining_ms(&self, key: &K, now: Time) -> u64 {
        let entry = self.entries.get(key).filter(|entry| entry.wanted);
        entry.and_then(|entry| entry.expires).map_or(0, |expires| now.millis_until(expires))
    }

    /// Moves an entry to where it waits now.
    fn put(&mut self, key: K, place: Place) {
        if let Some(entry) = self.entries.get_mut(&key) {
            let before = std::mem::replace(&mut entry.place, place);
            self.leave(key, before);
            match place {
                Place::UnderWay => false,
                Place::Withdrawal(due) => self.withdrawals.insert((due, key)),
                Place::Due(due) => self.due.insert((due, key)),
                Place::Backlog => self.backlog.insert(key),
            };
        }
    }

    fn leave(&mut self, key: K, place: Place) {
        match place {
            Place::UnderWay => false,
            Place::Withdrawal(due) => self.withdrawals.remove(&(due, key)),
            Place::Due(due) => self.due.remove(&(due, key)),
            Place::Backlog => self.backlog.remove(&key),
        };
    }

    fn remove(&mut self, key: K) {
        if let Some(entry) = self.entries.remove(&key) {
            self.leave(key, entry.place);
            self.watch.forget(key);
            if !entry.wanted {
                self.unwanted = self.unwanted.saturating_sub(1);
            }
        }
    }
}

impl Entry {
    const fn next_place(&self, due: Time) -> Place {
        if self.wanted { Place::Due(due) } else { Place::Withdrawal(due) }
    }
}

/// Any time between a sixth and a third of the TTL, so that the refreshes of one holder spread evenly however
/// its blocks came; those of a second go together.
fn refresh(sent: Time, ttl_ms: u64, jitter: u64) -> Time {
    let third = ttl_ms / 3;
    let early = third - jitter % (third / 2).max(1);
    let due = sent.after_millis(early.max(1));
    let whole = due.as_micros() / MICROS_TOGETHER * MICROS_TOGETHER;
    if third > 60_000 { Time::from_micros(whole).max(sent) } else { due }
}

#[cfg(test)]
mod tests;
