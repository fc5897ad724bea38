//! A controller's start: from what is on stable storage.

use kvsp_proto::message::SessionState;

use super::api::Choice;
use super::change::Stored;
use super::entry::{Entry, Phase, Reason};
use super::{Sessions, SessionsConfig};
use crate::time::Time;

impl Sessions {
    /// The sessions that were found. Each instance that has one has the TTL of its last status to report. A
    /// session that was being resumed is resumed again, at a fresh epoch: what became of the former attempt is
    /// not known.
    #[must_use]
    pub fn restore(config: SessionsConfig, stored: Vec<Stored>, now: Time) -> Self {
        let mut machine = Self::new(config);
        let now = machine.look(now);
        let mut live = Vec::new();
        for stored in stored {
            let session = stored.head.session;
            let whole = machine.take_up(stored, now);
            if machine.live(session).is_ok_and(|entry| !entry.is_final()) {
                live.push((session, whole));
            }
        }
        for (session, whole) in live {
            let resuming =
                machine.live(session).is_ok_and(|entry| entry.head.state == SessionState::Resuming);
            machine.lose_if_gone(session, now);
            if resuming || !whole {
                machine.lose(session, false, now);
            }
            if !whole {
                machine.set_phase(session, Phase::GivingUp(Reason::TokensLost));
            }
            machine.catch_up(session, now);
        }
        machine.settle(now);
        machine
    }

    /// Takes a session up as it was written. Whether its tokens are whole.
    fn take_up(&mut self, stored: Stored, now: Time) -> bool {
        let Stored { head, progress, mut tokens, segments } = stored;
        let session = head.session;
        let state = head.state;
        // A progress row without a prompt is left of a write that was reported failed.
        let progress = progress.filter(|_| head.checkpoint.is_some());
        let offset = progress.as_ref().map_or(0, |progress| progress.output_offset);
        let whole = head.checkpoint.is_some() == progress.is_some() && tokens.len() as u64 >= offset;
        tokens.truncate(usize::try_from(offset).unwrap_or(usize::MAX));
        tokens.shrink_to_fit();
        let choice = Choice {
            instance: head.instance.clone(),
            instance_epoch: head.instance_epoch,
            ttl_ms: head.instance_ttl_ms,
        };
        let retention =
            if state == SessionState::Done { self.config.done_retention } else { self.config.idle };
        let done_at = (state == SessionState::Done).then_some(now);
        let fresh = Entry::new(head, true, now + retention);
        let entry = Entry { progress, tokens, segments, done_at, ..fresh };
        self.sessions.insert(session, entry);
        self.account(session);
        match state {
            SessionState::Done => {
                self.done.insert((now, session));
            }
            SessionState::Failed => {}
            SessionState::Running | SessionState::Resuming => {
                self.attach(&choice, session);
                self.expect(&choice, now);
            }
        }
        self.catch_up(session, now);
        whole
    }
}
