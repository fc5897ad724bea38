//! Timers.

use kvsp_proto::message::MapId;

use super::Maps;
use crate::time::Time;

impl Maps {
    /// Looks at the clock: every call that takes `now` does so first. While the controller was stopped nobody could
    /// report, so nobody is late.
    pub(super) fn look(&mut self, now: Time) {
        let stalled = self.last_look.is_some_and(|last| now.since(last) > self.config.stall);
        self.last_look = self.last_look.max(Some(now));
        if stalled {
            self.expect_anew(now);
        }
    }

    /// Does what is due. To be called when [`Maps::poll_timeout`] says so.
    pub fn tick(&mut self, now: Time) {
        self.look(now);
        self.fail_silent(now);
        while let Some((at, map)) = self.timers.first().cloned()
            && at <= now
        {
            self.timers.pop_first();
            if let Some(entry) = self.maps.get_mut(&map) {
                entry.timer = None;
            }
            self.catch_up(&map, now);
        }
    }

    /// When to call [`Maps::tick`]; while instances are expected to report, so often that it does not look like a
    /// stall.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let soon = self.last_look.map(|last| last + self.config.stall / 2);
        let expected = self.expected.first().map(|(at, _)| soon.map_or(*at, |soon| soon.min(*at)));
        [timer, expected].into_iter().flatten().min()
    }

    /// Does for a map what no longer has to wait, and sets its timer.
    pub(super) fn catch_up(&mut self, map: &MapId, now: Time) {
        self.advance(map, now);
        let Some(entry) = self.maps.get_mut(map) else { return };
        let deadline = entry.deadline();
        if entry.timer == deadline {
            return;
        }
        if let Some(timer) = std::mem::replace(&mut entry.timer, deadline) {
            self.timers.remove(&(timer, map.clone()));
        }
        self.timers.extend(deadline.map(|at| (at, map.clone())));
    }
}
