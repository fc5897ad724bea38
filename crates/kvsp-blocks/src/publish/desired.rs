//! What the index should know of each block, and what remains to be told: a map of desired states, so that
//! no outage of the index can make it grow beyond the blocks it is about.

use std::collections::{BTreeMap, BTreeSet};

use kvsp_core::time::Time;

/// How publishing is paced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Shortest wait after a failure, in ms.
    pub(crate) min_backoff_ms: u64,
    /// Longest wait after a failure, in ms.
    pub(crate) max_backoff_ms: u64,
    /// Withdrawals that may wait for the index before all is withdrawn at once instead.
    pub(crate) max_withdrawals: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { min_backoff_ms: 100, max_backoff_ms: 10_000, max_withdrawals: 65_536 }
    }
}

/// Something to tell the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Job<K> {
    pub(crate) key: K,
    /// The state told; anything newer makes another job.
    pub(crate) version: u64,
    pub(crate) kind: JobKind,
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
}

#[derive(Debug)]
struct Entry {
    wanted: bool,
    version: u64,
    /// When to tell the index next; `None` while that is under way.
    due: Option<Time>,
    /// When the index drops what it was last told, or may have been told.
    expires: Option<Time>,
    /// The generation in which the index last confirmed the record.
    confirmed: Option<u64>,
    refusals: u32,
}

