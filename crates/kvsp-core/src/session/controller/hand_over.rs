//! Handing over: an instance that drains gives its sessions to others, instead of finishing them.
//!
//! It is a failover of a session whose instance lives. The instance goes on with it, and is acknowledged, until the next
//! epoch is durable; from then on it is refused like one that was lost. Where nobody else can take the session it stays.

use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use super::Sessions;
use super::entry::Failover;
use crate::time::Time;

impl Sessions {
    /// The sessions of an instance are to go on elsewhere. To be said again while that is so: a session that nobody
    /// else could take is asked for again, but not all the time, and one that was placed there meanwhile is found.
    pub fn hand_over(&mut self, instance: &BaseUri, now: Time) {
        let now = self.look(now);
        for session in self.sessions_of(instance) {
            self.leave(session, instance, now);
        }
        self.settle(now);
    }

    fn leave(&mut self, session: Uuid, instance: &BaseUri, now: Time) {
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        let elsewhere = entry.head.instance != *instance || entry.failover.is_some();
        let asked = entry.stays_until.is_some_and(|until| until > now);
        if !entry.created || entry.is_final() || elsewhere || asked {
            return;
        }
        let former = (entry.head.instance.clone(), entry.head.instance_epoch);
        entry.failover = Some(Failover::new(true, Some(former), now));
        self.failing.insert(session);
        self.catch_up(session, now);
    }

    /// Nobody else can take a session that was to be handed over: it is finished where it is.
    pub(super) fn stay(&mut self, session: Uuid, now: Time) {
        self.end_failover(session);
        if let Some(entry) = self.sessions.get_mut(&session) {
            entry.stays_until = Some(now + self.config.max_backoff);
        }
    }
}
