//! Finding out that the index has lost records, by asking after one of them.

use std::collections::VecDeque;

use kvsp_core::time::Time;

/// ms after which a question is asked before records are told. An index takes longer to restart.
const ASK_AGAIN_MS: u64 = 250;

/// Records remembered: the last may be withdrawn.
const MAX_TOLD: usize = 16;

/// The records that the index was told last.
///
/// An index that restarts comes back empty, or with a snapshot, which may have any record, but none as it was
/// told later. So the question is after the record that was told last, and whether the index has it with the
/// `seq` of that time: then it has all that it was told before. It is asked from time to time (the canary),
/// and before others are told, because each of these would be the last one from then on.
#[derive(Debug)]
pub(super) struct Watch<K> {
    told: VecDeque<(K, u64)>,
    /// ms between two questions where nothing else goes; 0 for none.
    period_ms: u64,
    asked: Option<Time>,
    next: Time,
}

impl<K: Copy + Ord> Watch<K> {
    pub(super) const fn new(period_ms: u64) -> Self {
        Self { told: VecDeque::new(), period_ms, asked: None, next: Time::from_micros(0) }
    }

    /// Sets the period; 0 for no questions.
    pub(super) const fn set_period(&mut self, period_ms: u64) {
        self.period_ms = period_ms;
    }

    /// Nothing is known any more.
    pub(super) fn clear(&mut self) {
        self.told.clear();
    }

    /// The index has taken a record.
    pub(super) fn told(&mut self, key: K, seq: u64, now: Time) {
        if self.told.is_empty() {
            self.next = now.after_millis(self.period_ms);
        }
        self.forget(key);
        if self.told.len() >= MAX_TOLD {
            self.told.pop_front();
        }
        self.told.push_back((key, seq));
    }

    pub(super) fn forget(&mut self, key: K) {
        self.told.retain(|&(other, _)| other != key);
    }

    /// The record to ask after and its `seq`.
    pub(super) fn last(&self) -> Option<(K, u64)> {
        self.told.back().copied()
    }

    /// When to ask where nothing else goes.
    pub(super) fn next(&self) -> Option<Time> {
        (self.period_ms > 0 && !self.told.is_empty()).then_some(self.next)
    }

    /// Whether to ask now; `before_others` where others are to be told.
    pub(super) fn is_due(&self, before_others: bool, now: Time) -> bool {
        let again = self.asked.is_none_or(|asked| asked.after_millis(ASK_AGAIN_MS) <= now);
        self.next().is_some_and(|next| next <= now || (before_others && again))
    }

    /// A question goes out now.
    pub(super) const fn asks(&mut self, now: Time) {
        self.asked = Some(now);
        self.next = now.after_millis(self.period_ms);
    }

    /// The question was answered; the next is up to a quarter of the period earlier or later by chance.
    pub(super) fn answered(&mut self, now: Time, jitter: u64) {
        let wait = self.period_ms - self.period_ms / 4 + jitter % (self.period_ms / 2).max(1);
        self.next = now.after_millis(wait);
    }

    /// The index did not answer: ask as soon as it may be asked again.
    pub(super) const fn unanswered(&mut self, now: Time) {
        self.asked = None;
        self.next = now;
    }
}