/// The desired state of every block.
#[derive(Debug)]
pub(crate) struct Desired<K> {
    pace: Pace,
    entries: BTreeMap<K, Entry>,
    due: BTreeSet<(Time, K)>,
    withdrawals: usize,
    version: u64,
    /// Counts the times at which everything had to be told again, so that one loss is not found anew with
    /// every record that is created again.
    generation: u64,
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
            entries: BTreeMap::new(),
            due: BTreeSet::new(),
            withdrawals: 0,
            version: 0,
            generation: 0,
            held_until: Time::default(),
            outages: 0,
            reset: false,
        }
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
        if entry.expires.is_none() && entry.due.is_some() {
            self.remove(key);
            return;
        }
        self.change(key, false, now);
        if self.withdrawals > self.pace.max_withdrawals {
            self.withdraw_all_at_once(now);
        }
    }

    fn change(&mut self, key: K, wanted: bool, due: Time) {
        self.version = self.version.saturating_add(1);
        let version = self.version;
        let entry = self.entries.entry(key).or_insert(Entry {
            wanted: true,
            version,
            due: Some(due),
            expires: None,
            confirmed: None,
            refusals: 0,
        });
        match (entry.wanted, wanted) {
            (true, false) => self.withdrawals = self.withdrawals.saturating_add(1),
            (false, true) => self.withdrawals = self.withdrawals.saturating_sub(1),
            _ => {}
        }
        entry.wanted = wanted;
        entry.version = version;
        // Where a job is under way, its answer finds the newer version and makes this one due.
        if let Some(before) = entry.due {
            let due = if entry.refusals == 0 { due.min(before) } else { before };
            entry.due = Some(due);
            self.due.remove(&(before, key));
            self.due.insert((due, key));
        }
    }

    fn withdraw_all_at_once(&mut self, now: Time) {
        self.reset = true;
        self.entries.retain(|_, entry| entry.wanted);
        self.withdrawals = 0;
        self.republish_all(now);
    }

    /// Whether all records of this holder must be withdrawn first ([`Desired::was_reset`] ends that).
    pub(crate) fn needs_reset(&self, now: Time) -> bool {
        self.reset && now >= self.held_until
    }

    pub(crate) fn was_reset(&mut self) {
        self.reset = false;
    }

    /// The index has lost records, or may have: tell it all again.
    pub(crate) fn republish_all(&mut self, now: Time) {
        self.due.clear();
        self.generation = self.generation.saturating_add(1);
        for (key, entry) in &mut self.entries {
            self.version = self.version.saturating_add(1);
            entry.version = self.version;
            if entry.due.is_some() {
                entry.due = Some(now);
                self.due.insert((now, *key));
            }
        }
    }

    /// When there is something to do next.
    pub(crate) fn next(&self) -> Option<Time> {
        let due = if self.reset { Some(Time::default()) } else { self.due.first().map(|&(due, _)| due) };
        due.map(|due| due.max(self.held_until))
    }

    /// The jobs that are due while `fits` takes them; they are under way until they are answered or the
    /// index is found to be away.
    pub(crate) fn take(&mut self, now: Time, mut fits: impl FnMut(&K) -> bool) -> Vec<Job<K>> {
        let mut jobs = Vec::new();
        if now < self.held_until || self.reset {
            return jobs;
        }
        while let Some(&(due, key)) = self.due.first() {
            if due > now {
                break;
            }
            let Some(entry) = self.entries.get_mut(&key) else {
                self.due.remove(&(due, key));
                continue;
            };
            if !entry.wanted && entry.expires.is_none_or(|expires| expires <= now) {
                // The index has dropped the record by itself.
                self.remove(key);
                continue;
            }
            if !fits(&key) {
                break;
            }
            self.due.remove(&(due, key));
            entry.due = None;
            let kind = if entry.wanted { JobKind::Put } else { JobKind::Delete };
            jobs.push(Job { key, version: entry.version, kind });
        }
        jobs
    }

    /// The index answered a job that was sent at `sent`. `jitter` is random: refreshes of blocks that came
    /// together spread out.
    pub(crate) fn answered(&mut self, job: Job<K>, answer: Answer, sent: Time, now: Time, jitter: u64) {
        self.held_until = Time::default();
        self.outages = 0;
        let Some(entry) = self.entries.get_mut(&job.key) else {
            return;
        };
        let mut lost = false;
        let current = entry.version == job.version;
        match answer {
            Answer::Published { ttl_ms, created } => {
                let confirmed = entry.confirmed.replace(self.generation) == Some(self.generation);
                lost = created && confirmed && entry.expires.is_some_and(|expires| expires > now);
                entry.expires = Some(sent.after_millis(ttl_ms));
                entry.refusals = 0;
                let third = ttl_ms / 3;
                let early = if third == 0 { 0 } else { jitter % (third / 4).max(1) };
                let due = if current { sent.after_millis((third - early).max(1)) } else { now };
                self.schedule(job.key, due);
            }
            Answer::Withdrawn if current && !entry.wanted => self.remove(job.key),
            Answer::Withdrawn => {
                entry.expires = None;
                entry.confirmed = None;
                entry.refusals = 0;
                self.schedule(job.key, now);
            }
            Answer::Refused => {
                entry.refusals = entry.refusals.saturating_add(1);
                let wait = self.pace.backoff(entry.refusals, jitter);
                self.schedule(job.key, if current { now.after_millis(wait) } else { now });
            }
        }
        if lost {
            self.republish_all(now);
        }
    }

    /// The index did not answer: the jobs are due again, and nothing is sent for a while. `ttl_ms` is what
    /// it may have granted all the same.
    pub(crate) fn unanswered(&mut self, jobs: &[Job<K>], ttl_ms: u64, now: Time, jitter: u64) {
        self.outages = self.outages.saturating_add(1);
        self.held_until = now.after_millis(self.pace.backoff(self.outages, jitter));
        for job in jobs {
            if let Some(entry) = self.entries.get_mut(&job.key) {
                if job.kind == JobKind::Put {
                    // Not known to be there, but a withdrawal must not be forgotten.
                    entry.expires = Some(now.after_millis(ttl_ms));
                }
                self.schedule(job.key, now);
            }
        }
    }

    /// What remains of the time for which the index knows the block, in ms.
    pub(crate) fn remaining_ms(&self, key: &K, now: Time) -> u64 {
        let entry = self.entries.get(key).filter(|entry| entry.wanted);
        entry.and_then(|entry| entry.expires).map_or(0, |expires| now.millis_until(expires))
    }

    fn schedule(&mut self, key: K, due: Time) {
        if let Some(entry) = self.entries.get_mut(&key) {
            if let Some(before) = entry.due.replace(due) {
                self.due.remove(&(before, key));
            }
            self.due.insert((due, key));
        }
    }

    fn remove(&mut self, key: K) {
        if let Some(entry) = self.entries.remove(&key) {
            if let Some(due) = entry.due {
                self.due.remove(&(due, key));
            }
            if !entry.wanted {
                self.withdrawals = self.withdrawals.saturating_sub(1);
            }
        }
    }
}

impl Pace {
    /// Twice as long after each failure, and up to a quarter less by chance.
    fn backoff(&self, failures: u32, jitter: u64) -> u64 {
        let doubled = self.min_backoff_ms.saturating_mul(1 << failures.saturating_sub(1).min(20));
        let wait = doubled.min(self.max_backoff_ms);
        wait - jitter % (wait / 4).max(1)
    }
}

#[cfg(test)]
mod tests;
