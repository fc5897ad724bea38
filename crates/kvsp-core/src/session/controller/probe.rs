//! A broken stream is a hint: the instance is asked, and an answer that it has nothing is as good as an expiry.

use uuid::Uuid;

use super::Sessions;
use super::api::{Probe, Verdict};
use super::error::SessionError;
use crate::time::Time;

impl Sessions {
    /// A front end's stream of this epoch broke. Returns the probe to be made, unless one is under way or was
    /// made just now, or the session is on its way to another instance already.
    ///
    /// # Errors
    /// Unknown; a higher epoch than the session's.
    pub fn stream_broken(
        &mut self,
        session: Uuid,
        epoch: u64,
        now: Time,
    ) -> Result<Option<Probe>, SessionError> {
        let now = self.look(now);
        let (timeout, interval) = (self.config.probe_timeout, self.config.probe_interval);
        self.touch(session, now)?;
        let entry = self.sessions.get_mut(&session).ok_or(SessionError::Unknown)?;
        let known = entry.head.epoch;
        if epoch > known {
            return Err(SessionError::UnknownEpoch { known });
        }
        let busy =
            entry.probe.is_some_and(|(asked, open)| now < asked + if open { timeout } else { interval });
        if epoch < known || entry.is_final() || entry.failover.is_some() || busy {
            return Ok(None);
        }
        entry.probe = Some((now, true));
        Ok(Some(Probe { instance: entry.head.instance.clone(), epoch }))
    }

    /// What a probe found. That of a former epoch changes nothing.
    pub fn probed(&mut self, session: Uuid, epoch: u64, verdict: Verdict, now: Time) {
        let now = self.look(now);
        let Some(entry) = self.sessions.get_mut(&session) else { return };
        if entry.head.epoch != epoch {
            return;
        }
        if let Some((_, open)) = &mut entry.probe {
            *open = false;
        }
        // A resume under way is judged by its own answer.
        let under_way = entry.failover.as_ref().is_some_and(|failover| !failover.voluntary);
        if verdict == Verdict::Lost && !under_way {
            self.lose(session, true, now);
            self.settle(now);
        }
    }
}
