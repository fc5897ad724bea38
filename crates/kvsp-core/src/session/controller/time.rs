//! The machine's own time, which stands still while the controller itself does.

use std::time::Duration;

use super::Sessions;
use super::entry::{Next, Phase};
use super::{Change, ending};
use crate::time::Time;
use kvsp_proto::message::SessionState;
use uuid::Uuid;

/// Time less the stalls. While the controller was stopped nothing could reach it, so nothing was late: after a
/// stall what was awaited has as long as it had before.
#[derive(Debug, Clone)]
pub(super) struct OwnTime {
    stall: Duration,
    last_look: Option<Time>,
    stalled: Duration,
}

impl OwnTime {
    pub(super) const fn new(stall: Duration) -> Self {
        Self { stall, last_look: None, stalled: Duration::ZERO }
    }

    /// The own time at `now`, and whether a stall has just ended.
    fn look(&mut self, now: Time) -> (Time, bool) {
        let silence = self.last_look.map_or(Duration::ZERO, |last| now.since(last));
        self.last_look = self.last_look.max(Some(now));
        let stalled = silence > self.stall;
        if stalled {
            self.stalled += silence;
        }
        let micros = u64::try_from(self.stalled.as_micros()).unwrap_or(u64::MAX);
        (Time::from_micros(now.as_micros().saturating_sub(micros)), stalled)
    }

    /// When a point in own time comes if no stall does; not so late that not looking would be a stall.
    fn outside(&self, own: Time) -> Time {
        let soon = self.last_look.map_or(own, |last| last + self.stall / 2);
        (own + self.stalled).min(soon)
    }
}

impl Sessions {
    /// Looks at the clock: every call that takes `now` does so first, and goes on in own time.
    pub(super) fn look(&mut self, now: Time) -> Time {
        let (own, stalled) = self.own_time.look(now);
        if stalled {
            self.expect_anew(own);
        }
        own
    }

    /// Does what is due. To be called when [`Sessions::poll_timeout`] says so.
    pub fn tick(&mut self, now: Time) {
        let now = self.look(now);
        self.fail_silent(now);
        while let Some((at, session)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.remove(&(at, session));
            self.fire(session, now);
        }
        self.settle(now);
    }

    /// When to call [`Sessions::tick`]; at least so often that it does not look like a stall.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let expected = self.expected.first().map(|(at, _)| *at);
        let next = [timer, expected].into_iter().flatten().min()?;
        Some(self.own_time.outside(next))
    }

    /// A session's timer went off. It may have been moved since.
    fn fire(&mut self, session: Uuid, now: Time) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        entry.timer = None;
        if entry.deadline().is_some_and(|deadline| deadline <= now) && entry.retry_at.is_none() {
            match entry.phase() {
                Some(Phase::Placing { .. }) => self.no_candidate(session, now),
                Some(Phase::Sent { .. }) => self.attempt_failed(session),
                Some(Phase::BackingOff { .. }) => self.all_again(session),
                Some(_) => {}
                None => entry.expired = true,
            }
        }
        self.catch_up(session, now);
    }

    /// Does for a session what no longer has to wait, and sets its timer.
    pub(super) fn catch_up(&mut self, session: Uuid, now: Time) {
        self.advance(session, now);
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let deadline = entry.deadline();
        if entry.timer == deadline {
            return;
        }
        if let Some(timer) = std::mem::replace(&mut entry.timer, deadline) {
            self.timers.remove(&(timer, session));
        }
        self.timers.extend(deadline.map(|at| (at, session)));
    }

    fn advance(&mut self, session: Uuid, now: Time) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        if !entry.created || entry.pending.is_some() || entry.retry_at.is_some_and(|retry| retry > now) {
            return;
        }
        entry.retry_at = None;
        if entry.failover.is_some() {
            self.go_on(session, now);
        } else if entry.expired && entry.head.state == SessionState::Done {
            let forget = Change::Erase { session, segments: 0, tombstone: None };
            self.begin_own(session, Next::Forget, vec![forget]);
        } else if entry.expired {
            let (next, changes) = ending(entry);
            self.begin_own(session, next, changes);
        }
    }
}
