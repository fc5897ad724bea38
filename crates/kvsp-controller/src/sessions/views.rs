//! How sessions stand, told at once or when that changes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kvsp_core::session::Head;
use kvsp_proto::message::{SessionList, SessionView};
use kvsp_proto::problem::{Problem, ProblemType};
use tokio::time::Instant;
use uuid::Uuid;

use super::RETRY_AFTER_S;
use crate::service::ControllerService;

impl ControllerService {
    /// How a session stands.
    ///
    /// # Errors
    /// `kvsp-session-unknown`.
    pub(crate) fn view_session(self: &Arc<Self>, session: Uuid) -> Result<SessionView, Problem> {
        Ok(self.with_session(session, |sessions, now| sessions.view(session, now))?)
    }

    /// Sessions in the order of their identifiers: all, or those of one principal.
    pub(crate) fn list_sessions(&self, owner: Option<&str>, limit: usize) -> SessionList {
        let mut sessions = Vec::new();
        for shard in 0..self.sessions.shards.len() {
            let shown = |head: &Head| owner.is_none_or(|owner| head.owner == owner);
            sessions.extend(self.sessions.lock(shard).machine.list(limit, shown).sessions);
        }
        sessions.sort_unstable_by_key(|view| view.session);
        sessions.truncate(limit);
        SessionList { sessions }
    }

    /// How a session stands once its epoch is above `after`, once it has ended, or after `wait`.
    ///
    /// # Errors
    /// `kvsp-session-unknown`; `kvsp-overloaded` where too many wait.
    pub(crate) async fn await_epoch(
        self: &Arc<Self>,
        session: Uuid,
        after: u64,
        wait: Duration,
    ) -> Result<SessionView, Problem> {
        let is_news = |view: &SessionView| view.epoch > after || view.state.is_final();
        let view = self.view_session(session)?;
        if is_news(&view) {
            return Ok(view);
        }
        let until = Instant::now() + wait;
        let waiter = self.sessions.waits.join(session).ok_or_else(|| {
            Problem::new(ProblemType::Overloaded, "too many requests wait for sessions")
                .retry_after(RETRY_AFTER_S)
        })?;
        loop {
            let mut changed = pin!(waiter.changed());
            // Before the session is looked at, so that no change falls between the two.
            changed.as_mut().enable();
            let view = self.view_session(session)?;
            if is_news(&view) {
                return Ok(view);
            }
            let waited =
                self.sessions.closing.run_until_cancelled(tokio::time::timeout_at(until, changed)).await;
            if !matches!(waited, Some(Ok(()))) {
                return self.view_session(session);
            }
        }
    }
}
